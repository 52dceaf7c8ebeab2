"""A simulated sandbox, and the handle by which Sandlot holds it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from sandlot._exec import exec_by_start
from sandlot._output import Output
from sandlot.capabilities import Capability
from sandlot.contract import Handle, lacking
from sandlot.errors import SandboxExecutionError, SandboxNotFoundError, file_error
from sandlot.testing._memory_kernel import Kernel, Process, Program
from sandlot.testing._memory_process import MemoryProcess
from sandlot.testing._minishell_builtins import normal
from sandlot.testing._minishell_run import lookup
from sandlot.types import (
    Command,
    FileInfo,
    SandboxInfo,
    SandboxResult,
    SandboxSessionState,
    SandboxSpec,
    SandboxState,
    SnapshotInfo,
)

if TYPE_CHECKING:
    from sandlot.testing.memory import MemoryBackend

_HOMES = {"user": "/home/user", "root": "/root"}
_PIECE = 1024 * 1024


@dataclass(eq=False)
class Box:
    """A simulated sandbox."""

    id: str
    kernel: Kernel
    labels: dict[str, str]
    env: dict[str, str]
    user: str
    cwd: str
    created: float = field(default_factory=time.time)
    expires: float | None = None
    kept: bool = False
    gone: bool = False
    running: dict[str, MemoryProcess] = field(default_factory=dict[str, MemoryProcess])
    _timer: asyncio.TimerHandle | None = None

    @classmethod
    def made(cls, box_id: str, spec: SandboxSpec, kernel: Kernel) -> Box:
        """Return a sandbox as a spec describes it."""
        import os

        user = spec.user or "user"
        home = _HOMES.get(user, "/tmp")
        cwd = spec.workdir or home
        cwd = cwd if cwd.startswith("/") else f"{home}/{cwd}"
        kernel.files.make_dirs(cwd, superuser=True)
        inherited: dict[str, str] = {}
        if spec.inherit_env is True:
            inherited = dict(os.environ)
        elif spec.inherit_env:
            inherited = {n: os.environ[n] for n in spec.inherit_env if n in os.environ}
        env = {"PATH": "/usr/bin:/bin", "HOME": home, "USER": user, **inherited, **spec.env_vars}
        return cls(box_id, kernel, dict(spec.labels), env, user, cwd, kept=spec.keep)

    @property
    def over(self) -> bool:
        """Whether it is gone, or its time is over."""
        if self.expires is not None and time.time() >= self.expires:
            self.end()
        return self.gone

    def let_live(self, seconds: float | None) -> None:
        """Let it end after some seconds, or never."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.expires = None
        if seconds is not None:
            self.expires = time.time() + seconds
            self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def end(self) -> None:
        """Kill all that runs in it; from now on it is gone."""
        self.gone = True
        if self._timer is not None:
            self._timer.cancel()
        self.kernel.kill_all()

    def info(self, backend: str) -> SandboxInfo:
        """Describe it."""
        return SandboxInfo(
            id=self.id,
            backend=backend,
            state=SandboxState.RUNNING,
            labels=dict(self.labels),
            created=self.created,
            expires=self.expires,
            resource_id=self.id,
            kept=self.kept,
        )

    def state(self, backend: str) -> SandboxSessionState:
        """Return what it is found by."""
        return SandboxSessionState(backend, {"sandbox_id": self.id})


