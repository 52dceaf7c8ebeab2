"""Control groups: where ours can be made, and one sandbox's own.

Under cgroup v1 each controller is a hierarchy of its own, so a sandbox has one directory in
each that it needs. Under v2 there is one for all. Systemd's hybrid layout has both, v2
without controllers, and then a sandbox has a directory there too: v2 can kill a whole group
at one stroke.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sandlot.errors import SandboxConfigurationError

UNIFIED = ""
"""Stands for v2 among the names of controllers, as it does in /proc/self/cgroup."""
_CONTROLLERS = frozenset({"memory", "pids", "cpu"})
_PERIOD_US = 100_000
_MIN_QUOTA_US = 1000
_MAX_PERIOD_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted cgroup hierarchy, and where this process is in it."""

    point: str
    """Where it is mounted."""
    own: str
    """The directory of this process's own cgroup."""
    controllers: frozenset[str]
    """Which of the controllers we use it has; for v2, any."""
    unified: bool

    def home(self, wanted: frozenset[str]) -> str | None:
        """Return a directory in which we can make a cgroup with these controllers."""
        if not self.unified:
            return self.own if wanted <= self.controllers and _is_ours(self.own) else None
        # A cgroup with processes in it gives its children no controllers: usually ours has
        # some, so the nearest one above that does is taken.
        for directory in _upwards(self.own, self.point):
            if _is_ours(directory) and wanted <= _enabled(directory) | _can_enable(directory):
                return directory
        return None


def hierarchies(proc: str = "/proc/self") -> list[Hierarchy]:
    """Return the hierarchies that are of use here."""
    own = dict(_own_paths(_read(f"{proc}/cgroup")))
    return list(_mounted(_read(f"{proc}/mountinfo"), own))


