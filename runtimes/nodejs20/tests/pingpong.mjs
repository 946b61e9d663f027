// What a call costs the worker. Not a test: prints figures.
//
//     node runtimes/nodejs20/tests/pingpong.mjs [CALLS]
//
// CPU is the worker's own (user and system, all threads), between the first and the last call after warming up. The driver is a Node
// process too, so the rates are those of both together.
import fs from 'node:fs'
import { Worker, invoke } from './driver.mjs'

const CALLS = Number(process.argv[2] ?? 20000)
const TICK_MS = 10
const HEAD = {
  id: '01930000-0000-7000-8000-000000000001', trigger: 'http', attempt: 1, timeout_ms: 30000, method: 'POST', path: '/', raw_query: '',
  headers: [['host', '127.0.0.1:8080'], ['content-type', 'application/json'], ['content-length', '16']], client_ip: '127.0.0.1', source: {}, traceparent: '',
}
const HANDLERS = {
  hello: 'exports.handle = async (event) => ({ hello: event.name || "world" })',
  'hello, sync': 'exports.handle = (event) => ({ hello: event.name || "world" })',
  context: 'exports.handle = async (event, context) => ({ id: context.invocationId, path: context.http.path, left: context.remainingMs() })',
  log: 'exports.handle = async (event) => { console.log("a line of a handler", event.name); return { hello: event.name } }',
  logs1000: 'exports.handle = async (event) => { for (let i = 0; i < 1000; i++) console.log(`LINE ${event.name} ${i} some text as long as a usual log line of a handler`); return 1 }',
  echo1MiB: 'exports.handle = async (event) => ({ data: event.data })',
}

function cpuMs(pid) {
  const fields = fs.readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/^.*\) /, '').split(' ')
  return (Number(fields[11]) + Number(fields[12])) * TICK_MS
}

const median = (list) => list.sort((a, b) => a - b)[list.length >> 1]

/** Sends `calls` calls, `depth` of them at once, and gives the time of each in microseconds. */
function drive(worker, from, calls, depth, body) {
  return new Promise((resolve) => {
    const times = [], began = new Map()
    let sent = 0, got = 0
    const send = () => {
      const number = from + sent++
      began.set(number, process.hrtime.bigint())
      return invoke(number, { waiting: depth > 1 && sent > 1, head: HEAD, body })
    }
    let seen = 0, scheduled = false
    const onData = () => {
      if (scheduled) return
      scheduled = true
      setImmediate(() => {
        scheduled = false
        const more = []
        for (; seen < worker.frames.length; seen++) {
          const { name, call } = worker.frames[seen]
          if (name !== 'RESULT') throw new Error(`a frame ${name} came`)
          times.push(Number(process.hrtime.bigint() - began.get(call)) / 1000)
          began.delete(call)
          got++
          if (sent < calls) more.push(send())
        }
        if (more.length > 0) worker.send(Buffer.concat(more))
        if (got === calls) {
          worker.sockets[0].off('data', onData)
          worker.frames.length = 0
          resolve(times)
        }
      })
    }
    worker.frames.length = 0
    worker.sockets[0].on('data', onData)
    const first = []
    while (sent < Math.min(depth, calls)) first.push(send())
    worker.send(Buffer.concat(first))
  })
}

async function measure(name, depth, calls, body = '{"name":"world"}') {
  const worker = await Worker.start({ files: { 'handler.js': HANDLERS[name] } })
  for (const pipe of [worker.out, worker.err]) pipe.kept = false
  await worker.ready()
  const warm = Math.ceil(calls / 5)
  await drive(worker, 1, warm, depth, body)
  const cpu = cpuMs(worker.process.pid), began = performance.now()
  const times = await drive(worker, 1 + warm, calls, depth, body)
  const seconds = (performance.now() - began) / 1000
  console.log(`${name.padEnd(12)} ${depth} at once: ${((cpuMs(worker.process.pid) - cpu) * 1000 / calls).toFixed(1).padStart(7)} us of CPU a call, `
    + `${(calls / seconds).toFixed(0).padStart(6)} calls/s, p50 ${median(times).toFixed(0)} us`)
  await worker.stop()
}

/** From spawn to READY, beside a bare `node -e 0`; and what the process holds then. */
async function start() {
  const times = []
  let memory
  for (let i = 0; i < 15; i++) {
    const worker = await Worker.start({ files: { 'handler.js': HANDLERS.hello } })
    const began = performance.now()
    await worker.ready()
    times.push(performance.now() - began)
    await new Promise((resolve) => setTimeout(resolve, 100))
    const status = fs.readFileSync(`/proc/${worker.process.pid}/status`, 'utf8')
    memory = `RSS ${/VmRSS:\s+(\d+)/.exec(status)[1]} KiB, CPU ${cpuMs(worker.process.pid)} ms`
    await worker.stop()
  }
  console.log(`spawned to READY: p50 ${median(times).toFixed(1)} ms; 100 ms later ${memory}`)
}

await start()
for (const name of ['hello', 'hello, sync', 'context', 'log']) {
  for (const depth of [1, 4]) await measure(name, depth, CALLS)
}
await measure('logs1000', 1, Math.ceil(CALLS / 100))
await measure('echo1MiB', 1, Math.ceil(CALLS / 100), JSON.stringify({ data: 'x'.repeat(1 << 20) }))
