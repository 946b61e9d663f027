"""Takes longer than it may, and leaves a child behind: to show what happens at the timeout."""

import subprocess
import time


def handle(event, context):
    print(f"going to sleep with {context.remaining_ms()} ms left")
    # A session of its own does not save it: the timeout takes the whole family.
    subprocess.Popen(["sleep", "600.25"], start_new_session=True)
    time.sleep(float(event.get("sleep_sec", 60)))
    return {"slept": True}
