// What a handler raises, and what nobody catches.
import test from 'node:test'
import assert from 'node:assert/strict'
import { withHandler, withWorker, until } from './driver.mjs'

const RETIRE = 2

test('errors carry type, message and the handler\'s own frames', () => withHandler(`
class Lost extends Error {}
function inner(event) { return event.name.first }
const ways = {
  member: (event) => inner(event),
  own: () => { throw new Lost('gone') },
  later: async () => { await 0; throw new RangeError('later') },
  text: () => { throw 'lost' },
  nothing: () => { throw undefined },
  object: () => { throw { code: 7 } },
  cause: () => { throw new Error('outer', { cause: new TypeError('inner one') }) },
  hostile: () => { throw new Proxy(new Error('x'), { get() { throw new Error('no') } }) },
  thenable: () => ({ then(ok, fail) { fail(new RangeError('from then')) } }),
}
exports.handle = (event) => ways[event.way](event)
`, async (worker) => {
  let call = 0
  const raise = async (way) => (await worker.call(++call, { body: JSON.stringify({ way }) })).head
  const member = await raise('member')
  assert.equal(member.type, 'TypeError')
  assert.match(member.traceback, /at inner \(.*handler\.js:3:/)
  assert.doesNotMatch(member.traceback, /runtimes|slot\.cjs|node:internal/)
  await until(() => worker.err.text.includes('at inner ('), 'the traceback is in the log too')
  const own = await raise('own')
  assert.deepEqual([own.type, own.message], ['Lost', 'gone'])
  assert.equal((await raise('later')).type, 'RangeError')
  assert.deepEqual([(await raise('text')).type, worker.frames.at(-1).head.message], ['Error', 'lost'])
  assert.equal((await raise('nothing')).message, 'undefined')
  assert.match((await raise('object')).message, /code: 7/)
  assert.match((await raise('cause')).traceback, /Caused by: TypeError: inner one/)
  assert.equal((await raise('hostile')).type, 'Error')
  assert.equal((await raise('thenable')).message, 'from then')
}))

for (const [what, code] of [
  ['a rejection', "new Promise(() => { Promise.reject(new RangeError('lost')) })"],
  ['a rejection beside a result', "(Promise.reject(new RangeError('lost')), 'fine')"],
  ['a rejection beside an async result', "(async () => { await 0; Promise.reject(new RangeError('lost')); return 'fine' })()"],
  ['a callback', "new Promise(() => { setTimeout(() => { throw new RangeError('lost') }, 10) })"],
  ['a tick', "(process.nextTick(() => { throw new RangeError('lost') }), 'fine')"],
]) {
  test(`${what} that nobody handles is the call's`, () => withHandler(`exports.handle = (event) => event.lose ? ${code} : 'next'`, async (worker) => {
    worker.send(Buffer.concat([(await import('./driver.mjs')).invoke(1, { body: '{"lose":1}' }), (await import('./driver.mjs')).invoke(2, { waiting: true })]))
    const end = await worker.end(1)
    assert.deepEqual([end.name, end.head?.type, end.head?.message, end.usage.flags & RETIRE], ['ERROR', 'RangeError', 'lost', RETIRE])
    assert.equal((await worker.end(2)).body.toString(), 'next', 'and not the next one\'s')
  }))
}

test('a promise that is handled later in the same turn is no error', () => withHandler(`
exports.handle = async () => { const p = Promise.reject(new Error('x')); await 0; p.catch(() => {}); return 'fine' }`, async (worker) => {
  assert.equal((await worker.call(1)).body.toString(), 'fine')
}))

test('what is thrown between calls ends the worker', () => withHandler("exports.handle = () => { setTimeout(() => { throw new Error('late') }, 20); return 1 }", async (worker) => {
  await worker.call(1)
  assert.deepEqual(await worker.exited, { code: 1, signal: null })
  assert.match(worker.err.text, /late/)
}))

test('process.exit keeps its code and the output', () => withHandler("exports.handle = () => { for (let i = 0; i < 3000; i++) console.log('y'.repeat(99)); process.exit(3) }", async (worker) => {
  worker.invoke(1)
  assert.deepEqual(await worker.exited, { code: 3, signal: null })
  await until(() => worker.out.text.length === 300_000, 'all of the output')
  assert.equal(worker.frames.filter((f) => f.call === 1).length, 0)
}))

for (const [what, files, words, entrypoint] of [
  ['a missing module', { 'handler.js': "require('nothing-here')\n" }, ['nothing-here']],
  ['a syntax error', { 'handler.js': '\nexports.handle = (\n' }, ['SyntaxError', 'handler.js:']],
  ['a syntax error in a module', { 'handler.mjs': '\nexport const handle = (\n' }, ['SyntaxError', 'handler.mjs:']],
  ['a syntax error in a file that a module imports', { 'handler.mjs': "import { n } from './lib/a.mjs'\nexport const handle = () => n\n", 'lib/a.mjs': '\nexport const n = (\n' }, ['SyntaxError', 'lib/a.mjs:']],
  ['an import of what is not exported', { 'handler.mjs': "import { nothing } from './a.mjs'\nexport const handle = () => nothing\n", 'a.mjs': 'export const n = 1\n' }, ['nothing', 'a.mjs']],
  ['no such function', { 'handler.js': 'exports.other = () => 1\n' }, ['"handle"', 'other (function)']],
  ['no such file', { 'mistake.txt': '' }, ['handler.js', 'handler.mjs', 'mistake.txt']],
  ['an entrypoint without a function', { 'handler.js': '' }, ['FILE.FUNCTION'], 'handler'],
  ['an error in init', { 'handler.js': "exports.init = () => { throw new Error('no luck') }\nexports.handle = () => 1\n" }, ['no luck']],
  ['an error in a callback before ready', { 'handler.js': "setTimeout(() => { throw new Error('stray') }, 5)\nexports.init = () => new Promise((r) => setTimeout(r, 5000))\nexports.handle = () => 1\n" }, ['stray']],
]) {
  test(`code that does not load: ${what}`, () => withWorker({ files, ...(entrypoint && { entrypoint }) }, async (worker) => {
    const { head } = await worker.frame('INIT_FAILED', 0)
    for (const word of words) assert.ok(`${head.type}: ${head.message}`.includes(word), JSON.stringify(head))
    assert.ok(!`${head.message}${head.traceback}`.includes('worker.cjs'), JSON.stringify(head))
    assert.equal((await worker.exited).code, 1)
  }))
}
