'use strict'
// JSON with the contract's additions, and strict: what JSON.stringify would drop or turn into null or {} is an error that names
// the path. Usual results are only looked at (a walk without allocations), then given to JSON.stringify itself.
const { types } = require('node:util')
const { ShimError } = require('./errors.cjs')

const DEEPEST_PLAIN = 64          // deeper ones, a circle among them, go the careful way

function isPlain(value, depth) {
  switch (typeof value) {
    case 'string': case 'boolean': return true
    case 'number': return Number.isFinite(value)
    case 'undefined': return true                      // dropped from objects, null in arrays, as JSON.stringify does
    case 'object': break
    default: return false
  }
  if (value === null) return true
  if (depth === DEEPEST_PLAIN || value.toJSON !== undefined) return false
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++) if (!isPlain(value[i], depth + 1)) return false
    return true
  }
  const prototype = Object.getPrototypeOf(value)
  if (prototype !== Object.prototype && prototype !== null) return false
  for (const key in value) if (!isPlain(value[key], depth + 1)) return false
  return true
}

const refuse = (path, what) => new ShimError('ResultNotSerializable', `${path || 'the result'} is ${what}, which has no JSON form`)

const member = (path, key) => /^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(key) ? (path ? `${path}.${key}` : key) : `${path}[${JSON.stringify(key)}]`

/** The key of a Map: a string, or the JSON text of a number, boolean or null. */
function keyOf(key, path) {
  if (typeof key === 'string') return key
  if (key === null || typeof key === 'boolean' || Number.isFinite(key)) return String(key)
  throw refuse(path, `a Map with a key that is ${kindOf(key)}`)
}

function kindOf(value) {
  if (typeof value === 'number') return String(value)
  if (typeof value === 'bigint') return 'a BigInt'
  if (typeof value !== 'object' || value === null) return `a ${typeof value}`
  const name = value.constructor?.name
  return typeof name === 'string' && name !== '' ? `an object of ${name}` : 'an object'
}

/** `value` as something that JSON.stringify writes in full. `above` holds the objects on the way to it. */
function convert(value, path, above) {
  if (value !== null && value !== undefined && typeof value.toJSON === 'function' && !Buffer.isBuffer(value) && !types.isDate(value)) {
    const key = path.slice(Math.max(path.lastIndexOf('.'), path.lastIndexOf('[')) + 1)
    const form = value.toJSON(key)
    if (typeof form !== 'object' || form === null) return convertScalar(form, path)
    if (form !== value) return convertObject(form, path, above)
  }
  return typeof value === 'object' && value !== null ? convertObject(value, path, above) : convertScalar(value, path)
}

function convertScalar(value, path) {
  if (value === null || value === undefined || typeof value === 'string' || typeof value === 'boolean') return value
  if (typeof value === 'number' && Number.isFinite(value)) return value
  throw refuse(path, kindOf(value))
}

function convertObject(value, path, above) {
  if (above.has(value)) throw refuse(path, 'part of a circle')
  above.add(value)
  const form = convertKind(value, path, above)
  above.delete(value)
  return form
}

function convertKind(value, path, above) {
  const list = (items) => {
    const form = []
    for (const item of items) form.push(convert(item, `${path}[${form.length}]`, above))
    return form
  }
  if (Array.isArray(value) || types.isSet(value)) return list(value)
  if (types.isDate(value)) {
    if (Number.isNaN(value.getTime())) throw refuse(path, 'an invalid Date')
    return typeof value.toJSON === 'function' && value.toJSON !== Date.prototype.toJSON ? convertScalar(value.toJSON(), path) : value.toISOString()
  }
  if (types.isBoxedPrimitive(value)) return convertScalar(value.valueOf(), path)
  if (value instanceof Uint8Array || types.isAnyArrayBuffer(value) || types.isDataView(value)) {
    throw refuse(path, `${kindOf(value)}: bytes (give .toString('base64') of a Buffer, or return bytes as the whole result)`)
  }
  if (types.isTypedArray(value)) return list(value)
  if (types.isPromise(value)) throw refuse(path, 'a Promise (is an await missing?)')
  if (types.isNativeError(value)) throw refuse(path, `${kindOf(value)} (give its message)`)
  if (types.isRegExp(value) || types.isWeakMap(value) || types.isWeakSet(value) || types.isGeneratorObject(value)
    || typeof value.pipe === 'function' || typeof value[Symbol.asyncIterator] === 'function') throw refuse(path, kindOf(value))
  // Without a prototype, so that a key `__proto__` is one like the others.
  const form = Object.create(null)
  if (types.isMap(value)) {
    for (const [key, item] of value) {
      const name = keyOf(key, path)
      form[name] = convert(item, member(path, name), above)
    }
  } else {
    for (const key of Object.keys(value)) form[key] = convert(value[key], member(path, key), above)
  }
  return form
}

/** @throws {ShimError} ResultNotSerializable, with the path of what has no JSON form. */
function toJSON(value) {
  try {
    if (isPlain(value, 0)) return JSON.stringify(value)
    return JSON.stringify(convert(value, '', new Set()))
  } catch (error) {
    if (error instanceof RangeError && /call stack/.test(error.message)) throw refuse('', 'nested too deeply')
    throw error
  }
}

module.exports = { toJSON }
