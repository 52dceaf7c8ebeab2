"""What limits a local sandbox can have here: by control groups, or not at all."""

from __future__ import annotations

import functools
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sandlot.backends.local.cgroups import (
    Cgroup,
    Hierarchy,
    counter,
    hierarchies,
    leftovers,
)
from sandlot.errors import SandboxError
from sandlot.types import Enforcement, EnforcementLevel

__all__ = ["Cgroup", "available", "leftovers", "probe"]

_CONTROLLERS = {"memory_mb": "memory", "pids_limit": "pids", "cpu": "cpu"}
"""What enforces each field of `SandboxSpec`."""

_NEVER: Mapping[str, Enforcement] = {
    field: Enforcement(EnforcementLevel.NONE, why)
    for field, why in {
        "disk_mb": "directories of this host have no quota of their own",
        "allow_internet": "local commands share this host's network",
        "user": "local commands run as the user of the program that starts them",
    }.items()
}

_REMEDY = (
    "run as root, or in a scope that systemd hands over: "
    "systemd-run --user --scope -p Delegate=yes sh -c "
    "'c=/sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup); mkdir $c/main; "
    "echo $$ > $c/main/cgroup.procs; exec YOUR PROGRAM'"
)


@functools.lru_cache(maxsize=1)
def available() -> Mapping[str, Enforcement]:
    """Return what should hold here, by the field of `SandboxSpec`; nothing is tried out."""
    found = hierarchies()
    return MappingProxyType(
        {field: _expected(controller, found) for field, controller in _CONTROLLERS.items()}
        | dict(_NEVER)
    )


@functools.lru_cache(maxsize=1)
def probe() -> Mapping[str, Enforcement]:
    """Return what does hold here: each limit is set, and a process made to run into it.

    Blocks for about half a second, the first time.
    """
    result = dict(available())
    for field, trial in _TRIALS.items():
        if result[field].level is EnforcementLevel.ENFORCED:
            result[field] = trial.run(result[field].how)
    return MappingProxyType(result)


def _expected(controller: str, found: list[Hierarchy]) -> Enforcement:
    wanted = frozenset({controller})
    having = [one for one in found if wanted <= one.controllers]
    for hierarchy in sorted(having, key=lambda one: one.unified):
        home = hierarchy.home(wanted)
        if home is not None:
            version = "v2" if hierarchy.unified else "v1"
            how = f"the cgroup {version} controller {controller}, in {home}"
            return Enforcement(EnforcementLevel.ENFORCED, how)
    if not having:
        return Enforcement(EnforcementLevel.NONE, "no control groups (cgroups) are mounted")
    return Enforcement(
        EnforcementLevel.NONE,
        f"no control group with the {controller} controller can be made in "
        f"{having[0].own}; {_REMEDY}",
    )


# --------------------------------------------------------------------- trials
_JOIN = """
import sys
for path in sys.argv[1:]:
    with open(path + "/cgroup.procs", "w") as file:
        file.write("0")
"""
_FILL_MEMORY = "b'x' * (256 * 1024 * 1024)"
_FORK = """
import os, signal
children = []
try:
    for _ in range(16):
        child = os.fork()
        if not child:
            signal.pause()
        children.append(child)
except BlockingIOError:
    print("refused")
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""
_BURN_CPU = """
import time
end = time.process_time() + 0.01
while time.process_time() < end:
    pass
"""


@dataclass(frozen=True)
class _Trial:
    """A limit, a program that runs into it, and how one sees that it did."""

    limit: Mapping[str, int | float]
    program: str
    has_held: Callable[[Cgroup, subprocess.CompletedProcess[str]], bool]

    def run(self, how: str) -> Enforcement:
        try:
            held = self._try()
        except (OSError, SandboxError, subprocess.SubprocessError) as exc:
            return Enforcement(EnforcementLevel.NONE, f"a trial failed: {exc}")
        if not held:
            return Enforcement(EnforcementLevel.NONE, f"in a trial it did not hold: {how}")
        return Enforcement(EnforcementLevel.ENFORCED, f"{how}; tried out")

    def _try(self) -> bool:
        name = f"probe-{secrets.token_hex(6)}"
        cgroup = Cgroup.create(name, **self.limit)  # type: ignore[arg-type]
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _JOIN + self.program, *cgroup.paths],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            return self.has_held(cgroup, done)
        finally:
            cgroup.remove()


_TRIALS = {
    "memory_mb": _Trial(
        {"memory_mb": 64},
        _FILL_MEMORY,
        lambda cgroup, done: done.returncode == -9 and cgroup.oom_killed(),
    ),
    "pids_limit": _Trial(
        {"pids_limit": 4},
        _FORK,
        lambda cgroup, done: done.returncode == 0 and done.stdout == "refused\n",
    ),
    "cpu": _Trial(
        {"cpu": 0.02},  # so little that a busy host would have given it more
        _BURN_CPU,
        lambda cgroup, done: (
            done.returncode == 0
            and any(counter(path, "cpu.stat", "nr_throttled") for path in cgroup.paths)
        ),
    ),
}
