"""Tells of its progress while it works: each line is sent when it is yielded."""

import time


def handle(event, context):
    steps = int(event.get("steps", 5))
    pause_sec = float(event.get("pause_sec", 0.2))
    if not (1 <= steps <= 100 and 0 <= pause_sec <= 5):
        return {"statusCode": 400, "body": {"error": "steps is 1 to 100, pause_sec 0 to 5"}}
    return {"statusCode": 200, "headers": {"content-type": "text/plain; charset=utf-8"}, "body": progress(steps, pause_sec)}


def progress(steps, pause_sec):
    for step in range(1, steps + 1):
        time.sleep(pause_sec)  # the work
        print(f"step {step}")
        yield f"step {step} of {steps}\n"
    yield "done\n"
