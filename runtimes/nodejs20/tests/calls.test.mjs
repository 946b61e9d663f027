// Taking, revoking, logs and their boundaries, processes, descriptors, the end.
import test from 'node:test'
import assert from 'node:assert/strict'
import { Worker, withHandler, withWorker, invoke, frame, until, KIND } from './driver.mjs'

const SPAWNED = 1
const goTo = (pair) => frame(KIND.GO, 2, Buffer.of(pair >> 8, pair & 255))
const mark = (call) => `\0sless:0123456789abcdef0123456789abcdef:${call}\0`

test('a call that was revoked is skipped, and taken is written for each', () => withWorker({ files: { 'handler.js': 'exports.handle = () => { console.log("ran"); return 1 }' }, revoked: [2] }, async (worker) => {
  await worker.ready()
  assert.equal((await worker.call(1)).name, 'RESULT')
  assert.equal(worker.taken(), 1)
  assert.equal((await worker.call(2)).name, 'SKIPPED')
  assert.equal(worker.taken(), 2)
  assert.equal((await worker.call(66)).name, 'SKIPPED', 'the byte is number mod 64')
  assert.equal((await worker.call(67)).name, 'RESULT')
  await until(() => worker.out.text === 'ran\nran\n', 'the output of two calls')
}))

test('calls that wait run in order, one at a time, with a mark between them', () => withHandler(`
exports.handle = async (event) => { console.log('begin', event.n); await new Promise((r) => setTimeout(r, 5)); console.error('end', event.n); return event.n }`, async (worker) => {
  worker.send(Buffer.concat([1, 2, 3].map((n) => invoke(n, { waiting: n > 1, body: `{"n":${n}}` }))))
  await worker.end(3)
  await until(() => worker.err.text.endsWith('end 3\n'), 'the output')
  assert.equal(worker.out.text, `begin 1\n${mark(2)}begin 2\n${mark(3)}begin 3\n`)
  assert.equal(worker.err.text, `end 1\n${mark(2)}end 2\n${mark(3)}end 3\n`)
}))

for (const [how, code] of [
  ['spawn', "await new Promise((r) => cp.spawn('true').on('exit', r))"],
  ['exec', "await new Promise((r) => cp.exec('true', r))"],
  ['fork', "await new Promise((r) => cp.fork('child.js').on('exit', r))"],
  ['execSync', "cp.execSync('true')"],
  ['execFileSync', "cp.execFileSync('true')"],
  ['spawnSync', "cp.spawnSync('true')"],
  ['an import', "(await import('node:child_process')).spawnSync('true')"],
]) {
  test(`after ${how} a waiting call waits for GO`, () => withHandler(`const cp = require('child_process')
exports.handle = async (event) => { if (event.n === 1) { ${code} } console.log('call', event.n); return event.n }`, async (worker) => {
    worker.send(Buffer.concat([1, 2, 3].map((n) => invoke(n, { waiting: n > 1, body: `{"n":${n}}` }))))
    assert.equal((await worker.end(1)).usage.flags, SPAWNED)
    await worker.frame('WAIT', 2)
    assert.equal(worker.taken(), 1, 'it is not taken while it waits')
    worker.send(goTo(1))
    assert.equal((await worker.end(3)).usage.flags, 0)
    await until(() => worker.outs[1].text.endsWith('call 3\n'), 'the output')
    assert.equal(worker.outs[0].text, 'call 1\n')
    assert.equal(worker.outs[1].text, `call 2\n${mark(3)}call 3\n`, 'the pair that GO names, without a mark, holds also for the next that waits')
  }, { files: { 'child.js': '' } }))
}

test('the end of slot 0 ends a worker that waits for GO', () => withHandler("exports.handle = () => { require('child_process').spawnSync('true'); return 1 }", async (worker) => {
  worker.send(Buffer.concat([invoke(1), invoke(2, { waiting: true })]))
  await worker.frame('WAIT', 2)
  worker.sockets[0].end()
  assert.deepEqual(await worker.exited, { code: 0, signal: null })
}))

