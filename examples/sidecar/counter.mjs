// The counters of counter.py, in Node, and with the same files. It asks the sidecar for its
// calls (nokv sidecar --poll) where that one listens for them.
//
//   counter.mjs PORT FOLDER        POST / adds one to the counter of X-Game, GET / tells it
//
// What is kept where, and what keeps two owners apart: see counter.py.
import { createHash, randomUUID } from "node:crypto";
import { createServer } from "node:http";
import fs from "node:fs";
import path from "node:path";

const [port, folder] = [Number(process.argv[2]), process.argv[3]];
const sidecar = process.env.NOKV_SIDECAR_URL;
const headers = { Authorization: "Bearer " + process.env.NOKV_SIDECAR_TOKEN };
const held = new Map(); // regions by number, which is text: it may have more bits than a number has
const hash = (bytes) => createHash("sha256").update(bytes).digest("hex");
const newer = (a, b) => a.map((n, i) => [n, b[i]]).find(([x, y]) => x !== y)?.reduce((x, y) => x > y) ?? true;

class Counter {
  newest = [0n, 0n, 0n];
  added = new Set();
  rest = "";
  at = 0;
  constructor({ start_key, region, epoch }) {
    this.epoch = epoch;
    this.own = [region, ...epoch.split(".")].map(BigInt);
    this.fd = fs.openSync(path.join(folder, hash(Buffer.from(start_key, "base64"))), "a+"); // bytes: "key" is there only if they are text
    this.append("-"); // older owners' lines count no more from here on
  }
  append(what) {
    fs.writeSync(this.fd, `\n${this.own.join(".")} ${what}\n`);
    fs.fsyncSync(this.fd); // behind this a caller may hear of it
    return this.read();
  }
  read() {
    const size = fs.fstatSync(this.fd).size, bytes = Buffer.alloc(size - this.at);
    fs.readSync(this.fd, bytes, 0, bytes.length, this.at);
    this.at = size;
    const lines = (this.rest + bytes).split("\n");
    this.rest = lines.pop();
    for (const line of lines) {
      const [who, what = ""] = line.split(" ");
      if ((what !== "-" && what.length !== 64) || !newer(who.split(".").map(BigInt), this.newest)) continue;
      this.newest = who.split(".").map(BigInt);
      if (what !== "-") this.added.add(what);
    }
    return this.newest.join() === this.own.join();
  }
}

function called(call) {
  const c = held.get(call.region);
  switch (call.call) {
    case "acquire":
      held.set(call.region, new Counter(call));
      return {};
    case "release":
    case "evict":
      held.delete(call.region);
      if (c) fs.closeSync(c.fd);
      return { frontier: c ? String(c.added.size) : call.frontier };
    case "checkpoint":
      return { frontier: String(c.added.size) };
  }
  return { unsupported: true }; // the sidecar knows what to do without
}

// One call after the other: each is done at once here.
async function poll() {
  for (let again = true; ; ) {
    const next = await fetch(`${sidecar}/nokv/next?again=${again}`, { headers });
    again = false;
    if (next.status !== 200) continue; // 204: nothing for a while
    const call = await next.json();
    let answer;
    try {
      answer = called(call);
    } catch (e) {
      answer = { error: String(e) };
    }
    await fetch(`${sidecar}/nokv/done/${call.id}`, { method: "POST", headers, body: JSON.stringify(answer) });
  }
}

async function serve(req, res) {
  const answer = (status, body, more = {}) => res.writeHead(status, { ...more, "Content-Type": "application/json" }).end(JSON.stringify(body) + "\n");
  const region = req.headers["nokv-region"] ?? "", epoch = req.headers["nokv-epoch"] ?? "";
  const key = Buffer.from(req.headers["x-game"] ?? "", "latin1"); // the bytes that came, as which Node took them
  const mine = () => (held.get(region)?.epoch === epoch ? held.get(region) : undefined);
  for await (const _ of req); // nobody needs the body
  if (!mine()) {
    const asked = new URLSearchParams({ keyspace: req.headers["nokv-keyspace"] ?? "", region, epoch, key_base64: key.toString("base64"), wait_millis: 5000 });
    const told = await fetch(`${sidecar}/nokv/may?${asked}`, { headers });
    const may = await told.json();
    if (told.status !== 200) return answer(400, may);
    if (!may.may) return answer(may.status, may, may.headers);
  }
  const c = mine(); // nothing comes between this and the line on the disk: there is one thread
  const once = hash(req.headers["idempotency-key"] ?? randomUUID());
  if (!c || !(req.method === "POST" ? c.append(once) : c.read())) return answer(421, {}, { "Nokv-Refused": "not_owned" });
  answer(200, { key: key.toString(), count: c.added.size, member: process.env.NOKV_MEMBER_ID, pid: process.pid });
}

fs.mkdirSync(folder, { recursive: true });
createServer((req, res) => serve(req, res).catch((e) => res.writeHead(500).end(String(e)))).listen(port, "127.0.0.1", () =>
  poll().catch((e) => {
    console.error(e);
    process.exit(1); // without a sidecar it is nobody's
  }),
);
