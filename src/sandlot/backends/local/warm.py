"""Python code in forks of a warm interpreter, for sandboxes that ask for a fork server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

from sandlot.backends.local.code_server import PROGRAM, CodeRun, CodeServer, socketpair
from sandlot.helper.client import Fds, HelperConnection, Scope
from sandlot.types import Exit

FORK_SERVER = "sandlot-fork-server"
"""Stands where a program's name would, in commands that are meant for the fork server."""


class ForkServer:
    """A warm interpreter, itself a command of the sandbox; started when first needed."""

    def __init__(self, helper: HelperConnection, python: str, modules: Sequence[str]) -> None:
        self._helper = helper
        self._argv = [python, PROGRAM, *modules]
        self._server: CodeServer | None = None

    def warm_up(self) -> CodeServer:
        """Return the server, started anew if there is none or it has died. Waits for nothing."""
        if self._server is None or self._server.closed:
            ours, theirs = socketpair()
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            try:
                self._helper.start_nowait(self._argv, fds=(theirs.fileno(), null, null))
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
                os.close(null)
            self._server = CodeServer(ours)
        return self._server

    async def start(self, code: str, *, cwd: str, env: Mapping[str, str], fds: Fds) -> CodeLeader:
        """Start a piece of code and return when it runs."""
        run = await self.warm_up().start(code, cwd=cwd, env=dict(env), fds=fds)
        return CodeLeader(run, self._helper)

    def close(self) -> None:
        """Let go of the server, which ends it; idempotent."""
        if self._server is not None:
            self._server.close()


class CodeLeader:
    """A run of code, as a process sees what leads it."""

    def __init__(self, run: CodeRun, helper: HelperConnection) -> None:
        self._run = run
        self._helper = helper
        self.pid: int | None = run.pid

    @property
    def helper_is_ending(self) -> bool:
        """Whether the sandbox is being ended, and this with it."""
        return self._helper.ending

    def exited(self) -> asyncio.Future[Exit]:
        """Return a future of how it ended."""
        return self._run.exited

    async def kill(self) -> None:
        """Kill it and all its descendants."""
        await self._run.kill()

    async def signal(self, number: int, _scope: Scope = Scope.GROUP) -> int:
        """Send a signal to its process group."""
        if self._run.exited.done():
            return 0
        os.killpg(self._run.pid, number)
        return 1
