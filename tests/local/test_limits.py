from __future__ import annotations

import errno
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sandlot.backends.local import cgroups, limits
from sandlot.backends.local.cgroups import Cgroup, Hierarchy
from sandlot.errors import SandboxConfigurationError
from sandlot.types import EnforcementLevel, SandboxSpec

PREFIX = f"sandlot-test-{os.getpid()}-"
JOIN = """
import sys
for path in sys.argv[1:]:
    with open(path + "/cgroup.procs", "w") as file:
        file.write("0")
print("joined", flush=True)
"""


def needs(*fields: str) -> pytest.MarkDecorator:
    missing = [
        f"{field}: {enforcement.how}"
        for field, enforcement in limits.available().items()
        if field in fields and enforcement.level is not EnforcementLevel.ENFORCED
    ]
    return pytest.mark.skipif(bool(missing), reason="; ".join(missing) or "-")


@pytest.fixture
def make() -> Iterator[Callable[..., Cgroup]]:
    with ExitStack() as stack:

        def create(**limits: float) -> Cgroup:
            cgroup = Cgroup.create(PREFIX + secrets.token_hex(4), **limits)  # type: ignore[arg-type]
            stack.callback(cgroup.remove)
            return cgroup

        yield create
    assert ours() == []


def ours() -> list[str]:
    """All cgroups that these tests have made and not removed."""
    return [
        os.path.join(directory, name)
        for hierarchy in cgroups.hierarchies()
        for directory, names, _ in os.walk(hierarchy.point)
        for name in names
        if name.startswith(PREFIX)
    ]


def run_in(cgroup: Cgroup, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", JOIN + program, *cgroup.paths],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def start_in(cgroup: Cgroup, program: str = "input()") -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", JOIN + program, *cgroup.paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"joined\n"
    return process


# ------------------------------------------------------------------ for real, on this host
@needs("memory_mb")
def test_all_processes_together_stay_within_the_memory_limit(make: Callable[..., Cgroup]) -> None:
    cgroup = make(memory_mb=64)
    within = run_in(cgroup, "b'x' * (16 * 1024 * 1024)")
    assert within.returncode == 0, within.stderr
    assert not cgroup.oom_killed()
    # Each of the four would fit in alone.
    beyond = run_in(
        cgroup,
        "import os\n"
        "ready, go = os.pipe()\n"
        "for _ in range(4):\n"
        "    if not os.fork():\n"
        "        held = b'x' * (32 * 1024 * 1024)\n"
        "        os.close(go)\n"
        "        os.read(ready, 1)\n"
        "        os._exit(0)\n"
        "os.close(go)\n"
        "print(sorted({os.wait()[1] for _ in range(4)}))\n",
    )
    assert beyond.returncode == -signal.SIGKILL or str(int(signal.SIGKILL)) in beyond.stdout
    assert cgroup.oom_killed()
    assert cgroup.oom_kills() >= 1


@needs("pids_limit")
def test_no_more_processes_than_the_limit_can_be(make: Callable[..., Cgroup]) -> None:
    program = (
        "import os, signal\n"
        "children = []\n"
        "try:\n"
        "    while len(children) < 50:\n"
        "        child = os.fork()\n"
        "        if not child: signal.pause()\n"
        "        children.append(child)\n"
        "except BlockingIOError: pass\n"
        "print(len(children))\n"
        "for child in children: os.kill(child, 9)\n"
    )
    assert run_in(make(pids_limit=10), program).stdout == "joined\n9\n"


@needs("cpu")
def test_the_cpu_limit_throttles(make: Callable[..., Cgroup]) -> None:
    cgroup = make(cpu=0.02)
    program = (
        "import time\n"
        "began, used = time.monotonic(), time.process_time()\n"
        "while time.process_time() < used + 0.02: pass\n"
        "print(time.monotonic() - began)\n"
    )
    seconds = float(run_in(cgroup, program).stdout.split()[1])
    assert seconds > 0.5
    throttled = [cgroups.counter(path, "cpu.stat", "nr_throttled") for path in cgroup.paths]
    assert max(throttled) > 0


@needs("memory_mb", "pids_limit", "cpu")
def test_all_limits_hold_together(make: Callable[..., Cgroup]) -> None:
    cgroup = make(memory_mb=64, pids_limit=5, cpu=0.5)
    assert run_in(cgroup, "b'x' * (128 * 1024 * 1024)").returncode == -signal.SIGKILL
    assert "BlockingIOError" in run_in(cgroup, "import os\nwhile os.fork() >= 0: pass").stderr


@needs("memory_mb", "pids_limit", "cpu")
def test_the_probe_finds_by_trial_what_was_expected() -> None:
    expected, found = limits.available(), limits.probe()
    assert {field: e.level for field, e in expected.items()} == {
        field: e.level for field, e in found.items()
    }
    for field in ("memory_mb", "pids_limit", "cpu"):
        assert "tried out" in found[field].how


@needs("pids_limit")
def test_a_limit_that_does_not_hold_in_the_trial_is_not_called_enforced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cgroups, "settings", lambda *args, **kwargs: iter(()))
    limits.probe.cache_clear()
    try:
        for field in ("memory_mb", "pids_limit", "cpu"):
            assert limits.probe()[field].level is EnforcementLevel.NONE
            assert "did not hold" in limits.probe()[field].how
    finally:
        limits.probe.cache_clear()