class Cgroup:
    """The control group of one sandbox: one directory or, under v1, several.

    A process is in it when it has joined all of ``paths``, by writing its id to the file
    ``cgroup.procs`` of each; its children are born in it.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)

    @classmethod
    def create(
        cls,
        name: str,
        *,
        memory_mb: int | None = None,
        pids_limit: int | None = None,
        cpu: float | None = None,
    ) -> Cgroup:
        """Make one with these limits.

        Raises:
            OSError: If the system refuses; nothing is left then.
            SandboxConfigurationError: If so little CPU can't be given.
        """
        asked = {"memory": memory_mb, "pids": pids_limit, "cpu": cpu}
        wanted = frozenset(key for key, value in asked.items() if value is not None)
        made: list[str] = []
        try:
            for hierarchy, controllers in _shared_out(wanted, hierarchies()):
                home = hierarchy.home(controllers)
                assert home is not None
                if hierarchy.unified:
                    _enable(home, controllers)
                path = os.path.join(home, name)
                os.mkdir(path)
                made.append(path)
                for file, value in settings(
                    hierarchy.unified, **{key: asked[key] for key in controllers}
                ):
                    _set(path, file, value)
        except BaseException:
            cls(made).remove()
            raise
        return cls(made)

    def oom_kills(self) -> int:
        """Return how many processes were killed in it for want of memory."""
        return sum(
            counter(path, file, "oom_kill")
            for path in self.paths
            for file in ("memory.events", "memory.oom_control")
        )

    def oom_killed(self) -> bool:
        """Whether a process was killed in it for want of memory."""
        return self.oom_kills() > 0

    def processes(self) -> set[int]:
        """Return the processes that are in any of its directories or below."""
        return {int(pid) for path in self.paths for pid in _processes(path)}

    def kill(self) -> bool:
        """Kill all processes in it at one stroke, and say whether the kernel could."""
        could = False
        for path in self.paths:
            with suppress(FileNotFoundError):
                _set(path, "cgroup.kill", "1")
                could = True
        return could

    def remove(self, patience: float = 2.0) -> None:
        """Remove it; fine if it is gone.

        Args:
            patience: Seconds to wait for processes that are dying.

        Raises:
            OSError: If it can't be removed, as long as processes are in it.
        """
        deadline = time.monotonic() + patience
        problems: list[OSError] = []
        for path in self.paths:
            try:
                _remove(path, deadline)
            except OSError as exc:
                problems.append(exc)
        if problems:
            raise problems[0]


def leftovers(prefix: str, alive: Callable[[str], bool], *, kill: bool = False) -> list[str]:
    """Remove cgroups of this user whose sandboxes are gone, and return their names.

    Args:
        prefix: What the names of ours begin with.
        alive: Tells from a name whether the sandbox lives. Asked right before each removal,
            and should look then: a new one may have come.
        kill: Whether processes still in them are killed. Otherwise such cgroups are left.
    """
    found: dict[str, list[str]] = {}
    for hierarchy in hierarchies():
        for directory, subdirs, _ in os.walk(hierarchy.point):
            ours = [name for name in subdirs if name.startswith(prefix)]
            subdirs[:] = [name for name in subdirs if name not in ours]
            for name in ours:
                path = os.path.join(directory, name)
                with suppress(FileNotFoundError):
                    if os.stat(path).st_uid == os.geteuid():
                        found.setdefault(name, []).append(path)
    return [
        name for name, paths in found.items() if not alive(name) and _clear(Cgroup(paths), kill)
    ]


def settings(
    unified: bool,
    memory: float | None = None,
    pids: float | None = None,
    cpu: float | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield the files to write, and what to write into them.

    A name that begins with ``?`` is written only where the kernel has it.
    """
    if memory is not None:
        size = str(int(memory) * 1024 * 1024)
        if unified:
            yield "memory.max", size
            yield "?memory.swap.max", "0"
        else:
            yield "memory.limit_in_bytes", size
            yield "?memory.memsw.limit_in_bytes", size  # memory and swap together
            yield "?memory.swappiness", "0"  # where swap isn't accounted, don't use it
    if pids is not None:
        yield "pids.max", str(int(pids))
    if cpu is not None:
        period = _PERIOD_US if cpu * _PERIOD_US >= _MIN_QUOTA_US else _MAX_PERIOD_US
        quota = round(cpu * period)
        if quota < _MIN_QUOTA_US:
            raise SandboxConfigurationError(
                f"cpu: the kernel can't limit to {cpu} of a CPU",
                hint=f"the least is {_MIN_QUOTA_US / _MAX_PERIOD_US}",
            )
        if unified:
            yield "cpu.max", f"{quota} {period}"
        else:
            yield "cpu.cfs_period_us", str(period)
            yield "cpu.cfs_quota_us", str(quota)


def counter(path: str, file: str, key: str) -> int:
    """Return a number from a file of ``key value`` lines; 0 if it isn't there."""
    try:
        lines = _read(os.path.join(path, file)).splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == key), 0)


# ------------------------------------------------------------- finding a place
def _own_paths(cgroup: str) -> Iterator[tuple[str, str]]:
    for line in cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _mounted(mountinfo: str, own: Mapping[str, str]) -> Iterator[Hierarchy]:
    for line in mountinfo.splitlines():
        mount, _, system = line.partition(" - ")
        root, point = (_unescaped(word) for word in mount.split()[3:5])
        kind, _, options = system.split(" ", 2)
        unified = kind == "cgroup2"
        controllers = _CONTROLLERS if unified else _CONTROLLERS & set(options.split(","))
        if not unified and not (kind == "cgroup" and controllers):
            continue
        path = own.get(UNIFIED if unified else min(controllers))
        if path is not None:
            yield Hierarchy(point, _below(point, root, path), controllers, unified)


def _below(point: str, root: str, path: str) -> str:
    """Return the directory of a cgroup in a mount whose root is another cgroup.

    A container sees its own cgroup as the mount's root, and may see its path from the
    host's point of view, or, in a cgroup namespace of its own, not at all.
    """
    inner = os.path.relpath(path, root)
    if inner.startswith(".."):
        return point
    return os.path.normpath(os.path.join(point, inner))


