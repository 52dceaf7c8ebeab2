"""One connection to a resident helper, for asyncio.

It belongs to one event loop and does nothing in threads. A command costs one ``sendmsg``
to start; its output goes through the descriptors that were passed, past this module.

    helper = await HelperConnection.spawn(["--root", workdir], env={"PATH": "/usr/bin:/bin"})
    command = helper.start_nowait(["make", "test"], fds=(stdin, stdout, stderr))
    exited = await command.exited()
    await helper.shutdown()
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

from sandlot.helper import command as helper_argv
from sandlot.helper import launch
from sandlot.helper.frames import FrameSocket
from sandlot.helper.protocol import (
    EXITED_BODY,
    HELLO_BODY,
    PAIR,
    SIGNAL_BODY,
    U8,
    U32,
    U64,
    VERSION,
    CommandState,
    Exited,
    FrameType,
    Hello,
    Listed,
    Scope,
    Stage,
    StartFlag,
    pack_start,
    unpack_listing,
    unpack_text,
)
from sandlot.helper.running import HelperCommand, HelperError, fail

__all__ = [
    "Exited",
    "Fds",
    "HelperCommand",
    "HelperConnection",
    "HelperError",
    "Scope",
    "Shutdown",
]

Fds = tuple[int, int, int]
"""Standard input, output and error of a command."""

_START_TIMEOUT = 20.0
_RETRY_DELAY = 0.001


_connections: WeakSet[HelperConnection] = WeakSet()


def _abandon_all() -> None:
    """Let go of the parent's connections in a forked child.

    A child that held one open would keep the sandbox alive after its owner's death.
    """
    for connection in list(_connections):
        connection.abandon()


os.register_at_fork(after_in_child=_abandon_all)


class Shutdown(NamedTuple):
    """How a helper ended."""

    survivors: int
    """Processes that could not be killed."""
    trouble: str
    """What went wrong, or nothing."""


class HelperConnection:
    """A connection to a helper: either its owner's (`spawn`) or a further one (`connect`).

    Attributes:
        loop: The event loop it belongs to.
        hello: What the helper said of itself.
        process_id: The helper's pid, if this connection started it.
        ending: Whether the helper has begun to kill everything, whoever asked for that.
        closed: Done when the connection has ended, whoever ended it.
    """

    def __init__(self, sock: socket.socket, process_id: int | None = None) -> None:
        """Use `spawn` or `connect`."""
        self.loop = asyncio.get_running_loop()
        self.hello = Hello(0, 0, 0)
        self.process_id = process_id
        self.ending = False
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._frames = FrameSocket(self.loop, sock, self._on_frame, self._break)
        _connections.add(self)
        self._commands: dict[int, HelperCommand] = {}
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0
        self._ready: asyncio.Future[None] = self.loop.create_future()
        self._reaped: asyncio.Future[None] = self.loop.create_future()
        self._said = ""
        self._handlers: dict[int, Callable[[int, bytes], None]] = {
            FrameType.HELLO: self._on_hello,
            FrameType.STARTED: self._on_started,
            FrameType.FAILED: self._on_failed,
            FrameType.EXITED: self._on_exited,
            FrameType.GONE: self._on_gone,
            FrameType.DONE: self._on_done,
            FrameType.ERROR: self._on_error,
            FrameType.LISTING: self._on_listing,
            FrameType.WATCHING: self._on_watching,
            FrameType.ENDING: self._on_ending,
        }

    # ------------------------------------------------------------------ life cycle
    @classmethod
    async def spawn(
        cls,
        options: Sequence[str] = (),
        *,
        env: Mapping[str, str],
        argv: Sequence[str] | None = None,
    ) -> HelperConnection:
        """Start a helper, in a session of its own, and return when it is ready.

        Args:
            options: Its command line options; see PROTOCOL.md.
            env: Its whole environment, which its commands inherit.
            argv: The helper itself, if not the usual one: a wrapper and its arguments may
                stand in front, as long as descriptor 3 gets through.

        Raises:
            OSError: If it did not start, with what it said.
        """
        launch.reap_leftovers()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        said = os.memfd_create("sandlot-helper-stderr")
        try:
            pid = launch.spawn([*(argv or helper_argv()), *options], env, theirs.fileno(), said)
            self = cls(ours, pid)
        except BaseException:
            ours.close()
            os.close(said)
            raise
        finally:
            theirs.close()
        try:
            await self._await_hello()
        except BaseException as exc:
            self.kill_helper()
            self.close()
            text = os.pread(said, 4096, 0).decode("utf-8", "replace").strip()
            if isinstance(exc, OSError):
                reason = text or str(exc) or "it said nothing"
                raise ConnectionError(f"the helper did not start: {reason}") from exc
            raise
        finally:
            os.close(said)
        return self

    @classmethod
    async def connect(cls, directory: str, name: str) -> HelperConnection:
        """Connect to the socket ``name`` in a directory, whose path may be of any length.

        Raises:
            OSError: If nobody listens there.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await launch.connect(sock, directory, name)
            self = cls(sock)
        except BaseException:
            sock.close()
            raise
        try:
            await self._await_hello()
        except BaseException:
            self.close()
            raise
        return self

    async def _await_hello(self) -> None:
        async with asyncio.timeout(_START_TIMEOUT):
            await self._ready

    def close(self) -> None:
        """End the connection; idempotent. The owner's takes the helper along, unless kept."""
        self._break(ConnectionResetError("the connection to the helper was closed"))

    def abandon(self) -> None:
        """Let go of the descriptor only: for a forked child, whose loop is its parent's."""
        self._frames.abandon()

    async def shutdown(self, patience: float | None = None) -> Shutdown:
        """Let the helper kill everything, remove what it should, and end.

        Args:
            patience: Seconds to wait for that.

        Raises:
            TimeoutError: If it took longer; a helper that was started here is then killed,
                upon which all its commands die.
        """
        try:
            async with asyncio.timeout(patience):
                number, text = await self._request(FrameType.SHUTDOWN)
                await asyncio.shield(self.closed)
                await asyncio.shield(self._reaped)
        except TimeoutError:
            self.kill_helper()
            raise
        return Shutdown(number, text)

    def kill_helper(self) -> None:
        """Send SIGKILL to the helper, if it was started here. All its commands die with it."""
        if self.process_id is not None:
            launch.kill(self.process_id)

    # -------------------------------------------------------------------- commands
    def start_nowait(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str | None] | None = None,
        fds: Fds | None = None,
        pty: bool = False,
        quiet: bool = True,
    ) -> HelperCommand:
        """Ask for a command to be started, without waiting for anything.

        Args:
            argv: The program and its arguments.
            cwd: Where it starts; relative to the helper's own directory.
            env: Variables over those of the helper; ``None`` removes one.
            fds: Its input, output and error; ``/dev/null`` if omitted. They may be closed
                as soon as this returns.
            pty: The first of them is a terminal and becomes its controlling one.
            quiet: Its pid won't be told before it ends.

        Raises:
            ValueError: If a string holds a NUL, a variable's name is empty or holds ``=``,
                or it all is larger than 16 MiB.
            ConnectionError: If the connection has ended.
        """
        flags = (StartFlag.PTY.value if pty else 0) | (StartFlag.QUIET.value if quiet else 0)
        variables = [_variable(*item) for item in env.items()] if env else ()
        body = pack_start(cwd, argv, variables, flags=flags, fds=3 if fds else 0)
        command = HelperCommand(self, self._new_id())
        self._frames.send(FrameType.START, command.request_id, body, fds or ())
        self._commands[command.request_id] = command
        return command

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str = "",
        env: Mapping[str, str | None] | None = None,
        fds: Fds | None = None,
        pty: bool = False,
    ) -> HelperCommand:
        """Start a command and return when it runs; its ``pid`` is then known.

        When cancelled, the command is killed.

        Raises:
            HelperError: If it could not be started.
        """
        command = self.start_nowait(argv, cwd=cwd, env=env, fds=fds, pty=pty, quiet=False)
        try:
            await command.started()
        except asyncio.CancelledError:
            self._kill_unawaited(command)
            raise
        return command

    async def watch(self, pid: int) -> HelperCommand:
        """Take hold of a command that another connection started, by its leader's pid.

        Raises:
            HelperError: With ``ESRCH`` if there is none.
        """
        command = HelperCommand(self, self._new_id())
        reply = self._expect(command.request_id)
        self._commands[command.request_id] = command
        self._frames.send(FrameType.WATCH, command.request_id, U32.pack(pid))
        await reply
        return command

    async def signal(self, command: HelperCommand, number: int, scope: Scope) -> int:
        """See `HelperCommand.signal`."""
        while not command.is_gone:
            body = SIGNAL_BODY.pack(command.request_id, number, scope)
            try:
                count, _ = await self._request(FrameType.SIGNAL, body)
            except HelperError as exc:
                if exc.errno == errno.ESRCH:
                    return 0
                if exc.errno != errno.EAGAIN:
                    raise
                await asyncio.sleep(_RETRY_DELAY)  # it is just starting
            else:
                return int(count)
        return 0

    async def kill(self, command: HelperCommand) -> None:
        """See `HelperCommand.kill`."""
        if not command.is_gone:
            self._kill_unawaited(command)
            await command.gone()

    def _kill_unawaited(self, command: HelperCommand) -> None:
        if not command.is_gone and not self.closed.done():
            self._request(FrameType.KILL, U32.pack(command.request_id))

    # ------------------------------------------------------------ the helper's life
    async def list(self) -> list[Listed]:
        """Return all commands, whoever started them."""
        listed: list[Listed] = await self._request(FrameType.LIST)
        return listed

    def lifetime(self, milliseconds: int) -> asyncio.Future[Any]:
        """Let the helper end by itself then, counted from now; 0: not by itself.

        Sent at once; the future is done when the helper has it.
        """
        return self._request(FrameType.LIFETIME, U64.pack(milliseconds))

    def keep(self, keep: bool) -> asyncio.Future[Any]:
        """Say whether the helper stays when its owner's connection closes. As `lifetime`."""
        return self._request(FrameType.KEEP, U8.pack(keep))

    def own(self) -> asyncio.Future[Any]:
        """Make this connection the owner's. As `lifetime`."""
        return self._request(FrameType.OWN)

    # --------------------------------------------------------------------- sending
    def _new_id(self) -> int:
        self._last_id = self._last_id % 0xFFFFFFFF + 1
        while self._last_id in self._commands or self._last_id in self._replies:
            self._last_id = self._last_id % 0xFFFFFFFF + 1
        return self._last_id

    def _expect(self, request_id: int) -> asyncio.Future[Any]:
        reply: asyncio.Future[Any] = self.loop.create_future()
        self._replies[request_id] = reply
        return reply

    def _request(self, kind: FrameType, body: bytes = b"") -> asyncio.Future[Any]:
        request_id = self._new_id()
        self._frames.send(kind, request_id, body)
        return self._expect(request_id)

    # ------------------------------------------------------------------- receiving
    def _on_frame(self, kind: int, request_id: int, body: bytes) -> None:
        self._handlers[kind](request_id, body)

    def _on_hello(self, _request_id: int, body: bytes) -> None:
        self.hello = Hello(*HELLO_BODY.unpack(body))
        if self.hello.version != VERSION:
            raise ValueError(f"protocol version {self.hello.version}, not {VERSION}")
        if not self._ready.done():
            self._ready.set_result(None)

    def _on_ending(self, _request_id: int, _body: bytes) -> None:
        self.ending = True

    def _on_started(self, request_id: int, body: bytes) -> None:
        self._commands[request_id].set_started(U32.unpack(body)[0])

    def _on_failed(self, request_id: int, body: bytes) -> None:
        number, stage = PAIR.unpack(body)
        error = HelperError(number, stage=Stage(stage))
        self._commands.pop(request_id).set_failed(error, gone=True)

    def _on_exited(self, request_id: int, body: bytes) -> None:
        self._commands[request_id].set_exited(Exited._make(EXITED_BODY.unpack(body)))

    def _on_gone(self, request_id: int, _body: bytes) -> None:
        self._commands.pop(request_id).set_gone()

    def _on_done(self, request_id: int, body: bytes) -> None:
        self._reply(request_id, unpack_text(body))

    def _on_listing(self, request_id: int, body: bytes) -> None:
        self._reply(request_id, unpack_listing(body))

    def _on_watching(self, request_id: int, body: bytes) -> None:
        pid, state = PAIR.unpack(body)
        self._commands[request_id].set_started(pid)
        self._reply(request_id, CommandState(state))

    def _on_error(self, request_id: int, body: bytes) -> None:
        number, text = unpack_text(body)
        if request_id == 0:
            self._said = f"the helper ended the connection: {text}"
            return
        error = HelperError(number, text)
        if command := self._commands.pop(request_id, None):
            command.set_failed(error, gone=True)
        if reply := self._replies.pop(request_id, None):
            fail(reply, error)

    def _reply(self, request_id: int, value: object) -> None:
        reply = self._replies.pop(request_id)
        if not reply.done():
            reply.set_result(value)

    # ------------------------------------------------------------------ the end of it
    def _break(self, error: ConnectionResetError) -> None:
        if self.closed.done():
            return
        self._frames.close()
        if self.loop.is_closed():
            return  # and nobody waits any more
        self.closed.set_result(None)
        if self._said:
            error = ConnectionResetError(self._said)
        fail(self._ready, error)
        for reply in self._replies.values():
            fail(reply, error)
        for command in self._commands.values():
            command.set_failed(error, gone=False)
        self._replies.clear()
        self._commands.clear()
        if self.process_id is None:
            self._reaped.set_result(None)
        else:
            self._reap(self.process_id, 0.0005)

    def _reap(self, pid: int, delay: float) -> None:
        """Wait for the helper's process without a thread, a signal handler or a descriptor."""
        if launch.try_reap(pid):
            if not self._reaped.done():
                self._reaped.set_result(None)
        else:
            self.loop.call_later(delay, self._reap, pid, min(2 * delay, 0.5))


def _variable(name: str, value: str | None) -> str:
    if not name or "=" in name:
        raise ValueError(f"not a name of an environment variable: {name!r}")
    return name if value is None else f"{name}={value}"
