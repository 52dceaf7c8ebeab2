"""A backend whose sandboxes are simulated in this process: for tests, fast and deterministic.

    backend = MemoryBackend()
    backend.script("pytest -q", stdout="1 failed", exit_code=1)
    backend.fail("write", SandboxConnectionError("gone"), when="after")
    async with AsyncSandbox.create(backend) as sandbox: ...

Sandboxes have files, processes, pipes, signals and terminals, and a small shell
(`sandlot.testing._minishell` says how small). Nothing touches this machine. Programs that a
test needs are given as Python functions, or as a scripted answer.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sandlot.capabilities import Capability, Isolation
from sandlot.contract import Backend
from sandlot.errors import SandboxNotFoundError
from sandlot.testing._memory_files import FileTree
from sandlot.testing._memory_handle import Box, MemoryHandle
from sandlot.testing._memory_kernel import Kernel, Pace, Program, Run
from sandlot.testing._memory_programs import PROGRAMS
from sandlot.types import (
    SandboxInfo,
    SandboxSessionState,
    SandboxSpec,
    SnapshotInfo,
)

__all__ = ["MemoryBackend", "MemoryWorld", "Run"]


@dataclass
class MemoryWorld:
    """The place where simulated sandboxes live; backends that share one see the same."""

    sandboxes: dict[str, Box] = field(default_factory=dict[str, Box])
    snapshots: dict[str, FileTree] = field(default_factory=dict[str, FileTree])
    ids: Iterable[int] = field(default_factory=lambda: itertools.count(1))

    def new_id(self, kind: str) -> str:
        """Return an id that nothing in this world has yet."""
        return f"{kind}-{next(iter(self.ids)):06}"


@dataclass
class _Fault:
    error: BaseException
    when: Literal["before", "after"]
    times: int


class MemoryBackend(Backend):
    """Simulated sandboxes; see the module's documentation."""

    name: ClassVar[str] = "memory"
    capabilities = frozenset(
        {
            Capability.STREAM,
            Capability.STDIN,
            Capability.PTY,
            Capability.SIGNALS,
            Capability.PROCESSES,
            Capability.USERS,
            Capability.LABELS,
            Capability.LIST,
            Capability.RECONNECT,
            Capability.LIFETIME,
            Capability.EXTEND,
            Capability.SNAPSHOT,
        }
    )
    accepts = frozenset(
        {"timeout_secs", "env_vars", "inherit_env", "workdir", "user", "labels", "snapshot_id"}
    )
    isolation = Isolation.VM

    def __init__(
        self,
        world: MemoryWorld | None = None,
        *,
        capabilities: Iterable[Capability] | None = None,
        accepts: Iterable[str] | None = None,
        latency: Mapping[str, float] | None = None,
    ) -> None:
        """Open a world of simulated sandboxes.

        Args:
            world: Shared with other backends, as a provider is between programs; omitted,
                a new one.
            capabilities: What it can do, if less than all.
            accepts: The `SandboxSpec` fields it honours, if fewer.
            latency: Seconds that an operation takes before it has an effect, by its name.
        """
        self.world = world or MemoryWorld()
        if capabilities is not None:
            self.capabilities = frozenset(capabilities)
        if accepts is not None:
            self.accepts = frozenset(accepts)
        self.latency = dict(latency or {})
        self.pace = Pace()
        self.calls: list[tuple[str, str | None]] = []
        """The operations that reached this backend, each with its sandbox's id."""
        self.scripts: dict[tuple[str, ...], Program] = {}
        self.programs: dict[str, Program] = dict(PROGRAMS)
        self._faults: dict[str, list[_Fault]] = {}

    # -------------------------------------------------------------- scripting
    def program(self, name: str) -> Callable[[Program], Program]:
        """Add a program, as a decorator: ``async def git(run: Run) -> int``."""

        def register(function: Program) -> Program:
            self.programs[name] = function
            return function

        return register

    def script(
        self,
        command: str | list[str] | tuple[str, ...],
        *,
        stdout: str | bytes = b"",
        stderr: str | bytes = b"",
        exit_code: int = 0,
        delay: float = 0.0,
    ) -> None:
        """Answer one command, a shell line or a list of words, without running it.

        Args:
            command: Compared as a whole.
            stdout: What it prints.
            stderr: What it prints as errors.
            exit_code: How it ends.
            delay: Seconds until it ends.
        """
        argv = (*MemoryHandle.shell, command) if isinstance(command, str) else tuple(command)
        out, err = (
            text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
            for text in (stdout, stderr)
        )

        async def answer(run: Run) -> int:
            await run.stdout.write(out)
            await run.stderr.write(err)
            await asyncio.sleep(delay)
            return exit_code

        self.scripts[argv] = answer

    def fail(
        self,
        operation: str,
        error: BaseException,
        *,
        when: Literal["before", "after"] = "before",
        times: int = 1,
    ) -> None:
        """Let an operation fail.

        Args:
            operation: A method of `Backend` or `Handle`: ``"create"``, ``"exec"``, …
            error: What it raises.
            when: Before it has any effect, or after the whole of it, as if the reply were lost.
            times: How often.
        """
        self._faults.setdefault(operation, []).append(_Fault(error, when, times))

    def output_in_pieces(self, size: int, pause: float = 0.0) -> None:
        """Let output arrive in pieces of ``size`` bytes with pauses between them."""
        self.pace = Pace(size, pause)

    @asynccontextmanager
    async def crossing(
        self, operation: str, sandbox_id: str | None = None
    ) -> AsyncGenerator[None, None]:
        """Surround an operation: count it, delay it, let it fail."""
        self.calls.append((operation, sandbox_id))
        if seconds := self.latency.get(operation):
            await asyncio.sleep(seconds)
        faults = self._faults.get(operation, [])
        fault = faults[0] if faults else None
        if fault is not None:
            fault.times -= 1
            if fault.times <= 0:
                faults.pop(0)
            if fault.when == "before":
                raise fault.error
        yield
        if fault is not None:
            raise fault.error

    # --------------------------------------------------------------- contract
    async def create(self, spec: SandboxSpec) -> MemoryHandle:
        """Make a simulated sandbox."""
        async with self.crossing("create"):
            if spec.snapshot_id is None:
                files = _fresh_files()
            elif spec.snapshot_id in self.world.snapshots:
                files = copy.deepcopy(self.world.snapshots[spec.snapshot_id])
            else:
                raise SandboxNotFoundError(f"there is no snapshot {spec.snapshot_id!r}")
            box = Box.made(self.world.new_id("mem"), spec, Kernel(files, self.programs))
            self.world.sandboxes[box.id] = box
            box.let_live(spec.timeout_secs)
        return MemoryHandle(self, box)

    async def attach(self, state: SandboxSessionState) -> MemoryHandle:
        """Take hold of a sandbox of this world."""
        async with self.crossing("attach", state.data["sandbox_id"]):
            return MemoryHandle(self, self.box(state.data["sandbox_id"]))

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Yield the sandboxes of this world that carry these labels."""
        async with self.crossing("list"):
            boxes = [box for box in self.world.sandboxes.values() if not box.over]
        for box in boxes:
            if labels.items() <= box.labels.items():
                yield box.info(self.name)

    async def find(self, sandbox_id: str) -> SandboxSessionState:
        """Return the state of a sandbox of this world."""
        async with self.crossing("find", sandbox_id):
            return self.box(sandbox_id).state(self.name)

    async def aclose(self) -> None:
        """There is no connection to close."""

    def box(self, sandbox_id: str) -> Box:
        """Return the simulated sandbox of an id."""
        box = self.world.sandboxes.get(sandbox_id)
        if box is None or box.over:
            raise SandboxNotFoundError(f"there is no sandbox {sandbox_id!r}")
        return box

    def save(self, box: Box) -> SnapshotInfo:
        """Keep a copy of a sandbox's files."""
        snapshot_id = self.world.new_id("snap")
        self.world.snapshots[snapshot_id] = copy.deepcopy(box.kernel.files)
        return SnapshotInfo(snapshot_id=snapshot_id, backend=self.name, created_at=time.time())


def _fresh_files() -> FileTree:
    files = FileTree()
    for path in ("/tmp", "/home/user", "/root", "/etc"):
        files.make_dirs(path)
    return files
