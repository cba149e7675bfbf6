#!/usr/bin/env python3
"""A counter for each key, behind `nokv proxy`, made a member by `nokv sidecar`.

    counter.py PORT FOLDER [HOST]   POST / adds one to the counter of X-Game, GET / tells it

What is kept where: a counter is a file in FOLDER, a line for each one added, which is on the
disk before the caller hears of it. So nothing that was acknowledged is lost when this process
is killed; FOLDER has to be where the next owner finds it, and here that is the same machine.
Between machines it takes a file system where two who append never overwrite each other, and each
reads at once what the other wrote: NFS is none. In memory is only what can be read
from there.

What keeps two owners apart: each line begins with the region and the epoch of who wrote it.
Behind a line of a newer one, lines of older ones do not count, and who wrote one reads so.
"""
import base64, hashlib, http.server, json, os, secrets, sys, threading, urllib.error, urllib.parse, urllib.request

PORT, FOLDER, HOST = int(sys.argv[1]), sys.argv[2], (sys.argv + ["127.0.0.1"])[3]
SIDECAR, TOKEN = os.environ["NOKV_SIDECAR_URL"], "Bearer " + os.environ["NOKV_SIDECAR_TOKEN"]
held, lock = {}, threading.Lock()  # regions by number, guarded by lock, which is held while one is worked on


class Counter:
    def __init__(self, key, region, epoch):
        self.epoch, self.own = epoch, [int(region)] + [int(n) for n in epoch.split(".")]
        self.newest, self.added, self.at, self.rest = [0, 0, 0], set(), 0, ""
        name = hashlib.sha256(key).hexdigest()
        self.file = open(os.path.join(FOLDER, name), "a+b", buffering=0)
        self.append("-")  # older owners' lines count no more from here on

    def append(self, what):
        """Adds a line, and says whether it counts."""
        os.write(self.file.fileno(), ("\n%d.%d.%d %s\n" % (*self.own, what)).encode())
        os.fsync(self.file.fileno())
        return self.read()

    def read(self):
        """Reads what is new, and says whether this is still the newest owner."""
        new = os.pread(self.file.fileno(), os.fstat(self.file.fileno()).st_size - self.at, self.at)
        self.at += len(new)
        *lines, self.rest = (self.rest + new.decode(errors="replace")).split("\n")
        for line in lines:
            who, _, what = line.partition(" ")
            if (what == "-" or len(what) == 64) and [int(n) for n in who.split(".")] >= self.newest:
                self.newest = [int(n) for n in who.split(".")]
                self.added |= {what} - {"-"}
        return self.newest == self.own


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=None, headers={}):
        raw = json.dumps(body or {}).encode() + b"\n"
        self.send_response(status)
        for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(raw))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/nokv/ready":
            return self.answer(200)
        self.serve(lambda c: c.read())

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.path.startswith("/nokv/"):
            # One key of idempotency is added once, however often it comes.
            once = self.headers.get("Idempotency-Key") or secrets.token_hex()
            return self.serve(lambda c: c.append(hashlib.sha256(once.encode()).hexdigest()))
        if not secrets.compare_digest(self.headers.get("Authorization", ""), TOKEN):
            return self.answer(401)  # a caller, and not the sidecar
        call = json.loads(body)
        with lock:
            if call["call"] == "acquire":
                key = base64.b64decode(call["start_key"])  # bytes: "key" is there only if they are text
                held[call["region"]] = Counter(key, call["region"], call["epoch"])
            elif call["call"] in ("release", "evict"):
                c = held.pop(call["region"], None)  # None: the answer was lost, and it is asked again
                return self.answer(200, {"frontier": str(len(c.added)) if c else call["frontier"]})
            elif call["call"] == "checkpoint":
                return self.answer(200, {"frontier": str(len(held[call["region"]].added))})
            else:
                return self.answer(404)  # the sidecar knows what to do without
        self.answer(200)

    def serve(self, work):
        region, epoch, key = (self.headers.get(h, "") for h in ("Nokv-Region", "Nokv-Epoch", "X-Game"))
        key = key.encode("latin-1")  # the bytes that came, as which http.server took them
        with lock:
            c = held.get(region)
        if c is None or c.epoch != epoch:  # it may be on its way here, or elsewhere: the sidecar waits, and knows
            asked = urllib.parse.urlencode({"keyspace": self.headers.get("Nokv-Keyspace", ""), "region": region, "epoch": epoch, "key_base64": base64.b64encode(key), "wait_millis": 5000})
            request = urllib.request.Request(SIDECAR + "/nokv/may?" + asked, headers={"Authorization": TOKEN})
            try:
                may = json.load(urllib.request.urlopen(request, timeout=10))
            except urllib.error.HTTPError as e:  # no region or no epoch that can be read
                return self.answer(400, json.load(e))
            if not may["may"]:
                return self.answer(may["status"], may, may["headers"])
        with lock:
            c = held.get(region)
            if c is None or c.epoch != epoch or not work(c):
                return self.answer(421, headers={"Nokv-Refused": "not_owned"})
            count = len(c.added)
        self.answer(200, {"key": key.decode(errors="backslashreplace"), "count": count, "member": os.environ["NOKV_MEMBER_ID"], "pid": os.getpid()})


os.makedirs(FOLDER, exist_ok=True)
http.server.ThreadingHTTPServer.request_queue_size = 128
http.server.ThreadingHTTPServer((HOST, PORT), Handler).serve_forever()
