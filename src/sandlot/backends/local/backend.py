"""The backend ``local``: makes sandboxes on this host, finds them, clears up after crashes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from weakref import WeakSet

from sandlot._exec import to_the_end
from sandlot.backends.local import limits, programs
from sandlot.backends.local.environment import environment
from sandlot.backends.local.handle import PATIENCE, LocalHandle
from sandlot.backends.local.record import (
    LOCK,
    SOCKET,
    Record,
    cgroup_prefix,
    home_of_all,
    new_record,
    read_record,
    records,
    unrecorded,
)
from sandlot.backends.local.threads import in_thread
from sandlot.backends.local.warm import ForkServer
from sandlot.capabilities import Capability, Isolation
from sandlot.contract import Backend, Handle
from sandlot.errors import (
    ErrorOutcome,
    FeatureNotSupportedError,
    SandboxConfigurationError,
    SandboxCreationError,
    SandboxError,
)
from sandlot.helper.client import HelperConnection
from sandlot.types import (
    Enforcement,
    EnforcementLevel,
    SandboxInfo,
    SandboxSessionState,
    SandboxSpec,
)

_HALF_MADE_AGE = 60.0
"""Seconds after which a directory without a record is nobody's any more."""
_LIMITS = ("cpu", "memory_mb", "pids_limit")