def test_a_probe_leaves_nothing() -> None:
    limits.probe()
    names = {
        name
        for hierarchy in cgroups.hierarchies()
        for _, directories, _ in os.walk(hierarchy.point)
        for name in directories
    }
    assert not [name for name in names if name.startswith("probe-")]


@needs("memory_mb", "cpu")
def test_nothing_is_left_when_a_step_fails() -> None:
    with pytest.raises(SandboxConfigurationError, match="cpu"):
        Cgroup.create(f"{PREFIX}low", memory_mb=64, pids_limit=5, cpu=0.00001)
    with pytest.raises(OSError, match="can't be set"):
        Cgroup.create(f"{PREFIX}high", memory_mb=64, pids_limit=10**12)
    assert ours() == []


@needs("memory_mb")
def test_a_name_in_use_is_refused_and_its_owner_keeps_it(make: Callable[..., Cgroup]) -> None:
    cgroup = make(memory_mb=64)
    name = os.path.basename(cgroup.paths[0])
    with pytest.raises(FileExistsError):
        Cgroup.create(name, memory_mb=64)
    assert all(os.path.isdir(path) for path in cgroup.paths)


@needs("pids_limit")
def test_removing_waits_for_the_dying_and_not_for_the_living(make: Callable[..., Cgroup]) -> None:
    cgroup = make(pids_limit=20)
    process = start_in(cgroup)
    try:
        assert cgroup.processes() == {process.pid}
        with pytest.raises(OSError, match=str(process.pid)) as caught:
            cgroup.remove(patience=0.1)
        assert caught.value.errno == errno.EBUSY
        process.kill()  # and removed in the same breath, without waiting for it
        cgroup.remove()
    finally:
        process.communicate()
    assert ours() == []
    cgroup.remove()


@needs("pids_limit")
def test_groups_that_commands_made_inside_are_removed_too(make: Callable[..., Cgroup]) -> None:
    cgroup = make(pids_limit=20)
    for path in cgroup.paths:
        os.makedirs(f"{path}/inner/most")
    cgroup.remove()
    assert ours() == []


def test_a_group_is_killed_at_one_stroke_where_the_kernel_can(
    make: Callable[..., Cgroup],
) -> None:
    cgroup = make()
    if not any(os.path.exists(f"{path}/cgroup.kill") for path in cgroup.paths):
        assert cgroup.kill() is False
        pytest.skip("this host has no cgroup v2 in which groups can be made")
    program = "import os\nwhile True:\n    if os.fork(): os._exit(0)\n    os.setsid()"
    process = start_in(cgroup, program)
    assert cgroup.kill() is True
    process.communicate()
    cgroup.remove()


