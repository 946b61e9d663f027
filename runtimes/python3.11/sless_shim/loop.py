"""The event loop of a worker. It is made with the first coroutine, and kept."""
import asyncio
import os
import sys


def _chain(awaited):
    """Frames from a coroutine down to where it waits, the innermost first, in faulthandler's words."""
    lines = []
    while awaited is not None:
        for kind in ("cr", "ag", "gi"):
            frame = getattr(awaited, kind + "_frame", None)
            if frame is not None:
                lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}\n')
                break
        else:
            break
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "ag_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return "".join(reversed(lines))


class Loop:
    def __init__(self, ask, answer):
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self._ask, self._answer = ask, answer
        self._streams = {}                      # task: the async generator that it takes from; its frames are in no chain
        self._running, self._lost = False, None     # a call; what was raised beside it
        self.loop.set_exception_handler(self._unhandled)
        self.loop.add_reader(ask, self._tell)

    def _tell(self):
        """The loop itself waits, so no thread's stack shows the handler: tell where its tasks do."""
        try:
            os.read(self._ask, 64)
        except BlockingIOError:
            pass
        told = []
        for task in asyncio.all_tasks(self.loop):
            found = _chain(self._streams.get(task)) + _chain(task.get_coro())
            if found:
                told.append(f"Task {task.get_name()} (most recent call first):\n{found}")
        try:
            os.write(self._answer, "\n".join(told).encode("utf-8", "replace") + b"\0")
        except OSError:
            pass

    def run(self, awaitable):
        """Its result. Other tasks run on meanwhile, and stand still when this one has ended."""
        loop = self.loop
        task = loop.create_task(awaitable if asyncio.iscoroutine(awaitable) else _await(awaitable))
        task.add_done_callback(_stop)
        self._running, self._lost = True, None
        try:
            loop.run_forever()
        finally:
            self._running = False
            task.remove_done_callback(_stop)
        if task.done() and self._lost is None:
            return task.result()
        if not task.done():
            task.cancel()
            loop.run_until_complete(asyncio.wait([task], timeout=0.5))
        if task.done() and not task.cancelled():
            task.exception()                    # asked for, so that nobody reports it once more
        raise self._lost or RuntimeError("the handler stopped the event loop that it runs on")

    def _unhandled(self, loop, context):
        """What a callback raises counts as the handler's, which may wait for just that in vain.

        A failed task that nobody awaits comes here when it is collected, maybe in another call: so that is only logged, as asyncio does.
        """
        error = context.get("exception")
        if self._running and error is not None and "handle" in context:
            if self._lost is None:
                self._lost = error
                loop.stop()
        else:
            loop.default_exception_handler(context)

    async def take(self, source, each):
        """Gives each chunk of an async iterator to `each`, which may want to be awaited."""
        task = asyncio.current_task()
        self._streams[task] = source
        try:
            async for value in source:
                taken = each(value)
                if taken is not None:
                    await taken
        finally:
            del self._streams[task]
            close = getattr(source, "aclose", None)
            if close is not None:
                await close()

    def close(self):
        """Tasks that were left are cancelled, and get a moment for their `finally`."""
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        try:
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=0.5))
            self.loop.run_until_complete(asyncio.wait_for(self.loop.shutdown_asyncgens(), 0.5))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            sys.__stderr__.write(f"while the worker's last tasks were cancelled: {type(error).__name__}: {error}\n")


async def _await(awaitable):
    return await awaitable


def _stop(task):
    task.get_loop().stop()
