// The least worker: a length and JSON in, a length and JSON out, on descriptor 3.
const net = require('node:net')
const path = require('node:path')
const { call } = require(path.join(__dirname, '..', 'handlers', 'node', 'ops.js'))

function frame(text) {
  const length = Buffer.byteLength(text)
  const out = Buffer.allocUnsafe(4 + length)
  out.writeUInt32BE(length, 0)
  out.write(text, 4)
  return out
}

const socket = new net.Socket({ fd: 3, readable: true, writable: true })
let rest = Buffer.alloc(0)
socket.on('data', (data) => {
  rest = rest.length ? Buffer.concat([rest, data]) : data
  while (rest.length >= 4 && rest.length >= 4 + rest.readUInt32BE(0)) {
    const end = 4 + rest.readUInt32BE(0)
    const request = rest.subarray(4, end)
    rest = rest.subarray(end)
    call(JSON.parse(request)).then((answer) => socket.write(frame(JSON.stringify(answer))))
  }
})
socket.on('end', () => process.exit(0))
