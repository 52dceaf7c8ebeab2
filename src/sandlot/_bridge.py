"""Blocking calls into asynchronous code, by way of one private event loop thread.

A call is one hop: what it awaits becomes a task on the loop, and the caller waits on a lock.
Whatever interrupts the caller cancels the task and gives its clean-up a moment. After
``os.fork`` the child has a loop of its own. When the program ends, running calls are
cancelled, and the sandboxes that nobody asked to keep are destroyed.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import copy_context
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeAlias, TypeVar

from sandlot import _at_exit
from sandlot._at_exit import Destroyable, Workers, close_with_worker, drain
from sandlot._pump import Pump, close_forgotten
from sandlot.errors import SandboxClosedError

_log = logging.getLogger("sandlot")

_PATIENCE = 5.0
"""Seconds that clean-up gets after an interrupt."""
_SLICE = 1.0
"""Seconds after which a waiting thread looks whether a signal has come."""


class Leavable(Protocol):
    """What a ``with`` block ends."""

    async def __aexit__(self, *exc: object) -> None: ...


P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", bound=Destroyable)
L = TypeVar("L", bound=Leavable)
Undo: TypeAlias = Callable[[T], Coroutine[Any, Any, object]]


class Bridge:
    """The loop thread, and all that waits for it."""

    def __init__(self) -> None:
        self.epoch = 0
        """How many forks lie between this process and the first."""
        self._abandoned: list[object] = []
        self._warned = False
        self._begin()
        os.register_at_fork(after_in_child=self._after_fork)
        # At import, so that exit handlers of the program's own, which run first, can still call.
        atexit.register(self.close)

    def _begin(self) -> None:
        # Reentrant, as a signal handler or the garbage collector may call while it is held.
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._workers = Workers()
        self._closed = False
        self._calls: set[_Call[Any]] = set()
        self._readings: set[asyncio.Task[None]] = set()
        self._live: set[Destroyable] = set()
        self._sweep_at = 16

    def _after_fork(self) -> None:
        # The parent's loop has no thread here, but its descriptors are shared: were it
        # collected and closed, it would unregister them from the parent's epoll as well.
        self._abandoned.append(self.__dict__.copy())
        self.epoch += 1
        self._begin()

    # ------------------------------------------------------------------ calling
    def run(self, work: Awaitable[T], *, undo: Undo[T] | None = None) -> T:
        """Await something on the loop and return its result.

        Args:
            work: It sees the caller's context variables.
            undo: What to do with a result that an interrupted caller will never see.
        """
        return self._finish(_Call(work), undo)

    def make(self, work: Awaitable[D]) -> D:
        """Like `run`, and see to it that what is made does not outlive the program."""
        return self._finish(_Call(work, then=self._adopt), _discard)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the loop's thread, for what is not safe in any other."""

        async def called() -> T:
            return function(*args, **kwargs)

        return self.run(called())

    def iterate(self, source: AsyncIterator[T]) -> Generator[T, None, None]:
        """Yield from an asynchronous iterator, with one hop for all that has come by then.

        Closing the generator closes the source before it returns.
        """
        epoch = self.epoch
        pump = Pump(source, self._readings)
        try:
            while True:
                self.check_epoch(epoch)
                items = self.run(pump.batch())
                if not items:
                    return
                yield from items
        finally:
            if epoch == self.epoch and pump.is_open:
                self._close_pump(pump)

    def check_epoch(self, epoch: int) -> None:
        """Refuse, in a forked child, what was made before the fork.

        Raises:
            SandboxClosedError: If ``epoch`` is not this process's.
        """
        if epoch != self.epoch:
            raise SandboxClosedError(
                "this was made before os.fork() and belongs to the parent process",
                hint="make a new one here, or resume() the parent's session_state()",
            )

    # ----------------------------------------------------------------- one hop
    def _finish(self, call: _Call[T], undo: Undo[T] | None) -> T:
        try:
            self._submit(call)
            call.wait()
        except BaseException:  # KeyboardInterrupt, or what any signal handler raises
            self._withdraw(call, undo)
            raise
        error, call.error = call.error, None
        if error is None:
            return call.result
        try:
            if self._closed and isinstance(error, asyncio.CancelledError):
                raise _ended() from None
            raise error
        finally:
            del error  # or else it, its traceback and this frame keep each other alive

    def _submit(self, call: _Call[Any]) -> None:
        if self._in_loop_thread():
            call.refuse(_reentered())
            return
        if not self._warned and _running_loop() is not None:
            self._warn_of_running_loop()
        self._schedule(call)

    def _schedule(self, call: _Call[Any]) -> None:
        with self._lock:
            if self._closed:
                call.refuse(_ended())
                return
            loop = self._loop or self._start()
            self._calls.add(call)
            loop.call_soon_threadsafe(call.start, self._calls)

    def _withdraw(self, call: _Call[T], undo: Undo[T] | None) -> None:
        """Cancel a call, and wait a moment for its clean-up; another interrupt ends the wait."""
        cleanup = _Call(self._take_back(call, undo))
        self._schedule(cleanup)
        if not cleanup.wait(_PATIENCE):
            _log.warning("an interrupted call is still cleaning up after %.0f s", _PATIENCE)

    async def _take_back(self, call: _Call[T], undo: Undo[T] | None) -> None:
        """Cancel a call and see its clean-up through; undo it if it was done already."""
        if call.task is None:  # interrupted on its way to the loop
            self._calls.discard(call)
            call.refuse(_ended())
            return
        call.task.cancel()
        await asyncio.wait({call.task})
        if call.error is None:
            if undo is not None:
                await undo(call.result)
        elif not isinstance(call.error, asyncio.CancelledError):
            _log.warning("an interrupted call failed", exc_info=call.error)

    def _close_pump(self, pump: Pump[Any]) -> None:
        # A generator that was forgotten is collected in whatever thread. The loop's own can't
        # wait, nor take the lock: another thread may hold it and wait for the loop.
        if self._loop is not None and self._in_loop_thread():
            self._loop.create_task(close_forgotten(pump))
        else:
            self.run(pump.close())

    def _warn_of_running_loop(self) -> None:
        self._warned = True
        if not _in_notebook():
            warnings.warn(
                "a blocking call inside a running event loop holds up all else on that loop; "
                "use AsyncSandbox there",
                stacklevel=_level_of_user(),
            )

    # -------------------------------------------------------------- the thread
    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        loop.set_default_executor(self._workers)
        thread = threading.Thread(target=self._main, args=(loop,), name="sandlot", daemon=True)
        thread.start()
        # Not before: an interrupt on the way would leave a loop that nobody runs.
        self._loop, self._thread = loop, thread
        close_with_worker(self.close)
        return loop

    def _main(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        finally:
            with self._lock:
                self._closed = True
                for call in list(self._calls):
                    call.refuse(_ended())
                loop.close()  # which also lets the workers go

    def _in_loop_thread(self) -> bool:
        return self._thread is not None and self._thread.ident == threading.get_ident()

    # ----------------------------------------------------------------- the end
    def _adopt(self, made: Destroyable) -> None:
        if len(self._live) >= self._sweep_at:
            self._live -= {other for other in self._live if not other.ends_with_program}
            self._sweep_at = 2 * len(self._live) + 16
        self._live.add(made)

    def _tasks(self) -> Iterator[asyncio.Task[None]]:
        """Yield what runs for callers, when the loop's thread asks."""
        yield from [call.task for call in self._calls if call.task is not None]
        yield from self._readings

    def close(self) -> None:
        """Cancel what is running, destroy what ends with the program, end the thread."""
        with self._lock:
            loop, thread, already = self._loop, self._thread, self._closed
            self._closed = True
            if already or loop is None or thread is None:
                return
            drained = _Call(drain(self._tasks(), self._live))
            loop.call_soon_threadsafe(drained.start, self._calls)
        if not drained.wait(4 * _at_exit.PATIENCE):
            _log.warning("the event loop behind the blocking API does not answer")
        if drained.error is not None:
            _log.error("ending the blocking API failed", exc_info=drained.error)
        with self._lock:
            if not loop.is_closed():
                loop.call_soon_threadsafe(loop.stop)
        thread.join(1)


class _Call(Generic[T]):
    """One call: its task on the loop, its outcome, and the lock that its caller waits for."""

    __slots__ = ("_context", "_then", "_work", "ended", "error", "result", "task")

    result: T

    def __init__(self, work: Awaitable[T], then: Callable[[T], object] | None = None) -> None:
        self._work = work
        self._then = then
        self._context = copy_context()
        self.task: asyncio.Task[None] | None = None
        self.error: BaseException | None = None
        self.ended = threading.Lock()
        """Held until there is an outcome."""
        self.ended.acquire()

    def start(self, calls: set[_Call[Any]]) -> None:
        """Make it a task of the running loop; it leaves ``calls`` when it has ended."""
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(self._drive(calls), context=self._context)

    def wait(self, patience: float = math.inf) -> bool:
        """Wait in the caller's thread for the outcome, and return whether it is there.

        In slices, for a signal that comes just before the thread begins to sleep on the lock
        does not wake it, and its handler would not run before something else does.
        """
        give_up = time.monotonic() + patience
        while not self.ended.acquire(timeout=min(_SLICE, patience)):
            if time.monotonic() >= give_up:
                return False
        return True

    def refuse(self, error: Exception) -> None:
        """End it with an error: before it has begun, or when its loop has died."""
        if self.task is None and asyncio.iscoroutine(self._work):
            self._work.close()
        self.error = error
        self.ended.release()

    async def _drive(self, calls: set[_Call[Any]]) -> None:
        # Faster than a done callback by one turn of the loop. SystemExit, too, is the caller's.
        try:
            self.result = await self._work
            if self._then is not None:
                self._then(self.result)
        except BaseException as exc:  # noqa: BLE001  (raised again in the caller's thread)
            self.error = exc
        calls.discard(self)
        self.ended.release()


BRIDGE = Bridge()


class Blocking(Generic[L]):
    """An object of the asynchronous API, used through the bridge."""

    _inner: L
    _epoch: int

    @classmethod
    def _of(cls, inner: L) -> Self:
        self = cls.__new__(cls)
        self._hold(inner)
        return self

    def _hold(self, inner: L) -> None:
        self._inner = inner
        self._epoch = BRIDGE.epoch

    @property
    def _async(self) -> L:
        BRIDGE.check_epoch(self._epoch)
        return self._inner

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        # A forked child that leaves the block, as sys.exit() does, must not end what is
        # the parent's.
        if self._epoch == BRIDGE.epoch:
            BRIDGE.run(self._inner.__aexit__(*exc))

    def __repr__(self) -> str:
        return repr(self._inner).replace(type(self._inner).__name__, type(self).__name__, 1)


async def _discard(made: Destroyable) -> None:
    if made.ends_with_program:
        await made.destroy()


def _ended() -> SandboxClosedError:
    return SandboxClosedError("the event loop behind the blocking API has ended")


def _reentered() -> RuntimeError:
    return RuntimeError(
        "a blocking call from within the event loop behind the blocking API would wait for "
        "itself; callbacks and event subscribers must not make one"
    )


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _in_notebook() -> bool:
    """Whether an IPython kernel runs this: there, all code runs inside its loop."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def _level_of_user() -> int:
    """Return, for a warning of the caller's, the level of the first frame that is not ours."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("sandlot."):
        level, frame = level + 1, frame.f_back
    return level
