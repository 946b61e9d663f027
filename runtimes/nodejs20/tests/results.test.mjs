// What a handler returns, and what becomes of it.
import test from 'node:test'
import assert from 'node:assert/strict'
import { withHandler } from './driver.mjs'

const JSON_HEAD = [['content-type', 'application/json']]
const TEXT_HEAD = [['content-type', 'text/plain; charset=utf-8']]
const BYTES_HEAD = [['content-type', 'application/octet-stream']]

/** One worker evaluates each expression as its result. */
const EVALUATE = 'exports.handle = (event) => eval(event)\n'
const evaluate = (worker, call, expression) => worker.call(call, { event: 'text', body: expression })

const WHOLE = [
  ['({ a: [1, 2.5, null, true] })', 200, JSON_HEAD, '{"a":[1,2.5,null,true]}'],
  ['[1, 2]', 200, JSON_HEAD, '[1,2]'],
  ['7', 200, JSON_HEAD, '7'],
  ['false', 200, JSON_HEAD, 'false'],
  ['new Number(3)', 200, JSON_HEAD, '3'],
  ["'héllo'", 200, TEXT_HEAD, 'héllo'],
  ["''", 200, TEXT_HEAD, ''],
  ["'\\ud800'", 200, TEXT_HEAD, '\ufffd'],
  ['Buffer.from([0, 255])', 200, BYTES_HEAD, Buffer.from([0, 255])],
  ['new Uint8Array([1, 2]).buffer', 200, BYTES_HEAD, Buffer.from([1, 2])],
  ['new DataView(new Uint8Array([1, 2, 3]).buffer, 1)', 200, BYTES_HEAD, Buffer.from([2, 3])],
  ['undefined', 204, [], ''],
  ['null', 204, [], ''],
  ['Promise.resolve(null)', 204, [], ''],
  ["({ statusCode: 404, body: 'nope' })", 404, TEXT_HEAD, 'nope'],
  ['({ statusCode: 200, body: { a: 1 } })', 200, JSON_HEAD, '{"a":1}'],
  ['({ statusCode: 204 })', 204, [], ''],
  ["({ statusCode: 201, headers: { 'Content-Type': 'image/gif' }, body: 'R0lG', isBase64Encoded: true })", 201, [['Content-Type', 'image/gif']], 'GIF'],
  ["({ statusCode: 200, headers: { 'Set-Cookie': ['a=1', 'b=2'], 'X-N': 5 }, body: '' })", 200, [['Set-Cookie', 'a=1'], ['Set-Cookie', 'b=2'], ['X-N', '5'], ...TEXT_HEAD], ''],
  ["({ statusCode: 200, headers: new Headers({ 'x-a': 'b' }), body: Buffer.from('x') })", 200, [['x-a', 'b'], ...BYTES_HEAD], 'x'],
  ["({ statusCode: 'later' })", 200, JSON_HEAD, '{"statusCode":"later"}'],
  ['({ statusCode: 200.5 })', 200, JSON_HEAD, '{"statusCode":200.5}'],
  ['({ at: new Date(0), map: new Map([["a", new Set([1])], [2, 3], [true, 4], [null, 5]]), set: new Set([3]) })', 200, JSON_HEAD,
    '{"at":"1970-01-01T00:00:00.000Z","map":{"2":3,"a":[1],"true":4,"null":5},"set":[3]}'],
  ['({ a: { toJSON() { return { b: new Set([1]) } } }, u: undefined, l: [undefined] })', 200, JSON_HEAD, '{"a":{"b":[1]},"l":[null]}'],
  ['({ x: new Float32Array([1, 2]), p: new (class Point { constructor() { this.x = 1 } }) })', 200, JSON_HEAD, '{"x":[1,2],"p":{"x":1}}'],
  ['(() => { const shared = {}; return { a: shared, b: shared, d: new Date(0) } })()', 200, JSON_HEAD, '{"a":{},"b":{},"d":"1970-01-01T00:00:00.000Z"}'],
  ['JSON.parse(\'{"__proto__": {"a": 1}, "d": 1}\')', 200, JSON_HEAD, '{"__proto__":{"a":1},"d":1}'],
  ['({ s: "\\ud800" })', 200, JSON_HEAD, '{"s":"\\ud800"}'],
]

