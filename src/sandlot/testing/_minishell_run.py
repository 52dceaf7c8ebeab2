"""Running what `sandlot.testing._minishell` has parsed, in a simulated process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import signal as signals
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from sandlot.testing import _minishell as syntax
from sandlot.testing._memory_files import File, failure
from sandlot.testing._memory_kernel import (
    Channel,
    Descriptors,
    DevNull,
    DevZero,
    OpenFile,
    Pipe,
    Process,
    Program,
    Run,
)
from sandlot.testing._minishell_builtins import (
    BUILTINS,
    NOT_EXECUTABLE,
    NOT_FOUND,
    ShellExit,
)
from sandlot.types import Exit

_IN_PROCESS = {"echo", "printf", "true", "false", ":", "test", "[", "kill", "pwd"}
"""Programs that a shell runs without a process of their own."""


async def sh(run: Run) -> int:
    """``sh -c line [name [arg ...]]``, ``sh file [arg ...]``, or a script on standard input."""
    args = run.args
    if args[:1] == ["-c"] and len(args) > 1:
        script, rest = args[1], args[2:] or ["sh"]
    elif args:
        file = run.files.file(run.path(args[0]), superuser=run.process.superuser)
        script, rest = file.data.decode("utf-8", "surrogateescape"), args
    else:
        pieces: list[bytes] = []
        while piece := await run.stdin.read():
            pieces.append(piece)
        script, rest = b"".join(pieces).decode("utf-8", "surrogateescape"), ["sh"]
    return await Shell(run.process, rest, dict(run.env)).main(script)


def lookup(process: Process, name: str) -> Program | None:
    """Return the program that a name or path stands for."""
    programs = process.kernel.programs
    if "/" not in name:
        return programs.get(name)
    directory, _, base = name.rpartition("/")
    if directory in ("/bin", "/usr/bin") and base in programs:
        return programs[base]
    path = name if name.startswith("/") else f"{process.cwd}/{name}"
    node = process.kernel.files.find(path, superuser=process.superuser)
    if not isinstance(node, File) or not node.mode & 0o111:
        raise failure(errno.EACCES, name)

    async def script(run: Run) -> int:
        return await sh(Run([path, *run.args], run.env, run.stdin, run.stdout, run.stderr,
                            run.process))  # fmt: skip

    return script


Body: TypeAlias = Callable[["Shell"], Awaitable[None]]


@dataclass
class Shell:
    """One shell: its variables, and what it has started."""

    process: Process
    positional: list[str]
    variables: dict[str, str]
    status: int = 0
    children: list[Process] = field(default_factory=list[Process])
    pid: int = 0
    """What ``$$`` is: the process id of the outermost shell."""
    _trapping: bool = False
    _substituted: bool = False

    def __post_init__(self) -> None:
        self.pid = self.pid or self.process.pid
        self.exported = set(self.variables)

    async def main(self, script: str) -> int:
        """Run a script and return its exit code."""
        try:
            await self.source(script)
        except ShellExit as exc:
            return exc.code
        return self.status

    async def source(self, script: str) -> None:
        """Run a script in this shell."""
        try:
            parsed = syntax.parse(script)
        except syntax.ShellSyntaxError as exc:
            await self.complain(f"syntax error: {exc}")
            raise ShellExit(2) from None
        await self._script(parsed)

    # ------------------------------------------------------------- structure
    async def _script(self, script: syntax.Script) -> None:
        for item in script:
            if item.background:
                body = functools.partial(Shell._item, item=item)
                child = self._fork(body, stdin=DevNull())
                child.ignored |= {signals.SIGINT, signals.SIGQUIT}  # as POSIX has it
                self.children.append(child)
                self.status = 0
            else:
                await self._item(item)

    async def _item(self, item: syntax.Item) -> None:
        for operator, pipeline in item.pipelines:
            if (operator == "&&" and self.status) or (operator == "||" and not self.status):
                continue
            await self._pipeline(pipeline)
            await self._run_traps()

    async def _pipeline(self, pipeline: syntax.Pipeline) -> None:
        first, *rest = pipeline.commands
        if not rest:
            await self._command(first)
        else:
            await self._piped(pipeline.commands)
        if pipeline.negated:
            self.status = int(self.status == 0)

    async def _piped(self, commands: tuple[syntax.Command, ...]) -> None:
        upstream: Channel | None = None
        processes: list[Process] = []
        for index, command in enumerate(commands):
            pipe = Pipe() if index + 1 < len(commands) else None
            processes.append(
                self._fork(
                    functools.partial(Shell._command, command=command),
                    stdin=upstream,
                    stdout=pipe.writer if pipe else None,
                )
            )
            upstream = pipe.reader if pipe else None
        for process in processes:
            self.status = (await self._ended(process)).exit_code

    def _fork(
        self,
        body: Body,
        *,
        stdin: Channel | None = None,
        stdout: Channel | None = None,
    ) -> Process:
        fds = dict(self.process.fds)
        for number, channel in ((0, stdin), (1, stdout)):
            if channel is not None:
                fds[number] = channel

        async def main(process: Process) -> int:
            variables = dict(self.variables)
            shell = Shell(process, self.positional, variables, self.status, pid=self.pid)
            shell.exported = set(self.exported)
            try:
                await body(shell)
            except ShellExit as exc:
                return exc.code
            return shell.status

        return self.process.spawn(main, fds=fds)

    async def _ended(self, process: Process) -> Exit:
        return await asyncio.shield(process.ended)

    async def _command(self, command: syntax.Command) -> None:
        await asyncio.sleep(0)
        if isinstance(command, syntax.Simple):
            await self._simple(command)
            return
        if command.kind == "(":
            child = self._fork(lambda shell: shell._redirected(command))
            self.status = (await self._ended(child)).exit_code
            return
        await self._redirected(command)

    async def _redirected(self, command: syntax.Compound) -> None:
        with self._redirects(await self._opened(command.redirects)):
            await self._compound(command)

    async def _compound(self, command: syntax.Compound) -> None:
        parts = command.parts
        if command.kind in ("{", "("):
            await self._script(parts[0])
        elif command.kind == "if":
            await self._script(parts[0])
            if self.status == 0:
                await self._script(parts[1])
            elif len(parts) > 2:
                await self._script(parts[2])
            else:
                self.status = 0
        elif command.kind == "for":
            words = self.positional[1:]
            if command.words is not None:
                words = [text for word in command.words for text in await self._expand(word)]
            for text in words:
                self.variables[command.name] = text
                await self._script(parts[0])
        else:
            last = 0
            while True:
                await self._script(parts[0])
                if (self.status == 0) != (command.kind == "while"):
                    break
                await self._script(parts[1])
                last = self.status
            self.status = last

    # ------------------------------------------------------- simple commands
    async def _simple(self, command: syntax.Simple) -> None:
        self._substituted = False
        words = [text for word in command.words for text in await self._expand(word)]
        assigned = {name: await self._text(word) for name, word in command.assignments}
        try:
            opened = await self._opened(command.redirects)
        except OSError as exc:
            await self.complain(f"{exc.filename}: {exc.strerror}")
            self.status = 1
            return
        if not words:
            if not self._substituted:
                self.status = 0
            self.variables.update(assigned)
            with self._redirects(opened):
                return
        if words[0] == "exec":
            await self._exec(words[1:], assigned, opened)
            return
        builtin = BUILTINS.get(words[0])
        with self._redirects(opened):
            if builtin is not None:
                self.variables.update(assigned)
                self.status = await builtin(self, words[1:])
            else:
                await self.run_program(words, assigned)

    async def run_program(self, words: list[str], assigned: Mapping[str, str]) -> None:
        """Run a program, in a process of its own where it needs one, and take its status."""
        program = await self._found(words[0])
        if program is None:
            return
        env = {**self._environment(), **assigned}
        if words[0] in _IN_PROCESS:
            self.status = await self.process.call(program, words[1:], env)
            return
        child = self.process.spawn(
            lambda process: process.call(program, words[1:], env), args=words, env=env
        )
        self.status = (await self._ended(child)).exit_code

    async def _exec(
        self, words: list[str], assigned: Mapping[str, str], opened: Descriptors
    ) -> None:
        self._replace(opened)
        if words:
            program = await self._found(words[0])
            if program is None:
                raise ShellExit(self.status)
            self.process.args, self.process.traps = words, {}
            env = {**self._environment(), **assigned}
            raise ShellExit(await self.process.call(program, words[1:], env))

    async def _found(self, name: str) -> Program | None:
        try:
            program = lookup(self.process, name)
        except OSError as exc:
            missing = isinstance(exc, FileNotFoundError)
            await self.complain(f"{name}: {exc.strerror}")
            self.status = NOT_FOUND if missing else NOT_EXECUTABLE
            return None
        if program is None:
            await self.complain(f"{name}: not found")
            self.status = NOT_FOUND
        return program

    def _environment(self) -> dict[str, str]:
        return {name: self.variables[name] for name in self.exported if name in self.variables}

    def knows(self, name: str) -> bool:
        """Whether a command of this name can be run."""
        try:
            return name in BUILTINS or lookup(self.process, name) is not None
        except OSError:
            return False

    def path(self, path: str) -> str:
        """Return a path as an absolute one."""
        return path if path.startswith("/") else f"{self.process.cwd.rstrip('/')}/{path}"

    async def complain(self, text: str) -> None:
        """Write a line to standard error."""
        channel = self.process.fds.get(2, DevNull())
        await channel.write(f"sh: {text}\n".encode("utf-8", "surrogateescape"))

    # ---------------------------------------------------------- redirections
    async def _opened(self, redirects: tuple[syntax.Redirect, ...]) -> Descriptors:
        opened: Descriptors = {}
        for redirect in redirects:
            target = await self._text(redirect.target)
            if redirect.operator == ">&":
                source = int(target)
                channel = opened.get(source) or self.process.fds[source]
            else:
                channel = self._open(target, redirect.operator)
            opened[redirect.number] = channel
        return opened

    def _open(self, target: str, operator: str) -> Channel:
        if target == "/dev/null":
            return DevNull()
        if target == "/dev/zero":
            return DevZero()
        path = self.path(target)
        files, superuser = self.process.kernel.files, self.process.superuser
        if operator == "<":
            return OpenFile(files.file(path, superuser=superuser))
        append = operator == ">>"
        file = files.open_for_writing(path, append=append, superuser=superuser)
        return OpenFile(file, append=append)

    @contextlib.contextmanager
    def _redirects(self, opened: Descriptors) -> Generator[None, None, None]:
        before = dict(self.process.fds)
        held = list(before.values())
        for channel in held:
            channel.opened()  # kept for the way back
        self._replace(opened)
        try:
            yield
        finally:
            self._replace(before)
            for channel in held:
                channel.closed()

    def _replace(self, opened: Descriptors) -> None:
        for channel in opened.values():
            channel.opened()
        for number in opened:
            if (old := self.process.fds.get(number)) is not None:
                old.closed()
        self.process.fds.update(opened)

    # -------------------------------------------------------------- expansion
    async def _expand(self, word: syntax.Word) -> list[str]:
        """Return the words that a word becomes: unquoted expansions are split."""
        fields: list[str] = []
        current: str | None = None
        for part in word:
            if part.kind == "name" and part.text == "@" and part.quoted:
                values = self.positional[1:]
                fields += [(current or "") + values[0], *values[1:-1]] if len(values) > 1 else []
                current = values[-1] if values else current
                continue
            text = await self._value(part)
            if part.kind == "text" or part.quoted:
                current = (current or "") + text
                continue
            pieces = text.split()
            if text[:1].isspace() and current is not None:
                fields.append(current)
                current = None
            for index, piece in enumerate(pieces):
                if index and current is not None:
                    fields.append(current)
                    current = None
                current = (current or "") + piece
            if text[-1:].isspace() and current is not None:
                fields.append(current)
                current = None
        return fields if current is None else [*fields, current]

    async def _text(self, word: syntax.Word) -> str:
        return "".join([await self._value(part) for part in word])

    async def _value(self, part: syntax.Part) -> str:
        if part.kind == "text":
            return part.text
        if part.kind == "command":
            return await self._substitution(part.text)
        value = self._parameter(part.text)
        if part.default is not None and not value:
            return await self._text(syntax.expandable(part.default))
        return value

    def _parameter(self, name: str) -> str:
        special = {
            "?": str(self.status),
            "$": str(self.pid),
            "!": str(self.children[-1].pid) if self.children else "",
            "#": str(len(self.positional) - 1),
            "@": " ".join(self.positional[1:]),
            "*": " ".join(self.positional[1:]),
        }
        if name in special:
            return special[name]
        if name.isdigit():
            return self.positional[int(name)] if int(name) < len(self.positional) else ""
        return self.variables.get(name, "")

    async def _substitution(self, line: str) -> str:
        pipe = Pipe()
        pipe.reader.opened()
        child = self._fork(lambda shell: shell.source(line), stdout=pipe.writer)
        pieces: list[bytes] = []
        while piece := await pipe.reader.read():
            pieces.append(piece)
        pipe.reader.closed()
        self.status, self._substituted = (await self._ended(child)).exit_code, True
        return b"".join(pieces).decode("utf-8", "surrogateescape").rstrip("\n")

    # --------------------------------------------------------------- signals
    async def _run_traps(self) -> None:
        while self.process.caught and not self._trapping:
            number = self.process.caught.pop(0)
            self._trapping = True
            try:
                if action := self.process.traps.get(number):
                    await self.source(action)
            finally:
                self._trapping = False
