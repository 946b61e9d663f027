// Plays the supervisor for one worker: the descriptors, frames and shared page of docs/protocol.md.
import { spawn, execFileSync } from 'node:child_process'
import fs from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import net from 'node:net'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

export const RUNTIME = path.dirname(path.dirname(fileURLToPath(import.meta.url)))
export const KIND = {
  HELLO: 1, INVOKE: 2, GO: 3,
  READY: 64, INIT_FAILED: 65, RESULT: 66, STREAM: 67, CHUNK: 68, END: 69, ERROR: 70, SKIPPED: 71, LOG: 72, WAIT: 73,
}
export const NAME = Object.fromEntries(Object.entries(KIND).map(([name, kind]) => [kind, name]))
export const EVENT = { json: 1, form: 2, text: 3, bytes: 4, query: 5 }
const LIMIT_MS = 15000

export function frame(kind, call, payload = Buffer.alloc(0)) {
  const header = Buffer.alloc(9)
  header[0] = kind
  header.writeUInt32BE(call, 1)
  header.writeUInt32BE(payload.length, 5)
  return Buffer.concat([header, payload])
}

export function invoke(call, { event = 'json', waiting = false, pair = 0, head = {}, body = '{}' } = {}) {
  const headBytes = Buffer.from(JSON.stringify(head))
  const fixed = Buffer.alloc(8)
  fixed[0] = EVENT[event]
  fixed[1] = waiting ? 1 : 0
  fixed.writeUInt16BE(pair, 2)
  fixed.writeUInt32BE(headBytes.length, 4)
  return frame(KIND.INVOKE, call, Buffer.concat([fixed, headBytes, Buffer.from(body)]))
}

/** A frame from the worker with its payload taken apart. */
export function parse(kind, call, payload) {
  const name = NAME[kind] ?? `unknown ${kind}`
  const usage = (at) => ({ cpu: payload.readUInt32BE(at), rss: payload.readUInt32BE(at + 4), flags: payload[at + 8] })
  const json = (bytes) => JSON.parse(bytes.toString())
  switch (name) {
    case 'RESULT': {
      const head = payload.readUInt32BE(11)
      return { name, call, usage: usage(0), status: payload.readUInt16BE(9), head: json(payload.subarray(15, 15 + head)), body: payload.subarray(15 + head) }
    }
    case 'STREAM': return { name, call, status: payload.readUInt16BE(0), head: json(payload.subarray(6)) }
    case 'ERROR': return { name, call, usage: usage(0), head: json(payload.subarray(9)) }
    case 'END': case 'SKIPPED': return { name, call, usage: usage(0) }
    case 'READY': case 'INIT_FAILED': return { name, call, head: json(payload) }
    case 'LOG': return { name, call, stream: payload[0], body: payload.subarray(1) }
    default: return { name, call, body: payload }
  }
}

export class FrameReader {
  constructor() {
    this.bytes = Buffer.alloc(0)
  }

  * feed(data) {
    this.bytes = this.bytes.length ? Buffer.concat([this.bytes, data]) : data
    let at = 0
    while (this.bytes.length - at >= 9) {
      const end = at + 9 + this.bytes.readUInt32BE(at + 5)
      if (this.bytes.length < end) break
      yield [this.bytes[at], this.bytes.readUInt32BE(at + 1), this.bytes.subarray(at + 9, end)]
      at = end
    }
    this.bytes = this.bytes.subarray(at)
  }
}

/** A pipe with both ends here: a FIFO, as Node has no pipe(2). `text` grows with what arrives. */
class Pipe {
  constructor(file) {
    execFileSync('mkfifo', [file])
    const keep = fs.openSync(file, fs.constants.O_RDWR)       // so that neither end has to wait for the other
    this.write = fs.openSync(file, 'w')
    this.read = fs.openSync(file, fs.constants.O_RDONLY | fs.constants.O_NONBLOCK)
    fs.closeSync(keep)
    this.chunks = []
    this.kept = true
  }

  listen() {
    this.socket = new net.Socket({ fd: this.read, readable: true, writable: false })
    this.socket.on('data', (data) => { if (this.kept) this.chunks.push(data) })
    this.socket.on('error', () => {})
    this.socket.unref()
    return this
  }

  get text() {
    return Buffer.concat(this.chunks).toString('utf8')
  }

  close() {
    if (this.socket) this.socket.destroy()
    else fs.closeSync(this.read)
    fs.closeSync(this.write)
  }
}

/** Polls; `what` may be a function, asked when the time is over. */
export async function until(condition, what, limit = LIMIT_MS) {
  for (const end = Date.now() + limit; Date.now() < end;) {
    const found = condition()
    if (found) return found
    await new Promise((resolve) => setTimeout(resolve, 2))
  }
  throw new Error(`not within ${limit} ms: ${typeof what === 'function' ? what() : what}`)
}