test('results become answers', () => withHandler(EVALUATE, async (worker) => {
  let call = 0
  for (const [expression, status, head, body] of WHOLE) {
    const end = await evaluate(worker, ++call, expression)
    assert.deepEqual([end.name, end.status, end.head, end.body.toString('latin1')], ['RESULT', status, head, Buffer.from(body).toString('latin1')], expression)
  }
}))

const REFUSED = [
  ['({ deep: [NaN] })', 'ResultNotSerializable', 'deep[0]'],
  ['({ deep: [10n] })', 'ResultNotSerializable', 'deep[0]'],
  ['((a) => { a.push(a); return { deep: a } })([])', 'ResultNotSerializable', 'deep[0]'],
  ['({ a: [0, () => 1] })', 'ResultNotSerializable', 'a[1]'],
  ['({ a: { b: Symbol("x") } })', 'ResultNotSerializable', 'a.b'],
  ['({ f() {} })', 'ResultNotSerializable', 'f '],
  ['({ "a b": -Infinity })', 'ResultNotSerializable', '["a b"]'],
  ['({ m: new Map([["k", NaN]]) })', 'ResultNotSerializable', 'm.k'],
  ['({ m: new Map([[{}, 1]]) })', 'ResultNotSerializable', 'm '],
  ['({ p: Promise.resolve(1) })', 'ResultNotSerializable', 'p '],
  ['({ b: Buffer.from("x") })', 'ResultNotSerializable', 'b '],
  ['({ s: new (require("net").Socket)() })', 'ResultNotSerializable', 's '],
  ['({ d: new Date(NaN) })', 'ResultNotSerializable', 'd '],
  ['({ e: new TypeError("x") })', 'ResultNotSerializable', 'e is an object of TypeError'],
  ['NaN', 'ResultNotSerializable', 'NaN'],
  ['10n', 'ResultNotSerializable', 'BigInt'],
  ['(() => 1)', 'ResultNotSerializable', 'function'],
  ['(() => { let a = 1; for (let i = 0; i < 100000; i++) a = [a]; return a })()', 'ResultNotSerializable', 'deep'],
  ['({ statusCode: 70000 })', 'InvalidResponse', '70000'],
  ['({ statusCode: 99 })', 'InvalidResponse', '99'],
  ['({ statusCode: 200, headers: { a: {} } })', 'InvalidResponse', '"a"'],
  ['({ statusCode: 200, headers: "x" })', 'InvalidResponse', 'headers'],
  ['({ statusCode: 200, body: "!!", isBase64Encoded: true })', 'InvalidResponse', 'base64'],
  ['({ statusCode: 200, body: { x: [Infinity] } })', 'ResultNotSerializable', 'x[0]'],
]

test('results that have no form are errors that say where', () => withHandler(EVALUATE, async (worker) => {
  let call = 0
  for (const [expression, type, part] of REFUSED) {
    const end = await evaluate(worker, ++call, expression)
    assert.equal(end.name, 'ERROR', expression)
    assert.equal(end.head.type, type, expression)
    assert.ok(end.head.message.includes(part), `${expression}: ${end.head.message}`)
  }
  assert.equal((await evaluate(worker, ++call, '1')).status, 200, 'the worker goes on')
}))

test('big answers arrive whole', () => withHandler(EVALUATE, async (worker) => {
  const text = await evaluate(worker, 1, "'é'.repeat(2_000_000)")
  assert.equal(text.body.length, 4_000_000)
  assert.ok(text.body.equals(Buffer.from('é'.repeat(2_000_000))))
  const bytes = await evaluate(worker, 2, 'Buffer.alloc(5_000_000, "ab")')
  assert.ok(bytes.body.equals(Buffer.alloc(5_000_000, 'ab')))
  const json = await evaluate(worker, 3, '({ x: "y".repeat(100_000) })')
  assert.equal(json.body.length, 100_008)
}))

const STREAMS = [
  "require('stream').Readable.from(['a', Buffer.from([255]), 'é'])",
  "(function* () { yield 'a'; yield ''; yield Buffer.from([255]); yield 'é' })()",
  "(async function* () { yield 'a'; await 0; yield new Uint8Array([255]); yield 'é' })()",
  "new ReadableStream({ start(c) { c.enqueue('a'); c.enqueue(new Uint8Array([255])); c.enqueue('é'); c.close() } })",
]

