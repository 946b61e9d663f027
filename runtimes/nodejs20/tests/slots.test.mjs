// Several calls at once in one process.
import test from 'node:test'
import assert from 'node:assert/strict'
import { withHandler, until } from './driver.mjs'

const SLOTS = 20
const logOf = (worker, slot, call, stream = 1) => Buffer.concat(worker.frames.filter((f) => f.name === 'LOG' && f.slot === slot && f.call === call && f.stream === stream).map((f) => f.body)).toString()

test('twenty calls at once, each with its own log', () => withHandler(`
console.log('loading')
const emitter = new (require('events'))()
exports.handle = async (event, context) => { console.log('a', event.n); await new Promise((r) => setTimeout(r, 200))
  console.error('b', event.n); process.stdout.write('c ' + event.n); if (event.n === 7) throw new RangeError('seven'); return context.invocationId }`, async (worker) => {
  const began = Date.now()
  const ends = await Promise.all(Array.from({ length: SLOTS }, (_, slot) => worker.call(1, { slot, head: { id: `id ${slot}` }, body: `{"n":${slot}}` })))
  assert.ok(Date.now() - began < 2000)
  for (const [slot, end] of ends.entries()) {
    assert.equal(logOf(worker, slot, 1), `a ${slot}\nc ${slot}`)
    assert.match(logOf(worker, slot, 1, 2), slot === 7 ? /^b 7\nRangeError: seven\n/ : new RegExp(`^b ${slot}\n$`))
    assert.equal(end.name === 'ERROR' ? end.head.message : end.body.toString(), slot === 7 ? 'seven' : `id ${slot}`)
  }
  assert.equal(worker.out.text, 'loading\n', 'the pipes hold what belongs to no call')
}, { slots: SLOTS }))

test('what nobody catches ends the call that it belongs to', () => withHandler(`
exports.handle = (event) => event.lose === 1 ? new Promise(() => { setTimeout(() => { throw new RangeError('thrown') }, 30) })
  : event.lose === 2 ? new Promise(() => { setTimeout(() => Promise.reject(new RangeError('rejected')), 30) })
  : new Promise((r) => setTimeout(r, 300, 'fine'))`, async (worker) => {
  const [fine, thrown, rejected] = await Promise.all([0, 1, 2].map((slot) => worker.call(1, { slot, body: `{"lose":${slot}}` })))
  assert.equal(fine.body?.toString(), 'fine', JSON.stringify(fine.head))
  assert.deepEqual([thrown.head.message, thrown.usage.flags, rejected.head.message, rejected.usage.flags], ['thrown', 2, 'rejected', 2])
}, { slots: 3 }))

test('calls that wait on a slot, and revoked ones', () => withHandler("exports.handle = async (event) => { await 0; console.log('n', event.n); return event.n }", async (worker) => {
  worker.revoke(2, 1)
  for (let call = 1; call <= 3; call++) worker.invoke(call, { slot: 1, waiting: call > 1, body: `{"n":${call}}` })
  await worker.end(3, 1)
  assert.deepEqual(worker.frames.filter((f) => f.slot === 1).map((f) => `${f.name} ${f.call}`), ['LOG 1', 'RESULT 1', 'SKIPPED 2', 'LOG 3', 'RESULT 3'])
  assert.deepEqual([worker.taken(0), worker.taken(1)], [0, 3])
  assert.equal(worker.out.text, '', 'no marks')
}, { slots: 2 }))

test('a late line of a call that is over belongs to none', () => withHandler("exports.handle = () => { setTimeout(() => console.log('late'), 20); return 1 }", async (worker) => {
  await worker.call(1, { slot: 1 })
  await until(() => worker.out.text === 'late\n', 'the late line, by the pipe')
  assert.equal(logOf(worker, 1, 1), '')
}, { slots: 2 }))
