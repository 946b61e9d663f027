// Tells of its progress while it works: each line is sent when it is yielded.
import { setTimeout as sleep } from 'node:timers/promises'

export async function handle(event) {
  const steps = Number(event.steps ?? 5)
  const pauseSec = Number(event.pause_sec ?? 0.2)
  if (!(Number.isInteger(steps) && steps >= 1 && steps <= 100 && pauseSec >= 0 && pauseSec <= 5)) {
    return { statusCode: 400, body: { error: 'steps is 1 to 100, pause_sec 0 to 5' } }
  }
  return { statusCode: 200, headers: { 'content-type': 'text/plain; charset=utf-8' }, body: progress(steps, pauseSec) }
}

async function* progress(steps, pauseSec) {
  for (let step = 1; step <= steps; step++) {
    await sleep(pauseSec * 1000) // the work
    console.log(`step ${step}`)
    yield `step ${step} of ${steps}\n`
  }
  yield 'done\n'
}