test('streams of every kind', () => withHandler(EVALUATE, async (worker) => {
  let call = 0
  for (const expression of STREAMS) {
    const end = await evaluate(worker, ++call, expression)
    assert.equal(end.name, 'END', expression)
    const frames = worker.frames.filter((f) => f.call === call)
    assert.deepEqual(frames.map((f) => f.name), ['STREAM', 'CHUNK', 'CHUNK', 'CHUNK', 'END'], expression)
    assert.deepEqual([frames[0].status, frames[0].head], [200, BYTES_HEAD])
    assert.equal(Buffer.concat(frames.slice(1, 4).map((f) => f.body)).toString('latin1'), Buffer.from('61ffc3a9', 'hex').toString('latin1'))
  }
  await evaluate(worker, ++call, `({ statusCode: 201, headers: { 'x-a': 'b', 'content-type': 'text/csv' }, body: ${STREAMS[1]} })`)
  const [stream] = worker.frames.filter((f) => f.call === call)
  assert.deepEqual([stream.status, stream.head], [201, [['x-a', 'b'], ['content-type', 'text/csv']]])
  await evaluate(worker, ++call, '(function* () {})()')
  assert.deepEqual(worker.frames.filter((f) => f.call === call).map((f) => f.name), ['STREAM', 'END'], 'an empty stream')
}))

test('streams that fail', () => withHandler(`
let closed = 0
exports.handle = (event) => event.closed ? closed : event.early
  ? (async function* () { throw new RangeError('early') })()
  : (async function* () { try { yield 'one'; yield event.bad ? 7 : 'two'; throw new RangeError('lost') } finally { closed++ } })()
`, async (worker) => {
  const lost = await worker.call(1)
  assert.deepEqual([lost.name, lost.head.type, lost.head.message], ['ERROR', 'RangeError', 'lost'])
  assert.deepEqual(worker.frames.filter((f) => f.call === 1).map((f) => f.name), ['STREAM', 'CHUNK', 'CHUNK', 'ERROR'])
  const early = await worker.call(2, { body: '{"early":true}' })
  assert.equal(early.head.message, 'early')
  assert.deepEqual(worker.frames.filter((f) => f.call === 2).map((f) => f.name), ['ERROR'], 'nothing was sent: a plain error')
  const bad = await worker.call(3, { body: '{"bad":true}' })
  assert.deepEqual([bad.head.type, bad.head.message], ['InvalidResponse', 'a stream must yield strings or bytes, not number'])
  assert.equal((await worker.call(4, { body: '{"closed":true}' })).body.toString(), '2', 'the generator was told that nobody reads it')
}))

test('a thenable that calls back twice counts once', () => withHandler(`exports.handle = () => ({ then(ok, fail) {
  ok((async function* () { yield 'a'; await new Promise((r) => setTimeout(r, 20)); yield 'b' })()); setTimeout(() => { ok(1); fail(new Error('late')) }, 10) } })`, async (worker) => {
  assert.equal((await worker.call(1)).name, 'ERROR', 'the later failure cuts the stream')
  assert.deepEqual(worker.frames.filter((f) => f.call === 1).map((f) => f.name), ['STREAM', 'CHUNK', 'ERROR'])
}))

test('a stream waits for a slow reader', () => withHandler(`
let made = 0
exports.handle = (event) => event.made ? made : (function* () { for (; made < 200; made++) yield Buffer.alloc(65536) })()
process.on('SIGUSR2', () => console.log('made', made))
`, async (worker) => {
  worker.sockets[0].pause()
  worker.invoke(1)
  await new Promise((resolve) => setTimeout(resolve, 300))
  worker.process.kill('SIGUSR2')
  const { until } = await import('./driver.mjs')
  const made = Number((await until(() => /made (\d+)/.exec(worker.out.text), 'the count'))[1])
  assert.ok(made > 0 && made < 100, `${made} chunks were made while nobody read`)
  worker.sockets[0].resume()
  await worker.frame('END', 1)
  assert.equal(worker.frames.filter((f) => f.name === 'CHUNK').reduce((sum, f) => sum + f.body.length, 0), 200 * 65536)
}))
