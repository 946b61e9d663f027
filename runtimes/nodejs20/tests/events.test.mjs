// What a handler is given.
import test from 'node:test'
import assert from 'node:assert/strict'
import { withHandler } from './driver.mjs'

const ECHO = `exports.handle = (event) => ({ type: Buffer.isBuffer(event) ? 'bytes' : Array.isArray(event) ? 'list' : typeof event,
  event: Buffer.isBuffer(event) ? event.toString('latin1') : event })\n`
const type = (value) => ({ headers: [['content-type', value]] })

const EVENTS = [
  [{ body: '{"t":"Привет, 世界 🦀 \\u0000"}' }, { type: 'object', event: { t: 'Привет, 世界 🦀 \0' } }],
  [{ body: '[1]' }, { type: 'list', event: [1] }],
  [{ event: 'form', body: 'a=1&b=%26&a=2&c=&d=A+L&a=3' }, { type: 'object', event: { a: ['1', '2', '3'], b: '&', c: '', d: 'A L' } }],
  [{ event: 'text', body: 'é', head: type('text/plain') }, { type: 'string', event: 'é' }],
  [{ event: 'text', body: Buffer.from([0xe9, 0x80]), head: type('text/plain; charset=ISO-8859-1') }, { type: 'string', event: 'é\x80' }],
  [{ event: 'text', body: Buffer.from('e4', 'hex'), head: type('text/plain; charset=koi8-r') }, { type: 'string', event: 'Д' }],
  [{ event: 'text', body: Buffer.from('ff61', 'hex'), head: type('text/plain; charset=martian') }, { type: 'string', event: '\ufffda' }],
  [{ event: 'bytes', body: Buffer.from([0, 255]) }, { type: 'bytes', event: '\0\xff' }],
  [{ event: 'query', body: '', head: { raw_query: 'name=Ada&tag=a&tag=b' } }, { type: 'object', event: { name: 'Ada', tag: ['a', 'b'] } }],
  [{ event: 'query', body: '' }, { type: 'object', event: {} }],
]

test('each kind of event', () => withHandler(ECHO, async (worker) => {
  let call = 0
  for (const [options, expected] of EVENTS) {
    const end = await worker.call(++call, options)
    assert.deepEqual(JSON.parse(end.body ?? '0'), expected, JSON.stringify([options, end.head]))
  }
}))

test('names of the caller cannot reach a prototype', () => withHandler('exports.handle = (event, context) => ({ own: Object.keys(event), x: ({}).x ?? null, headers: Object.keys(context.http.headers) })', async (worker) => {
  const end = await worker.call(1, { event: 'form', body: '__proto__=1&__proto__=2&x=3', head: { headers: [['__proto__', 'a'], ['__proto__', 'b']] } })
  assert.equal(end.body.toString(), '{"own":["__proto__","x"],"x":null,"headers":["__proto__"]}')
}))

const HEAD = {
  id: '0193', trigger: 'http', attempt: 2, timeout_ms: 7000, method: 'PUT', path: '/a%20b', raw_query: 'x=1&x=2&y=%26',
  headers: [['x-one', '1'], ['cookie', 'a=1'], ['x-one', '2'], ['cookie', 'b=2']], client_ip: '127.0.0.1', source: { queue: 'q' }, traceparent: '00-a',
}

test('the context', () => withHandler(`exports.handle = (event, context) => {
  const { invocationId, http, remainingMs, getRemainingTimeInMillis, state } = context
  console.log(context)
  return { id: invocationId, aws: context.awsRequestId, ns: context.namespace, fn: context.function, rev: context.revision, trigger: context.trigger,
    attempt: context.attempt, left: remainingMs(), leftToo: getRemainingTimeInMillis(), deadline: context.deadlineMs, source: context.source,
    traceparent: context.traceparent, http: { ...http, body: http.body.toString() }, state, json: JSON.parse(JSON.stringify(context)).invocationId }
}`, async (worker) => {
  const before = Date.now()
  const got = JSON.parse((await worker.call(1, { head: HEAD, body: '{}' })).body)
  assert.ok(got.left > 5000 && got.left <= 7000 && got.leftToo <= 7000, `${got.left} ms are left`)
  assert.ok(got.deadline >= before + 7000 && got.deadline <= Date.now() + 7000)
  delete got.left; delete got.leftToo; delete got.deadline
  assert.deepEqual(got, {
    id: '0193', aws: '0193', ns: 'testing', fn: 'shim', rev: 'r1', trigger: 'http', attempt: 2, source: { queue: 'q' }, traceparent: '00-a',
    http: {
      method: 'PUT', path: '/a%20b', rawQuery: 'x=1&x=2&y=%26', query: [['x', '1'], ['x', '2'], ['y', '&']],
      headers: { 'x-one': '1, 2', cookie: 'a=1; b=2' }, body: '{}', clientIp: '127.0.0.1',
    },
    state: {}, json: '0193',
  })
  assert.match(worker.out.text, /Context \{[\s\S]*invocationId: '0193'[\s\S]*method: 'PUT'/)
}))

test('bodies larger than any buffer, in pieces', () => withHandler('exports.handle = (event, context) => context.http.body', async (worker) => {
  const blob = Buffer.alloc(3_000_001, 'sless')
  const big = worker.call(1, { event: 'bytes', body: blob })
  assert.ok((await big).body.equals(blob))
  const { invoke } = await import('./driver.mjs')
  for (const byte of invoke(2, { event: 'bytes', body: 'abc' })) {
    worker.send(Buffer.of(byte))
    await new Promise((resolve) => setImmediate(resolve))
  }
  assert.equal((await worker.end(2)).body.toString(), 'abc')
}))
