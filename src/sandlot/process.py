"""A command that is running, as users hold it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from sandlot._checks import check_positive, stdin_bytes
from sandlot._exec import result_of
from sandlot._output import Output
from sandlot.capabilities import Capability
from sandlot.contract import Backend, ProcessHandle
from sandlot.errors import SandboxConfigurationError, SandboxError, SandboxTimeoutError
from sandlot.operation import Operation
from sandlot.types import Chunk, Command, Exit, PtySize, SandboxResult


class AsyncProcess:
    """A running command. Iterate over it for its output, `wait` for its result.

    Output is kept from the start, so nothing is lost by reading late or not at all; a
    reader that has begun and then lags makes the command wait.
    """

    def __init__(
        self,
        handle: ProcessHandle,
        output: Output,
        backend: Backend,
        sandbox_id: str,
        command: Command | None = None,
    ) -> None:
        self._handle = handle
        self._output = output
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._started = time.perf_counter()
        self._command = command
        self._timed_out = False
        self._ended: float | None = None
        self._deadline: asyncio.Task[None] | None = None
        if command is not None and command.timeout is not None:
            self._deadline = asyncio.create_task(self._enforce(command.timeout))

    @property
    def id(self) -> str:
        """Finds the process again: ``sandbox.process(id)``."""
        return self._handle.id

    @property
    def pid(self) -> int | None:
        """Its process id inside the sandbox, where the backend can tell."""
        return self._handle.pid

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield the output as it comes, from its beginning, until the command ends."""
        async with aclosing(self._output.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        return self.chunks()

    async def wait(self, timeout: float | None = None) -> SandboxResult:
        """Wait until the command ends and return its result.

        Args:
            timeout: Seconds to wait; the command goes on when they are over.

        Raises:
            SandboxTimeoutError: If it is still running after ``timeout``.
        """
        check_positive("timeout", timeout)
        async with Operation("wait", self._backend, self._sandbox_id) as op:
            try:
                async with asyncio.timeout(timeout):
                    ended = await self._end()
            except TimeoutError:
                raise SandboxTimeoutError(
                    f"the process is still running after {timeout} s",
                    hint="wait again, or kill() it",
                ) from None
            if self._ended is None:
                self._ended = time.perf_counter()
            if self._deadline is not None:
                self._deadline.cancel()
            result = self._result(ended)
            op.note(exit_code=result.exit_code, timed_out=result.timed_out)
            return result

    async def write(self, data: bytes | str) -> None:
        """Write to its input, waiting while it is slow to take it.

        Raises:
            SandboxConnectionError: If it no longer takes input.
            SandboxConfigurationError: If it was started without ``stdin=True`` or ``pty=``.
        """
        self._check_stdin()
        content = stdin_bytes(data)
        async with Operation("stdin", self._backend, self._sandbox_id, requires=Capability.STDIN):
            await self._handle.write_stdin(content or b"")

    async def close_stdin(self) -> None:
        """Let it see the end of its input."""
        self._check_stdin()
        async with Operation("stdin", self._backend, self._sandbox_id, requires=Capability.STDIN):
            await self._handle.close_stdin()

    async def signal(self, number: int) -> None:
        """Send a signal to its process group, such as ``signal.SIGINT``."""
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 65:
            raise SandboxConfigurationError(f"{number!r} is not a signal's number")
        async with Operation(
            "signal", self._backend, self._sandbox_id, requires=Capability.SIGNALS
        ):
            await self._handle.signal(int(number))

    async def kill(self) -> None:
        """Kill it and all its descendants; fine if it has ended."""
        async with Operation("kill", self._backend, self._sandbox_id):
            await self._handle.kill()

    async def resize(self, cols: int, rows: int) -> None:
        """Tell its terminal a new size, in characters."""
        size = PtySize(cols, rows)
        if self._command is None or self._command.pty is None:
            raise SandboxConfigurationError("this process has no terminal; start it with pty=")
        async with Operation("resize", self._backend, self._sandbox_id, requires=Capability.PTY):
            await self._handle.resize(size.cols, size.rows)

    async def __aenter__(self) -> AsyncProcess:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.kill()

    def __repr__(self) -> str:
        state = "running" if self._ended is None else "ended"
        return f"<{type(self).__name__} {self.id} {state}>"

    def _check_stdin(self) -> None:
        command = self._command
        if command is not None and not (command.keep_stdin_open or command.pty):
            raise SandboxConfigurationError(
                "this process has no open input", hint="start it with stdin=True or with pty="
            )

    async def _end(self) -> Exit:
        ending = asyncio.ensure_future(self._handle.wait())
        try:
            if self._deadline is not None:
                await asyncio.wait({ending, self._deadline}, return_when=asyncio.FIRST_COMPLETED)
                if self._deadline.done() and not self._deadline.cancelled():
                    self._deadline.result()  # a kill that failed must not look like waiting
            return await ending
        finally:
            ending.cancel()

    async def _enforce(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._handle.wait()
        except SandboxError:
            return  # it ended with its sandbox, which wait() tells whoever asks
        except TimeoutError:
            self._timed_out = True
            await self._handle.kill()

    def _result(self, ended: Exit) -> SandboxResult:
        took = (self._ended or time.perf_counter()) - self._started
        return result_of(ended, self._output, took, timed_out=self._timed_out)
