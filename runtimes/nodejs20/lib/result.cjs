'use strict'
// What a handler returned, as an answer: {status, head, body} where `head` is the JSON of the headers (bytes) and `body` is a string, bytes, or
// an iterator of chunks.
const { types } = require('node:util')
const { ShimError } = require('./errors.cjs')
const { toJSON } = require('./json.cjs')

const headFor = (type) => Buffer.from(JSON.stringify(type === null ? [] : [['content-type', type]]))
const NO_HEAD = headFor(null)
const JSON_TYPE = 'application/json', TEXT_TYPE = 'text/plain; charset=utf-8', BYTES_TYPE = 'application/octet-stream'
const JSON_HEAD = headFor(JSON_TYPE), TEXT_HEAD = headFor(TEXT_TYPE), BYTES_HEAD = headFor(BYTES_TYPE)

const invalid = (message) => new ShimError('InvalidResponse', message)

/** Bytes of any kind as a Uint8Array over the same memory, else null. */
function asBytes(value) {
  if (value instanceof Uint8Array) return value
  if (types.isAnyArrayBuffer(value)) return new Uint8Array(value)
  if (types.isDataView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength)
  return null
}

/** The iterator of a stream, else null: generators, async generators, Node streams old and new, web streams. */
function asIterator(value) {
  if (typeof value[Symbol.asyncIterator] === 'function') return value[Symbol.asyncIterator]()
  if (typeof value.next === 'function' && typeof value[Symbol.iterator] === 'function') return value[Symbol.iterator]()
  if (typeof value.pipe === 'function' && typeof value.on === 'function') {
    return new (require('node:stream').Readable)().wrap(value)[Symbol.asyncIterator]()
  }
  return null
}

/** The body as {body, head}: `head` is the one that names its kind. */
function bodyOf(value) {
  if (typeof value === 'string') return { body: value, head: TEXT_HEAD, type: TEXT_TYPE }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
    const bytes = asBytes(value)
    if (bytes) return { body: bytes, head: BYTES_HEAD, type: BYTES_TYPE }
    const iterator = asIterator(value)
    if (iterator) return { body: iterator, head: BYTES_HEAD, type: BYTES_TYPE }
  }
  return { body: toJSON(value), head: JSON_HEAD, type: JSON_TYPE }
}

const headerText = (name, value) => {
  if (typeof value === 'string') return value
  if (typeof value === 'boolean' || typeof value === 'bigint' || Number.isFinite(value)) return String(value)
  throw invalid(`header ${JSON.stringify(name)} must be a string, a number, a boolean or a list of these, not ${value === null ? 'null' : typeof value}`)
}

function headersOf(headers) {
  if (headers === undefined || headers === null) return []
  if (typeof headers !== 'object') throw invalid(`headers must be an object, not a ${typeof headers}`)
  const pairs = typeof headers[Symbol.iterator] === 'function' ? [...headers] : Object.entries(headers)      // a Map, or fetch's Headers
  const list = []
  for (const pair of pairs) {
    if (!Array.isArray(pair) || pair.length !== 2) throw invalid('headers must be an object of names and values')
    const name = String(pair[0])
    if (pair[1] === undefined) continue
    for (const value of Array.isArray(pair[1]) ? pair[1] : [pair[1]]) list.push([name, headerText(name, value)])
  }
  return list
}

function fromBase64(value) {
  if (typeof value !== 'string') throw invalid(`isBase64Encoded is true, so body must be a string, not ${value === null ? 'null' : typeof value}`)
  const text = value.replace(/\s+/g, '')
  if (text.length % 4 !== 0 || !/^[A-Za-z0-9+/]*={0,2}$/.test(text)) throw invalid('isBase64Encoded is true, but body is not base64')
  return Buffer.from(text, 'base64')
}

function response(value) {
  const status = value.statusCode
  if (status < 200 || status > 599) throw invalid(`statusCode must be from 200 to 599, not ${status}`)
  const headers = headersOf(value.headers)
  let found
  if (value.isBase64Encoded === true) found = { body: fromBase64(value.body), type: BYTES_TYPE, head: BYTES_HEAD }
  else if (value.body === undefined || value.body === null) found = { body: '', type: null, head: NO_HEAD }
  else found = bodyOf(value.body)
  if (headers.length === 0) return { status, head: found.head, body: found.body }
  if (found.type !== null && !headers.some(([name]) => name.toLowerCase() === 'content-type')) headers.push(['content-type', found.type])
  return { status, head: Buffer.from(JSON.stringify(headers)), body: found.body }
}

/** @throws {ShimError} ResultNotSerializable or InvalidResponse. */
function answerOf(value) {
  if (value === undefined || value === null) return { status: 204, head: NO_HEAD, body: '' }
  // A stream may have a statusCode of its own: an IncomingMessage that is passed on.
  if (typeof value === 'object' && Number.isInteger(value.statusCode) && typeof value.pipe !== 'function') return response(value)
  const { body, head } = bodyOf(value)
  return { status: 200, head, body }
}

module.exports = { answerOf, asBytes }
