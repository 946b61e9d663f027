'use strict'
// Descriptors 1 and 2. What the handler prints is written at once and whole, so that neither process.exit nor a kill loses any,
// and in the order of the calls. With several slots it goes out as LOG frames of the call that printed it.
const { writeSync, closeSync, openSync } = require('node:fs')
const { Writable } = require('node:stream')

const PIPE_BUF = 4096      // up to here a write to a pipe is whole or not at all (pipe(7))
const asleep = new Int32Array(new SharedArrayBuffer(4))

let pairs = []
let mark = ''
let usedPair = 0
let storage = null         // AsyncLocalStorage of the slot, with several slots only: it costs

/** A pipe that another process has set non-blocking is full: let the reader run. */
function pause() {
  Atomics.wait(asleep, 0, 0, 1)
}

function writeAll(fd, data, encoding) {
  if (typeof data === 'string') {
    if (data.length * 3 <= PIPE_BUF) return writeWhole(fd, data, encoding)
    data = Buffer.from(data, encoding)
  }
  let done = 0
  while (done < data.length) {
    try {
      done += writeSync(fd, data, done, data.length - done, null)
    } catch (error) {
      if (error.code !== 'EAGAIN') return              // nobody reads any more, or the handler has closed it: not an error of the call
      pause()
    }
  }
}

function writeWhole(fd, text, encoding) {
  for (;;) {
    try {
      writeSync(fd, text, null, encoding)
      return
    } catch (error) {
      if (error.code !== 'EAGAIN') return
      pause()
    }
  }
}

/** process.stdout and process.stderr. `write` is done when it returns; what it inherits serves pipes and `end`. */
class Output extends Writable {
  constructor(fd) {
    super({ decodeStrings: false, emitClose: false, autoDestroy: false })
    this.fd = fd
    this._type = 'pipe'
    this._isStdio = true
  }

  write(chunk, encoding, callback) {
    if (typeof encoding === 'function') {
      callback = encoding
      encoding = undefined
    }
    if (typeof chunk !== 'string' && !(chunk instanceof Uint8Array)) return super.write(chunk, encoding, callback)   // says what is wrong
    emit(this.fd, chunk, encoding)
    if (callback) process.nextTick(callback)
    return true
  }

  _write(chunk, encoding, callback) {
    emit(this.fd, chunk, encoding)
    callback()
  }

  _destroy(error, callback) {
    callback(error)          // the descriptor stays open, as with Node's own
  }
}

function emit(fd, chunk, encoding) {
  const slot = storage?.getStore()
  if (slot?.running) slot.log(fd, typeof chunk === 'string' ? Buffer.from(chunk, encoding) : chunk)
  else writeAll(fd, chunk, encoding)
}

function install(hello) {
  pairs = hello.pairs ?? []
  mark = hello.mark ?? ''
  if ((hello.slots ?? 1) > 1) storage = new (require('node:async_hooks').AsyncLocalStorage)()
  for (const [name, fd] of [['stdout', 1], ['stderr', 2]]) {
    const stream = new Output(fd)
    Object.defineProperty(process, name, { configurable: true, enumerable: true, get: () => stream })
    console[`_${name}`] = stream
  }
}

/** The boundary between two calls in the stream itself, see *Logs* in docs/protocol.md. */
function writeMark(call) {
  const text = `\0sless:${mark}:${call}\0`
  writeWhole(1, text, 'latin1')
  writeWhole(2, text, 'latin1')
}

/** Makes output pair `pair` descriptors 1 and 2. Node has no dup2; the lowest free number is the one just closed. */
function usePair(pair) {
  if (pair === usedPair || pairs.length === 0) return
  try {
    for (const [index, fd] of [1, 2].entries()) {
      closeSync(fd)
      const opened = openSync(`/proc/self/fd/${pairs[pair][index]}`, 'w')
      if (opened !== fd) throw new Error(`descriptor ${fd} was taken by another thread`)
    }
  } catch (error) {
    writeAll(2, `sless: cannot change to output pair ${pair}: ${error.message}\n`)
    process.exit(1)                                    // what the handler prints would go astray
  }
  usedPair = pair
}

module.exports = {
  install, pause, writeAll, writeMark, usePair, emit,
  currentSlot: () => storage?.getStore(),
  run: (slot, work) => storage === null ? work() : storage.run(slot, work),
}
