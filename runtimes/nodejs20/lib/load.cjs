'use strict'
// From an entrypoint, FILE.FUNCTION, to the author's functions.
const { existsSync, readFileSync, readdirSync, statSync } = require('node:fs')
const { join, dirname, relative, extname } = require('node:path')
const { ShimError } = require('./errors.cjs')

const EXTENSIONS = ['.js', '.mjs', '.cjs']

const notFound = (message) => new ShimError('EntrypointNotFound', message)
const isFile = (path) => statSync(path, { throwIfNoEntry: false })?.isFile() ?? false

/** `src/app.main` and `src.app.main` both mean the function `main` of src/app.js. */
function locate(folder, entrypoint) {
  const dot = entrypoint.lastIndexOf('.')
  const stem = entrypoint.slice(0, dot), name = entrypoint.slice(dot + 1)
  if (dot <= 0 || !/^[\p{ID_Start}$_][\p{ID_Continue}$]*$/u.test(name)) {
    throw notFound(`the entrypoint ${JSON.stringify(entrypoint)} must be FILE.FUNCTION, as in handler.handle or src/app.main`)
  }
  const stems = [...new Set([stem, stem.replaceAll('.', '/')])]
  const candidates = stems.flatMap((s) => EXTENSIONS.includes(extname(s)) ? [s] : EXTENSIONS.map((e) => s + e))
  const found = candidates.find((candidate) => isFile(join(folder, candidate)))
  if (found !== undefined) return { file: join(folder, found), name }
  const parent = dirname(join(folder, stems.at(-1)))
  const there = existsSync(parent) ? readdirSync(parent).filter((f) => f !== 'node_modules').sort().slice(0, 20) : []
  const shown = relative(folder, parent) || 'the function\'s folder'
  throw notFound(`the entrypoint ${entrypoint} needs ${candidates.join(' or ')}, which is not there; `
    + (there.length ? `${shown} holds ${there.join(', ')}` : `${shown} is empty or missing`))
}

/** The "type" of the package that a file belongs to; undefined where none says. */
function packageType(file) {
  for (let folder = dirname(file); ; folder = dirname(folder)) {
    try {
      return JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')).type
    } catch (error) {
      if (error.code !== 'ENOENT' && error.code !== 'ENOTDIR') return undefined       // Node itself will say what is wrong with it
    }
    if (dirname(folder) === folder) return undefined
  }
}

/** Whether `require` may load it: import() can load all, but costs a few milliseconds more at the start. */
function isCommonJs(file) {
  if (file.endsWith('.cjs')) return true
  if (file.endsWith('.mjs')) return false
  const type = packageType(file)
  if (type === 'module') return false
  return type === 'commonjs' || !/^\s*(?:import|export)\b/m.test(readFileSync(file, 'utf8'))    // Node takes a module without a type by its syntax
}

async function evaluate(file) {
  if (isCommonJs(file)) {
    try {
      return { default: require(file) }
    } catch (error) {
      if (error?.code !== 'ERR_REQUIRE_ESM' && error?.code !== 'ERR_REQUIRE_ASYNC_MODULE') throw error
    }
  }
  try {
    return await import(require('node:url').pathToFileURL(file).href)
  } catch (error) {
    if (error instanceof SyntaxError && !/^\S.*:\d+\n/.test(error.stack)) {
      error.stack = require('./syntax.cjs').locateSyntaxError(file) ?? error.stack
    }
    throw error
  }
}

/** A function by its name: a named export, or a member of the default export (which is `module.exports` of a CommonJS module). */
function find(module, name) {
  if (typeof module[name] === 'function') return module[name]
  const main = module.default
  return main !== null && main !== undefined && typeof main[name] === 'function' ? main[name].bind(main) : undefined
}

/** `module.exports = f`, `export default f`, and the latter as compilers write it in CommonJS. */
function wholeModule(module) {
  const main = module.default?.__esModule ? module.default.default : module.default
  return typeof main === 'function' ? main : undefined
}

function exported(module) {
  const names = new Map()
  for (const source of [module.default, module]) {
    if ((typeof source !== 'object' && typeof source !== 'function') || source === null) continue
    for (const key of Object.keys(source)) if (key !== 'default' && key !== 'module.exports') names.set(key, typeof source[key])
  }
  if (typeof module.default === 'function') names.set('default', 'function')
  return [...names].map(([key, type]) => `${key} (${type})`).join(', ')
}

/** @returns {Promise<{handler: Function, init?: Function}>} */
async function load(folder, entrypoint) {
  const { file, name } = locate(folder, entrypoint)
  const module = await evaluate(file)
  const handler = find(module, name) ?? wholeModule(module)
  if (handler === undefined) {
    const there = exported(module)
    throw notFound(`${relative(folder, file)} has no function ${JSON.stringify(name)} among its exports; `
      + (there ? `it exports ${there}` : 'it exports nothing'))
  }
  return { handler, init: name === 'init' ? undefined : find(module, 'init') }
}

module.exports = { load, locate }
