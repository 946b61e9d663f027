// Where a handler is stuck.
import test from 'node:test'
import assert from 'node:assert/strict'
import fs from 'node:fs'
import { withHandler, until } from './driver.mjs'

const STUCK = `const where = {
  stuck_here() { while (true) {} },
  matching_here() { /^(a+)+$/.test('a'.repeat(64) + 'b') },
  async after_await() { await 0; for (;;) {} },
}
exports.handle = (event) => { console.log('go'); return event.wait ? new Promise(() => {}) : where[event.where]() }\n`

async function ask(worker) {
  await until(() => worker.out.text === 'go\n', 'the handler to begin')
  const began = Date.now()
  fs.writeSync(worker.request.write, 'x')
  const text = await until(() => worker.answer.text.endsWith('\0') && worker.answer.text, 'a stack')
  assert.ok(Date.now() - began < 5000, `it took ${Date.now() - began} ms`)
  return text
}

for (const where of ['stuck_here', 'matching_here', 'after_await']) {
  test(`the stack of ${where}`, () => withHandler(STUCK, async (worker) => {
    worker.invoke(1, { body: JSON.stringify({ where }) })
    const text = await ask(worker)
    assert.match(text, new RegExp(`at .*${where}.*handler\\.js:\\d+:\\d+`))
    assert.doesNotMatch(text, /slot\.cjs|watcher/)
    assert.equal(worker.exit, undefined)
    worker.process.kill('SIGKILL')
  }))
}

test('nothing for a handler that only waits', () => withHandler(STUCK, async (worker) => {
  worker.invoke(1, { body: '{"wait":1}' })
  assert.equal(await ask(worker), '\0')
  worker.process.kill('SIGKILL')
}))

test('the thread does not hold up the exit', () => withHandler('exports.handle = () => process.exit(4)', async (worker) => {
  await new Promise((resolve) => setTimeout(resolve, 150))
  const began = Date.now()
  worker.invoke(1)
  assert.equal((await worker.exited).code, 4)
  assert.ok(Date.now() - began < 3000)
}))

test('the function\'s NODE_OPTIONS do not run in the thread', () => withHandler('exports.handle = () => 1', async (worker) => {
  await new Promise((resolve) => setTimeout(resolve, 150))
  assert.equal(worker.out.text, 'required\n')
}, { env: { NODE_OPTIONS: '--require ./hook.cjs' }, files: { 'hook.cjs': "console.log('required')\n" } }))
