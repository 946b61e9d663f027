exports.handle = async (event) => {
  const name = event.name ?? 'world'
  console.log(`greeting ${name}`)
  return { message: `Hello, ${name}!` }
}
