// The script of the page, given on standard input, in a page that is only as much of one as it needs.
import assert from 'node:assert'
import fs from 'node:fs'

class Element {
  constructor(tag) { Object.assign(this, {tag, within: [], style: {}, dataset: {}}) }
  append(e) { e.into = this; this.within.push(e) }
  replaceChildren(...all) { for (const e of all) e.into = this; this.within = all }
  remove() { this.into.within = this.into.within.filter(e => e !== this) }
}
const elements = {}
globalThis.document = {getElementById: id => elements[id] ??= new Element('div'), createElement: tag => new Element(tag)}
const streams = []
globalThis.EventSource = class {
  static CLOSED = 2
  constructor() { this.readyState = 1; streams.push(this) }
}
const timers = []
globalThis.setTimeout = f => timers.push(f)
let answers = null
globalThis.fetch = async () => { if (answers) return answers; throw new TypeError('it is not there') }

const page = new Function(fs.readFileSync(0, 'utf8').match(/<script>([^]*)<\/script>/)[1] + '; return {boards}')()
const told = picture => streams.at(-1).onmessage({data: JSON.stringify(picture)})
const titles = () => elements.boards.within.map(e => e.title)

// 600 boards, of which the later half comes first, and others of any name.
const html = '<img src=x onerror=alert(1)>', long = 'x'.repeat(200)
const all = {[html]: 'core-1', [long]: '', constructor: 'core-2', __proto: 'core-2'}
for (let i = 300; i < 600; i++) all['board-' + i] = 'core-1'
told({line: 'one', cores: [{id: html, pid: 7, state: 'active', boards: 303}], boards: all, lines: ['first', 'second']})
assert.equal(elements.cores.within[0].within[1].textContent, html)
assert.equal(elements.lines.textContent, 'second\nfirst')
for (let i = 0; i < 300; i++) all['board-' + i] = 'core-2'
delete all.constructor
told({line: 'two', cores: null, boards: all, lines: null})
assert.equal(titles().length, 603)
assert.ok(titles().includes(html + ': core-1') && titles().includes(long + ': nobody'))
assert.deepEqual(titles().filter(t => t.startsWith('board-')).map(t => parseInt(t.slice(6))), [...Array(600).keys()])

// The example goes away, and comes back.
await page.boards(50)
assert.equal(elements.error.textContent, 'the example does not answer')
answers = {ok: false, text: async () => 'why not'}
await page.boards(50)
assert.equal(elements.error.textContent, 'why not')
streams[0].onerror()
assert.equal(elements.line.textContent, 'the example does not answer')
assert.equal(streams.length, 1) // the browser connects again
streams[0].readyState = EventSource.CLOSED
streams[0].onerror()
timers.forEach(f => f())
assert.equal(streams.length, 2)
told({line: 'back', cores: [], boards: {}, lines: []})
assert.equal(elements.line.textContent, 'back')
assert.equal(titles().length, 0)
