"""The values that cross Sandlot's seams: frozen dataclasses, no behaviour beyond views."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from sandlot.errors import CommandFailedError, SandboxConfigurationError, SandboxTimeoutError

StreamName: TypeAlias = Literal["stdout", "stderr"]
Stdin: TypeAlias = bytes | str | bool | None
"""Input of a command: all of it, ``True`` to write it later, ``None`` for none (end of file)."""

DEFAULT_MAX_OUTPUT_BYTES = 64 * 1024 * 1024
"""How much of each stream is kept unless told otherwise, so that no output can fill the host."""

EMPTY: Mapping[str, Any] = MappingProxyType({})


def _empty() -> Mapping[str, Any]:
    return EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """Everything that can be asked for at creation. Omitted means: the backend's own default.

    A backend honours the fields it lists in ``Backend.accepts``; asking for another is an
    error before anything is started, unless ``best_effort`` is set.
    """

    image: str | None = None
    """OCI image, or the provider's name for one."""
    template: str | None = None
    """The provider's template id."""
    snapshot_id: str | None = None
    """Start from this snapshot."""
    cpu: float | None = None
    """CPU cores; a limit, fractions allowed."""
    memory_mb: int | None = None
    """Memory of all processes together, in MiB."""
    disk_mb: int | None = None
    """Disk space, in MiB."""
    pids_limit: int | None = None
    """Most processes at one time."""
    gpu: str | None = None
    """GPU type, or ``"type:count"``."""
    timeout_secs: float | None = None
    """The sandbox's longest life in seconds, counted from its creation."""
    env_vars: Mapping[str, str] = field(default_factory=_empty, repr=False)
    """Environment variables of everything that runs inside."""
    inherit_env: bool | Sequence[str] = False
    """Pass on this process's environment: ``True`` for all of it, or the names to pass on."""
    allow_internet: bool | None = None
    """``False`` cuts the sandbox off the network."""
    workdir: str | None = None
    """Where commands start. On ``local``, a host directory, which is kept at the end."""
    user: str | None = None
    """The user that commands run as."""
    labels: Mapping[str, str] = field(default_factory=_empty)
    """Names to find the sandbox by."""
    app_name: str | None = None
    """The provider's grouping of sandboxes, where it has one."""
    files: Mapping[str, bytes | str] = field(default_factory=_empty, repr=False)
    """Files to write before anything runs: path to content."""
    backend_options: Mapping[str, Any] = field(default_factory=_empty, repr=False)
    """Options only this backend knows; each backend's page lists them."""
    keep: bool = False
    """Leave the sandbox running when this program ends."""
    best_effort: bool = False
    """Turn what can't be honoured from an error into a warning event."""


