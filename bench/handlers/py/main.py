"""Adapters for functions-framework (`framework`) and the Lambda runtime client (`client`)."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from ops import call  # noqa: E402


def framework(request):
    return call(request.get_json(force=True))


def client(event, context):
    return call(event)
