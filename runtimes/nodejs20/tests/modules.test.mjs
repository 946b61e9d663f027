// The forms in which an author may write a handler.
import test from 'node:test'
import assert from 'node:assert/strict'
import { withWorker, withHandler } from './driver.mjs'

for (const [what, files, entrypoint = 'handler.handle'] of [
  ['a named export', { 'handler.mjs': 'export const handle = async (event) => ({ ok: event.n })\n' }],
  ['a default export', { 'handler.mjs': 'export default async (event) => ({ ok: event.n })\n' }],
  ['a default object', { 'handler.mjs': 'export default { n: 0, handle(event) { return { ok: event.n + this.n } } }\n' }],
  ['an object in .cjs', { 'handler.cjs': 'module.exports = { handle: (event) => ({ ok: event.n }) }\n' }],
  ['module.exports = f', { 'handler.js': 'module.exports = (event) => ({ ok: event.n })\n' }],
  ['a default export as compilers write it', { 'handler.js': 'Object.defineProperty(exports, "__esModule", { value: true })\nexports.default = (event) => ({ ok: event.n })\n' }],
  ['a function that gets no this', { 'handler.mjs': 'export function handle(event) { return { ok: this === undefined ? event.n : 0 } }\n' }],
  ['a module without a type', { 'handler.js': 'export function handle(event) { return { ok: event.n } }\n' }],
  ['a module with await at its top', { 'handler.js': 'const n = await Promise.resolve(0)\nexport const handle = (event) => ({ ok: event.n + n })\n' }],
  ['"type": "module"', { 'package.json': '{"type":"module"}', 'lib/a.js': 'export const n = 0\n', 'handler.js': "import { n } from './lib/a.js'\nexport const handle = (event) => ({ ok: event.n + n })\n" }],
  ['CommonJS that only speaks of export', { 'handler.js': 'exports.handle = (event) => { const s = `\nexport default x`\n return { ok: event.n } }\n' }],
  ['a slashed entrypoint', { 'src/app.js': "exports.main = (event) => ({ ok: event.n + require('./lib').n })\n", 'src/lib.js': 'exports.n = 0\n' }, 'src/app.main'],
  ['a dotted entrypoint', { 'src/app.js': "exports.main = (event) => ({ ok: event.n + require('./lib').n })\n", 'src/lib.js': 'exports.n = 0\n' }, 'src.app.main'],
  ['a dependency', { 'node_modules/dep/index.js': 'exports.n = 0\n', 'handler.js': "const { n } = require('dep')\nexports.handle = (event) => ({ ok: event.n + n })\n" }],
  ['a dependency that has no CommonJS form', { 'node_modules/dep/package.json': '{"type":"module","exports":"./i.js"}', 'node_modules/dep/i.js': 'await 0\nexport const n = 0\n', 'handler.mjs': "import { n } from 'dep'\nexport const handle = (event) => ({ ok: event.n + n })\n" }],
]) {
  test(`loads ${what}`, () => withWorker({ files, entrypoint }, async (worker) => {
    await worker.ready()
    const end = await worker.call(1, { body: '{"n":1}' })
    assert.equal(end.body?.toString(), '{"ok":1}', JSON.stringify(end.head))
    assert.equal(worker.err.text, '')
  }))
}

test('init runs once, before ready, and state lives as long as the worker', () => withHandler(`
exports.init = async (context) => { await 0; context.state.n = 10; console.log('init', context.function, context.remainingMs() > 0) }
exports.handle = (event, context) => ({ n: ++context.state.n })
`, async (worker) => {
  const got = []
  for (let call = 1; call <= 3; call++) got.push(JSON.parse((await worker.call(call)).body).n)
  assert.deepEqual(got, [11, 12, 13])
  assert.equal(worker.out.text, 'init shim true\n')
}))

test('READY names the protocol and the runtime', () => withHandler('exports.handle = () => 1', async (worker) => {
  const { head } = await worker.ready()
  assert.deepEqual(head, { protocol: 1, runtime: 'nodejs20', version: process.versions.node, boundary: 'marks' })
}))