test('nothing is said of what the shim uses of Node, whatever the function\'s NODE_OPTIONS', () => withHandler('exports.handle = () => { require("child_process").spawnSync("true"); return 1 }', async (worker) => {
  assert.equal((await worker.call(1)).usage.flags, SPAWNED)
  assert.equal(worker.err.text, '')
}, { env: { NODE_OPTIONS: '--pending-deprecation --trace-warnings --unhandled-rejections=strict' } }))

test('a worker under Node\'s permission model works, and each of its calls counts as one that has started a process', () => withHandler('exports.handle = () => 1', async (worker) => {
  const end = await worker.call(1)
  assert.deepEqual([end.status, end.usage.flags], [200, SPAWNED], worker.err.text)
}, { env: { NODE_OPTIONS: '--experimental-permission --allow-fs-read=* --allow-fs-write=*' } }))

test('INVOKE may name another pair, and children write to it', () => withHandler(`
const cp = require('child_process')
exports.handle = (event) => { console.log('out', event.n); console.error('err', event.n); cp.execFileSync('sh', ['-c', 'echo child'], { stdio: 'inherit' }); return 1 }`, async (worker) => {
  for (const [n, pair] of [[1, 0], [2, 1], [3, 0]]) await worker.call(n, { pair, body: `{"n":${n}}` })
  await until(() => worker.out.text.endsWith('out 3\nchild\n'), 'the output')
  assert.equal(worker.outs[0].text, 'out 1\nchild\nout 3\nchild\n')
  assert.equal(worker.outs[1].text, 'out 2\nchild\n')
  assert.equal(worker.errs[1].text, 'err 2\n')
}))

test('a call revoked while it waits for GO is skipped', () => withHandler("exports.handle = () => { require('child_process').spawnSync('true'); return 1 }", async (worker) => {
  worker.send(Buffer.concat([invoke(1), invoke(2, { waiting: true })]))
  await worker.frame('WAIT', 2)
  worker.revoke(2)
  worker.send(goTo(0))
  assert.equal((await worker.end(2)).name, 'SKIPPED')
  assert.equal((await worker.call(3)).name, 'RESULT')
}))

test('a pair that cannot be had ends the worker', () => withHandler('exports.handle = () => 1', async (worker) => {
  worker.invoke(1, { pair: 1 })
  assert.equal((await worker.exited).code, 1)
  await until(() => worker.errs[0].text.includes('output pair 1'), 'the reason')
}, { hello: { pairs: [[7, 8], [60, 61]] } }))

test('output is whole and in order, also when a child has made the pipe non-blocking', () => withHandler(`
const cp = require('child_process'), fs = require('fs')
exports.handle = () => { cp.execFileSync(process.execPath, ['-e', 'process.stdout.write("child\\\\n")'], { stdio: 'inherit' })
  for (let i = 0; i < 5000; i++) console.log('line', i)
  process.stdout.write(Buffer.from('x'.repeat(300000)))
  fs.writeSync(1, 'raw'); return 1 }`, async (worker) => {
  const sum = await worker.call(1)
  assert.equal(sum.name, 'RESULT')
  await until(() => worker.out.text.endsWith('raw'), 'the end of the output')
  assert.equal(worker.out.text, `child\n${Array.from({ length: 5000 }, (_, i) => `line ${i}\n`).join('')}${'x'.repeat(300000)}raw`)
}))

test('process.stdout is a stream like Node\'s own', () => withHandler(`
const { Readable } = require('stream'), { pipeline } = require('stream/promises')
exports.handle = async () => { await new Promise((r) => process.stdout.write('a', r)); await new Promise((r) => process.stdout.write('62', 'hex', r))
  let error; try { process.stdout.write(7) } catch (e) { error = e.code }
  await new Promise((r) => Readable.from(['c', 'd']).pipe(process.stdout).on('unpipe', r))
  process.stdout.end('e'); process.stdout.write('f'); console.log('g')
  return [error, process.stdout.fd, process.stderr.fd, process.stdout.isTTY ?? null] }`, async (worker) => {
  const end = await worker.call(1)
  assert.equal(end.body?.toString(), '["ERR_INVALID_ARG_TYPE",1,2,null]', JSON.stringify(end.head))
  await until(() => worker.out.text === 'abcdefg\n', `the output, which is ${JSON.stringify(worker.out.text)}`)
}))

