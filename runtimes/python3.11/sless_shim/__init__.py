"""Runs a Python handler for the supervisor, over the worker protocol (docs/protocol.md). Standard library only.

What a call does not need is not imported: every module costs each cold start.
"""
