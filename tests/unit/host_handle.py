"""A handle on a plain directory of this machine, with real shells: nothing here is acted."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from requirements import require_program
from sandlot import _shell
from sandlot.capabilities import Capability, Isolation
from sandlot.contract import Backend, Handle
from sandlot.errors import file_error
from sandlot.types import (
    Captured,
    Command,
    SandboxInfo,
    SandboxResult,
    SandboxSessionState,
    SandboxSpec,
    SandboxState,
)

NOBODY = 65534

ODD_NAMES = [
    "-rf",
    "--",
    " leading",
    "trailing ",
    "trailing newline\n",
    "two\nlines",
    "\n",
    "a\n-rw-r--r-- 1 2 .",
    "tab\tbell\a",
    "quote's",
    'double"quote',
    "$(touch pwned)",
    "`id`",
    "$HOME",
    "*",
    "?",
    "[a]",
    "back\\slash",
    "\\n",
    "%s%n",
    ".hidden",
    "..twice",
    "...",
    ".-",
    "~",
    "#",
    "!",
    "ÁÄß€日本",
    os.fsdecode(b"\xff\xfe not utf-8"),
    os.fsdecode(bytes(range(0x80, 0x100))),
    "x" * 255,
]


@dataclass(frozen=True)
class Userland:
    """A shell and the tools that it finds."""

    name: str
    shell: tuple[str, ...]
    path: str


def userland(name: str, directory: Path) -> Userland:
    """Return a userland; ``directory`` is where its tools are laid out, if need be.

    ``dash`` and ``bash`` have the GNU tools; ``busybox`` has its own alone; ``bare`` is a
    dash with just the tools that POSIX demands, and no tar, find or stat.
    """
    if name == "bash":
        return Userland(name, (require_program("bash", "bash"), "--posix"), os.environ["PATH"])
    if name == "dash":
        return Userland(name, (require_program("dash", "dash"),), os.environ["PATH"])
    directory.mkdir()
    if name == "busybox":
        busybox = require_program("busybox")
        applets = subprocess.run(
            [busybox, "--list"], capture_output=True, text=True, check=True
        ).stdout.split()
        for applet in applets:
            (directory / applet).symlink_to(busybox)
        return Userland(name, (str(directory / "sh"),), str(directory))
    for tool in ("ls", "mkdir", "rmdir", "rm", "mv", "ln", "chmod", "cat", "wc", "readlink", "dd"):
        (directory / tool).symlink_to(require_program(tool, "coreutils"))
    return Userland(name, (require_program("dash", "dash"),), str(directory))


class HostBackend(Backend):
    name = "host"
    isolation = Isolation.NONE

    def __init__(self, *, stdin: bool = True) -> None:
        self.capabilities = frozenset({Capability.STDIN} if stdin else ())

    async def create(self, spec: SandboxSpec) -> Handle:
        raise NotImplementedError

    async def attach(self, state: SandboxSessionState) -> Handle:
        raise NotImplementedError

    def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        raise NotImplementedError

    async def aclose(self) -> None:
        pass


class HostHandle(Handle):
    """Runs commands in ``root``, with a userland's shell as ``/bin/sh``."""

    id = "host-1"

    def __init__(
        self, root: Path, land: Userland, *, stdin: bool = True, user: int | None = None
    ) -> None:
        super().__init__(HostBackend(stdin=stdin))
        self.root = root
        self.land = land
        self.user = user
        self.commands: list[tuple[str, ...]] = []
        self.largest_write = 0

    async def exec(self, command: Command) -> SandboxResult:
        assert command.stdin is None or Capability.STDIN in self.backend.capabilities
        self.commands.append(command.argv)
        argv = command.argv
        if argv[0] == "/bin/sh":
            argv = (*self.land.shell, *argv[1:])
        spawning = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *argv,
                cwd=self.root,
                env={"PATH": self.land.path, **command.env},
                stdin=subprocess.DEVNULL if command.stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                user=self.user,
                group=self.user,
                extra_groups=None if self.user is None else [],
                start_new_session=True,
            )
        )
        try:
            process = await asyncio.shield(spawning)
            out, err = await process.communicate(command.stdin)
        except asyncio.CancelledError:
            process = await spawning
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
            raise
        code = process.returncode or 0
        return SandboxResult(
            exit_code=code if code >= 0 else 128 - code,
            out=Captured(out, b"", len(out)),
            err=Captured(err, b"", len(err)),
        )

    async def read(self, path: str) -> bytes:
        try:
            return (self.root / path).read_bytes()
        except OSError as exc:
            raise file_error(exc, path) from exc

    async def write(self, path: str, data: bytes) -> None:
        self.largest_write = max(self.largest_write, len(data))
        try:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_bytes(data)
        except OSError as exc:
            raise file_error(exc, path) from exc

    async def info(self) -> SandboxInfo:
        return SandboxInfo(id=self.id, backend="host", state=SandboxState.RUNNING)

    async def destroy(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self.root)


def snapshot(directory: Path) -> dict[str, object]:
    """What a directory holds: modes and contents by name."""
    found: dict[str, object] = {}
    for path in directory.rglob("*"):
        name, mode = str(path.relative_to(directory)), path.lstat().st_mode
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = mode, b"" if path.is_dir() else path.read_bytes()
    return found


# Fixtures, for modules that import them under their own names.


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@pytest.fixture(params=["dash", "bash", "busybox", "bare"])
def land(request: pytest.FixtureRequest, place: Path) -> Userland:
    return userland(request.param, place / "bin")


@pytest.fixture
def handle(land: Userland, place: Path) -> HostHandle:
    root = place / "root"
    root.mkdir()
    return HostHandle(root, land)


@pytest.fixture
def limited(handle: HostHandle) -> HostHandle:
    """A handle whose commands run as a user to whom permissions apply, and own nothing."""
    if os.geteuid() == 0:
        handle.user = NOBODY
        handle.root.chmod(0o777)
    return handle


@pytest.fixture
def tree(place: Path) -> Path:
    root = place / "tree"
    (root / "deep/empty").mkdir(parents=True)
    (root / "deep/run").write_text("#!/bin/sh")
    (root / "deep/run").chmod(0o755)
    (root / "private").write_bytes(os.urandom(30_000))
    (root / "private").chmod(0o600)
    (root / "link").symlink_to("deep/run")
    for name in ODD_NAMES:
        (root / name).write_text("odd")
    (root / ("d" * 200)).mkdir()
    (root / ("d" * 200) / ("f" * 200)).touch()
    return root


@pytest.fixture
def spool(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the sandbox keeps temporary files, the first two places being of no use."""
    directory = place / "spool"
    directory.mkdir()
    directory.chmod(0o777)
    monkeypatch.setattr(_shell, "_TEMPORARY", ("/no/such", "/dev/null", str(directory)))
    return directory


@pytest.fixture
def plain(place: Path, spool: Path) -> HostHandle:
    root = place / "root"
    root.mkdir()
    return HostHandle(root, userland("dash", place / "bin"))


@pytest.fixture
def here(place: Path) -> Path:
    """A directory of this machine."""
    directory = place / "here"
    directory.mkdir()
    return directory


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    for _ in range(500):
        if not any("sandlot-transfer" in thread.name for thread in threading.enumerate()):
            break
        time.sleep(0.01)
    assert [it.name for it in threading.enumerate() if "sandlot-transfer" in it.name] == []
    assert os.listdir("/proc/self/fd") == before
