"""What a test can make the simulated backend do."""

from __future__ import annotations

import asyncio

import pytest

from sandlot import AsyncSandbox, AsyncSandboxClient, Capability
from sandlot.errors import (
    FeatureNotSupportedError,
    SandboxConnectionError,
    SandboxCreationError,
    SandboxExecutionError,
)
from sandlot.testing import MemoryBackend, MemoryWorld
from sandlot.testing.memory import Run


async def test_a_program_can_be_a_python_function() -> None:
    backend = MemoryBackend()

    @backend.program("git")
    async def git(run: Run) -> int:
        await run.print(f"git {' '.join(run.args)} in {run.cwd} as {run.env['WHO']}\n")
        await run.complain("a hint")
        return 3

    async with AsyncSandbox.create(backend) as sandbox:
        result = await sandbox.execute_command("git log -1 | cat; git x", env={"WHO": "me"})
    assert result.stdout == ("git log -1 in /home/user as me\ngit x in /home/user as me\n")
    assert (result.stderr, result.exit_code) == ("a hint\na hint\n", 3)


async def test_a_program_reads_its_input_and_the_files() -> None:
    backend = MemoryBackend()

    @backend.program("count")
    async def count(run: Run) -> int:
        size = 0
        while data := await run.stdin.read():
            size += len(data)
        held = run.files.file(run.path(run.args[0])).data
        await run.print(f"{size} {len(held)}")
        return 0

    async with AsyncSandbox.create(backend) as sandbox:
        await sandbox.write_file("dir/file", b"12345")
        result = await sandbox.execute_command(["count", "dir/file"], stdin=b"x" * 100_000)
    assert result.stdout == "100000 5"


async def test_what_a_program_raises_is_not_swallowed() -> None:
    backend = MemoryBackend()

    @backend.program("broken")
    async def broken(run: Run) -> int:
        raise ZeroDivisionError

    async with AsyncSandbox.create(backend) as sandbox:
        with pytest.raises(SandboxExecutionError, match="ZeroDivisionError"):
            await sandbox.execute_command("broken")


async def test_one_command_can_be_answered() -> None:
    backend = MemoryBackend()
    backend.script("pytest -q", stdout="1 failed\n", stderr=b"\xff", exit_code=1)
    backend.script(["npm", "test"], stdout="ok\n", delay=0.1)
    async with AsyncSandbox.create(backend) as sandbox:
        line = await sandbox.execute_command("pytest -q")
        words = await sandbox.execute_command("npm", ["test"])
        other = await sandbox.execute_command("pytest -v")
    assert (line.stdout, line.stderr_bytes, line.exit_code) == ("1 failed\n", b"\xff", 1)
    assert (words.stdout, words.exit_code) == ("ok\n", 0)
    assert words.duration >= 0.1
    assert other.exit_code == 127


async def test_an_operation_can_fail_before_it_has_an_effect() -> None:
    backend = MemoryBackend()
    backend.fail("write", SandboxConnectionError("lost"), times=2)
    async with AsyncSandbox.create(backend) as sandbox:
        for _ in range(2):
            with pytest.raises(SandboxConnectionError):
                await sandbox.write_file("file", b"x")
            assert not await sandbox.exists("file")
        await sandbox.write_file("file", b"x")
        assert await sandbox.exists("file")


async def test_an_operation_can_fail_after_its_effect() -> None:
    """As when the reply is lost: the sandbox is there, and its maker does not know."""
    backend = MemoryBackend()
    backend.fail("create", SandboxCreationError("lost"), when="after")
    async with AsyncSandboxClient(backend) as client:
        with pytest.raises(SandboxCreationError):
            await client.create(labels={"run": "1"})
        [left] = await client.list({"run": "1"})
        await (await client.get(left.id)).destroy()


async def test_an_operation_can_take_its_time() -> None:
    backend = MemoryBackend(latency={"read": 600})
    async with AsyncSandbox.create(backend) as sandbox:
        await sandbox.write_file("file", b"x")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await sandbox.read_file("file")


async def test_output_can_arrive_in_pieces() -> None:
    backend = MemoryBackend()
    backend.output_in_pieces(2)
    async with AsyncSandbox.create(backend) as sandbox:
        chunks = [chunk async for chunk in sandbox.stream("printf 'a☕b'")]
    assert [chunk.data for chunk in chunks] == [b"a\xe2", b"\x98\x95", b"b"]
    assert [chunk.text for chunk in chunks] == ["a", "☕", "b"]


async def test_what_was_asked_can_be_looked_up() -> None:
    backend = MemoryBackend()
    async with AsyncSandbox.create(backend) as sandbox:
        await sandbox.execute_command("true")
    assert backend.calls == [("create", None), ("exec", sandbox.id), ("destroy", sandbox.id)]


async def test_backends_that_share_a_world_see_the_same() -> None:
    world = MemoryWorld()
    async with AsyncSandbox.create(MemoryBackend(world)) as sandbox:
        for backend, seen in ((MemoryBackend(world), 1), (MemoryBackend(), 0)):
            async with AsyncSandboxClient(backend) as client:
                assert len(await client.list()) == seen
    assert sandbox.id == "mem-000001"


async def test_capabilities_can_be_taken_away() -> None:
    backend = MemoryBackend(capabilities=[Capability.STDIN], accepts=["env_vars"])
    async with AsyncSandbox.create(backend, env_vars={"A": "1"}) as sandbox:
        assert (await sandbox.execute_command("cat; echo $A", stdin="x")).stdout == "x1\n"
        with pytest.raises(FeatureNotSupportedError, match="stream"):
            await sandbox.start("true")
    with pytest.raises(FeatureNotSupportedError, match="workdir"):
        await AsyncSandbox.create(backend, workdir="/w")
