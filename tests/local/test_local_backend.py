"""What the local backend promises beyond what every backend does."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sandlot import (
    AsyncSandbox,
    AsyncSandboxClient,
    EnforcementLevel,
    FeatureNotSupportedError,
    Isolation,
    Sandbox,
    SandboxConfigurationError,
    SandboxSessionState,
)
from sandlot.backends.local import LocalBackend


async def _ran(*argv: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run, argv, capture_output=True, text=True, check=False
    )


def test_it_says_that_it_isolates_nothing() -> None:
    assert LocalBackend.isolation is Isolation.NONE


def test_it_is_never_chosen_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDLOT_BACKEND", raising=False)
    with pytest.raises(SandboxConfigurationError, match="no backend named"):
        Sandbox()


async def test_the_hosts_environment_stays_out_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_KEY_OF_AN_AGENT", "s3cret")
    read = "tr '\\0' '\\n' < /proc/$PPID/environ; env"
    async with AsyncSandbox.create("local") as box:
        assert "s3cret" not in (await box.execute_command(read)).stdout
    async with AsyncSandbox.create("local", inherit_env=["A_KEY_OF_AN_AGENT"]) as box:
        assert (await box.execute_command("echo $A_KEY_OF_AN_AGENT")).stdout == "s3cret\n"
    async with AsyncSandbox.create("local", inherit_env=True) as box:
        assert (await box.execute_command("echo $A_KEY_OF_AN_AGENT")).stdout == "s3cret\n"


async def test_a_variable_to_inherit_that_is_not_set_is_refused() -> None:
    with pytest.raises(SandboxConfigurationError, match="NO_SUCH_VARIABLE"):
        await AsyncSandbox.create("local", inherit_env=["NO_SUCH_VARIABLE"])


async def test_the_callers_stdin_is_not_the_commands() -> None:
    async with AsyncSandbox.create("local") as box:
        assert (await box.execute_command("cat; readlink /proc/self/fd/0")).stdout == "/dev/null\n"


async def test_the_command_line_is_not_rewritten(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("GET /api\n")
    async with AsyncSandbox.create("local") as box:
        await box.write_file("f", "GET /api\n")
        assert (await box.execute_command("grep /api f")).stdout == "GET /api\n"
        assert (await box.execute_command("echo x >/dev/null && echo ok")).stdout == "ok\n"
        assert (await box.execute_command(["echo", "/init"])).stdout == "/init\n"
        assert (await box.execute_command(f"cat {tmp_path}/f")).stdout == "GET /api\n"


async def test_home_and_temporary_files_are_its_own() -> None:
    async with AsyncSandbox.create("local") as box:
        await box.execute_command("echo h > ~/h; echo t > $TMPDIR/t", check=True)
        assert await box.read_file("/home/h") == b"h\n"
        assert await box.read_file("/tmp/t") == b"t\n"
        assert (await box.execute_command("ls")).stdout == ""


async def test_a_workdir_is_used_and_kept(tmp_path: Path) -> None:
    work = tmp_path / "project"
    work.mkdir()
    (work / "in").write_text("in")
    async with AsyncSandbox.create("local", workdir=str(work)) as box:
        assert (await box.execute_command("cat in; echo out > out")).stdout == "in"
        assert (await box.execute_code("x" * 200_000 + " = 1\nprint(2)")).stdout == "2\n"
    assert sorted(os.listdir(work)) == ["in", "out"]


async def test_files_do_not_lead_out(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    async with AsyncSandbox.create("local") as box:
        await box.execute_command(["ln", "-s", str(secret), "link"], check=True)
        await box.execute_command(["ln", "-s", str(tmp_path), "dir"], check=True)
        for path in ("link", "dir/secret", f"../../../../../../../../..{secret}", str(secret)):
            with pytest.raises(FileNotFoundError):
                await box.read_file(path)
        await box.write_file("dir/new", "x")
        assert os.listdir(tmp_path) == ["secret"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("allow_internet", False), ("disk_mb", 10), ("image", "x"), ("gpu", "T4"), ("user", "x")],
)
async def test_what_it_can_not_enforce_is_refused(option: str, value: Any) -> None:
    async with AsyncSandboxClient("local") as client:
        before = await client.list()
        with pytest.raises(FeatureNotSupportedError) as caught:
            await client.create(**{option: value})
        assert caught.value.field == option
        assert "best_effort" in str(caught.value)
        assert await client.list() == before
        async with client.create(**{option: value}, best_effort=True) as box:
            assert (await box.execute_command("echo ok")).stdout == "ok\n"


def _enforced(field: str) -> bool:
    from sandlot.backends.local import limits

    return limits.available()[field].level is EnforcementLevel.ENFORCED


@pytest.mark.skipif(not _enforced("memory_mb"), reason="no writable memory cgroup here")
async def test_memory_is_limited_for_all_processes_together() -> None:
    hold = "x = bytearray(40_000_000); import time; time.sleep(5)"
    async with AsyncSandbox.create("local", memory_mb=100) as box:
        assert box.enforcement["memory_mb"].level is EnforcementLevel.ENFORCED
        results = await asyncio.gather(*(box.execute_code(hold, timeout=20) for _ in range(6)))
        assert any(result.signal == 9 for result in results)
        assert (await box.execute_command("echo ok")).stdout == "ok\n"


@pytest.mark.skipif(not _enforced("pids_limit"), reason="no writable pids cgroup here")
async def test_processes_are_limited() -> None:
    async with AsyncSandbox.create("local", pids_limit=20) as box:
        many = "for i in $(seq 100); do sleep 5 & done 2>/dev/null; jobs -p | wc -l; kill %%"
        result = await box.execute_command(["sh", "-c", many], timeout=20)
        assert "100\n" not in result.stdout


async def test_another_process_takes_it_over(tmp_path: Path) -> None:
    box = await AsyncSandbox.create("local", env_vars={"KEY": "of the sandbox"})
    try:
        await box.write_file("note", "from the first")
        state = box.session_state()
        assert "of the sandbox" not in state.to_json()
        code = (
            "import sys\n"
            "from sandlot import Sandbox, SandboxSessionState\n"
            "box = Sandbox.resume(SandboxSessionState.from_json(sys.argv[1]))\n"
            "print(box.read_file('note').decode(), box.execute_command('echo $KEY').stdout)\n"
        )
        second = await _ran(sys.executable, "-c", code, state.to_json())
        assert second.stdout == "from the first of the sandbox\n\n", second.stderr
        assert (await box.execute_command("cat note")).stdout == "from the first"
    finally:
        await box.destroy()


async def test_it_outlives_its_owner_when_kept() -> None:
    code = (
        "from sandlot import Sandbox\nprint(Sandbox('local', keep=True).session_state().to_json())"
    )
    first = await _ran(sys.executable, "-c", code)
    box = await AsyncSandbox.resume(SandboxSessionState.from_json(first.stdout))
    assert (await box.execute_command("echo ok")).stdout == "ok\n"
    await box.destroy()
    with pytest.raises(LookupError):
        await AsyncSandbox.resume(SandboxSessionState.from_json(first.stdout))


async def test_many_sandboxes_need_no_more_threads() -> None:
    async with AsyncSandbox.create("local") as box:
        await box.write_file("x", b"")
        before = threading.active_count()
        boxes = await asyncio.gather(*(AsyncSandbox.create("local") for _ in range(50)))
        await asyncio.gather(*(one.execute_command("sleep 0.1") for one in boxes))
        assert threading.active_count() <= before + 4
        await asyncio.gather(*(one.destroy() for one in boxes))


async def test_an_unusable_workdir_is_refused() -> None:
    with pytest.raises(SandboxConfigurationError, match="workdir"):
        await AsyncSandbox.create("local", workdir="/proc/no/such")


async def test_an_unknown_backend_option_is_refused() -> None:
    with pytest.raises(SandboxConfigurationError, match="fork_sever"):
        await AsyncSandbox.create("local", backend_options={"fork_sever": True})


async def test_a_tree_with_links_to_elsewhere_can_be_uploaded(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/usr/bin/python3")
    async with AsyncSandbox.create("local") as box:
        assert await box.upload_dir(tmp_path, "venv") == 1
        assert (await box.stat("venv/bin/python")).target == "/usr/bin/python3"
        assert (await box.execute_command("readlink venv/bin/python")).stdout == (
            "/usr/bin/python3\n"
        )


@pytest.mark.parametrize("modules", [True, ["wave"]])
async def test_code_runs_in_a_fork_server_when_asked_for(modules: Any) -> None:
    async with AsyncSandbox.create(
        "local", backend_options={"fork_server": modules}, env_vars={"KEY": "value"}
    ) as box:
        code = "import os, sys; print(os.environ['KEY'], input(), 'wave' in sys.modules)"
        result = await box.execute_code(code, stdin="in", check=True)
        assert result.stdout == f"value in {modules is not True}\n"
        late = await box.execute_code(
            "import subprocess, time\n"
            "subprocess.Popen(['sleep', '987654'], start_new_session=True)\n"
            "print('up', flush=True)\ntime.sleep(100)",
            timeout=1.5,
        )
        assert (late.timed_out, late.exit_code, late.signal) == (True, 124, 9)
        assert late.stdout == "up\n"
        assert (await _ran("pgrep", "-fx", "sleep 987654")).stdout == ""
        assert (await box.execute_code("raise SystemExit(7)")).exit_code == 7


async def test_a_process_that_ends_with_its_sandbox_fails_nowhere_else() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    box = await AsyncSandbox.create("local")
    process = await box.start("sleep 60", timeout=30)
    await box.destroy()
    await asyncio.sleep(0.01)
    del process
    gc.collect()
    assert told == []
