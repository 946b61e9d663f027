// Adapters for functions-framework (`framework`) and the Lambda runtime client (`client`).
const { call } = require('./ops')

exports.framework = async (request, response) => {
  response.json(await call(request.body))
}
exports.client = (event) => call(event)
