"""What is left of a local sandbox, however its owner ends: nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import AsyncSandbox, AsyncSandboxClient, SandboxState
from sandlot.backends.local.handle import LocalHandle

# Kinds of descendants that a plain kill of the command leaves behind.
TREE = """
import os, signal, sys, time
def sleeper(daemon=False, ignore=False, clear=False):
    if os.fork():
        return
    if daemon:
        os.setsid()
        if os.fork():
            os._exit(0)
    if ignore:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    argv = ["sleep", sys.argv[1]]
    os.execvpe("sleep", argv, {"PATH": os.environ["PATH"]} if clear else os.environ)
sleeper(); sleeper(daemon=True); sleeper(ignore=True); sleeper(daemon=True, clear=True)
if os.fork() == 0:
    while True:  # a chain that is a new process in a new session every 2 ms
        if os.fork():
            os._exit(0)
        os.setsid()
        try:
            os.utime(sys.argv[2])
        except OSError:
            os._exit(0)
        time.sleep(0.002)
print("up", flush=True)
time.sleep(1000)
"""

OWNER = """
import os, signal, sys, threading, time
from sandlot import Sandbox
box = Sandbox("local", files={{"tree.py": {tree!r}}})
process = box.start(["python3", "tree.py", {seconds!r}, {beat!r}])
next(iter(process))
print(box.id, flush=True)
{end}
"""


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A number of seconds to sleep that tells our processes from all others."""
    beat = tmp_path / "beat"
    beat.touch()
    seconds = str(100_000 + os.getpid() + int(time.monotonic() * 1000) % 100_000)
    yield seconds, beat
    beat.unlink()
    subprocess.run(["pkill", "-9", "-f", f"sleep {seconds}"], check=False)


def _alive(seconds: str) -> list[str]:
    found = subprocess.run(["pgrep", "-fx", f"sleep {seconds}"], capture_output=True, text=True)
    return found.stdout.split()


def _ends(seconds: str) -> bool:
    deadline = time.monotonic() + 10
    while _alive(seconds) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _alive(seconds)


def _beating(beat: Path) -> bool:
    before = beat.stat().st_mtime_ns
    time.sleep(0.1)
    return beat.stat().st_mtime_ns != before


def _until_gone(seconds: str, beat: Path, directory: Path) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not _alive(seconds) and not _beating(beat) and not directory.exists():
            return
        time.sleep(0.05)
    assert not _alive(seconds), "processes survive"
    assert not _beating(beat), "the chain survives"
    assert not directory.exists(), "the directory survives"


ENDS = {
    "destroy": "box.destroy(); print('done', flush=True); time.sleep(1000)",
    "return": "",
    "sys.exit": "sys.exit(3)",
    "an exception": "raise RuntimeError('on purpose')",
    "os._exit": "os._exit(1)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGKILL, while a forked child lives on": (
        "os.fork() or (os.close(1), time.sleep(15), os._exit(0));"
        "os.kill(os.getpid(), signal.SIGKILL)"
    ),
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)",
    "SIGSEGV": "os.kill(os.getpid(), signal.SIGSEGV); time.sleep(5)",
    "Ctrl-C": "os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    "leaving with": "box.__exit__(None, None, None)",
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_left_after(end: str, mark: tuple[str, Path]) -> None:
    seconds, beat = mark
    code = OWNER.format(tree=TREE, seconds=seconds, beat=str(beat), end=ENDS[end])
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert owner.stdout is not None
    try:
        sandbox_id = owner.stdout.readline().strip()
        assert sandbox_id.startswith("local-")
        _until_gone(seconds, beat, Path(os.environ["SANDLOT_STATE_DIR"], "local", sandbox_id))
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


def test_a_command_that_runs_out_of_time_leaves_nothing_of_its_tree(
    mark: tuple[str, Path],
) -> None:
    from sandlot import Sandbox

    seconds, beat = mark
    with Sandbox("local", files={"tree.py": TREE}) as box:
        result = box.execute_command(["python3", "tree.py", seconds, str(beat)], timeout=1.5)
        assert result.timed_out
        assert result.stdout == "up\n"
        assert not _alive(seconds)
        assert not _beating(beat)
        assert box.execute_command("echo still here").stdout == "still here\n"


async def test_gc_removes_what_a_killed_helper_has_left(mark: tuple[str, Path]) -> None:
    seconds, _ = mark
    async with AsyncSandboxClient("local") as client:
        box = await client.create()
        process = await box.start(["sleep", seconds])
        (info,) = [one for one in await client.list() if one.id == box.id]
        assert info.state is SandboxState.RUNNING
        os.kill(_helper(box), signal.SIGKILL)
        with pytest.raises(LookupError):
            await process.wait(10)
        assert not box.is_alive
        (info,) = [one for one in await client.list() if one.id == box.id]
        assert info.state is SandboxState.STOPPED
        assert await asyncio.to_thread(_ends, seconds), "a killed helper takes its commands along"
        assert box.id in await client.gc()
        await box.destroy()
        assert not [one for one in await client.list() if one.id == box.id]


async def test_gc_leaves_alone_what_runs_and_what_is_kept() -> None:
    async with AsyncSandboxClient("local") as client:
        async with client.create() as running, client.create(keep=True) as kept:
            assert not {running.id, kept.id} & set(await client.gc())
            assert (await running.execute_command("echo ok")).stdout == "ok\n"
            assert (await kept.execute_command("echo ok")).stdout == "ok\n"


async def test_gc_kills_what_outlived_its_helper_and_its_supervisor(
    mark: tuple[str, Path],
) -> None:
    seconds, _ = mark
    async with AsyncSandboxClient("local") as client:
        box = await client.create()
        await box.start(["sleep", seconds])
        (sleeper,) = _alive(seconds)
        owners = {_parent(int(sleeper)), _helper(box)}
        for pid in owners:
            os.kill(pid, signal.SIGSTOP)
        for pid in owners:
            os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.2)
        assert _alive(seconds), "nobody was left to kill it"
        assert box.id in await client.gc()
        assert await asyncio.to_thread(_ends, seconds)
        await box.destroy()


def _helper(box: AsyncSandbox) -> int:
    handle = box._handle
    assert isinstance(handle, LocalHandle)
    assert handle._helper is not None
    assert handle._helper.process_id is not None
    return handle._helper.process_id


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
