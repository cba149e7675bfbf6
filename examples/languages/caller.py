#!/usr/bin/env python3
"""A caller of the control plane, of nothing but the standard library.

    caller.py call  PROXY KEY               adds one to a counter, at whoever has the key, by nokv proxy
    caller.py route REST,REST KEYSPACE KEY  who has a key, by the REST of coordinators
    caller.py watch REST,REST KEYSPACE      each change of a keyspace, without a gap, until it is ended
"""
import http.client, itertools, json, random, secrets, sys, time, urllib.error, urllib.parse, urllib.request

SILENCE = 5  # seconds without a byte, after which another one is asked; a watch says "alive" each second


class Refused(Exception):
    """A problem document: reason is for programs, detail and way_out are for people."""


def ask(urls, headers={}, data=None, within=30):
    """Asks one after the other, until one answers or the time is over; each may be asked twice."""
    end, pause = time.monotonic() + within, 0.05
    for url in itertools.cycle(urls):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=SILENCE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            no, wait = problem(e), float(e.headers.get("Retry-After", 0))
            if e.code not in (502, 503, 504):  # everything else says the same tomorrow
                raise Refused(no)
        except (OSError, http.client.HTTPException) as e:  # nobody listens, or the answer was lost
            no, wait = {"reason": "unreachable", "detail": str(e)}, 0
        wait = max(wait, random.uniform(pause / 2, pause))
        if time.monotonic() + wait > end:
            raise Refused(no)
        print("%s: again in %.2f s" % (no["reason"], wait), file=sys.stderr)
        time.sleep(wait)
        pause = min(2 * pause, 1)


def problem(e):
    """What a refusal says. One without a document is of something in between."""
    raw = e.read()
    if e.headers.get_content_type() == "application/problem+json":
        return json.loads(raw)
    return {"reason": "http_%d" % e.code, "detail": raw.decode(errors="replace")[:200]}


def call(proxy, key):
    """Adds one, once: the name of the request makes it one that may be sent again."""
    name = key.encode().decode("latin-1")  # as which http.client sends headers: the bytes of the key
    return ask([proxy], {"X-Game": name, "Idempotency-Key": secrets.token_hex(16)}, b"")


def route(rest, keyspace, key):
    """Who has a key, and the headers that a request to it carries."""
    name = urllib.parse.quote(key.replace("\\", "\\\\"), safe="")  # keys are text with \xNN
    found = ask(["%s/v1/keyspaces/%s/keys/%s" % (url, keyspace, name) for url in rest])
    region, epoch = found["region"], found["region"]["epoch"]
    headers = {"Nokv-Keyspace": keyspace, "Nokv-Region": region["id"], "Nokv-Epoch": "%s.%s" % (epoch["version"], epoch["conf_version"])}
    return {"owners": [{"member": o["member_id"], "address": o["address"]} for o in found["owners"]], "headers": headers}


def watch(rest, keyspace):
    """Every event, for ever: from another coordinator where one fails, from where the one before was."""
    at = ""
    for url in itertools.cycle(rest):
        try:
            request = urllib.request.Request("%s/v1/keyspaces/%s/watch" % (url, keyspace), headers={"Last-Event-ID": at} if at else {})
            with urllib.request.urlopen(request, timeout=SILENCE) as stream:
                event = {}
                for line in stream:
                    name, _, value = line.decode().rstrip("\r\n").partition(": ")
                    if name:
                        event[name] = value
                    elif "event" in event:
                        yield event["event"], json.loads(event["data"])
                        at, event = event.get("id", at), {}  # behind the event: it was taken
        except urllib.error.HTTPError as e:
            if e.code not in (502, 503, 504):
                raise Refused(problem(e))
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(random.uniform(0.1, 0.2))


def main(command, where, *words):
    if command == "watch":
        for kind, event in watch(where.split(","), *words):
            for change in event.get("changes", []):
                print(kind, json.dumps(change), flush=True)
    else:
        said = call(where, *words) if command == "call" else route(where.split(","), *words)
        print(json.dumps(said))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Refused as e:
        sys.exit("refused: " + json.dumps(e.args[0]))
