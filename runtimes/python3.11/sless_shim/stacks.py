"""Answers the supervisor's question where the handler is stuck: by a signal handler in C, so also out of a busy loop or a regular expression."""
import os


def arm(ask, answer):
    """The kernel raises SIGIO when a byte comes on `ask`; faulthandler then writes every thread's stack to `answer`."""
    import faulthandler
    from fcntl import F_GETFL, F_SETFL, F_SETOWN, fcntl

    from _signal import SIGIO
    faulthandler.register(SIGIO, file=answer, all_threads=True, chain=False)        # first: unhandled, SIGIO kills
    fcntl(ask, F_SETOWN, os.getpid())
    fcntl(ask, F_SETFL, fcntl(ask, F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
