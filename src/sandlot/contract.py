"""What a backend is: all that an adapter's author reads.

An adapter is a `Backend` (how to reach the place, create, find) and a `Handle` (one
sandbox there). Nine methods are required: four of the backend, five of the handle.
Everything else either has a default that is derived from those (the file operations), or
a default that raises `FeatureNotSupportedError`; an adapter overrides what its provider
does natively and declares it in ``capabilities``.

Rules for every method:

- Raise only `SandboxError`; map the vendor's errors with `sandlot.errors.translate`.
- Being cancelled is normal: clean up, then re-raise. A cancelled ``create`` leaves nothing.
- Never block the event loop; a vendor's blocking SDK runs on an executor of its own.
- Paths are POSIX strings; a relative path starts at the sandbox's working directory, for
  files as for commands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import ClassVar

from sandlot import _shell
from sandlot._output import Output
from sandlot.capabilities import Capability, Isolation
from sandlot.errors import FeatureNotSupportedError, SandboxConnectionError
from sandlot.types import (
    EMPTY,
    Command,
    Enforcement,
    Exit,
    ExposedPort,
    FileInfo,
    SandboxInfo,
    SandboxResult,
    SandboxSessionState,
    SandboxSpec,
    SnapshotInfo,
)


class Backend(ABC):
    """One place where sandboxes run. Belongs to one event loop; constructing it does no I/O."""

    name: ClassVar[str]
    """The name that users type."""
    capabilities: frozenset[Capability] = frozenset()
    """What it can do beyond the required."""
    accepts: frozenset[str] = frozenset()
    """The `SandboxSpec` fields it honours."""
    isolation: Isolation
    """How far its sandboxes are kept from the machine they run on."""

    @classmethod
    def why_not(cls) -> str | None:
        """Say why it can't be used here and what to install or set; ``None`` if it can.

        Looks, and starts nothing: no network, no processes.
        """
        return None

    def check(self, spec: SandboxSpec) -> None:  # noqa: B027  (most have nothing to add)
        """Refuse values that can't be honoured although their field is; no I/O.

        Raises:
            FeatureNotSupportedError: With ``field`` set.
            SandboxConfigurationError: If a value makes no sense here.
        """

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> Handle:
        """Make a sandbox and return when it is ready for commands.

        ``spec.files`` is not the backend's business: it is written afterwards.

        Raises:
            SandboxCreationError: With ``outcome`` saying whether something may remain.
            SandboxAuthenticationError: If the credentials are not accepted.
        """

    @abstractmethod
    async def attach(self, state: SandboxSessionState) -> Handle:
        """Take hold of a sandbox that is running.

        Raises:
            SandboxNotFoundError: If it is gone.
        """

    @abstractmethod
    def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Yield the sandboxes that carry all these labels, made by this or another process."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close connections; idempotent. Sandboxes stay as they are."""

    async def find(self, sandbox_id: str) -> SandboxSessionState:
        """Return what `attach` needs for the sandbox of this id.

        Raises:
            SandboxNotFoundError: If there is none.
        """
        return SandboxSessionState(self.name, {"sandbox_id": sandbox_id})

    async def probe(self) -> Mapping[str, Enforcement]:
        """Try out what holds here, for each limit and policy by its `SandboxSpec` field.

        Real trials, not version checks. May take a second.
        """
        return {}

    async def gc(self) -> Sequence[str]:
        """Remove what crashed programs left behind, and return the ids removed.

        Only what is ours, whose owner is gone, and that nobody asked to keep.
        """
        return []


