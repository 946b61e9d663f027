"""A small shopping cart: query parameters, headers, state, logging, and errors that the caller can act on."""

import logging

log = logging.getLogger("cart")
log.setLevel(logging.INFO)

PRICES_CENT = {"apple": 40, "bread": 320, "cheese": 560}


def init(context):
    """Runs once per worker, before the first call."""
    context.state.calls = 0


def refuse(message, status=400):
    log.warning("refused: %s", message)
    return {"statusCode": status, "body": {"error": message}}


def handle(event, context):
    context.state.calls += 1
    if not isinstance(event, dict) or not isinstance(event.get("items"), list):
        return refuse("send a JSON object with a list `items`")

    total_cent = 0
    for item in event["items"]:
        if not isinstance(item, dict) or item.get("name") not in PRICES_CENT:
            return refuse(f"unknown item {item!r}; there are {', '.join(PRICES_CENT)}", 422)
        count = item.get("count", 1)
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            return refuse(f"count of {item['name']} must be a whole number from 1, not {count!r}", 422)
        total_cent += PRICES_CENT[item["name"]] * count

    currency = dict(context.http.query).get("currency", "EUR")
    customer = context.http.headers.get("x-customer", "somebody")
    log.info("cart of %s: %d items, %d cent", customer, len(event["items"]), total_cent)
    return {
        "statusCode": 200,
        "headers": {"x-cart-total": str(total_cent)},
        "body": {"customer": customer, "total": f"{total_cent / 100:.2f} {currency}", "calls_of_this_worker": context.state.calls},
    }
