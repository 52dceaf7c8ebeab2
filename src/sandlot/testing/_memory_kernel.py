"""Simulated processes: a tree of them, their pipes, their signals; each is an asyncio task."""

from __future__ import annotations

import asyncio
import itertools
import signal as signals
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from sandlot._output import Output
from sandlot.testing._memory_files import File, FileTree
from sandlot.types import Exit, StreamName

PIPE_SIZE = 65536
BLOCK = 65536
_HARMLESS = {signals.SIGCHLD, signals.SIGCONT, signals.SIGURG, signals.SIGWINCH}


class Channel(Protocol):
    """What a file descriptor refers to; counted, since processes share it."""

    def opened(self) -> None:
        """Count one more holder."""

    def closed(self) -> None:
        """Count one holder less."""

    async def read(self, size: int = BLOCK) -> bytes:
        """Return at most ``size`` bytes, waiting for the first; nothing at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Take all of it, waiting while there is no room."""


Descriptors: TypeAlias = dict[int, Channel]


class _Uncounted:
    def opened(self) -> None:
        """Nothing depends on how many hold it."""

    def closed(self) -> None:
        """Nothing depends on how many hold it."""

    async def read(self, size: int = BLOCK) -> bytes:
        await asyncio.sleep(0)
        return b""

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)


class DevNull(_Uncounted):
    """Empty, and takes everything."""


class DevZero(_Uncounted):
    """Zeros without end."""

    async def read(self, size: int = BLOCK) -> bytes:
        await asyncio.sleep(0)
        return bytes(min(size, BLOCK))


@dataclass
class OpenFile(_Uncounted):
    """An open file with its position; an appending one writes at the end."""

    file: File
    append: bool = False
    position: int = 0

    async def read(self, size: int = BLOCK) -> bytes:
        await asyncio.sleep(0)
        data = bytes(self.file.data[self.position : self.position + size])
        self.position += len(data)
        return data

    async def write(self, data: bytes) -> None:
        await asyncio.sleep(0)
        at = len(self.file.data) if self.append else self.position
        self.file.data[at : at + len(data)] = data
        self.position = at + len(data)


class BrokenPipe(Exception):
    """Nobody reads what was written."""


class _Waiters:
    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        await future

    def wake(self) -> None:
        futures, self._futures = self._futures, []
        for future in futures:
            if not future.done():
                future.set_result(None)


class Pipe:
    """A pipe of limited size."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.changed = _Waiters()
        self.reader = PipeReader(self)
        self.writer = PipeWriter(self)


class _PipeEnd:
    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.holders = 0

    def opened(self) -> None:
        self.holders += 1

    def closed(self) -> None:
        self.holders -= 1
        self.pipe.changed.wake()


class PipeReader(_PipeEnd):
    """The end of a pipe that is read from."""

    async def read(self, size: int = BLOCK) -> bytes:
        pipe = self.pipe
        while not pipe.buffer and pipe.writer.holders:
            await pipe.changed.wait()
        data = bytes(pipe.buffer[:size])
        del pipe.buffer[:size]
        pipe.changed.wake()
        return data

    async def write(self, data: bytes) -> None:
        raise BrokenPipe


class PipeWriter(_PipeEnd):
    """The end of a pipe that is written to."""

    async def read(self, size: int = BLOCK) -> bytes:
        raise BrokenPipe

    async def write(self, data: bytes) -> None:
        pipe = self.pipe
        while data:
            while pipe.reader.holders and len(pipe.buffer) >= PIPE_SIZE:
                await pipe.changed.wait()
            if not pipe.reader.holders:
                raise BrokenPipe
            room = PIPE_SIZE - len(pipe.buffer)
            pipe.buffer += data[:room]
            data = data[room:]
            pipe.changed.wake()
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Pace:
    """In what pieces output arrives."""

    piece: int = BLOCK
    pause: float = 0.0


class Sink:
    """Where a command's output leaves its sandbox for whoever listens."""

    def __init__(self, stream: StreamName, pace: Pace) -> None:
        self.listeners: list[Output] = []
        self._stream: StreamName = stream
        self._pace = pace
        self._room = _Waiters()

    def opened(self) -> None:
        """Nothing waits for its last holder: a background child may keep it for ever."""

    def closed(self) -> None:
        """Nothing waits for its last holder: a background child may keep it for ever."""

    async def read(self, size: int = BLOCK) -> bytes:
        raise BrokenPipe

    async def write(self, data: bytes) -> None:
        for start in range(0, len(data), self._pace.piece):
            while full := [output for output in self.listeners if output.full]:
                full[0].when_room(self._room.wake)
                await self._room.wait()
            for output in self.listeners:
                output.feed(self._stream, data[start : start + self._pace.piece])
            await asyncio.sleep(self._pace.pause)

    def detach(self) -> None:
        """Let what is still printed go nowhere: its command has ended."""
        self.listeners.clear()
        self._room.wake()


@dataclass
class Run:
    """One run of a program: what a Python function that stands for a program is given."""

    args: list[str]
    """The words after the program's name."""
    env: Mapping[str, str]
    stdin: Channel
    stdout: Channel
    stderr: Channel
    process: Process

    @property
    def cwd(self) -> str:
        """The working directory."""
        return self.process.cwd

    @property
    def files(self) -> FileTree:
        """The sandbox's files; `path` makes a path absolute."""
        return self.process.kernel.files

    def path(self, path: str) -> str:
        """Return a path as an absolute one."""
        return path if path.startswith("/") else f"{self.process.cwd.rstrip('/')}/{path}"

    async def print(self, text: str) -> None:
        """Write text to standard output."""
        await self.stdout.write(text.encode("utf-8", "surrogateescape"))

    async def complain(self, text: str) -> None:
        """Write a line to standard error."""
        await self.stderr.write(f"{text}\n".encode("utf-8", "surrogateescape"))


