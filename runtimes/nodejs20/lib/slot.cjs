'use strict'
// A slot: takes calls from its socket one after another, runs them, and sends what becomes of them.
const { writeSync, readSync } = require('node:fs')
const { KIND, HEADER } = require('./link.cjs')
const { Context } = require('./context.cjs')
const { decodeEvent } = require('./event.cjs')
const { answerOf, asBytes } = require('./result.cjs')
const { ShimError, describe } = require('./errors.cjs')
const { settle } = require('./internals.cjs')
const output = require('./output.cjs')
const spawned = require('./spawned.cjs')

const PAGE = 128                  // bytes of the shared page that belong to one slot
const REVOKED = 64                // where its revoked bytes begin
const WAITING = 1                 // flag of INVOKE
const SPAWNED = 1, RETIRE = 2     // flags of usage
const USAGE = 9
const RESULT_HEAD = HEADER + USAGE + 2 + 4
const OUT_BYTES = 65536           // answers are built in one buffer that is kept: fresh memory costs more than the copy
const OUT_MOST_BYTES = 16777216   // and that grows up to here; only what was written of it is resident

/** One call that runs. `settled` once the handler has returned; `over` once its end has been sent: what comes later from it is ignored. */
class Call {
  constructor(number, cpu, spawns) {
    this.number = number
    this.cpu = cpu
    this.spawns = spawns
    this.over = false
    this.settled = false
    this.value = undefined
    this.iterator = null
  }
}

/** Tells the handler's stream that nobody reads it any more. What it raises at that is of no interest. */
function closeIterator(iterator) {
  try {
    iterator.return?.()?.catch?.(() => {})
  } catch {
    // a generator that is running
  }
}

class Slot {
  constructor(number, link, shared) {
    this.number = number
    this.link = link
    this.shared = shared
    this.running = null
    this.queue = []                // calls that wait: [number, payload]
    this.awaitsGo = false
    this.spawnedBefore = false     // since the last call that began on clean descriptors a process was started
    this.word = Buffer.alloc(4)
    this.out = Buffer.allocUnsafeSlow(OUT_BYTES)
    this.cpuNow = 0
    this.onFinish = () => this.finish()
  }

  open(rest) {
    this.cpuNow = this.measureCpu()
    this.link.open((kind, call, payload) => this.frame(kind, call, payload), () => this.pump(), () => this.end())
    if (rest !== null && rest.length > 0) {
      this.link.take(rest, rest.length)
      this.pump()
    }
  }

  frame(kind, call, payload) {
    if (kind === KIND.INVOKE) this.queue.push([call, payload])
    else if (kind === KIND.GO) this.go(payload)
    else if (kind < 128) {
      process.stderr.write(`the supervisor sent a frame of the unknown kind ${kind}\n`)
      process.exit(1)
    }
  }

  end() {
    if (this.number === 0) this.shared.finishing = true
    if (this.awaitsGo) this.queue.length = 0       // GO will not come
    this.exitIfDone()
  }

  exitIfDone() {
    const { finishing, slots } = this.shared
    if (!finishing || slots.some((slot) => slot.running !== null || slot.queue.length > 0)) return
    if (this.link.queued > 0) this.link.drained().then(() => this.exitIfDone())
    else process.exit(0)
  }

  /** Begins the next call if none runs. What a call has sent must be with the supervisor first, or an exit of the next would lose it. */
  pump() {
    while (this.running === null && this.queue.length > 0 && !this.awaitsGo) {
      if (this.link.queued > 0) {
        this.link.drained().then(() => this.pump())
        return
      }
      const [number, payload] = this.queue[0]
      const waiting = (payload[1] & WAITING) !== 0
      if (waiting && this.spawnedBefore && this.shared.slots.length === 1 && !this.isRevoked(number)) {
        this.awaitsGo = true
        this.link.send(KIND.WAIT, number, Buffer.alloc(0))
        return
      }
      this.queue.shift()
      this.begin(number, payload, waiting, payload.readUInt16BE(2))
    }
    if (this.shared.finishing) this.exitIfDone()
  }

  /** The leftovers of the call before can no longer disturb. */
  go(payload) {
    if (!this.awaitsGo) return
    this.awaitsGo = false
    this.spawnedBefore = false
    const [number, invoke] = this.queue.shift()
    this.begin(number, invoke, false, payload.readUInt16BE(0))
  }

  isRevoked(number) {
    readSync(this.shared.hello.shared, this.word, 0, 1, PAGE * this.number + REVOKED + number % 64)
    return this.word[0] === 1
  }

  /** Writes *taken*, then reads *revoked*: in this order, so that worker and supervisor cannot miss each other. */
  takes(number) {
    this.word.writeUInt32LE(number, 0)
    writeSync(this.shared.hello.shared, this.word, 0, 4, PAGE * this.number)
    return !this.isRevoked(number)
  }

  begin(number, payload, waiting, pair) {
    const taken = Date.now()
    if (!waiting) this.cpuNow = this.measureCpu()
    const call = this.running = new Call(number, this.cpuNow, spawned.total())
    if (!this.takes(number)) {
      this.sendEnd(call, KIND.SKIPPED, '')
      this.running = null
      return
    }
    if (this.shared.slots.length === 1) {
      if (waiting) {
        output.writeMark(number)     // on the pair in use: what its INVOKE names may be older than the last GO
      } else {
        this.spawnedBefore = false
        output.usePair(pair)
      }
      this.invoke(call, payload, taken)
    } else {
      output.run(this, () => this.invoke(call, payload, taken))
    }
  }

