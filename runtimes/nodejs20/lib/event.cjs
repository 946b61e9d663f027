'use strict'
// The event, from the payload of INVOKE. The supervisor has decided what it is and has checked JSON.
const { isAscii } = require('node:buffer')
const { collect } = require('./context.cjs')

const JSON_EVENT = 1, FORM = 2, TEXT = 3, BYTES = 4, QUERY = 5

const headOf = (payload, body) => JSON.parse(payload.toString('utf8', 8, body))

/** In the charset that the content type names, where Node knows it; what is not valid becomes U+FFFD. */
function text(bytes, headers) {
  const type = headers?.find(([name]) => name === 'content-type')?.[1] ?? ''
  const charset = /;\s*charset\s*=\s*"?([^\s";]+)/i.exec(type)?.[1].toLowerCase()
  if (charset === undefined || charset === 'utf-8' || charset === 'utf8' || charset === 'us-ascii') return bytes.toString('utf8')
  if (charset === 'iso-8859-1' || charset === 'latin1') return bytes.toString('latin1')     // the web's decoder takes windows-1252 for it
  try {
    return new TextDecoder(charset).decode(bytes)
  } catch {
    return bytes.toString('utf8')
  }
}

/** Large texts are mostly ASCII, and looking whether they are is cheaper than decoding UTF-8. */
const WORTH_A_LOOK = 4096
const utf8 = (payload, body) => payload.length > WORTH_A_LOOK && isAscii(payload.subarray(body)) ? payload.latin1Slice(body) : payload.utf8Slice(body)

function decodeEvent(payload) {
  const body = 8 + payload.readUInt32BE(4)
  switch (payload[0]) {
    case JSON_EVENT: return JSON.parse(utf8(payload, body))
    case FORM: return collect(new URLSearchParams(payload.toString('utf8', body)))
    case TEXT: return text(payload.subarray(body), headOf(payload, body).headers)
    case BYTES: return payload.subarray(body)
    case QUERY: return collect(new URLSearchParams(headOf(payload, body).raw_query ?? ''))
    default: throw new Error(`the supervisor sent an event of the unknown kind ${payload[0]}`)
  }
}

module.exports = { decodeEvent }
