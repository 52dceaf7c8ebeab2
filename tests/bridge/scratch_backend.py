"""A small real backend for the tests of the bridge: directories, and processes in them.

What a test has to prove is then a fact of the operating system: a directory that is gone, a
process that no longer runs. Sandboxes live under one root, so that another process sees them.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from sandlot._exec import exec_by_start, to_the_end
from sandlot._output import Output
from sandlot.capabilities import Capability, Isolation
from sandlot.contract import Backend, Handle, ProcessHandle
from sandlot.errors import SandboxNotFoundError
from sandlot.types import (
    Command,
    Exit,
    SandboxInfo,
    SandboxResult,
    SandboxSessionState,
    SandboxSpec,
    SandboxState,
    StreamName,
)


class ScratchBackend(Backend):
    name = "scratch"
    capabilities = frozenset({Capability.STREAM, Capability.RECONNECT})
    isolation = Isolation.NONE

    def __init__(
        self,
        root: Path,
        *,
        slow_create: float = 0,
        stubborn: bool = False,
        slow_destroy: float = 0,
        threaded: bool = False,
    ) -> None:
        self.root = root
        self.slow_create = slow_create
        self.stubborn = stubborn
        """Being cancelled does not keep it from ending what it has begun to create."""
        self.slow_destroy = slow_destroy
        self.threaded = threaded
        """Blocking work is done in a thread, as real backends do it."""

    async def create(self, spec: SandboxSpec) -> ScratchHandle:
        path = self.root / secrets.token_hex(4)
        path.mkdir(parents=True)
        try:
            ready = asyncio.sleep(self.slow_create)
            await (to_the_end_quietly(ready) if self.stubborn else ready)
        except asyncio.CancelledError:
            path.rmdir()
            raise
        return ScratchHandle(self, path)

    async def attach(self, state: SandboxSessionState) -> ScratchHandle:
        path = Path(state.data["path"])
        if not os.access(path, os.F_OK):
            raise SandboxNotFoundError("it is gone")
        return ScratchHandle(self, path)

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        for path in self.root.iterdir():
            yield SandboxInfo(id=path.name, backend="scratch", state=SandboxState.RUNNING)

    async def aclose(self) -> None:
        pass


class ScratchHandle(Handle):
    def __init__(self, backend: ScratchBackend, path: Path) -> None:
        super().__init__(backend)
        self.id = path.name
        self._path = path
        self._options = backend
        self._processes: list[ScratchProcess] = []

    async def start(self, command: Command, output: Output) -> ScratchProcess:
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            cwd=self._path,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        started = ScratchProcess(process, output)
        self._processes.append(started)
        return started

    async def exec(self, command: Command) -> SandboxResult:
        return await exec_by_start(self, command)

    async def read(self, path: str) -> bytes:
        return (self._path / path).read_bytes()

    async def write(self, path: str, data: bytes) -> None:
        (self._path / path).write_bytes(data)

    async def info(self) -> SandboxInfo:
        return SandboxInfo(id=self.id, backend="scratch", state=SandboxState.RUNNING)

    def session_state(self) -> SandboxSessionState:
        asyncio.get_running_loop()  # belongs to the loop's thread, and says so
        return SandboxSessionState("scratch", {"path": str(self._path)})

    async def destroy(self) -> None:
        await asyncio.sleep(self._options.slow_destroy)
        for process in self._processes:
            await process.kill()
        if self._options.threaded:
            await asyncio.to_thread(shutil.rmtree, self._path)
        else:
            shutil.rmtree(self._path)


class ScratchProcess(ProcessHandle):
    def __init__(self, process: asyncio.subprocess.Process, output: Output) -> None:
        self.id = str(process.pid)
        self.pid = process.pid
        self._process = process
        self._output = output
        self._ended = asyncio.ensure_future(self._end())

    async def wait(self) -> Exit:
        return await asyncio.shield(self._ended)

    async def kill(self) -> None:
        if not self._ended.done():
            os.killpg(self._process.pid, signal.SIGKILL)
        await self.wait()

    async def _end(self) -> Exit:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copy("stdout", self._process.stdout))
            group.create_task(self._copy("stderr", self._process.stderr))
        code = await self._process.wait()
        self._output.close()
        return Exit(exit_code=code if code >= 0 else 128 - code)

    async def _copy(self, name: StreamName, source: asyncio.StreamReader) -> None:
        while data := await source.read(65536):
            self._output.feed(name, data)


async def to_the_end_quietly(work: object) -> None:
    """Await to the end, and forget about having been cancelled."""
    try:
        await to_the_end(work)  # type: ignore[arg-type]
    except asyncio.CancelledError:
        current = asyncio.current_task()
        assert current is not None
        current.uncancel()


def is_running(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