def _shared_out(
    wanted: frozenset[str], found: Sequence[Hierarchy]
) -> Iterator[tuple[Hierarchy, frozenset[str]]]:
    """Yield the hierarchies to use, and the controllers to use in each.

    Raises:
        OSError: If there is no place for one of them.
    """
    left = wanted
    for hierarchy in found:
        if hierarchy.unified:
            continue
        here = left & hierarchy.controllers
        if here and hierarchy.home(here):
            yield hierarchy, here
            left -= here
    for hierarchy in found:
        if hierarchy.unified and hierarchy.home(left):
            yield hierarchy, left
            return
    if left:
        raise OSError(errno.EACCES, f"No cgroup can be made for {', '.join(sorted(left))}")


def _upwards(directory: str, top: str) -> Iterator[str]:
    while True:
        yield directory
        if directory == top:
            return
        directory = os.path.dirname(directory)


def _is_ours(directory: str) -> bool:
    """Whether cgroups can be made in it, and processes moved from it into them."""
    procs = os.path.join(directory, "cgroup.procs")
    return os.access(directory, os.W_OK | os.X_OK) and os.access(procs, os.W_OK)


def _enabled(directory: str) -> frozenset[str]:
    return frozenset(_read(os.path.join(directory, "cgroup.subtree_control")).split())


def _enable(directory: str, controllers: frozenset[str]) -> None:
    missing = controllers - _enabled(directory)
    if missing:
        _set(directory, "cgroup.subtree_control", " ".join(f"+{name}" for name in missing))


def _can_enable(directory: str) -> frozenset[str]:
    # What systemd manages is left as it is: it would undo changes, and limits with them.
    name = os.path.basename(directory)
    managed = name.endswith(".slice") or name.startswith("user@")
    is_root = not os.path.exists(os.path.join(directory, "cgroup.type"))
    control = os.path.join(directory, "cgroup.subtree_control")
    full = not is_root and _read(os.path.join(directory, "cgroup.procs"))
    if managed or full or not os.access(control, os.W_OK):
        return frozenset()
    return frozenset(_read(os.path.join(directory, "cgroup.controllers")).split())


def _unescaped(word: str) -> str:
    """Undo what mountinfo does to blanks: three octal digits behind a backslash."""
    head, *rest = word.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


# ------------------------------------------------------------------ using it
def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _set(path: str, file: str, value: str) -> None:
    target = os.path.join(path, file.removeprefix("?"))
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if file.startswith("?"):
            return
        raise
    try:
        os.write(fd, value.encode())
    except OSError as exc:
        raise OSError(exc.errno, f"{exc.strerror}: it can't be set to {value}", target) from exc
    finally:
        os.close(fd)


def _processes(path: str) -> Iterator[str]:
    for directory, _, _ in os.walk(path):
        with suppress(FileNotFoundError):
            yield from _read(os.path.join(directory, "cgroup.procs")).split()


def _remove(path: str, deadline: float) -> None:
    for directory, _, _ in os.walk(path, topdown=False):
        delay = 0.0005
        while True:
            try:
                with suppress(FileNotFoundError):
                    os.rmdir(directory)
                break
            except OSError as exc:
                if exc.errno != errno.EBUSY:
                    raise
                if time.monotonic() > deadline:
                    pids = " ".join(_processes(directory)) or "none visible"
                    raise OSError(
                        errno.EBUSY, f"Processes are still in it ({pids})", directory
                    ) from None
                time.sleep(delay)
                delay = min(2 * delay, 0.05)


def _clear(cgroup: Cgroup, kill: bool) -> bool:
    """Remove a dead sandbox's cgroup; say whether that was done."""
    import signal

    if cgroup.processes() and not kill:
        return False
    if not cgroup.kill():
        for _ in range(100):
            for pid in (found := cgroup.processes()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not found:
                break
            time.sleep(0.01)
    cgroup.remove()
    return True