class Handle(ABC):
    """The backend's side of one sandbox."""

    id: str
    """Unique on its backend."""
    resource_id: str | None = None
    """The provider's own name for it."""
    shell: tuple[str, ...] = _shell.SHELL
    """What runs a shell line, which is appended to it."""
    alive: bool = True
    """False once it is known to be gone, without asking."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    # ------------------------------------------------------------- required
    @abstractmethod
    async def exec(self, command: Command) -> SandboxResult:
        """Run a command to its end. Any exit code is a result, not an error.

        At ``command.timeout`` its whole process tree is killed, and the result, with
        ``timed_out`` set, holds what it had printed. When cancelled, likewise killed.

        Raises:
            SandboxExecutionError: If it could not be started.
            SandboxNotFoundError: If the sandbox is gone.
        """

    @abstractmethod
    async def read(self, path: str) -> bytes:
        """Return a file's content.

        Raises:
            SandboxFileError: The subclass that says why.
        """

    @abstractmethod
    async def write(self, path: str, data: bytes) -> None:
        """Make or replace a file, and the directories above it. An existing mode is kept.

        Raises:
            SandboxFileError: The subclass that says why.
        """

    @abstractmethod
    async def info(self) -> SandboxInfo:
        """Return how it stands, asked of the provider now.

        Raises:
            SandboxNotFoundError: If it is gone.
        """

    @abstractmethod
    async def destroy(self) -> None:
        """End it and all that runs in it, and return when it is gone. Idempotent.

        Raises:
            SandboxError: Saying what may still be there.
        """

    # ----------------------------------------------- derived; override if native
    async def interpreter(self, language: str) -> str | None:
        """Return a program known to run ``-c CODE`` of a language; ``None``: look inside."""
        return None

    def command_path(self, path: str) -> str:
        """Return the absolute path by which commands know the file ``path``."""
        return path

    async def list_dir(self, path: str) -> list[FileInfo]:
        """Return what a directory holds, sorted by name."""
        return await _shell.list_dir(self, path)

    async def stat(self, path: str) -> FileInfo:
        """Describe a path; a symbolic link as itself."""
        return await _shell.stat(self, path)

    async def make_dir(self, path: str) -> None:
        """Make a directory and those above it; fine if it is there."""
        await _shell.make_dir(self, path)

    async def remove(self, path: str, *, recursive: bool) -> None:
        """Remove a file or link, an empty directory, or with ``recursive`` a whole tree."""
        await _shell.remove(self, path, recursive=recursive)

    async def move(self, source: str, target: str) -> None:
        """Rename a file or directory; an existing target file is replaced."""
        await _shell.move(self, source, target)

    async def link(self, path: str, target: str) -> None:
        """Make a symbolic link at ``path``, in place of a file or link that is there."""
        await _shell.link(self, path, target)

    async def set_mode(self, path: str, mode: int) -> None:
        """Set permission bits."""
        await _shell.set_mode(self, path, mode)

    async def read_stream(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield a file's content in pieces."""
        yield await self.read(path)

    async def write_stream(self, path: str, data: AsyncIterator[bytes]) -> None:
        """Like `write`, from pieces."""
        await self.write(path, b"".join([piece async for piece in data]))

    async def upload_tar(self, path: str, archive: AsyncIterator[bytes]) -> None:
        """Unpack an uncompressed tar stream into a directory, which exists."""
        await _shell.upload_tar(self, path, archive)

    def download_tar(self, path: str) -> AsyncIterator[bytes]:
        """Yield a directory's content as an uncompressed tar stream."""
        return _shell.download_tar(self, path)

    # --------------------------------------------------------------- optional
    async def start(self, command: Command, output: Output) -> ProcessHandle:
        """Start a command whose output goes to ``output`` as it comes. Needs `STREAM`.

        ``command.stdin`` is written without holding the caller up, then closed unless
        ``keep_stdin_open``. ``command.timeout`` is the caller's to enforce. A handle that
        has this builds ``exec`` on it with `sandlot._exec.exec_by_start`.

        Raises:
            SandboxExecutionError: If it could not be started.
        """
        raise lacking(self.backend, Capability.STREAM, op="start", sandbox_id=self.id)

    async def process(self, process_id: str, output: Output) -> ProcessHandle:
        """Take hold of a running process again. Needs `PROCESSES`.

        Raises:
            SandboxNotFoundError: If there is none of this id.
        """
        raise lacking(self.backend, Capability.PROCESSES, op="process", sandbox_id=self.id)

    def session_state(self) -> SandboxSessionState:
        """Return what `Backend.attach` needs, and keep the sandbox when its owner ends.

        Needs `RECONNECT`.
        """
        raise lacking(self.backend, Capability.RECONNECT, op="resume", sandbox_id=self.id)

    async def extend(self, seconds: float) -> None:
        """Let the sandbox end ``seconds`` from now, not earlier or later. Needs `EXTEND`."""
        raise lacking(self.backend, Capability.EXTEND, op="extend", sandbox_id=self.id)

    async def snapshot(self) -> SnapshotInfo:
        """Save its state. Needs `SNAPSHOT`."""
        raise lacking(self.backend, Capability.SNAPSHOT, op="snapshot", sandbox_id=self.id)

    async def expose(self, port: int) -> ExposedPort:
        """Make a port inside reachable from outside. Needs `EXPOSE`."""
        raise lacking(self.backend, Capability.EXPOSE, op="expose", sandbox_id=self.id)

    @property
    def enforcement(self) -> Mapping[str, Enforcement]:
        """How far each limit and policy asked for holds on this sandbox."""
        return EMPTY

    def abandon(self) -> None:  # noqa: B027  (a remote sandbox has nothing to let go of)
        """Let go of descriptors and callbacks without a word to the sandbox."""


class ProcessHandle(ABC):
    """The backend's side of one running command."""

    id: str
    """Finds it again with ``Handle.process``."""
    pid: int | None = None
    """Its process id inside the sandbox, where the backend can tell."""

    @abstractmethod
    async def wait(self) -> Exit:
        """Wait until it ends, all its output having gone to its `Output`. Repeatable."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill it and all its descendants; fine if it has ended."""

    async def signal(self, number: int) -> None:
        """Send a signal to its process group; fine if it has ended. Needs `SIGNALS`."""
        raise NotImplementedError

    async def write_stdin(self, data: bytes) -> None:
        """Write input, waiting while the command is slow to take it. Needs `STDIN`.

        Raises:
            SandboxConnectionError: If the command no longer takes input.
        """
        raise NotImplementedError

    async def close_stdin(self) -> None:
        """Let the command see the end of its input; idempotent. Needs `STDIN`."""
        raise NotImplementedError

    async def resize(self, cols: int, rows: int) -> None:
        """Tell its terminal a new size. Needs `PTY`."""
        raise NotImplementedError


def lacking(
    backend: Backend, capability: Capability, *, op: str, sandbox_id: str | None = None
) -> FeatureNotSupportedError:
    """Return the error for a capability that a backend has not."""
    return FeatureNotSupportedError(
        f"the {backend.name} backend can't do {capability.value!r}",
        capability=capability.value,
        backend=backend.name,
        op=op,
        sandbox_id=sandbox_id,
    )


def broken_stdin(exc: OSError | None = None) -> SandboxConnectionError:
    """Return the error for input that the command no longer takes."""
    error = SandboxConnectionError("the command no longer takes input", retryable=False)
    error.__cause__ = exc
    return error
