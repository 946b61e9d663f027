"""Processes that a handler starts: the supervisor is told that there may be some, and a fork never speaks for its parent."""
import os

started = 0                     # grows with each process that is started

_keep_shut = ()                 # descriptors that a fork gets without asking, and must not hold open


def _notice():
    global started
    started += 1


def _noticing(function):
    def start(*args, **kwargs):
        _notice()
        return function(*args, **kwargs)
    start.__name__, start.__doc__, start.__wrapped__ = function.__name__, function.__doc__, function
    return start


def _in_child():
    """A fork that lives on would keep the slots open after the worker's death."""
    for fd in _keep_shut:
        try:
            os.close(fd)
        except OSError:
            pass


def watch(descriptors):
    """Wraps the few functions that start processes without os.fork: an audit hook would be called at every `open` and `id` too."""
    global _keep_shut
    _keep_shut = tuple(descriptors)
    import _posixsubprocess
    import posix

    from . import output

    def before():
        _notice()
        output.flush()          # or both would write what stands in the buffer
    os.register_at_fork(before=before, after_in_child=_in_child)
    _posixsubprocess.fork_exec = _noticing(_posixsubprocess.fork_exec)
    for name in ("posix_spawn", "posix_spawnp", "system"):
        wrapped = _noticing(getattr(os, name))
        setattr(os, name, wrapped)
        setattr(posix, name, wrapped)
