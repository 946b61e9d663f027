'use strict'
// What a handler gets as its second argument. The head of the call is parsed when a field of it is read, which most handlers never do.
const INSPECT = Symbol.for('nodejs.util.inspect.custom')

/** Sets `name` as an own property also where it is `__proto__`: names come from the caller. */
function put(object, name, value) {
  if (name === '__proto__') Object.defineProperty(object, name, { value, enumerable: true, configurable: true, writable: true })
  else object[name] = value
}

/** `[name, value]` pairs as an object; a repeated name gives a list. */
function collect(pairs) {
  const object = {}
  for (const [name, value] of pairs) {
    if (!Object.hasOwn(object, name)) put(object, name, value)
    else if (Array.isArray(object[name])) object[name].push(value)
    else put(object, name, [object[name], value])
  }
  return object
}

function joinHeaders(headers) {
  const object = {}
  for (const [name, value] of headers) {
    put(object, name, Object.hasOwn(object, name) ? `${object[name]}${name === 'cookie' ? '; ' : ', '}${value}` : value)
  }
  return object
}

/** Getters are on the prototype, so destructuring works; `{...context}` copies none of them. */
class Context {
  #hello
  #payload
  #body
  #taken
  #head = null
  #http = null

  constructor(hello, state, payload, taken) {
    this.state = state
    this.#hello = hello
    this.#payload = payload
    this.#body = 8 + payload.readUInt32BE(4)
    this.#taken = taken
  }

  get #parsed() {
    return this.#head ??= JSON.parse(this.#payload.toString('utf8', 8, this.#body))
  }

  get invocationId() { return this.#parsed.id ?? '' }
  get namespace() { return this.#hello.namespace ?? '' }
  get function() { return this.#hello.function ?? '' }
  get revision() { return this.#hello.revision ?? '' }
  get trigger() { return this.#parsed.trigger ?? '' }
  get attempt() { return this.#parsed.attempt ?? 1 }
  get source() { return this.#parsed.source ?? {} }
  get traceparent() { return this.#parsed.traceparent ?? '' }
  get deadlineMs() { return this.#taken + (this.#parsed.timeout_ms ?? 0) }
  get remainingMs() { return () => Math.max(0, this.deadlineMs - Date.now()) }
  get awsRequestId() { return this.invocationId }
  get getRemainingTimeInMillis() { return this.remainingMs }

  get http() {
    if (this.#http === null) {
      const head = this.#parsed
      this.#http = {
        method: head.method ?? '', path: head.path ?? '/', rawQuery: head.raw_query ?? '',
        query: [...new URLSearchParams(head.raw_query ?? '')], headers: joinHeaders(head.headers ?? []),
        body: this.#payload.subarray(this.#body), clientIp: head.client_ip ?? '',
      }
    }
    return this.#http
  }

  toJSON() {
    const { invocationId, namespace, function: name, revision, trigger, attempt, deadlineMs, source, traceparent } = this
    return { invocationId, namespace, function: name, revision, trigger, attempt, deadlineMs, source, traceparent }
  }

  [INSPECT](depth, options, inspect) {
    return `Context ${inspect({ ...this.toJSON(), http: this.http, state: this.state }, options)}`
  }
}

/** What `init` gets: there is no call yet. */
class InitContext {
  constructor(hello, state) {
    this.namespace = hello.namespace ?? ''
    this.function = hello.function ?? ''
    this.revision = hello.revision ?? ''
    this.deadlineMs = hello.init_deadline_ms ?? 0
    this.state = state
    this.remainingMs = () => Math.max(0, this.deadlineMs - Date.now())
    this.getRemainingTimeInMillis = this.remainingMs
  }
}

module.exports = { Context, InitContext, collect }
