// One handler of many operations. Every row of the bench calls `call(event)` through an adapter of a few lines.
const fs = require('node:fs')
const { spawn } = require('node:child_process')

const MARKS = process.env.BENCH_MARKS ?? '/tmp'
// A child that hears no SIGTERM and would live for two minutes.
const STUBBORN = ['-c', "trap '' TERM; i=0; while [ $i -lt 120 ]; do sleep 1; i=$((i+1)); done"]

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000))

function mark(event, value) {
  fs.writeFileSync(`${MARKS}/${event.id}.tmp`, JSON.stringify(value))
  fs.renameSync(`${MARKS}/${event.id}.tmp`, `${MARKS}/${event.id}`)
}

exports.call = async (event) => {
  switch (event.op ?? 'hello') {
    case 'hello':
      return { hello: event.name ?? 'world' }
    case 'echo':
      return { data: event.data }
    case 'logs':
      for (let i = 0; i < event.n; i++) console.log(`LINE ${i} some text as long as a usual log line of a handler`)
      return { n: event.n }
    case 'sleep':
      await pause(event.s)
      return { slept: event.s }
    case 'busy':
      for (;;);
    case 'fork':
      mark(event, { child: spawn('sh', STUBBORN, { stdio: 'inherit' }).pid, worker: process.pid })
      await pause(60)
      return {}
    case 'exit':
      process.exit(1)
  }
  throw new Error(`there is no operation ${event.op}`)
}
