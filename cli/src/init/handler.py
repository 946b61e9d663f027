def handle(event, context):
    """Answers a call: `event` is its body, decoded, or its query when there is none."""
    name = event.get("name", "world") if isinstance(event, dict) else "world"
    print("greeting", name)
    return {"message": f"Hello, {name}!"}
