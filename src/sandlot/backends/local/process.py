"""A command of a local sandbox."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import struct
import termios
from typing import Any, Protocol

from sandlot._output import Output
from sandlot.backends.local.pipes import PipeReader, PipeWriter
from sandlot.contract import ProcessHandle, broken_stdin
from sandlot.errors import (
    ErrorOutcome,
    SandboxError,
    SandboxExecutionError,
    SandboxNotFoundError,
)
from sandlot.helper.client import Exited, HelperError, Scope
from sandlot.helper.protocol import Stage
from sandlot.types import Command, Exit, PtySize, ResourceUsage, StreamName

_END_OF_TRANSMISSION = b"\x04"


class Channels:
    """The descriptors of one command: its ends, and ours."""

    def __init__(self, command: Command, null: int) -> None:
        """Open pipes or a terminal, as the command asks for."""
        self._theirs: list[int] = []
        self._ours: list[int] = []
        self.terminal: int | None = None
        self.input: int | None = None
        self.outputs: tuple[int, ...] = ()
        try:
            if command.pty:
                self.fds = self._open_terminal(command.pty)
            else:
                self.fds = self._open_pipes(command, null)
        except BaseException:
            self.close()
            raise

    def _open_pipes(self, command: Command, null: int) -> tuple[int, int, int]:
        stdin = null
        if command.stdin is not None or command.keep_stdin_open:
            stdin, self.input = self._pipe(ours_writes=True)
        stdout, out = self._pipe(ours_writes=False)
        stderr, err = self._pipe(ours_writes=False)
        self.outputs = (out, err)
        return stdin, stdout, stderr

    def _open_terminal(self, size: PtySize) -> tuple[int, int, int]:
        ours, theirs = os.openpty()
        self._ours.append(ours)
        self._theirs.append(theirs)
        set_size(ours, size)
        self.terminal = ours
        self.input = os.dup(ours)
        self._ours.append(self.input)
        self.outputs = (ours,)
        return theirs, theirs, theirs

    def _pipe(self, *, ours_writes: bool) -> tuple[int, int]:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        theirs, ours = (reading, writing) if ours_writes else (writing, reading)
        self._theirs.append(theirs)
        self._ours.append(ours)
        return theirs, ours

    def handed_over(self) -> None:
        """Close the command's ends: it has its own copies."""
        for descriptor in self._theirs:
            os.close(descriptor)
        self._theirs.clear()

    def close(self) -> None:
        """Close everything; for when the command was not started."""
        self.handed_over()
        for descriptor in self._ours:
            os.close(descriptor)
        self._ours.clear()


class Leader(Protocol):
    """What a command is led by: a command of the helper's, or code in the fork server."""

    pid: int | None

    @property
    def helper_is_ending(self) -> bool:
        """Whether the sandbox is being ended, and this with it."""
        ...

    def exited(self) -> asyncio.Future[Exited] | asyncio.Future[Exit]:
        """Return a future of how it ended."""
        ...

    async def kill(self) -> None:
        """Kill it and all its descendants."""
        ...

    async def signal(self, number: int, scope: Scope, /) -> int:
        """Send a signal."""
        ...


