const { call } = require('./ops')

exports.handle = (event) => call(event)
