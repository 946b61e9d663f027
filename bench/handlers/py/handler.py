from ops import call


def handle(event, context):
    return call(event)