@needs("pids_limit")
def test_leftovers_of_dead_sandboxes_are_removed_and_of_living_ones_kept(
    make: Callable[..., Cgroup],
) -> None:
    dead, living, populated = (make(pids_limit=20) for _ in range(3))
    names = [os.path.basename(c.paths[0]) for c in (dead, living, populated)]
    process = start_in(populated)
    try:
        assert limits.leftovers(PREFIX, lambda name: name == names[1]) == [names[0]]
        assert not any(os.path.exists(path) for path in dead.paths)
        assert all(os.path.exists(path) for path in (*living.paths, *populated.paths))
        assert limits.leftovers(PREFIX, lambda name: name == names[1], kill=True) == [names[2]]
        assert process.wait() == -signal.SIGKILL
    finally:
        process.communicate()
    assert {os.path.basename(path) for path in ours()} == {names[1]}


# ----------------------------------------------------------------- what can never be had
def test_each_answer_is_for_a_field_of_the_spec_and_says_why() -> None:
    for field, enforcement in limits.available().items():
        assert hasattr(SandboxSpec, field)
        assert len(enforcement.how) > 20
    for field in ("disk_mb", "allow_internet", "user"):
        assert limits.available()[field].level is EnforcementLevel.NONE


# --------------------------------------------------------- other hosts, from their own files
LAPTOP_MOUNTS = (
    "26 23 0:22 / /sys rw,nosuid - sysfs sysfs rw\n"
    "30 26 0:26 / /sys/fs/cgroup rw,nosuid,nodev shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
)
V1_MOUNTS = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw shared:2 - cgroup cgroup rw,memory\n"
    "36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"
    "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
    "41 31 0:38 / /a\\040b rw - cgroup2 cgroup2 rw\n"
)
DOCKER_V1_MOUNTS = (
    "700 690 0:32 /docker/4f2a /sys/fs/cgroup/memory ro,nosuid master:15 "
    "- cgroup cgroup rw,memory\n"
)


def found_on(tmp_path: Path, mounts: str, own: str) -> list[Hierarchy]:
    (tmp_path / "mountinfo").write_text(mounts)
    (tmp_path / "cgroup").write_text(own)
    return cgroups.hierarchies(str(tmp_path))


def test_the_one_hierarchy_of_v2_is_found(tmp_path: Path) -> None:
    own = "0::/user.slice/user-1000.slice/session-2.scope\n"
    (found,) = found_on(tmp_path, LAPTOP_MOUNTS, own)
    assert found.unified
    assert found.own == "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope"


def test_the_hierarchies_of_v1_are_found_by_what_they_control(tmp_path: Path) -> None:
    own = "5:cpu,cpuacct:/\n4:memory:/system.slice/x.service\n3:devices:/\n0::/x\n"
    found = {tuple(sorted(h.controllers)): h.own for h in found_on(tmp_path, V1_MOUNTS, own)}
    assert found == {
        ("cpu",): "/sys/fs/cgroup/cpu,cpuacct",
        ("memory",): "/sys/fs/cgroup/memory/system.slice/x.service",
        ("cpu", "memory", "pids"): "/a b/x",
    }


@pytest.mark.parametrize("own", ["/docker/4f2a", "/", "/../../elsewhere"])
def test_in_a_container_the_mount_is_ones_own_cgroup(tmp_path: Path, own: str) -> None:
    (found,) = found_on(tmp_path, DOCKER_V1_MOUNTS, f"4:memory:{own}\n")
    assert found.own == "/sys/fs/cgroup/memory"
    (deeper,) = found_on(tmp_path, DOCKER_V1_MOUNTS, "4:memory:/docker/4f2a/job\n")
    assert deeper.own == "/sys/fs/cgroup/memory/job"


