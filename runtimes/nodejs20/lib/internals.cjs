'use strict'
// What the shim uses of Node beyond its documentation, in one place. Each is there in Node 20 and 22; without one of them the shim still works, less exactly.

/** Node speaks of these where the function's NODE_OPTIONS ask for pending deprecations; that is not the author's concern. */
function quietly(work) {
  const { emitWarning } = process
  process.emitWarning = () => {}
  try {
    return work()
  } finally {
    process.emitWarning = emitWarning
  }
}

/** An internal binding. Throws under Node's permission model. */
const binding = (name) => quietly(() => process.binding(name))

/**
 * Node's own turn between ticks. Run before a result is sent, it reports the promises that the call has rejected and nobody
 * handles; else they would be reported in the next call.
 */
const settle = typeof process._tickCallback === 'function' ? process._tickCallback : () => {}
quietly(settle)          // it warns at its first use, and not again

module.exports = { binding, settle }
