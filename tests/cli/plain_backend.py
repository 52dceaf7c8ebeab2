"""The least a backend can be: nine methods, no capability. For what the program does without."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from sandlot.capabilities import Isolation
from sandlot.contract import Backend, Handle
from sandlot.errors import SandboxExecutionError, SandboxNotFoundError, file_error
from sandlot.types import (
    Captured,
    Command,
    SandboxInfo,
    SandboxResult,
    SandboxSessionState,
    SandboxSpec,
    SandboxState,
)


class PlainBackend(Backend):
    """Commands in a directory of their own."""

    name = "plain"
    accepts = frozenset({"labels"})
    isolation = Isolation.NONE

    async def create(self, spec: SandboxSpec) -> Handle:
        _note_creation()
        return PlainHandle(self)

    async def attach(self, state: SandboxSessionState) -> Handle:
        raise SandboxNotFoundError("a plain sandbox ends with its program")

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        return
        yield

    async def aclose(self) -> None:
        pass


def _note_creation() -> None:
    if log := os.environ.get("PLAIN_LOG"):
        Path(log).write_text("created")


def _pass(gate: Path) -> None:
    """Knock at a gate, and wait until it is opened."""
    gate.with_name("knock").touch()
    while not gate.exists():
        time.sleep(0.01)


class PlainHandle(Handle):
    """One directory."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.id = f"plain-{secrets.token_hex(4)}"
        self._root = Path(tempfile.mkdtemp(prefix="plain-"))

    def command_path(self, path: str) -> str:
        return str(self._root / path.lstrip("/")) if path.startswith("/") else path

    async def exec(self, command: Command) -> SandboxResult:
        try:
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                cwd=self._root / (command.cwd or ""),
                env={**os.environ, **command.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as exc:
            raise SandboxExecutionError(f"{command.argv[0]}: {exc.strerror}") from exc
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        code = process.returncode or 0
        return SandboxResult(
            exit_code=code if code >= 0 else 128 - code,
            out=Captured(out, size=len(out)),
            err=Captured(err, size=len(err)),
        )

    async def read(self, path: str) -> bytes:
        try:
            return (self._root / path.lstrip("/")).read_bytes()
        except OSError as exc:
            raise file_error(exc, path) from exc

    async def write(self, path: str, data: bytes) -> None:
        target = self._root / path.lstrip("/")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as exc:
            raise file_error(exc, path) from exc

    async def info(self) -> SandboxInfo:
        return SandboxInfo(id=self.id, backend="plain", state=SandboxState.RUNNING)

    async def destroy(self) -> None:
        if gate := os.environ.get("PLAIN_GATE"):
            await asyncio.to_thread(_pass, Path(gate))
        shutil.rmtree(self._root, ignore_errors=True)
        self.alive = False
