#!/usr/bin/env node
// A caller of the control plane, of nothing but what Node 18 has.
//
//     caller.mjs call  PROXY KEY               adds one to a counter, at whoever has the key, by nokv proxy
//     caller.mjs route REST,REST KEYSPACE KEY  who has a key, by the REST of coordinators
//     caller.mjs watch REST,REST KEYSPACE      each change of a keyspace, without a gap, until it is ended
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

const silence = 5000; // ms without a byte, after which another one is asked; a watch says "alive" each second

// Refused has a problem document: reason is for programs, detail and way_out are for people.
class Refused extends Error {
  constructor(problem) { super('refused: ' + JSON.stringify(problem)); }
}

const notNow = status => [502, 503, 504].includes(status);

// Asks one after the other, until one answers or the time is over; each may be asked twice.
async function ask(urls, init = {}, within = 30_000) {
  const end = performance.now() + within;
  for (let n = 0, pause = 50; ; n++, pause = Math.min(2 * pause, 1000)) {
    let no, wait = 0;
    try {
      const answer = await fetch(urls[n % urls.length], { ...init, signal: AbortSignal.timeout(silence) });
      if (answer.ok) return await answer.json();
      no = await problem(answer);
      wait = 1000 * Number(answer.headers.get('Retry-After') ?? 0);
      if (!notNow(answer.status)) throw new Refused(no); // it says the same tomorrow
    } catch (e) { // nobody listens, or the answer was lost
      if (e instanceof Refused) throw e;
      no = { reason: 'unreachable', detail: String(e.cause ?? e) };
    }
    wait = Math.max(wait, pause * (1 + Math.random()) / 2);
    if (performance.now() + wait > end) throw new Refused(no);
    console.error(`${no.reason}: again in ${(wait / 1000).toFixed(2)} s`);
    await sleep(wait);
  }
}

// What a refusal says. One without a document is of something in between.
async function problem(answer) {
  if (answer.headers.get('Content-Type')?.startsWith('application/problem+json')) return answer.json();
  return { reason: `http_${answer.status}`, detail: (await answer.text()).slice(0, 200) };
}

// The bytes of a text as a header takes them: one character each.
const bytes = text => Buffer.from(text).toString('latin1');

// Adds one, once: the name of the request makes it one that may be sent again.
const call = (proxy, key) => ask([proxy], { method: 'POST', headers: { 'X-Game': bytes(key), 'Idempotency-Key': randomUUID() } });

// Who has a key, and the headers that a request to it carries. Numbers of 64 bits are text, and stay it.
async function route(rest, keyspace, key) {
  const name = encodeURIComponent(key.replaceAll('\\', '\\\\')); // keys are text with \xNN
  const { region, owners } = await ask(rest.map(url => `${url}/v1/keyspaces/${keyspace}/keys/${name}`));
  const epoch = `${region.epoch.version}.${region.epoch.conf_version}`;
  return {
    owners: owners.map(o => ({ member: o.member_id, address: o.address })),
    headers: { 'Nokv-Keyspace': keyspace, 'Nokv-Region': region.id, 'Nokv-Epoch': epoch },
  };
}

// Every event, for ever: from another coordinator where one fails, from where the one before was.
async function* watch(rest, keyspace) {
  for (let n = 0, at = ''; ; n++) {
    const quiet = new AbortController();
    let timer = setTimeout(() => quiet.abort(), silence);
    try {
      const answer = await fetch(`${rest[n % rest.length]}/v1/keyspaces/${keyspace}/watch`, { headers: at ? { 'Last-Event-ID': at } : {}, signal: quiet.signal });
      if (!answer.ok && !notNow(answer.status)) throw new Refused(await problem(answer));
      let event = {}, half = '';
      for await (const part of answer.ok ? answer.body.pipeThrough(new TextDecoderStream()) : []) {
        timer.refresh();
        const lines = (half + part).split('\n');
        half = lines.pop();
        for (const line of lines) {
          const colon = line.indexOf(': ');
          if (colon > 0) {
            event[line.slice(0, colon)] = line.slice(colon + 2);
          } else if ('event' in event) {
            yield [event.event, JSON.parse(event.data)];
            at = event.id ?? at; // behind the event: it was taken
            event = {};
          }
        }
      }
    } catch (e) {
      if (e instanceof Refused) throw e;
    } finally {
      clearTimeout(timer);
    }
    await sleep(100 + 100 * Math.random());
  }
}

const [command, where, ...words] = process.argv.slice(2);
try {
  if (command === 'watch') {
    for await (const [kind, event] of watch(where.split(','), ...words)) {
      for (const change of event.changes ?? []) console.log(kind, JSON.stringify(change));
    }
  } else {
    console.log(JSON.stringify(await (command === 'call' ? call(where, ...words) : route(where.split(','), ...words))));
  }
} catch (e) {
  console.error(e.message);
  process.exitCode = 1;
}