@dataclass(frozen=True, slots=True)
class PtySize:
    """The size of a terminal, in characters."""

    cols: int = 80
    rows: int = 24

    def __post_init__(self) -> None:
        if not (0 < self.cols < 65536 and 0 < self.rows < 65536):
            raise SandboxConfigurationError(
                f"a terminal of {self.cols} x {self.rows} characters is not possible"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command as a backend gets it: checked, and with nothing left to decide."""

    argv: tuple[str, ...]
    """Program and arguments."""
    cwd: str | None = None
    """Where it starts; relative to the sandbox's working directory."""
    env: Mapping[str, str] = field(default_factory=_empty, repr=False)
    """Variables on top of the sandbox's own."""
    stdin: bytes | None = field(default=None, repr=False)
    """All of its input; ``None`` for none."""
    keep_stdin_open: bool = False
    """More input will come by ``ProcessHandle.write_stdin``."""
    timeout: float | None = None
    """Seconds until its whole process tree is killed."""
    user: str | None = None
    """User to run as."""
    pty: PtySize | None = None
    """Give it a terminal of this size; its output is then all ``stdout``."""
    max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES
    """How much of each stream to keep."""


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """What one command and its reaped children used."""

    user_secs: float
    system_secs: float
    max_rss_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended."""

    exit_code: int
    """Its exit code; 128 + n when signal n ended it."""
    signal: int | None = None
    """The signal that ended it."""
    usage: ResourceUsage | None = None
    """What it used, where the backend can tell."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What was kept of one output stream."""

    head: bytes = b""
    tail: bytes = b""
    size: int = 0
    """How many bytes were printed, kept or not."""

    @property
    def dropped(self) -> int:
        """How many bytes were left out between head and tail."""
        return self.size - len(self.head) - len(self.tail)

    @property
    def data(self) -> bytes:
        """The kept bytes."""
        return self.head + self.tail

    @property
    def text(self) -> str:
        """The kept text; what is not UTF-8 is replaced, and a gap is marked."""
        if not self.dropped:
            return self.data.decode("utf-8", "replace")
        gap = f"\n[... {self.dropped} bytes left out ...]\n"
        head, tail = (part.decode("utf-8", "replace") for part in (self.head, self.tail))
        return f"{head}{gap}{tail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """What a command gave back.

    ``exit_code`` is the command's own; 128 + n when signal n ended it; 124 when its time
    ran out, as with timeout(1), and then ``timed_out`` is set: only that says so, since a
    program may itself exit with 124.
    """

    exit_code: int
    out: Captured = field(default=Captured(), repr=False)
    """Standard output as it was kept."""
    err: Captured = field(default=Captured(), repr=False)
    """Standard error as it was kept."""
    signal: int | None = None
    """The signal that ended the command."""
    timed_out: bool = False
    """Whether the command was killed because its time ran out."""
    duration: float = 0.0
    """Seconds from start to end, as the caller saw it."""
    usage: ResourceUsage | None = None
    """CPU time and memory, where the backend can tell."""

    @property
    def ok(self) -> bool:
        """Whether it exited with 0 and in time."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def stdout(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are replaced."""
        return self.out.text

    @property
    def stderr(self) -> str:
        """Standard error as text; bytes that are not UTF-8 are replaced."""
        return self.err.text

    @property
    def stdout_bytes(self) -> bytes:
        """Standard output, byte for byte (without what ``max_output_bytes`` left out)."""
        return self.out.data

    @property
    def stderr_bytes(self) -> bytes:
        """Standard error, byte for byte (without what ``max_output_bytes`` left out)."""
        return self.err.data

    @property
    def truncated(self) -> bool:
        """Whether output was left out; ``out.size`` and ``err.size`` tell the true sizes."""
        return bool(self.out.dropped or self.err.dropped)

    def check(self) -> SandboxResult:
        """Return self.

        Raises:
            SandboxTimeoutError: If the command's time ran out.
            CommandFailedError: If it exited with another code than 0.
        """
        if self.timed_out:
            raise SandboxTimeoutError(
                f"the command was killed after {self.duration:.1f} s", result=self
            )
        if self.exit_code:
            last = self.stderr.strip().splitlines()[-1:] or [""]
            by = f" (signal {self.signal})" if self.signal else ""
            said = f": {last[0][:500]}" if last[0] else ""
            raise CommandFailedError(
                f"the command exited with {self.exit_code}{by}{said}", result=self
            )
        return self


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output, as it arrived.

    ``text`` is decoded across chunks: a character split between two arrives whole in the
    second, so texts joined are the stream's text.
    """

    stream: StreamName
    data: bytes
    text: str = ""
    dropped: int = 0
    """Bytes that were left out just before this chunk, because nobody read for long."""


class FileType(StrEnum):
    """What a path is."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"
    """A pipe, socket or device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """One file in a sandbox; a symbolic link is described as itself, not as its target."""

    path: str
    """The path asked for, joined with the name found."""
    type: FileType
    size: int
    """Bytes."""
    mode: int = 0
    """Permission bits, such as 0o755."""
    modified: float = 0.0
    """Seconds since the epoch."""
    target: str | None = None
    """Where a symbolic link points."""

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.type is FileType.DIRECTORY

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.type is FileType.FILE

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]


class SandboxState(StrEnum):
    """Where a sandbox is in its life."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    """Nothing runs in it any more, and something of it is left to remove."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """A sandbox as its backend knows it."""

    id: str
    backend: str
    state: SandboxState
    labels: Mapping[str, str] = field(default_factory=_empty)
    created: float | None = None
    """Seconds since the epoch."""
    expires: float | None = None
    """Seconds since the epoch; ``None`` if it lives until destroyed."""
    resource_id: str | None = None
    """The provider's own name for it: a container, a process, a machine."""
    kept: bool = False
    """Whether it outlives the program that made it."""


@dataclass(frozen=True, slots=True)
class SandboxSessionState:
    """All that another process needs to take over a running sandbox. Holds no secrets."""

    backend: str
    data: Mapping[str, str]

    def to_json(self) -> str:
        """Return it as JSON, for a queue, a database or a file."""
        return json.dumps({"backend": self.backend, "data": dict(self.data)}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> SandboxSessionState:
        """Read what `to_json` wrote.

        Raises:
            SandboxConfigurationError: If ``text`` is something else.
        """
        try:
            value = json.loads(text)
            backend, data = value["backend"], dict(value["data"])
        except (ValueError, TypeError, KeyError) as exc:
            raise SandboxConfigurationError(f"not a session state: {text[:80]!r}") from exc
        strings = isinstance(backend, str) and all(
            isinstance(part, str) for pair in data.items() for part in pair
        )
        if not strings:
            raise SandboxConfigurationError(f"not a session state: {text[:80]!r}")
        return cls(backend, data)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """A saved state of a sandbox."""

    snapshot_id: str
    backend: str
    created_at: float | None = None
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedPort:
    """A port inside a sandbox, reachable from outside."""

    port: int
    url: str
    headers: Mapping[str, str] = field(default_factory=_empty, repr=False)
    """What a request must carry; may hold a secret."""


class EnforcementLevel(StrEnum):
    """How far a limit or policy really holds."""

    ENFORCED = "enforced"
    PER_PROCESS = "per_process"
    """Each process is limited, not all of them together."""
    BEST_EFFORT = "best_effort"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Enforcement:
    """Whether a limit or policy holds on a backend, and by what means or why not."""

    level: EnforcementLevel
    how: str