  invoke(call, payload, taken) {
    let value
    try {
      const { handler } = this.shared              // called without a `this`
      value = handler(decodeEvent(payload), new Context(this.shared.hello, this.shared.state, payload, taken))
      if (typeof value === 'object' && value !== null && typeof value.then === 'function') {
        value.then((result) => this.settled(call, result), (error) => this.fail(call, error))
        return
      }
    } catch (error) {
      this.fail(call, error)
      return
    }
    this.settled(call, value)
  }

  settled(call, value) {
    if (call.over || call.settled) return          // a thenable may call back twice
    call.value = value
    call.settled = true
    process.nextTick(this.onFinish)        // when all promises of this turn have run
  }

  finish() {
    const call = this.running
    if (call === null || !call.settled) return         // it has failed in the meantime
    settle()
    if (call.over) return
    let answer
    try {
      answer = answerOf(call.value)
    } catch (error) {
      this.fail(call, error)
      return
    }
    call.value = undefined
    if (typeof answer.body === 'string' || answer.body instanceof Uint8Array) {
      this.sendResult(call, answer)
      this.over(call)
    } else {
      call.iterator = answer.body
      this.stream(call, answer).catch((error) => this.fail(call, error))
    }
  }

  over(call) {
    call.over = true
    if (this.running === call) this.running = null
    this.pump()
  }

  fail(call, error, flags = 0) {
    if (call.over) return
    const description = describe(error)
    this.print(2, Buffer.from(`${description.traceback}\n`))
    this.sendEnd(call, KIND.ERROR, JSON.stringify(description), flags)
    if (call.iterator !== null) closeIterator(call.iterator)
    this.over(call)
  }

  failUncaught(error) {
    this.fail(this.running, error, RETIRE)
  }

  /** Each chunk is sent when it is yielded. The first is awaited before the head goes out: what fails until then is a plain error. */
  async stream(call, { status, head, body: iterator }) {
    let begun = false
    for (;;) {
      let step = iterator.next()
      if (typeof step?.then === 'function') step = await step
      if (call.over) return
      const chunk = step.done ? null : this.chunkOf(step.value)
      if (!begun) {
        begun = true
        const start = Buffer.allocUnsafe(6)
        start.writeUInt16BE(status, 0)
        start.writeUInt32BE(head.length, 2)
        this.link.send(KIND.STREAM, call.number, Buffer.concat([start, head]))
      }
      if (chunk === null) break
      if (chunk.length > 0) this.link.send(KIND.CHUNK, call.number, chunk)
      if (this.link.queued > 0) await this.link.drained()
      if (call.over) return
    }
    settle()
    if (call.over) return
    this.sendEnd(call, KIND.END, '')
    call.iterator = null
    this.over(call)
  }

  chunkOf(value) {
    if (typeof value === 'string') return Buffer.from(value)
    const bytes = typeof value === 'object' && value !== null ? asBytes(value) : null
    if (bytes === null) throw new ShimError('InvalidResponse', `a stream must yield strings or bytes, not ${value === null ? 'null' : typeof value}`)
    return bytes
  }

  measureCpu() {
    const usage = process.resourceUsage()
    this.rss = usage.maxRSS
    return usage.userCPUTime + usage.systemCPUTime
  }

  writeUsage(call, flags, at) {
    const now = this.measureCpu()
    if (spawned.total() !== call.spawns) {
      flags |= SPAWNED
      this.spawnedBefore = true
    }
    this.out.writeUInt32BE(Math.min(now - call.cpu, 0xffffffff), at)
    this.out.writeUInt32BE(Math.min(this.rss, 0xffffffff), at + 4)
    this.out[at + 8] = flags
    this.cpuNow = now
  }

  writeHeader(kind, call, length) {
    this.out[0] = kind
    this.out.writeUInt32BE(call.number, 1)
    this.out.writeUInt32BE(length - HEADER, 5)
  }

  /** END, ERROR or SKIPPED: usage and a text. */
  sendEnd(call, kind, text, flags = 0) {
    call.over = true
    this.writeUsage(call, flags, HEADER)
    const tail = Buffer.from(text)
    this.writeHeader(kind, call, HEADER + USAGE + tail.length)
    const whole = Buffer.concat([this.out.subarray(0, HEADER + USAGE), tail])
    this.link.write(whole, whole.length)
  }

  sendResult(call, { status, head, body }) {
    const at = RESULT_HEAD + head.length
    const most = at + (typeof body === 'string' ? body.length * 3 : body.length)
    if (most > this.out.length && most <= OUT_MOST_BYTES && typeof body === 'string') this.out = Buffer.allocUnsafeSlow(most)
    const { out } = this
    this.writeUsage(call, 0, HEADER)
    out.writeUInt16BE(status, HEADER + USAGE)
    out.writeUInt32BE(head.length, HEADER + USAGE + 2)
    if (most > out.length) {
      const bytes = typeof body === 'string' ? Buffer.from(body) : body
      this.writeHeader(KIND.RESULT, call, at + bytes.length)
      this.link.writeParts([Buffer.from(out.subarray(0, RESULT_HEAD)), head, bytes])
      return
    }
    out.set(head, RESULT_HEAD)
    let end = at
    if (typeof body === 'string') end += out.write(body, at)
    else {
      out.set(body, at)
      end += body.length
    }
    this.writeHeader(KIND.RESULT, call, end)
    this.link.write(out, end)        // the next call, which may use `out` again, begins when the link has taken all of it
  }

  /** Text of the shim itself that belongs to the call. */
  print(fd, bytes) {
    if (this.shared.slots.length > 1) this.log(fd, bytes)
    else output.writeAll(fd, bytes)
  }

  log(fd, bytes) {
    const { running } = this
    if (running === null || running.over) output.writeAll(fd, bytes)
    else if (bytes.length > 0) this.link.send(KIND.LOG, running.number, Buffer.concat([Buffer.of(fd), bytes]))
  }
}

module.exports = { Slot }
