"""The blocking API over the same backend."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.capabilities import Capability
from sandlot.errors import CommandFailedError, SandboxClosedError, SandboxFileNotFoundError
from sandlot.testing.conformance.base import Behaviours, requires


class Blocking(Behaviours):
    """The blocking API over the same backend."""

    async def test_the_blocking_api_runs_commands_and_moves_files(self) -> None:
        """What the asynchronous one does, without await."""

        def use() -> None:
            from sandlot import Sandbox

            with Sandbox.create(self.backend(), **self.options) as sandbox:
                sandbox.write_file("file", "content")
                assert sandbox.execute_command("cat file").stdout == "content"
                assert sandbox.read_file("file") == b"content"
                assert sandbox.execute_code("echo code", "sh").stdout == "code\n"
                with pytest.raises(CommandFailedError):
                    sandbox.execute_command("exit 3", check=True)
                with pytest.raises(SandboxFileNotFoundError):
                    sandbox.read_file("no-such")
            with pytest.raises(SandboxClosedError):
                sandbox.execute_command("true")

        await asyncio.to_thread(use)

    @requires(Capability.STREAM)
    async def test_the_blocking_api_streams(self) -> None:
        """Chunks come while the command runs."""

        def use() -> None:
            from sandlot import Sandbox

            with Sandbox.create(self.backend(), **self.options) as sandbox:
                line = "echo first; while [ ! -e go ]; do sleep 0.05; done; echo second"
                chunks = iter(sandbox.stream(line))
                assert next(chunks).text == "first\n"
                sandbox.write_file("go", b"")
                assert "".join(chunk.text for chunk in chunks) == "second\n"

        await asyncio.to_thread(use)