class LocalProcess(ProcessHandle):
    """A command that runs, with our ends of its pipes."""

    def __init__(
        self,
        leader: Leader,
        command: Command | None = None,
        channels: Channels | None = None,
        output: Output | None = None,
    ) -> None:
        self._leader = leader
        self._command = command
        self._outputs = [output] if output else []
        self._readers: list[PipeReader] = []
        self._writer: PipeWriter | None = None
        self._terminal: int | None = None
        exited = leader.exited()
        self._ended: asyncio.Future[Exit] = exited.get_loop().create_future()
        if channels is not None and command is not None:
            self._connect(command, channels)
        exited.add_done_callback(self._on_exit)

    def _connect(self, command: Command, channels: Channels) -> None:
        streams: tuple[StreamName, ...] = ("stdout", "stderr")
        for descriptor, stream in zip(channels.outputs, streams, strict=False):
            self._readers.append(PipeReader(descriptor, self._outputs, stream))
        self._terminal = channels.terminal
        if channels.input is not None:
            self._writer = PipeWriter(channels.input)
            if command.stdin:
                self._writer.feed(command.stdin)
            if not command.keep_stdin_open and not command.pty:
                self._writer.close_when_done()

    @property
    def id(self) -> str:  # type: ignore[override]
        """Its process id as text."""
        return str(self._leader.pid or "")

    @property
    def pid(self) -> int | None:  # type: ignore[override]
        """Its process id."""
        return self._leader.pid

    @property
    def running(self) -> bool:
        """Whether its end is still to come."""
        return not self._ended.done()

    @property
    def has_open_pipes(self) -> bool:
        """Whether background children of it still hold its output."""
        return not all(reader.closed for reader in self._readers)

    def also_to(self, output: Output) -> None:
        """Feed another output from now on."""
        self._outputs.append(output)
        if self._ended.done():
            output.close()

    def close(self) -> None:
        """Close our ends of its pipes; idempotent."""
        if self._writer is not None:
            self._writer.close()
        for reader in self._readers:
            reader.close()

    async def wait(self) -> Exit:
        return await asyncio.shield(self._ended)

    async def kill(self) -> None:
        try:
            await self._leader.kill()
        except ConnectionError:
            return  # the helper is gone, and with it all its commands

    async def signal(self, number: int) -> None:
        try:
            await self._leader.signal(number, Scope.GROUP)
        except ConnectionError:
            return

    async def write_stdin(self, data: bytes) -> None:
        if self._writer is None:
            raise broken_stdin()
        await self._writer.write(data)

    async def close_stdin(self) -> None:
        if self._writer is None or self._writer.broken:
            return
        if self._terminal is not None:
            await self._writer.write(_END_OF_TRANSMISSION)
        else:
            self._writer.close_when_done()

    async def resize(self, cols: int, rows: int) -> None:
        if self._terminal is not None and not self._readers[0].closed:
            set_size(self._terminal, PtySize(cols, rows))

    def _on_exit(self, exited: asyncio.Future[Any]) -> None:
        error = exited.exception()
        if error is None and self._was_killed_with_its_sandbox(_exit(exited.result())):
            error = ConnectionResetError("the sandbox is being ended")
        if error is None:
            if self._writer is not None:
                self._writer.close()
            for reader in self._readers:
                reader.finish()
            self._end_output()
            self._ended.set_result(_exit(exited.result()))
        else:
            self.close()
            self._end_output()
            self._ended.set_exception(failure(error, self._command))
            self._ended.exception()  # wait() may never be called

    def _was_killed_with_its_sandbox(self, ended: Exit) -> bool:
        return ended.signal == signal.SIGKILL and self._leader.helper_is_ending

    def _end_output(self) -> None:
        for output in self._outputs:
            output.close()


def set_size(terminal: int, size: PtySize) -> None:
    """Set a terminal's size; what runs in it gets SIGWINCH."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.cols, 0, 0))


def failure(error: BaseException, command: Command | None) -> BaseException:
    """Return our error for a command that did not start, or whose end we won't see."""
    if isinstance(error, ConnectionError) and not isinstance(error, SandboxError):
        return SandboxNotFoundError("the sandbox ended while the command ran")
    if not isinstance(error, HelperError) or command is None:
        return error
    hint = None
    if error.stage is Stage.CHDIR:
        text = f"cwd: {command.cwd!r}: {error.strerror}"
    else:
        text = f"{command.argv[0]!r} could not be started: {error.strerror}"
    if error.errno == errno.E2BIG:
        hint = "one argument can be 128 KiB long; pass larger text by stdin or in a file"
    return SandboxExecutionError(text, outcome=ErrorOutcome.NOT_STARTED, hint=hint)


def _exit(exited: Exited | Exit) -> Exit:
    if isinstance(exited, Exit):
        return exited
    code = os.waitstatus_to_exitcode(exited.status)
    usage = ResourceUsage(exited.user_us / 1e6, exited.system_us / 1e6, exited.peak_kib / 1024)
    if code < 0:
        return Exit(exit_code=128 - code, signal=-code, usage=usage)
    return Exit(exit_code=code, usage=usage)