class LocalBackend(Backend):
    """Runs commands on this host as the caller. Isolates nothing."""

    name = "local"
    isolation = Isolation.NONE
    capabilities = frozenset(
        {
            Capability.STREAM,
            Capability.STDIN,
            Capability.PTY,
            Capability.SIGNALS,
            Capability.PROCESSES,
            Capability.LABELS,
            Capability.LIST,
            Capability.RECONNECT,
            Capability.LIFETIME,
            Capability.EXTEND,
        }
    )
    accepts = frozenset(
        {
            "allow_internet",
            "backend_options",
            "cpu",
            "env_vars",
            "inherit_env",
            "labels",
            "memory_mb",
            "pids_limit",
            "timeout_secs",
            "workdir",
        }
    )

    def __init__(self) -> None:
        self._handles: WeakSet[LocalHandle] = WeakSet()

    @classmethod
    def why_not(cls) -> str | None:
        if not sys.platform.startswith("linux"):
            return "it needs Linux; on this system, use a container backend"
        return None

    def check(self, spec: SandboxSpec) -> None:
        if spec.allow_internet is False:
            raise _refused("allow_internet", "local commands share this host's network")
        _check_options(spec)
        if not isinstance(spec.inherit_env, bool):
            for name in spec.inherit_env:
                if name not in os.environ:
                    raise SandboxConfigurationError(
                        f"inherit_env: {name} is not set in this program's environment"
                    )
        asked = [field for field in _LIMITS if getattr(spec, field)]
        available: Mapping[str, Enforcement] = limits.available() if asked else {}
        for field in asked:
            if available[field].level is not EnforcementLevel.ENFORCED:
                raise _refused(field, available[field].how)

    async def create(self, spec: SandboxSpec) -> Handle:
        preparing = asyncio.ensure_future(in_thread(_prepared, spec))
        try:
            record = await asyncio.shield(preparing)
            env = environment(
                spec, sandbox_id=record.id, root=record.root, tmp=record.tmp, home=record.home
            )
            return await self._started(record, spec, env)
        except OSError as exc:
            await to_the_end(_undone(preparing))
            if isinstance(exc, SandboxError):
                raise
            raise SandboxCreationError(str(exc), outcome=ErrorOutcome.NOT_STARTED) from exc
        except BaseException:
            await to_the_end(_undone(preparing))
            raise

    async def _started(
        self, record: Record, spec: SandboxSpec, env: Mapping[str, str]
    ) -> LocalHandle:
        helper = await HelperConnection.spawn(_helper_options(record), env=env)
        try:
            if spec.timeout_secs:
                helper.lifetime(max(1, round(spec.timeout_secs * 1000)))
            return await self._handle(record, helper, env["PATH"], _modules(spec))
        except BaseException:
            await to_the_end(helper.shutdown(PATIENCE))
            raise

    async def attach(self, state: SandboxSessionState) -> Handle:
        record = await in_thread(
            read_record, state.data.get("sandbox_id", ""), state.data.get("directory")
        )
        try:
            helper = await HelperConnection.connect(record.directory, SOCKET)
        except OSError:
            if await in_thread(lambda: record.running):
                raise
            helper = None  # it has stopped; what is left of it can still be destroyed
        return await self._handle(record, helper, os.environ.get("PATH", os.defpath))

    async def find(self, sandbox_id: str) -> SandboxSessionState:
        return (await in_thread(read_record, sandbox_id)).session_state()

    async def list(self, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        for info in await in_thread(_inventory, labels):
            yield info

    async def aclose(self) -> None:
        # The connection to a sandbox that is not kept is its life: that one stays.
        for handle in list(self._handles):
            if handle.kept:
                handle.abandon()

    async def probe(self) -> Mapping[str, Enforcement]:
        return await in_thread(limits.probe)

    async def gc(self) -> Sequence[str]:
        removed: list[str] = []
        for record in await in_thread(lambda: list(records())):
            if not record.kept and await self._is_orphan(record):
                handle = await self.attach(record.session_state())
                await handle.destroy()
                removed.append(record.id)
        return removed + await in_thread(_clear_traces)

    async def _is_orphan(self, record: Record) -> bool:
        return not await in_thread(lambda: record.running) or not _exists(record.owner)

    async def _handle(
        self,
        record: Record,
        helper: HelperConnection | None,
        path: str,
        preload: Sequence[str] | None = None,
    ) -> LocalHandle:
        fork_server = None
        if preload is not None and helper:
            python = await in_thread(programs.python, path)
            if python is None:
                raise SandboxConfigurationError("backend_options: fork_server needs a python3")
            fork_server = ForkServer(helper, python, preload)
            fork_server.warm_up()
        handle = LocalHandle(self, record, helper, path=path, fork_server=fork_server)
        self._handles.add(handle)
        return handle


def _check_options(spec: SandboxSpec) -> None:
    for option in spec.backend_options:
        if option != "fork_server":
            raise SandboxConfigurationError(
                f"backend_options: the local backend knows no {option!r}",
                hint="it knows 'fork_server'",
            )
    value = spec.backend_options.get("fork_server", False)
    if isinstance(value, str) or not (
        isinstance(value, bool) or all(isinstance(name, str) for name in value)
    ):
        raise SandboxConfigurationError(
            "backend_options: fork_server must be True, False or a list of modules to preload"
        )


def _modules(spec: SandboxSpec) -> Sequence[str] | None:
    """Return what a fork server is to preload beyond its own; ``None`` if there is to be none."""
    value = spec.backend_options.get("fork_server", False)
    return (() if value else None) if isinstance(value, bool) else tuple(value)


def _helper_options(record: Record) -> list[str]:
    options = ["--dir", record.directory, "--root", record.root, "--listen", SOCKET]
    options += ["--lock", LOCK, "--remove", record.directory]
    for path in record.cgroups:
        options += ["--cgroup", path]
    return options


async def _undone(preparing: asyncio.Future[Record]) -> None:
    """Remove what was prepared, or will have been in a moment."""
    try:
        record = await preparing
    except Exception:  # noqa: BLE001  (it is being raised already, and nothing was made)
        return
    await in_thread(record.remove)


def _prepared(spec: SandboxSpec) -> Record:
    """Make a sandbox's directory, record and cgroups: all but what runs."""
    lasts = spec.timeout_secs
    record = new_record(
        workdir=spec.workdir,
        labels=dict(spec.labels),
        expires=time.time() + lasts if lasts else None,
    )
    try:
        if any(getattr(spec, field) for field in _LIMITS):
            cgroup = limits.Cgroup.create(
                cgroup_prefix() + record.id,
                memory_mb=spec.memory_mb,
                pids_limit=spec.pids_limit,
                cpu=spec.cpu,
            )
            record = record.changed(cgroups=tuple(cgroup.paths))
    except BaseException:
        record.remove()
        raise
    return record


def _inventory(labels: Mapping[str, str]) -> list[SandboxInfo]:
    return [
        record.info(running=record.running)
        for record in records()
        if labels.items() <= record.labels.items()
    ]


def _clear_traces() -> list[str]:
    """Remove what has no record: directories half made, cgroups of sandboxes long gone."""
    removed: list[str] = []
    for directory in unrecorded(_HALF_MADE_AGE):
        shutil.rmtree(directory, ignore_errors=True)
        removed.append(os.path.basename(directory))
    prefix = cgroup_prefix()
    home = home_of_all()
    # Processes in them are those of sandboxes whose helper was killed: nobody owns them now.
    cleared = limits.leftovers(
        prefix, lambda name: (home / name.removeprefix(prefix)).exists(), kill=True
    )
    return removed + [name.removeprefix(prefix) for name in cleared]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _refused(field: str, why: str) -> FeatureNotSupportedError:
    return FeatureNotSupportedError(
        f"the local backend can't enforce {field}: {why}",
        field=field,
        hint="best_effort=True goes on without it",
    )