Program: TypeAlias = Callable[[Run], Awaitable[int]]
"""A program: gets its `Run`, returns its exit code."""
Main: TypeAlias = Callable[["Process"], Awaitable[int]]


@dataclass(eq=False)
class Process:
    """A simulated process."""

    kernel: Kernel
    pid: int
    group: int
    job: int
    """The command it came of: unlike the group, a process can't leave it."""
    args: list[str]
    env: dict[str, str]
    cwd: str
    fds: Descriptors
    user: str
    ignored: set[int] = field(default_factory=set[int])
    traps: dict[int, str] = field(default_factory=dict[int, str])
    caught: list[int] = field(default_factory=list[int])
    """Trapped signals that have arrived."""
    signal: int | None = None
    ended: asyncio.Future[Exit] = field(init=False)
    task: asyncio.Task[int] = field(init=False)

    @property
    def superuser(self) -> bool:
        """Whether permission bits do not apply to it."""
        return self.user == "root"

    def spawn(
        self,
        main: Main,
        *,
        args: list[str] | None = None,
        env: dict[str, str] | None = None,
        fds: Descriptors | None = None,
        new_group: bool = False,
    ) -> Process:
        """Start a child that inherits what is not given."""
        return self.kernel.spawn(
            main,
            args=self.args if args is None else args,
            env=dict(self.env) if env is None else env,
            cwd=self.cwd,
            fds=dict(self.fds if fds is None else fds),
            user=self.user,
            group=None if new_group else self.group,
            job=self.job,
            ignored=set(self.ignored),
        )

    async def call(self, program: Program, args: list[str], env: Mapping[str, str]) -> int:
        """Run a program in this process."""
        null = DevNull()
        stdin, stdout, stderr = (self.fds.get(number, null) for number in range(3))
        return await program(Run(args, env, stdin, stdout, stderr, self))


class Kernel:
    """The processes of one sandbox."""

    def __init__(self, files: FileTree, programs: Mapping[str, Program]) -> None:
        self.files = files
        self.programs = programs
        self.processes: dict[int, Process] = {}
        self._pids = itertools.count(2)

    def spawn(
        self,
        main: Main,
        *,
        args: list[str],
        env: dict[str, str],
        cwd: str,
        fds: Descriptors,
        user: str,
        group: int | None = None,
        job: int | None = None,
        ignored: set[int] | None = None,
    ) -> Process:
        """Start a process; without a group or a job it begins its own."""
        pid = next(self._pids)
        process = Process(self, pid, group or pid, job or pid, args, env, cwd, fds, user,
                          ignored or set())  # fmt: skip
        for channel in fds.values():
            channel.opened()
        process.ended = asyncio.get_running_loop().create_future()
        process.task = asyncio.ensure_future(_guarded(main, process))
        # Not in a finally: a task that is cancelled before its first step runs none.
        process.task.add_done_callback(lambda task: self._end(process, task))
        self.processes[pid] = process
        return process

    def signal(self, process: Process, number: int) -> None:
        """Deliver a signal."""
        if number in process.traps and number != signals.SIGKILL:
            process.caught.append(number)
        elif number == signals.SIGKILL or number not in process.ignored | _HARMLESS:
            process.signal = number
            process.task.cancel()

    def signal_group(self, group: int, number: int) -> None:
        """Deliver a signal to all processes of a group."""
        for process in list(self.processes.values()):
            if process.group == group:
                self.signal(process, number)

    async def kill_job(self, job: int) -> None:
        """Kill all that came of one command, whatever group or session it went to."""
        processes = [p for p in self.processes.values() if p.job == job]
        for process in processes:
            self.signal(process, signals.SIGKILL)
        await _all_ended(processes)

    def kill_all(self) -> None:
        """Kill every process."""
        for process in list(self.processes.values()):
            self.signal(process, signals.SIGKILL)

    async def all_ended(self) -> None:
        """Wait until there is no process any more."""
        await _all_ended(list(self.processes.values()))

    def _end(self, process: Process, task: asyncio.Task[int]) -> None:
        self.processes.pop(process.pid, None)
        number = process.signal
        for channel in process.fds.values():
            channel.closed()
        if task.cancelled() or number is not None:
            number = number or signals.SIGKILL
            process.ended.set_result(Exit(exit_code=128 + number, signal=int(number)))
        elif error := task.exception():  # a defect of a program in Python: its caller is told
            process.ended.set_exception(error)
        else:
            process.ended.set_result(Exit(exit_code=task.result() & 0xFF))


async def _all_ended(processes: list[Process]) -> None:
    loop = asyncio.get_running_loop()
    if futures := {p.ended for p in processes if p.ended.get_loop() is loop}:
        await asyncio.wait(futures)


async def _guarded(main: Main, process: Process) -> int:
    try:
        return await _complaining(main, process)
    except BrokenPipe:
        if signals.SIGPIPE in process.ignored:
            return 1
        process.signal = signals.SIGPIPE
        return 0


async def _complaining(main: Main, process: Process) -> int:
    try:
        return await main(process)
    except OSError as exc:
        complaint = f"{process.args[0]}: {exc.filename}: {exc.strerror}\n"
        await process.fds.get(2, DevNull()).write(complaint.encode("utf-8", "surrogateescape"))
        return 1
