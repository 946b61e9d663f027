// A small shopping cart: query parameters, headers, state, logging, and errors that the caller can act on.

const PRICES_CENT = new Map([['apple', 40], ['bread', 320], ['cheese', 560]])

// Runs once per worker, before the first call.
export function init(context) {
  context.state.calls = 0
}

function refuse(message, statusCode = 400) {
  console.error(`refused: ${message}`)
  return { statusCode, body: { error: message } }
}

export async function handle(event, context) {
  context.state.calls += 1
  if (!Array.isArray(event?.items)) return refuse('send a JSON object with a list `items`')

  let totalCent = 0
  for (const item of event.items) {
    const price = PRICES_CENT.get(item?.name)
    if (price === undefined) {
      return refuse(`unknown item ${JSON.stringify(item)}; there are ${[...PRICES_CENT.keys()].join(', ')}`, 422)
    }
    const count = item.count ?? 1
    if (!Number.isInteger(count) || count < 1) {
      return refuse(`count of ${item.name} must be a whole number from 1, not ${JSON.stringify(count)}`, 422)
    }
    totalCent += price * count
  }

  const currency = new Map(context.http.query).get('currency') ?? 'EUR'
  const customer = context.http.headers['x-customer'] ?? 'somebody'
  console.log(`cart of ${customer}: ${event.items.length} items, ${totalCent} cent`)
  return {
    statusCode: 200,
    headers: { 'x-cart-total': String(totalCent) },
    body: { customer, total: `${(totalCent / 100).toFixed(2)} ${currency}`, calls_of_this_worker: context.state.calls },
  }
}
