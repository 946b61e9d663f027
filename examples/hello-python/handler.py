def handle(event, context):
    name = event.get("name", "world")
    print(f"greeting {name}")
    return {"message": f"Hello, {name}!"}
