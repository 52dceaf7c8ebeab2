"""All that one ``sandlot run`` does, from an empty sandbox to the result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandlot.cli import _running, _session
from sandlot.cli._running import Job
from sandlot.cli._session import Place
from sandlot.sandbox import AsyncSandbox
from sandlot.types import SandboxResult

if TYPE_CHECKING:
    from sandlot.cli._paths import Download, Upload
    from sandlot.cli._program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """All that a command line asks for, checked as far as it can be without a sandbox."""

    place: Place
    words: tuple[str, ...]
    program: Program | None
    job: Job
    transfers: tuple[Sequence[Upload], Sequence[Download]]
    """What to copy in before, and out after."""

    async def run(self) -> tuple[str, str, SandboxResult]:
        """Do it; return the sandbox's id, its backend and the command's result."""
        uploads, downloads = self.transfers
        async with _session.opened(self.place) as sandbox:
            for upload in uploads:
                await upload.run(sandbox)
            async with self._command(sandbox) as command:
                result = await _running.run(sandbox, command, self.job)
                for download in downloads:
                    await download.run(sandbox)
            return sandbox.id, sandbox.backend_name, result

    @asynccontextmanager
    async def _command(self, sandbox: AsyncSandbox) -> AsyncGenerator[str | tuple[str, ...]]:
        """Yield the command to run, once what it needs is in the sandbox."""
        if self.program is None:
            yield self.words[0] if len(self.words) == 1 else self.words
            return
        async with self.program.placed(sandbox, tidy=self.place.stays) as path:
            if self.program.project is not None:
                await self.program.project.install(sandbox, path, self.job.env)
            yield self.program.argv(path, self.words)
