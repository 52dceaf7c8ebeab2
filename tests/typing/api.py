"""How the public API looks to a type checker. Checked by mypy and pyright, never run.

A line that must not pass carries an ignore: were it to pass, the ignore would be unused, and
that is an error too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass
from typing import assert_type

from sandlot import (
    AsyncProcess,
    AsyncSandbox,
    AsyncSandboxClient,
    Capability,
    Chunk,
    FileInfo,
    Process,
    Sandbox,
    SandboxClient,
    SandboxInfo,
    SandboxResult,
    SandboxSessionState,
    async_run,
    async_run_many,
    run,
    run_many,
)


@dataclass
class Answer:
    value: int


# ----------------------------------------------------------------- making, finding
def blocking_making(state: SandboxSessionState) -> None:
    with Sandbox("local", cpu=1, labels={"job": "1"}, env_vars={"A": "b"}) as sb:
        assert_type(sb, Sandbox)
    with Sandbox.create("local", timeout_secs=60) as sb:
        assert_type(sb, Sandbox)
    assert_type(Sandbox(), Sandbox)
    assert_type(Sandbox.resume(state), Sandbox)
    assert_type(Sandbox.get("id", backend="local"), Sandbox)
    assert_type(Sandbox.find({"job": "1"}), Sandbox | None)
    assert_type(Sandbox.get_or_create(backend="local", labels={"job": "1"}), Sandbox)
    assert_type(Sandbox.list({"job": "1"}), list[SandboxInfo])
    assert_type(Sandbox.parse_as("{}", Answer), Answer)

    Sandbox("local", cpus=1)  # type: ignore[call-arg]
    Sandbox("local", cpu="one")  # type: ignore[arg-type]
    Sandbox.create("local", memory=1)  # type: ignore[call-arg]
    Sandbox.get_or_create(label={"job": "1"})  # type: ignore[call-arg]


async def asynchronous_making(state: SandboxSessionState) -> None:
    async with AsyncSandbox.create("local", cpu=1, labels={"job": "1"}) as sb:
        assert_type(sb, AsyncSandbox)
    assert_type(await AsyncSandbox.create("local"), AsyncSandbox)
    assert_type(await AsyncSandbox.resume(state), AsyncSandbox)
    assert_type(await AsyncSandbox.get("id", backend="local"), AsyncSandbox)
    assert_type(await AsyncSandbox.find({"job": "1"}), AsyncSandbox | None)
    assert_type(await AsyncSandbox.get_or_create(labels={"job": "1"}), AsyncSandbox)
    assert_type(await AsyncSandbox.list(), list[SandboxInfo])
    assert_type(AsyncSandbox.parse_as("{}", Answer), Answer)

    AsyncSandbox.create("local", cpus=1)  # type: ignore[call-arg]
    AsyncSandbox.create("local", cpu="one")  # type: ignore[arg-type]


# ----------------------------------------------------------------- commands, code
def blocking_commands(sb: Sandbox) -> None:
    assert_type(sb.execute_command("ls", timeout=1.5), SandboxResult)
    assert_type(sb.execute_command(["ls", "-l"], check=True), SandboxResult)
    assert_type(sb.execute_command("cat", ["x.json"], return_type=Answer), Answer)
    assert_type(sb.execute_command("cat x.json", return_type=dict[str, int]), dict[str, int])
    assert_type(sb.execute_code("print(1)"), SandboxResult)
    assert_type(sb.execute_code("console.log(1)", "javascript", return_type=int), int)
    assert_type(sb.start("cat", stdin=True), Process)
    assert_type(sb.process("id"), Process)
    assert_type(sb.stream("make"), Generator[Chunk, None, None])
    for chunk in sb.stream("make", check=True):
        assert_type(chunk, Chunk)

    sb.execute_command("ls", 5)  # type: ignore[call-overload]
    sb.execute_command("ls", time_out=5)  # type: ignore[call-overload]
    sb.execute_code("1", return_type="int")  # type: ignore[call-overload]


async def asynchronous_commands(sb: AsyncSandbox) -> None:
    assert_type(await sb.execute_command("ls", timeout=1.5), SandboxResult)
    assert_type(await sb.execute_command("cat", ["x.json"], return_type=Answer), Answer)
    assert_type(await sb.execute_code("print(1)"), SandboxResult)
    assert_type(await sb.execute_code("1", "javascript", return_type=int), int)
    assert_type(await sb.start("cat", stdin=True), AsyncProcess)
    assert_type(await sb.process("id"), AsyncProcess)
    assert_type(sb.stream("make"), AsyncGenerator[Chunk, None])
    async for chunk in sb.stream("make", check=True):
        assert_type(chunk, Chunk)

    await sb.execute_command("ls", time_out=5)  # type: ignore[call-overload]
    print(sb.execute_command("ls").exit_code)  # type: ignore[attr-defined]


def blocking_process(process: Process) -> None:
    with process:
        for chunk in process:
            assert_type(chunk, Chunk)
        assert_type(process.pid, int | None)
        assert_type(process.wait(1), SandboxResult)
        process.write(b"input")
        process.write(1)  # type: ignore[arg-type]


async def asynchronous_process(process: AsyncProcess) -> None:
    async with process:
        async for chunk in process:
            assert_type(chunk, Chunk)
        assert_type(await process.wait(1), SandboxResult)


# --------------------------------------------------------------------- files, facts
def blocking_files(sb: Sandbox) -> None:
    assert_type(sb.read_file("a"), bytes)
    assert_type(sb.list_files("/"), list[FileInfo])
    assert_type(sb.stat("a"), FileInfo)
    assert_type(sb.stream_file("a"), Generator[bytes, None, None])
    assert_type(sb.upload_dir("here", "there", method="tar"), int)
    sb.write_file("b", "text", mode=0o600)
    sb.write_file("b", sb.stream_file("a"))

    sb.write_file("b", 1)  # type: ignore[arg-type]
    sb.upload_dir("here", "there", method="zip")  # type: ignore[arg-type]


async def asynchronous_files(sb: AsyncSandbox) -> None:
    assert_type(await sb.read_file("a"), bytes)
    assert_type(await sb.list_files("/"), list[FileInfo])
    assert_type(sb.stream_file("a"), AsyncGenerator[bytes, None])
    await sb.write_file("b", sb.stream_file("a"))


def blocking_facts(sb: Sandbox) -> None:
    assert_type(sb.id, str)
    assert_type(sb.is_alive, bool)
    assert_type(sb.labels, dict[str, str])
    assert_type(sb.capabilities, frozenset[Capability])
    assert_type(sb.info(), SandboxInfo)
    assert_type(sb.session_state(), SandboxSessionState)
    assert_type(sb.detach(), SandboxSessionState)

    sb.id = "other"  # type: ignore[misc]


# ------------------------------------------------------------------ client, shortcuts
def blocking_client() -> None:
    with SandboxClient("local") as client:
        assert_type(client, SandboxClient)
        with client.create(memory_mb=512) as sb:
            assert_type(sb, Sandbox)
        assert_type(client.can(Capability.STREAM), bool)
        assert_type(client.find({"job": "1"}), Sandbox | None)
        assert_type(client.gc(), Sequence[str])

        client.create("local")  # type: ignore[arg-type, call-arg]
        client.create(memory="512m")  # type: ignore[call-arg]


async def asynchronous_client() -> None:
    async with AsyncSandboxClient("local") as client:
        assert_type(client, AsyncSandboxClient)
        async with client.create(memory_mb=512) as sb:
            assert_type(sb, AsyncSandbox)
        assert_type(await client.get_or_create(labels={"job": "1"}), AsyncSandbox)


async def shortcuts() -> None:
    assert_type(run("ls", backend="local", cpu=1), SandboxResult)
    assert_type(run_many(["ls", ["ls", "-l"]], check=True), list[SandboxResult])
    assert_type(await async_run("ls", backend="local", cpu=1), SandboxResult)
    assert_type(await async_run_many(["ls"]), list[SandboxResult])

    run("ls", cpus=1)  # type: ignore[call-arg]
