'use strict'
// What was thrown, as {type, message, traceback}. The handler may throw anything, so nothing here may throw in turn.
const { dirname } = require('node:path')

const SHIM = dirname(__dirname)

/** An error that the shim itself makes; `type` is what the caller sees. */
class ShimError extends Error {
  constructor(type, message) {
    super(message)
    this.name = type
    this.stack = `${type}: ${message}`     // its frames would be the shim's alone
  }
}

function attempt(read, otherwise) {
  try {
    const value = read()
    return typeof value === 'string' ? value : otherwise
  } catch {
    return otherwise
  }
}

function typeOf(error) {
  const name = attempt(() => error.name, '')
  if (name !== '' && name !== 'Error') return name
  return attempt(() => error.constructor.name, '') || 'Error'      // class Lost extends Error, which sets no name
}

/** Without the frames of the shim, and without what lies below them: the event loop. */
function ownFrames(stack) {
  const lines = stack.split('\n')
  const cut = lines.findIndex((line) => /^\s+at /.test(line) && line.includes(SHIM))
  const kept = cut < 0 ? lines : lines.slice(0, cut).concat(lines.slice(cut).filter((line) => !/^\s+at /.test(line)))
  return kept.filter((line) => !(line.startsWith('- ') && line.includes(SHIM))).join('\n').trimEnd()
}

function isError(value) {
  return value instanceof Error || require('node:util').types.isNativeError(value)
}

function causes(error) {
  let text = '', depth = 0
  const seen = new Set([error])
  for (let cause = error.cause; cause !== undefined && cause !== null && depth < 8 && !seen.has(cause); cause = cause.cause, depth++) {
    seen.add(cause)
    text += `\nCaused by: ${isError(cause) ? ownFrames(attempt(() => cause.stack, String(cause))) : attempt(() => String(cause), '?')}`
  }
  if (Array.isArray(error.errors)) {
    for (const one of error.errors.slice(0, 8)) text += `\nOne of: ${isError(one) ? ownFrames(attempt(() => one.stack, String(one))) : attempt(() => String(one), '?')}`
  }
  return text
}

function describe(error) {
  let thrown
  try {
    thrown = isError(error)
  } catch {
    thrown = false
  }
  if (!thrown) {
    const message = attempt(() => typeof error === 'object' && error !== null ? require('node:util').inspect(error) : String(error), 'a value that cannot be shown')
    return { type: 'Error', message, traceback: `Error: ${message} (thrown, but not an Error: there is no stack)` }
  }
  const type = typeOf(error)
  let message = attempt(() => error.message, '')
  const stack = attempt(() => error.stack, `${type}: ${message}`)
  const place = /^(?:file:\/\/)?(\S.*):(\d+)\n/.exec(stack)          // V8 puts file and line of a syntax error above it
  if (place && type === 'SyntaxError') message += ` (${place[1]}:${place[2]})`
  const required = message.indexOf('\nRequire stack:')
  if (required >= 0) message = message.slice(0, required)
  return { type, message, traceback: ownFrames(stack) + attempt(() => causes(error), '') }
}

module.exports = { ShimError, describe, ownFrames, SHIM }