class MemoryHandle(Handle):
    """Holds one simulated sandbox."""

    shell = ("/bin/sh", "-c")
    backend: MemoryBackend

    def __init__(self, backend: MemoryBackend, box: Box) -> None:
        super().__init__(backend)
        self.id = self.resource_id = box.id
        self._box = box

    # --------------------------------------------------------------- commands
    async def exec(self, command: Command) -> SandboxResult:
        """Run a command to its end."""
        async with self._crossing("exec"):
            # A backend that can't stream runs commands all the same.
            return await exec_by_start(cast(Handle, _Starter(self)), command)

    async def start(self, command: Command, output: Output) -> MemoryProcess:
        """Start a command."""
        self._need(Capability.STREAM, "start")
        async with self._crossing("start"):
            return self.launch(command, output)

    def launch(self, command: Command, output: Output) -> MemoryProcess:
        """Start a command, whatever the backend declares."""
        box, files = self._box, self._box.kernel.files
        user = command.user or box.user
        if user not in _HOMES:
            raise SandboxExecutionError(f"there is no user {user!r}")
        cwd = normal(self._path(command.cwd or "."))
        try:
            files.directory(cwd, superuser=user == "root")
        except OSError as exc:
            raise SandboxExecutionError(f"cwd: {command.cwd}: {exc.strerror}") from exc
        env = {**box.env, **command.env}
        if command.user:
            env |= {"USER": user, "HOME": _HOMES[user]}
        process = MemoryProcess(command, output, self.backend.pace, lambda: box.gone)

        async def main(running: Process) -> int:
            return await running.call(program, list(command.argv[1:]), env)

        running = box.kernel.spawn(
            main, args=list(command.argv), env=env, cwd=cwd, fds=process.descriptors, user=user
        )
        try:
            program = self._program(command, running)
        except OSError as exc:
            running.task.cancel()
            raise SandboxExecutionError(
                f"{command.argv[0]!r} could not be started: {exc.strerror or exc}"
            ) from exc
        process.attach(running)
        box.running[process.id] = process
        return process

    def _program(self, command: Command, running: Process) -> Program:
        if scripted := self.backend.scripts.get(command.argv):
            return scripted
        if found := lookup(running, command.argv[0]):
            return found
        raise FileNotFoundError("no such program here")

    async def process(self, process_id: str, output: Output) -> MemoryProcess:
        """Take hold of a running process again; its output comes from now on."""
        self._need(Capability.PROCESSES, "process")
        async with self._crossing("process"):
            process = self._box.running.get(process_id)
            if process is None or process.ended:
                raise SandboxNotFoundError(f"there is no process {process_id!r}")
            process.listen(output)
            return process

    # ------------------------------------------------------------------ files
    async def read(self, path: str) -> bytes:
        """Return a file's content."""
        async with self._files("read", path):
            return bytes(self._tree.file(self._path(path), superuser=self._superuser).data)

    async def read_stream(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield a file's content in pieces."""
        async with self._files("read_stream", path):
            file = self._tree.file(self._path(path), superuser=self._superuser)
        for at in range(0, len(file.data), _PIECE):
            yield bytes(file.data[at : at + _PIECE])
            await asyncio.sleep(0)

    async def write(self, path: str, data: bytes) -> None:
        """Make or replace a file."""
        async with self._files("write", path):
            self._put(path, bytearray(data))

    async def write_stream(self, path: str, data: AsyncIterator[bytes]) -> None:
        """Make or replace a file from pieces, once all have come."""
        content = bytearray()
        async for piece in data:
            content += piece
            await asyncio.sleep(0)
        async with self._files("write_stream", path):
            self._put(path, content)

    def _put(self, path: str, content: bytearray) -> None:
        where = self._path(path)
        self._tree.make_dirs(where.rpartition("/")[0] or "/", superuser=self._superuser)
        self._tree.open_for_writing(where, superuser=self._superuser).data = content

    async def list_dir(self, path: str) -> list[FileInfo]:
        """Return what a directory holds."""
        async with self._files("list_dir", path):
            found = self._tree.list_dir(self._path(path), superuser=self._superuser)
        base = path if path.endswith("/") else f"{path}/"
        return [_renamed(info, f"{base}{info.name}") for info in found]

    async def stat(self, path: str) -> FileInfo:
        """Describe a path; a link as itself."""
        async with self._files("stat", path):
            info = self._tree.describe(self._path(path), superuser=self._superuser)
        return _renamed(info, path)

    async def make_dir(self, path: str) -> None:
        """Make a directory and those above it."""
        async with self._files("make_dir", path):
            self._tree.make_dirs(self._path(path), superuser=self._superuser)

    async def remove(self, path: str, *, recursive: bool) -> None:
        """Remove a file, a link, or a directory."""
        async with self._files("remove", path):
            self._tree.remove(self._path(path), recursive=recursive, superuser=self._superuser)

    async def move(self, source: str, target: str) -> None:
        """Rename."""
        async with self._files("move", source):
            self._tree.move(self._path(source), self._path(target), superuser=self._superuser)

    async def link(self, path: str, target: str) -> None:
        """Make a symbolic link, in place of a file or link that is there."""
        async with self._files("link", path):
            self._tree.link(self._path(path), target, superuser=self._superuser)

    async def set_mode(self, path: str, mode: int) -> None:
        """Set permission bits."""
        async with self._files("set_mode", path):
            self._tree.find(self._path(path), superuser=self._superuser).mode = mode

    async def upload_tar(self, path: str, archive: AsyncIterator[bytes]) -> None:
        """Unpack a tar stream into a directory."""
        data = b"".join([piece async for piece in archive])
        async with self._files("upload_tar", path):
            self._tree.unpack(self._path(path), data, superuser=self._superuser)

    async def download_tar(self, path: str) -> AsyncIterator[bytes]:
        """Yield a directory as a tar stream."""
        async with self._files("download_tar", path):
            data = self._tree.pack(self._path(path))
        for at in range(0, len(data), _PIECE):
            yield data[at : at + _PIECE]

    # ------------------------------------------------------------------- life
    async def info(self) -> SandboxInfo:
        """Describe it as it is now."""
        async with self._crossing("info"):
            return self._box.info(self.backend.name)

    async def destroy(self) -> None:
        """End it."""
        async with self.backend.crossing("destroy", self.id):
            self._box.end()
            await self._box.kernel.all_ended()
            self.backend.world.sandboxes.pop(self.id, None)
            self.alive = False

    def session_state(self) -> SandboxSessionState:
        """Return what finds it again, and keep it."""
        self._need(Capability.RECONNECT, "resume")
        self._box.kept = True
        return self._box.state(self.backend.name)

    async def extend(self, seconds: float) -> None:
        """Move its end."""
        self._need(Capability.EXTEND, "extend")
        async with self._crossing("extend"):
            self._box.let_live(seconds)

    async def snapshot(self) -> SnapshotInfo:
        """Keep a copy of its files."""
        self._need(Capability.SNAPSHOT, "snapshot")
        async with self._crossing("snapshot"):
            return self.backend.save(self._box)

    # ---------------------------------------------------------------- helpers
    @property
    def _tree(self):  # type: ignore[no-untyped-def]
        return self._box.kernel.files

    @property
    def _superuser(self) -> bool:
        return self._box.user == "root"

    def _path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self._box.cwd.rstrip('/')}/{path}"

    def _need(self, capability: Capability, operation: str) -> None:
        if capability not in self.backend.capabilities:
            raise lacking(self.backend, capability, op=operation, sandbox_id=self.id)

    @asynccontextmanager
    async def _crossing(self, operation: str) -> AsyncGenerator[None, None]:
        async with self.backend.crossing(operation, self.id):
            if self._box.over:
                self.alive = False
                raise SandboxNotFoundError("this sandbox is gone")
            yield

    @asynccontextmanager
    async def _files(self, operation: str, path: str) -> AsyncGenerator[None, None]:
        async with self._crossing(operation):
            with _file_errors(path):
                yield


class _Starter:
    """What `exec_by_start` needs of a handle."""

    def __init__(self, handle: MemoryHandle) -> None:
        self._handle = handle

    async def start(self, command: Command, output: Output) -> MemoryProcess:
        return self._handle.launch(command, output)


@contextlib.contextmanager
def _file_errors(path: str) -> Generator[None, None, None]:
    try:
        yield
    except OSError as exc:
        raise file_error(exc, path) from exc


def _renamed(info: FileInfo, path: str) -> FileInfo:
    import dataclasses

    return dataclasses.replace(info, path=path)
