'use strict'
// Counts the processes that this one starts, however it does: `spawn`, `exec`, `fork`, `execSync`, `cluster` all end in one of two
// internal entry points. Loading and wrapping `child_process` itself would cost more and miss what other modules have kept of it.
const { binding } = require('./internals.cjs')

let count = 0
let exact = true

function install() {
  try {
    const sync = binding('spawn_sync')
    const spawnSync = sync.spawn
    sync.spawn = function spawn(options) {
      count++
      return spawnSync.call(this, options)
    }
    const { prototype } = binding('process_wrap').Process
    const spawnAsync = prototype.spawn
    prototype.spawn = function spawn(options) {
      count++
      return spawnAsync.call(this, options)
    }
  } catch {
    exact = false                    // Node's permission model forbids it: then each call counts as one that started a process
  }
}

/** Grows with each process started; without the hooks, with each look. */
const total = () => exact ? count : ++count

module.exports = { install, total }
