'use strict'
// Where a syntax error of an ES module is: Node keeps file and line to itself unless nobody catches the error. So, only when a module
// did not load, `node --check` looks through it and the files that it imports by relative paths.
const { execFileSync } = require('node:child_process')
const { readFileSync } = require('node:fs')
const { dirname, resolve } = require('node:path')

const MOST_FILES = 16

/** The error of the first file that does not parse, as Node prints it (file and line first), or null. */
function check(file) {
  try {
    execFileSync(process.execPath, ['--check', file], { env: {}, stdio: ['ignore', 'ignore', 'pipe'], timeout: 5000 })
    return null
  } catch (error) {
    const text = String(error.stderr ?? '')
    return /^(?:file:\/\/)?\/.*:\d+\n/.test(text) ? text.replace(/\n+Node\.js v[\s\S]*$/, '').replace(/\n\s+at [\s\S]*$/, '') : null
  }
}

function locateSyntaxError(entry) {
  const files = [entry]
  for (let i = 0; i < files.length && i < MOST_FILES; i++) {
    const found = check(files[i])
    if (found !== null) return found
    let source
    try {
      source = readFileSync(files[i], 'utf8')
    } catch {
      continue
    }
    for (const [, specifier] of source.matchAll(/\b(?:from|import)\s*\(?\s*['"](\.[^'"]+)['"]/g)) {
      const file = resolve(dirname(files[i]), specifier)
      if (!files.includes(file)) files.push(file)
    }
  }
  return null
}

module.exports = { locateSyntaxError }
