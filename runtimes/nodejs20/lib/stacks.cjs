'use strict'
// Where the handler is stuck: a thread that waits for a byte on the stack pipe and asks V8 for the main thread's stack, which
// answers in the middle of a busy loop or of a regular expression.
const { join } = require('node:path')

function watch([request, answer]) {
  const { Worker } = require('node:worker_threads')
  let watcher
  // Its environment is empty and its flags are none, or the function's NODE_OPTIONS would run in it.
  try {
    watcher = new Worker(join(__dirname, 'watcher.cjs'), {
      env: {}, execArgv: [], argv: [], trackUnmanagedFds: false, workerData: { request, answer },
      resourceLimits: { maxOldGenerationSizeMb: 16, maxYoungGenerationSizeMb: 1, stackSizeMb: 1 },
    })
  } catch {
    return                           // the function's NODE_OPTIONS allow no threads: there are no stacks, and that is all
  }
  watcher.on('error', () => {})      // the same
  watcher.unref()
}

module.exports = { watch }
