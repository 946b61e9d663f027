// Answers a call: `event` is its body, decoded, or its query when there is none.
exports.handle = async (event, context) => {
  const name = event?.name ?? 'world'
  console.log('greeting', name)
  return { message: `Hello, ${name}!` }
}
