// The transcripts that the Rust codec and all shims share, see protocol/testdata/README.md.
import test from 'node:test'
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { Worker, RUNTIME, KIND, FrameReader, frame, invoke, parse, until } from './driver.mjs'

const RUNTIME_NAME = 'nodejs20'
const FOLDER = path.join(RUNTIME, '../../protocol/testdata')
const FLAGS = { spawned: 1, retire: 2 }

const transcripts = fs.readdirSync(FOLDER).filter((name) => name.endsWith('.json'))
  .map((name) => ({ name: name.slice(0, -5), ...JSON.parse(fs.readFileSync(path.join(FOLDER, name), 'utf8')) }))
  .filter(({ runtimes }) => runtimes.includes(RUNTIME_NAME))

const bodyOf = (golden) => golden.body_base64 !== undefined ? Buffer.from(golden.body_base64, 'base64') : Buffer.from(golden.body ?? '')

function encode(golden, head) {
  if (golden.kind !== 'INVOKE') return frame(KIND[golden.kind], golden.call, golden.kind === 'GO' ? Buffer.of(golden.pair >> 8, golden.pair & 255) : Buffer.from(JSON.stringify(head)))
  return invoke(golden.call, { event: golden.event, waiting: golden.flags.includes('waiting'), pair: golden.pair, head, body: bodyOf(golden) })
}

/** Whether `got` means what `golden` says: "*" matches anything, and members that the golden object lacks do not count. */
function matches(golden, got, where) {
  if (golden === '*') return
  if (Array.isArray(golden) || typeof golden !== 'object' || golden === null) return assert.deepEqual(got, golden, where)
  for (const [key, value] of Object.entries(golden)) matches(value, got?.[key], `${where}.${key}`)
}

function compare(golden, got, where) {
  assert.deepEqual([got.name, got.call], [golden.kind, golden.call], `${where}: ${JSON.stringify(got.head)}`)
  if (golden.flags) assert.equal(got.usage.flags, golden.flags.reduce((sum, flag) => sum | FLAGS[flag], 0), where)
  if (golden.status !== undefined) assert.equal(got.status, golden.status, where)
  if (golden.head) matches(golden.head, got.head, where)
  if (golden.body === undefined && golden.body_base64 === undefined) return
  const isJson = Array.isArray(got.head) && got.head.some(([name, value]) => name.toLowerCase() === 'content-type' && /[/+]json\b/.test(value))
  if (isJson) assert.deepEqual(JSON.parse(got.body), JSON.parse(bodyOf(golden)), where)
  else assert.equal(got.body.toString('latin1'), bodyOf(golden).toString('latin1'), where)
}

test('there are transcripts', () => assert.ok(transcripts.length >= 7, `${FOLDER} holds ${transcripts.map(({ name }) => name).join(', ')}`))

for (const transcript of transcripts) {
  test(`${transcript.name}: ${transcript.about}`, async () => {
    const frames = transcript.frames.map((golden) => ({ ...golden, ...golden[RUNTIME_NAME] }))
    const worker = await Worker.start({
      files: transcript.files[RUNTIME_NAME], env: transcript.env, revoked: transcript.revoked, sendHello: false,
    })
    try {
      let seen = 0
      for (const [index, golden] of frames.entries()) {
        const where = `${transcript.name}, frame ${index} (${golden.kind} of call ${golden.call})`
        if (golden.from === 'supervisor') {
          worker.send(encode(golden, golden.kind === 'HELLO' ? { ...golden.head, function_dir: worker.functionDir } : golden.head))
        } else {
          await until(() => worker.frames.length > seen, `${where}; stderr: ${worker.err.text}`)
          compare(golden, worker.frames[seen++], where)
        }
      }
      await worker.stop()
      assert.equal(worker.frames.length, seen, `${transcript.name}: nothing follows`)
    } finally {
      if (!worker.exit) await worker.stop()
    }
  })

  test(`${transcript.name}: the driver of these tests writes and reads the same bytes`, () => {
    const bytes = (side) => fs.readFileSync(path.join(FOLDER, `${transcript.name}.${side}.bin`))
    const sent = transcript.frames.filter(({ from }) => from === 'supervisor')
    assert.ok(Buffer.concat(sent.map((golden) => encode(golden, golden.head))).equals(bytes('supervisor')))
    const received = [...new FrameReader().feed(bytes('worker'))].map((parts) => parse(...parts))
    const expected = transcript.frames.filter(({ from }) => from === 'worker')
    assert.equal(received.length, expected.length)
    for (const [index, golden] of expected.entries()) compare(golden, received[index], `${transcript.name}.worker.bin, frame ${index}`)
  })
}
