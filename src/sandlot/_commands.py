"""Commands and code in a sandbox, as users run them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar, overload

from sandlot import _checks, _languages
from sandlot._base import SandboxBase
from sandlot._exec import to_the_end
from sandlot._output import Output
from sandlot.capabilities import Capability
from sandlot.errors import SandboxConfigurationError, SandboxError, SandboxTimeoutError
from sandlot.operation import Operation
from sandlot.process import AsyncProcess
from sandlot.types import (
    DEFAULT_MAX_OUTPUT_BYTES,
    EMPTY,
    Chunk,
    Command,
    PtySize,
    SandboxResult,
    Stdin,
)

T = TypeVar("T")

_ARGUMENT_LIMIT = 100_000
"""Bytes above which text goes by a file: Linux takes 128 KiB in one argument (execve(2))."""
_PARSED_AT_ONCE = 100_000
"""Bytes of output above which parsing would hold up the event loop."""
_GRACE = 30.0
"""Seconds a backend may be late with a timeout of its own before we give up on it."""


class CommandOperations(SandboxBase):
    """Running commands and code."""

    @overload
    async def execute_command(
        self,
        command: str | Sequence[str],
        args: Sequence[str] | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        user: str | None = None,
        check: bool = False,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        return_type: None = None,
        inject_schema: bool = False,
    ) -> SandboxResult: ...
    @overload
    async def execute_command(
        self,
        command: str | Sequence[str],
        args: Sequence[str] | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        user: str | None = None,
        check: bool = False,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        return_type: type[T],
        inject_schema: bool = False,
    ) -> T: ...
    async def execute_command(
        self,
        command: str | Sequence[str],
        args: Sequence[str] | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        user: str | None = None,
        check: bool = False,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        return_type: type[T] | None = None,
        inject_schema: bool = False,
    ) -> SandboxResult | T:
        """Run a command to its end and return its result, whatever its exit code.

        Args:
            command: A shell line; or a program, with its arguments in ``args``; or both
                as one list, which no shell touches.
            args: Arguments of the program ``command``.
            cwd: Where it starts; relative to the sandbox's working directory.
            env: Variables on top of the sandbox's own.
            stdin: All of its input; without, it sees the end of input at once.
            timeout: Seconds until it is killed with all its descendants. The result then
                holds what it had printed, and ``timed_out`` is set.
            user: The user it runs as.
            check: Raise if it fails or runs out of time.
            max_output_bytes: How much of each stream to keep: the first and the last half.
            return_type: Parse its output into this type and return that instead.
            inject_schema: Append to the last argument how the output must look.

        Raises:
            SandboxExecutionError: If it could not be started.
            CommandFailedError: If it failed, and ``check`` or ``return_type`` is given.
            SandboxTimeoutError: If its time ran out, likewise.
            OutputParseError: If its output is not a ``return_type``.
        """
        if inject_schema:
            command, args = _with_schema(command, args, return_type)
        async with self._staged_command(command, args) as argv:
            result = await self._run(
                argv,
                cwd=cwd,
                env=env,
                stdin=stdin,
                timeout=timeout,
                user=user,
                max_output_bytes=max_output_bytes,
            )
        return await self._returned(result, check, return_type)

    @overload
    async def execute_code(
        self,
        code: str,
        language: str = "python",
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        user: str | None = None,
        check: bool = False,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        return_type: None = None,
    ) -> SandboxResult: ...
    @overload
    async def execute_code(
        self,
        code: str,
        language: str = "python",
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        user: str | None = None,
        check: bool = False,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        return_type: type[T],
    ) -> T: ...
    async def execute_code(
        self,
        code: str,
        language: str = "python",
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        user: str | None = None,
        check: bool = False,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        return_type: type[T] | None = None,
    ) -> SandboxResult | T:
        """Run a piece of code in a fresh interpreter and return its result.

        The keywords mean what they mean for `execute_command`. Languages are ``python``,
        ``javascript``, ``typescript``, ``go``, ``rust``, ``bash`` and others; what runs
        the code is looked for inside the sandbox.

        Raises:
            SandboxConfigurationError: If the language is not known.
        """
        async with self._staged_code(code, language) as argv:
            result = await self._run(
                argv,
                cwd=cwd,
                env=env,
                stdin=stdin,
                timeout=timeout,
                user=user,
                max_output_bytes=max_output_bytes,
            )
        return await self._returned(result, check, return_type)

    async def start(
        self,
        command: str | Sequence[str],
        args: Sequence[str] | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stdin = None,
        timeout: float | None = None,
        user: str | None = None,
        pty: PtySize | None = None,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    ) -> AsyncProcess:
        """Start a command and return while it runs.

        Args:
            command: As for `execute_command`.
            args: Likewise.
            cwd: Likewise.
            env: Likewise.
            stdin: All of its input, or ``True`` to write it later.
            timeout: Seconds until it is killed with all its descendants.
            user: The user it runs as.
            pty: Give it a terminal of this size.
            max_output_bytes: How much of each stream to keep for the result.

        Raises:
            SandboxExecutionError: If it could not be started.
        """
        argv = self._argv(command, args)
        prepared = self._command(
            argv,
            cwd=cwd,
            env=env,
            stdin=stdin,
            timeout=timeout,
            user=user,
            pty=pty,
            max_output_bytes=max_output_bytes,
        )
        async with self._operation("start", requires=Capability.STREAM):
            output = Output(prepared.max_output_bytes, streaming=True)
            handle = await self._handle.start(prepared, output)
            return AsyncProcess(handle, output, self._backend, self.id, prepared)

    async def stream(
        self,
        command: str | Sequence[str],
        args: Sequence[str] | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        user: str | None = None,
        check: bool = False,
    ) -> AsyncGenerator[Chunk, None]:
        """Run a command and yield its output as it comes.

        The keywords mean what they mean for `execute_command`. A reader that stops early
        kills the command.

        Raises:
            CommandFailedError: At the end, if ``check`` is given and it failed.
            SandboxTimeoutError: At the end, if ``check`` is given and its time ran out.
        """
        process = await self.start(
            command, args, cwd=cwd, env=env, stdin=stdin, timeout=timeout, user=user
        )
        try:
            async with aclosing(process.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk
            result = await process.wait()
        finally:
            await to_the_end(process.kill())
        if check:
            result.check()

    async def process(self, process_id: str) -> AsyncProcess:
        """Take hold of a running process again, by its id.

        Raises:
            SandboxNotFoundError: If there is none of this id.
        """
        _checks.check_text("process_id", process_id)
        async with self._operation("process", requires=Capability.PROCESSES):
            output = Output(streaming=True)
            handle = await self._handle.process(process_id, output)
            return AsyncProcess(handle, output, self._backend, self.id)

    def _argv(self, command: str | Sequence[str], args: Sequence[str] | None) -> tuple[str, ...]:
        if isinstance(command, str) and args is None:
            return (*self._handle.shell, _checks.check_text("command", command))
        return _checks.checked_argv(command, args)

    def _command(
        self,
        argv: tuple[str, ...],
        *,
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: Stdin,
        timeout: float | None,
        user: str | None,
        max_output_bytes: int,
        pty: PtySize | None = None,
    ) -> Command:
        self._check_open()
        _checks.check_positive("timeout", timeout)
        _checks.check_positive("max_output_bytes", max_output_bytes)
        for name, value in (("cwd", cwd), ("user", user)):
            if value is not None:
                _checks.check_text(name, value)
        for wanted, capability in (
            (stdin is not None and stdin is not False, Capability.STDIN),
            (user is not None, Capability.USERS),
            (pty is not None, Capability.PTY),
        ):
            if wanted:
                Operation("exec", self._backend, self.id, requires=capability)
        return Command(
            argv=argv,
            cwd=cwd,
            env=_checks.checked_env("env", env) if env else EMPTY,
            stdin=_checks.stdin_bytes(stdin),
            keep_stdin_open=stdin is True,
            timeout=timeout,
            user=user,
            pty=pty,
            max_output_bytes=int(max_output_bytes),
        )

    async def _run(self, argv: tuple[str, ...], **options: Any) -> SandboxResult:
        command = self._command(argv, **options)
        async with self._operation("exec") as op:
            try:
                # A backend enforces the timeout; this only ends the wait for one that hangs.
                limit = None if command.timeout is None else command.timeout + _GRACE
                async with asyncio.timeout(limit):
                    result = await self._handle.exec(command)
            except TimeoutError as exc:
                if isinstance(exc, SandboxTimeoutError):
                    raise
                raise SandboxTimeoutError(
                    f"no answer {_GRACE:.0f} s after the command's time was over",
                    hint="it may still be running; destroy the sandbox to be sure",
                ) from None
            op.note(exit_code=result.exit_code, timed_out=result.timed_out)
            return result

    async def _returned(
        self, result: SandboxResult, check: bool, return_type: type[T] | None
    ) -> SandboxResult | T:
        if not check and return_type is None:
            return result
        from sandlot._parse import parse_as

        try:
            result.check()
            if return_type is None:
                return result
            if result.out.size < _PARSED_AT_ONCE:
                return parse_as(result.stdout, return_type)
            return await asyncio.to_thread(parse_as, result.stdout, return_type)
        except SandboxError as exc:
            exc.locate(backend=self.backend_name, op="exec", sandbox_id=self.id)
            raise

    @asynccontextmanager
    async def _staged_command(
        self, command: str | Sequence[str], args: Sequence[str] | None
    ) -> AsyncGenerator[tuple[str, ...], None]:
        """Yield the argv; a shell line too long for one goes by a file."""
        argv = self._argv(command, args)
        if not isinstance(command, str) or args is not None or _fits(command):
            yield argv
            return
        async with self._staged(command, "") as path:
            yield (*self._handle.shell, f". {_quoted(path)}")

    @asynccontextmanager
    async def _staged_code(self, code: str, language: str) -> AsyncGenerator[tuple[str, ...], None]:
        """Yield the argv that runs code: in an argument where that works, else by a file."""
        if not isinstance(code, str):
            raise SandboxConfigurationError(f"code: expected a str, got {type(code).__name__}")
        if "\0" in code:
            raise SandboxConfigurationError("code: must not contain a NUL character")
        known = _languages.by_name(language)
        if known.inline and _fits(code):
            async with self._operation("stage"):
                program = await self._handle.interpreter(known.name)
            if program:
                yield (program, "-c", code)
            else:
                yield ("/bin/sh", "-c", known.script(from_file=False), "sh", code)
            return
        async with self._staged(code, known.suffixes[0]) as path:
            yield ("/bin/sh", "-c", known.script(from_file=True), "sh", path)

    @asynccontextmanager
    async def _staged(self, text: str, suffix: str) -> AsyncGenerator[str, None]:
        """Write text to a file of its own in the sandbox; yield its path as commands know it."""
        directory = f"/tmp/.sandlot-{secrets.token_hex(8)}"
        path = f"{directory}/main{suffix}"
        async with self._operation("stage"):
            await self._handle.write(path, text.encode("utf-8", "surrogateescape"))
        try:
            yield self._handle.command_path(path)
        finally:
            if self.is_alive:
                await to_the_end(self._handle.remove(directory, recursive=True))


def _fits(text: str) -> bool:
    return len(text) <= _ARGUMENT_LIMIT and len(text.encode("utf-8", "surrogateescape")) <= (
        _ARGUMENT_LIMIT
    )


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _with_schema(
    command: str | Sequence[str], args: Sequence[str] | None, return_type: type[Any] | None
) -> tuple[str | Sequence[str], Sequence[str] | None]:
    """Append the schema to the last argument, so that a tool like an agent sees it."""
    from sandlot._parse import with_schema

    if return_type is None:
        raise SandboxConfigurationError("inject_schema: needs return_type")
    if args:
        return command, with_schema(args, return_type)
    if not isinstance(command, str) and len(command) > 1:
        return with_schema(command, return_type), None
    raise SandboxConfigurationError("inject_schema: needs args, the last of which is a prompt")
