'use strict'
// The worker: reads HELLO, loads the author's code, says READY, then serves its slots. See docs/protocol.md.
const { readSync } = require('node:fs')
const { KIND, Link } = require('./lib/link.cjs')
const output = require('./lib/output.cjs')
const spawned = require('./lib/spawned.cjs')
const errors = require('./lib/errors.cjs')
const { Slot } = require('./lib/slot.cjs')
const { InitContext } = require('./lib/context.cjs')

const FIRST_SLOT = 3

/** Blocks until the HELLO frame is there: it was sent before this process ran. What came after it is given back as `rest`. */
function readHello() {
  let got = Buffer.allocUnsafeSlow(16384), length = 0
  for (;;) {
    let n = 0
    try {
      n = readSync(FIRST_SLOT, got, length, got.length - length, null)
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error
      output.pause()
      continue
    }
    if (n === 0) process.exit(0)
    length += n
    if (length >= 9) {
      const end = 9 + got.readUInt32BE(5)
      if (length >= end) {
        if (got[0] !== KIND.HELLO) throw new Error(`the first frame on descriptor ${FIRST_SLOT} is of kind ${got[0]}, not HELLO (${KIND.HELLO})`)
        return { hello: JSON.parse(got.toString('utf8', 9, end)), rest: got.subarray(end, length) }
      }
      if (end > got.length) got = Buffer.concat([got], end + 16384)
    }
  }
}

const { hello, rest } = readHello()
if (hello.protocol !== 1) throw new Error(`this shim speaks version 1 of the worker protocol, the supervisor ${hello.protocol}`)

/** Frames of the whole process go out on slot 0, before its socket has been opened. */
const first = new Link(FIRST_SLOT)
const slots = []
let ready = false

function initFailed(error) {
  const description = errors.describe(error)
  output.writeAll(2, `${description.traceback}\n`)
  first.send(KIND.INIT_FAILED, 0, Buffer.from(JSON.stringify(description)))
  process.exit(1)
}

/** What nobody caught counts as the fault of the call that runs; where none runs it ends the process, as Node itself would. */
function uncaught(error) {
  if (!ready) return initFailed(error)
  const own = output.currentSlot()
  const blamed = own?.running ? [own] : slots.filter((slot) => slot.running)
  if (blamed.length === 0) {
    output.writeAll(2, `${errors.describe(error).traceback}\n`)
    process.exit(1)
  }
  for (const slot of blamed) slot.failUncaught(error)
}

async function start() {
  output.install(hello)
  spawned.install()
  process.on('uncaughtException', uncaught)
  process.on('unhandledRejection', uncaught)

  const shared = { hello, state: {}, handler: null, finishing: false, slots }
  try {
    const { handler, init } = await require('./lib/load.cjs').load(hello.function_dir, hello.entrypoint)
    shared.handler = handler
    if (init) await init(new InitContext(hello, shared.state))
  } catch (error) {
    return initFailed(error)
  }
  for (let i = 0; i < (hello.slots ?? 1); i++) slots.push(new Slot(i, i === 0 ? first : new Link(FIRST_SLOT + i), shared))
  ready = true
  first.send(KIND.READY, 0, Buffer.from(JSON.stringify({ protocol: 1, runtime: 'nodejs20', version: process.versions.node, boundary: 'marks' })))
  if (hello.stack) require('./lib/stacks.cjs').watch(hello.stack)
  for (const slot of slots) slot.open(slot.number === 0 ? rest : null)
}

start()