class FakeV2:
    """A tree of files as cgroup v2 shows them; it controls nothing."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.add("", available="cpu memory pids", enabled="cpu memory pids")
        (top / "cgroup.type").unlink()

    def add(
        self, path: str, available: str = "", enabled: str = "", procs: str = "", mode: int = 0o755
    ) -> None:
        directory = self.top / path
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in {
            "cgroup.type": "domain\n",
            "cgroup.controllers": f"{available}\n",
            "cgroup.subtree_control": f"{enabled}\n",
            "cgroup.procs": procs,
        }.items():
            (directory / name).write_text(content)

    def home(self, own: str, *wanted: str) -> str | None:
        hierarchy = Hierarchy(
            str(self.top), str(self.top / own), frozenset({"cpu", "memory", "pids"}), True
        )
        home = hierarchy.home(frozenset(wanted))
        return home and os.path.relpath(home, self.top)


@pytest.fixture
def v2(tmp_path: Path) -> FakeV2:
    v2 = FakeV2(tmp_path / "v2")
    v2.add("app.slice", "cpu memory pids", "memory pids")
    v2.add("app.slice/term.scope", "memory pids", procs="1\n2\n")
    return v2


def test_the_nearest_cgroup_that_passes_controllers_on_is_taken(v2: FakeV2) -> None:
    assert v2.home("app.slice/term.scope", "memory", "pids") == "app.slice"
    assert v2.home("app.slice/term.scope", "cpu") == "."
    assert v2.home("app.slice/term.scope", "cpu", "memory") == "."
    assert v2.home("app.slice/term.scope") == "app.slice/term.scope"


def test_a_scope_that_was_handed_over_is_used(v2: FakeV2) -> None:
    v2.add("app.slice/run-1.scope", "memory pids")
    v2.add("app.slice/run-1.scope/main", procs="7\n")
    assert v2.home("app.slice/run-1.scope/main", "memory") == "app.slice/run-1.scope"


def test_what_is_not_writable_is_passed_over(v2: FakeV2, monkeypatch: pytest.MonkeyPatch) -> None:
    access = os.access
    locked = str(v2.top / "app.slice/cgroup.procs")
    monkeypatch.setattr(os, "access", lambda path, mode: path != locked and access(path, mode))
    assert v2.home("app.slice/term.scope", "memory") == "."
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert v2.home("app.slice/term.scope", "memory") is None
    assert v2.home("app.slice/term.scope") is None


def test_a_host_without_writable_cgroups_says_what_to_do(
    tmp_path: Path, v2: FakeV2, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = f"30 26 0:26 / {v2.top} ro - cgroup2 cgroup2 ro\n"
    found = found_on(tmp_path, mounts, "0::/app.slice/term.scope\n")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for hierarchies, hint in ((found, "systemd-run --user --scope"), ([], "mounted")):
        monkeypatch.setattr(limits, "hierarchies", lambda h=hierarchies: h)
        limits.available.cache_clear()
        try:
            for field in ("memory_mb", "pids_limit", "cpu"):
                enforcement = limits.available()[field]
                assert enforcement.level is EnforcementLevel.NONE
                assert hint in enforcement.how
        finally:
            limits.available.cache_clear()


@pytest.mark.parametrize(
    ("unified", "expected"),
    [
        (
            True,
            {
                "memory.max": "67108864",
                "?memory.swap.max": "0",
                "pids.max": "9",
                "cpu.max": "150000 100000",
            },
        ),
        (
            False,
            {
                "memory.limit_in_bytes": "67108864",
                "?memory.memsw.limit_in_bytes": "67108864",
                "?memory.swappiness": "0",
                "pids.max": "9",
                "cpu.cfs_period_us": "100000",
                "cpu.cfs_quota_us": "150000",
            },
        ),
    ],
)
def test_limits_become_settings(unified: bool, expected: dict[str, str]) -> None:
    assert dict(cgroups.settings(unified, memory=64, pids=9, cpu=1.5)) == expected
    assert dict(cgroups.settings(unified)) == {}


def test_little_cpu_is_given_over_a_longer_period() -> None:
    assert dict(cgroups.settings(True, cpu=0.005)) == {"cpu.max": "5000 1000000"}
    with pytest.raises(SandboxConfigurationError, match=r"0\.0005"):
        dict(cgroups.settings(True, cpu=0.0005))


def test_kills_for_want_of_memory_are_counted_in_either_version(tmp_path: Path) -> None:
    for name, file, text in (
        ("v1", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ("v2", "memory.events", "low 0\noom 5\noom_kill 3\n"),
        ("other", "pids.max", "max\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    cgroup = Cgroup([str(tmp_path / name) for name in ("v1", "v2", "other")])
    assert cgroup.oom_kills() == 5