test('the handler\'s environment is what the worker was given', () => withHandler('exports.handle = () => ({ ...process.env })', async (worker) => {
  assert.deepEqual(JSON.parse((await worker.call(1)).body), { GREETING: 'hi', NODE_OPTIONS: '--no-warnings' })
}, { env: { GREETING: 'hi', NODE_OPTIONS: '--no-warnings' } }))

test('children get no descriptors of the shim', () => withHandler(`
exports.handle = () => require('child_process').execFileSync('sh', ['-c', 'ls -l /proc/self/fd'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] })`, async (worker) => {
  await worker.call(1, { pair: 1 })
  const listing = (await worker.call(2)).body.toString()
  const numbers = listing.split('\n').filter((line) => !line.includes('/proc/')).map((line) => Number(/ (\d+) -> /.exec(line)?.[1] ?? 0))
  const above = numbers.filter((number) => number > 2 && number < 64)        // beyond are those of whoever runs the tests
  assert.deepEqual(above, [], listing)
}))

test('usage tells the call\'s time and the process\'s memory', () => withHandler(`exports.handle = (event) => { const began = process.cpuUsage()
  for (let used = 0; used < event.ms * 1000;) { const { user, system } = process.cpuUsage(began); used = user + system }
  return 1 }`, async (worker) => {
  const spin = (await worker.call(1, { body: '{"ms":120}' })).usage
  assert.ok(spin.cpu >= 119_000 && spin.cpu < 1_000_000, `${spin.cpu} us`)
  assert.ok(spin.rss > 20_000 && spin.rss < 1_000_000, `${spin.rss} KiB`)
  assert.ok((await worker.call(2, { body: '{"ms":0}' })).usage.cpu < 60_000)
}))

test('the end of slot 0 lets the running call finish, and those that wait', () => withHandler("exports.handle = async () => { await new Promise((r) => setTimeout(r, 50)); return 'done' }\nprocess.on('exit', (code) => console.log('exit', code))", async (worker) => {
  worker.send(Buffer.concat([invoke(1), invoke(2, { waiting: true })]))
  worker.sockets[0].end()
  assert.equal((await worker.end(2)).body.toString(), 'done')
  assert.deepEqual(await worker.exited, { code: 0, signal: null })
  await until(() => worker.out.text.endsWith('exit 0\n'), 'exit handlers run')
}))

test('an idle worker ends at once, also with timers of the handler', () => withHandler("setInterval(() => {}, 1000)\nexports.handle = () => 1", async (worker) => {
  worker.sockets[0].end()
  assert.deepEqual(await worker.exited, { code: 0, signal: null })
}))

test('calls sent before the worker was ready are served', () => withWorker({ files: { 'handler.js': 'exports.handle = (e) => e' }, frames: [invoke(1, { body: '1' }), invoke(2, { body: '2', waiting: true })] }, async (worker) => {
  assert.equal((await worker.end(2)).body.toString(), '2')
  assert.deepEqual(worker.frames.map((f) => f.name), ['READY', 'RESULT', 'RESULT'])
}))

test('unknown frames: above 127 skipped, below fatal', () => withHandler('exports.handle = () => 1', async (worker) => {
  worker.send(frame(200, 0, Buffer.from('future')))
  assert.equal((await worker.call(1)).name, 'RESULT')
  worker.send(frame(9, 0))
  assert.equal((await worker.exited).code, 1)
}))

test('a supervisor that speaks another version is refused', async () => {
  const worker = await Worker.start({ files: { 'handler.js': '' }, hello: { protocol: 2 } })
  try {
    assert.notEqual((await worker.exited).code, 0)
    assert.match(worker.err.text, /version 1/)
  } finally {
    await worker.stop()
  }
})