export class Worker {
  /** `files` makes the function's folder; `frames` is sent before the worker runs, after HELLO. */
  static async start({ files = {}, slots = 1, entrypoint = 'handler.handle', env = {}, revoked = [], hello = {}, frames = [], node = [], sendHello = true } = {}) {
    const worker = new Worker()
    worker.folder = fs.mkdtempSync(path.join(os.tmpdir(), 'sless-shim-'))
    worker.functionDir = path.join(worker.folder, 'function')
    fs.mkdirSync(worker.functionDir)
    for (const [name, text] of Object.entries(files)) {
      const file = path.join(worker.functionDir, name)
      fs.mkdirSync(path.dirname(file), { recursive: true })
      fs.writeFileSync(file, text)
    }
    const pipe = (name) => new Pipe(path.join(worker.folder, name))
    worker.pipes = ['out0', 'err0', 'out1', 'err1', 'answer'].map((name) => pipe(name).listen())
    const [out0, err0, out1, err1, answer] = worker.pipes
    const request = pipe('request')
    worker.pipes.push(request)
    Object.assign(worker, { out: out0, err: err0, outs: [out0, out1], errs: [err0, err1], answer, request })
    fs.writeFileSync(path.join(worker.folder, 'page'), Buffer.alloc(128 * slots))
    worker.page = fs.openSync(path.join(worker.folder, 'page'), 'r+')
    for (const call of revoked) worker.revoke(call)
    const first = 3 + slots
    worker.hello = {
      protocol: 1, entrypoint, function_dir: worker.functionDir, namespace: 'testing', function: 'shim', revision: 'r1', slots,
      shared: first, stack: [first + 1, first + 2], pairs: [[first + 3, first + 4], [first + 5, first + 6]],
      mark: '0123456789abcdef0123456789abcdef', init_deadline_ms: Date.now() + 10000, ...hello,
    }
    const stdio = ['ignore', out0.write, err0.write, ...Array(slots).fill('pipe'), worker.page, request.read, answer.write, out0.write, err0.write, out1.write, err1.write]
    worker.process = spawn(process.execPath, [...node, path.join(RUNTIME, 'worker.cjs')], { cwd: worker.functionDir, env, stdio })
    worker.exited = once(worker.process, 'exit').then(([code, signal]) => { worker.exit = { code, signal }; return worker.exit })
    worker.frames = []
    worker.sockets = worker.process.stdio.slice(3, 3 + slots)
    worker.sockets.forEach((socket, slot) => {
      const reader = new FrameReader()
      socket.on('data', (data) => { for (const parts of reader.feed(data)) worker.frames.push({ slot, ...parse(...parts) }) })
      socket.on('error', () => {})
    })
    if (sendHello) worker.send(frame(KIND.HELLO, 0, Buffer.from(JSON.stringify(worker.hello))))
    for (const bytes of frames) worker.send(bytes)
    return worker
  }

  send(bytes, slot = 0) {
    this.sockets[slot].write(bytes)
  }

  invoke(call, options = {}) {
    this.send(invoke(call, options), options.slot ?? 0)
  }

  revoke(call, slot = 0) {
    fs.writeSync(this.page, Buffer.of(1), 0, 1, 128 * slot + 64 + call % 64)
  }

  taken(slot = 0) {
    const word = Buffer.alloc(4)
    fs.readSync(this.page, word, 0, 4, 128 * slot)
    return word.readUInt32LE(0)
  }

  async frame(names, call, slot = 0) {
    const wanted = [].concat(names)
    return until(() => {
      const found = this.frames.find((f) => wanted.includes(f.name) && f.call === call && f.slot === slot)
      if (!found && this.exit) throw new Error(`the worker exited with ${JSON.stringify(this.exit)}: ${this.err.text}`)
      return found
    }, () => `${wanted.join(' or ')} of call ${call}; frames: ${this.frames.map((f) => `${f.name}(${f.call})`).join(' ')}; stderr: ${this.err.text}`)
  }

  ready() {
    return this.frame('READY', 0)
  }

  end(call, slot = 0) {
    return this.frame(['RESULT', 'END', 'ERROR', 'SKIPPED'], call, slot)
  }

  /** One call, sent and awaited. */
  async call(number, options = {}) {
    this.invoke(number, options)
    return this.end(number, options.slot ?? 0)
  }

  async stop() {
    this.sockets[0].end()
    const kill = setTimeout(() => this.process.kill('SIGKILL'), 3000)
    await this.exited
    clearTimeout(kill)
    for (const socket of this.sockets) socket.destroy()
    for (const pipe of this.pipes) pipe.close()
    fs.closeSync(this.page)
    fs.rmSync(this.folder, { recursive: true, force: true })
    return this.exit
  }
}

/** A worker for the length of a test. */
export async function withWorker(options, use) {
  const worker = await Worker.start(options)
  try {
    return await use(worker)
  } finally {
    await worker.stop()
  }
}

/** A worker whose handler.js is `code`, ready. */
export function withHandler(code, use, options = {}) {
  return withWorker({ ...options, files: { 'handler.js': code, ...options.files } }, async (worker) => {
    await worker.ready()
    return use(worker)
  })
}
