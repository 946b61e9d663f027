'use strict'
// Runs in a thread of its own, see stacks.cjs. It waits by its event loop: a blocking read would hold up the exit of the process.
const { Socket } = require('node:net')
const { writeSync } = require('node:fs')
const { workerData } = require('node:worker_threads')

const EXPRESSION = `(() => {
  const limit = Error.stackTraceLimit
  Error.stackTraceLimit = 100
  try { return String(new Error().stack) } finally { Error.stackTraceLimit = limit }
})()`

/** The handler's frames: without those of the expression, of the shim, and of what lies below it. */
function handlerFrames(stack) {
  const { SHIM } = require('./errors.cjs')
  const frames = stack.split('\n').filter((line) => /^\s+at /.test(line) && !/<anonymous>:\d+:\d+\)?$/.test(line))
  const shim = frames.findIndex((line) => line.includes(SHIM))
  const own = shim < 0 ? frames : frames.slice(0, shim)
  return own.every((line) => line.includes('node:')) ? '' : own.map((line) => `${line}\n`).join('')
}

function stack(done) {
  const { Session } = require('node:inspector')
  const session = new Session()
  session.connectToMainThread()
  session.post('Runtime.evaluate', { expression: EXPRESSION }, (error, reply) => {
    session.disconnect()
    done(error ? '' : handlerFrames(String(reply.result.value)))
  })
}

const pipe = new Socket({ fd: workerData.request, readable: true, writable: false })
pipe.on('data', () => stack((text) => writeSync(workerData.answer, `${text}\0`)))
pipe.on('error', () => {})
