"""The client of the fork server that runs Python code; see ``zygote.py`` for its protocol."""

from __future__ import annotations

import array
import asyncio
import errno
import json
import os
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from sandlot.errors import ErrorOutcome, SandboxConnectionError, SandboxExecutionError
from sandlot.types import Exit, ResourceUsage

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zygote.py")
"""The server: ``python PROGRAM [MODULE...]`` with one end of `socketpair` as its input."""

_MOST_UNANSWERED = 32
"""Requests on their way: descriptors in flight count against this process's limit."""
_LONGEST_MESSAGE = 64 * 1024


def socketpair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection: one for `CodeServer`, one for the server."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class CodeServer:
    """Runs Python code in forks of a warm interpreter. Belongs to one event loop.

    Attributes:
        ready: Done when the server is warm: then it holds the modules that could not be
            imported, and why. It fails if the server ends. Code can be started before; it
            waits.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Take over a connected socket; its other end is the server's standard input."""
        self._slots = asyncio.Semaphore(_MOST_UNANSWERED)
        self._runs: set[CodeRun] = set()
        self.ready: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()
        self._channel = _Channel(sock, self._hear)

    @property
    def closed(self) -> bool:
        """Whether nothing can be started any more."""
        return self._channel.closed

    async def start(
        self,
        code: str,
        *,
        cwd: str,
        env: Mapping[str, str | None],
        fds: Sequence[int],
    ) -> CodeRun:
        """Start a piece of code and return when it runs.

        Args:
            code: What ``python -c`` would be given, of any length.
            cwd: Where it starts, absolute.
            env: Variables on top of the server's own; ``None`` removes one.
            fds: Its standard input, output and error. They stay the caller's to close.

        Raises:
            SandboxExecutionError: If it could not be started.
            SandboxConnectionError: If the server is gone.
        """
        async with self._slots:
            ours, theirs = socketpair()
            run = CodeRun(ours, self._runs.discard)
            self._runs.add(run)
            try:
                with theirs, _file({"code": code, "cwd": cwd, "env": dict(env)}) as file:
                    await self._channel.send(b"run", (theirs.fileno(), file.fileno(), *fds))
                await run.started
            except BrokenPipeError as exc:
                run.close()
                raise _server_gone() from exc
            except BaseException:
                run.close()
                raise
        return run

    def close(self) -> None:
        """Kill all that runs, and let the server end; idempotent."""
        self._channel.close()
        for run in list(self._runs):
            run.close()

    def _hear(self, message: bytes) -> None:
        if self.ready.done():
            return
        if message:
            self.ready.set_result(json.loads(message)["missing"])
        else:
            _fail(self.ready, _server_gone())


class CodeRun:
    """A piece of code that was started.

    Attributes:
        started: Done when it runs.
        pid: Its process, the leader of a session of its own.
        exited: How it ended. It may leave processes behind. Fails if that can't be told.
        gone: Done when none of its processes is left.
    """

    def __init__(self, control: socket.socket, forget: Callable[[CodeRun], object]) -> None:
        loop = asyncio.get_running_loop()
        self.pid = 0
        self.exited: asyncio.Future[Exit] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.started: asyncio.Future[None] = loop.create_future()
        self._forget = forget
        self._channel = _Channel(control, self._hear)

    async def kill(self) -> None:
        """Kill it and all its descendants; return when they are gone. Fine if they are."""
        with suppress(BrokenPipeError):  # then they are
            await self._channel.send(b"kill")
        await asyncio.shield(self.gone)

    def close(self) -> None:
        """Let go of it, which kills it and all its descendants, without waiting for that."""
        self._channel.close()

    def _hear(self, message: bytes) -> None:
        word, *values = message.split() or [b""]
        if word == b"started":
            self.pid = int(values[0])
            self.started.set_result(None)
        elif word == b"exited":
            self.exited.set_result(_exit(*map(int, values)))
        elif word == b"failed":
            why = os.strerror(int(values[0]))
            _fail(self.started, SandboxExecutionError(f"the code could not be started: {why}"))
        else:
            self._end()

    def _end(self) -> None:
        self._forget(self)
        if not self.started.done():
            _fail(self.started, _server_gone())
        if not self.exited.done():
            _fail(self.exited, SandboxExecutionError("the code was lost: its keeper was killed"))
        if not self.gone.done():
            self.gone.set_result(None)


class _Channel:
    """A socket that keeps messages apart, with an event loop behind it."""

    def __init__(self, sock: socket.socket, hear: Callable[[bytes], object]) -> None:
        """Take over ``sock``; ``hear`` is called with each message, and with none at the end."""
        self._sock = sock
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self.closed = False
        sock.setblocking(False)
        self._loop.add_reader(sock, self._read)

    async def send(self, message: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message with descriptors.

        Raises:
            BrokenPipeError: If nobody will receive it.
        """
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        while not self.closed:
            try:
                self._sock.sendmsg([message], [rights] if fds else [])
                return
            except ConnectionResetError:
                break
            except OSError as exc:
                # More is under way than the other end has taken, or than we may have open.
                if exc.errno not in (errno.EAGAIN, errno.ETOOMANYREFS):
                    raise
                await asyncio.sleep(0.005)
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._sock)
            self._sock.close()
            self._hear(b"")

    def _read(self) -> None:
        while not self.closed:
            try:
                message = self._sock.recv(_LONGEST_MESSAGE)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # the other end left something unread; what it said comes next
            if message:
                self._hear(message)
            else:
                self.close()


@contextmanager
def _file(content: object) -> Generator[BinaryIO, None, None]:
    """Yield a file in memory, which can be of any size, that holds ``content`` as JSON."""
    with os.fdopen(os.memfd_create("request", os.MFD_CLOEXEC), "w+b") as file:
        file.write(json.dumps(content).encode("ascii"))
        file.seek(0)  # the receiver shares the position
        yield file


def _exit(status: int, user_us: int, system_us: int, peak_kib: int) -> Exit:
    code = os.waitstatus_to_exitcode(status)
    return Exit(
        exit_code=code if code >= 0 else 128 - code,
        signal=-code if code < 0 else None,
        usage=ResourceUsage(user_us / 1e6, system_us / 1e6, peak_kib / 1024),
    )


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    future.set_exception(error)
    future.exception()  # nobody need have waited for it


def _server_gone() -> SandboxConnectionError:
    return SandboxConnectionError(
        "the server that runs Python code has ended", outcome=ErrorOutcome.NOT_STARTED
    )
