// Turns Markdown into HTML: text in, HTML out.
const { marked } = require('marked')

// HTML inside the Markdown is passed on as it is, as Markdown demands: clean the answer before you show it
// among other people's pages.
exports.handle = async (event) => {
  if (typeof event !== 'string' || event.trim() === '') {
    return { statusCode: 400, body: { error: 'send Markdown as the body, with content-type text/markdown' } }
  }
  const html = marked.parse(event, { gfm: true })
  console.log(`${event.length} characters of Markdown -> ${html.length} of HTML`)
  return { statusCode: 200, headers: { 'content-type': 'text/html; charset=utf-8' }, body: html }
}
