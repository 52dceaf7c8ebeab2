"""An open backend, as users hold it: makes sandboxes, finds them, takes them over."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeAlias, Unpack

from sandlot import _checks, registry
from sandlot._exec import to_the_end
from sandlot._options import SandboxOptions
from sandlot.capabilities import Capability
from sandlot.contract import Backend, Handle
from sandlot.errors import (
    FeatureNotSupportedError,
    SandboxClosedError,
    SandboxConfigurationError,
    SandboxError,
    WorkspaceError,
)
from sandlot.operation import Operation, notice
from sandlot.sandbox import AsyncSandbox, SandboxCreation
from sandlot.types import SandboxInfo, SandboxSessionState, SandboxSpec, SandboxState

InfoList: TypeAlias = list[SandboxInfo]


class AsyncSandboxClient:
    """One backend, opened once for many sandboxes. Belongs to one event loop.

    Constructing it checks that the backend can be used here, and does no I/O.
    """

    def __init__(self, backend: str | Backend | None = None) -> None:
        """Open a backend.

        Args:
            backend: Its name, or an instance; omitted: the variable ``SANDLOT_BACKEND``.

        Raises:
            SandboxConfigurationError: If there is no such backend.
            BackendNotInstalledError: If it can't be used here; the hint says what to do.
        """
        if isinstance(backend, Backend):
            self._backend = backend
        else:
            self._backend = registry.open_backend(backend or _default_backend())
        self._closed = False
        self._serves_one = False
        self._served = False

    @classmethod
    def for_one(cls, backend: str | Backend | None) -> Self:
        """Open a backend for a single sandbox, which closes it when it is destroyed."""
        client = cls(backend)
        client._serves_one = True
        return client

    @property
    def backend_name(self) -> str:
        """The name of the backend."""
        return self._backend.name

    def can(self, capability: Capability) -> bool:
        """Whether the backend has a capability."""
        return capability in self._backend.capabilities

    def create(self, **options: Unpack[SandboxOptions]) -> SandboxCreation:
        """Make a sandbox: ``await client.create()`` or ``async with client.create() as sb``.

        Raises:
            SandboxConfigurationError: If an option makes no sense.
            FeatureNotSupportedError: If the backend can't honour an option; nothing started.
            SandboxCreationError: If it did not come to be.
            WorkspaceError: If its files could not be written; it is destroyed then.
        """
        return SandboxCreation(lambda: self._create(options))

    async def resume(self, state: SandboxSessionState) -> AsyncSandbox:
        """Take over a running sandbox, from this or another process.

        Raises:
            SandboxNotFoundError: If it is gone.
        """
        if state.backend != self.backend_name:
            raise SandboxConfigurationError(
                f"this state is of the {state.backend} backend, not of {self.backend_name}"
            )
        async with self._operation("resume", requires=Capability.RECONNECT):
            handle = await self._backend.attach(state)
            try:
                info = await handle.info()
            except BaseException:
                handle.abandon()
                raise
            return self._held(handle, info.labels, kept=True)

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        """Take hold of a running sandbox by its id.

        Raises:
            SandboxNotFoundError: If there is none.
        """
        _checks.check_text("sandbox_id", sandbox_id)
        async with self._operation("get", requires=Capability.RECONNECT):
            state = await self._backend.find(sandbox_id)
        return await self.resume(state)

    async def list(self, labels: Mapping[str, str] | None = None) -> InfoList:
        """Return the sandboxes that carry all these labels, whoever made them."""
        wanted = _checks.checked_labels(labels or {})
        async with self._operation("list", requires=Capability.LIST):
            return [info async for info in self._backend.list(wanted)]

    async def find(self, labels: Mapping[str, str]) -> AsyncSandbox | None:
        """Take hold of the newest running sandbox that carries all these labels."""
        if not labels:
            raise SandboxConfigurationError("labels: name at least one")
        found = sorted(await self.list(labels), key=lambda info: info.created or 0.0)
        for info in reversed(found):
            if info.state is SandboxState.STOPPED:
                continue
            try:
                return await self.get(info.id)
            except LookupError:
                continue  # it ended between the list and now
        return None

    async def get_or_create(self, **options: Unpack[SandboxOptions]) -> AsyncSandbox:
        """Return the sandbox that carries these ``labels``, made if there is none.

        However many callers on this machine ask at once, they get the same one. It
        outlives them: ``keep`` is set unless you say otherwise.
        """
        from sandlot.state import lease

        labels = _checks.checked_labels(options.get("labels") or {})
        if not labels:
            raise SandboxConfigurationError("labels: name at least one")
        options.setdefault("keep", True)
        key = "\0".join(f"{name}={value}" for name, value in sorted(labels.items()))
        async with lease(f"{self.backend_name}\0{key}"):
            return await self.find(labels) or await self._create(options)

    async def gc(self) -> Sequence[str]:
        """Remove what crashed programs left behind; return the ids removed."""
        async with self._operation("gc"):
            return await self._backend.gc()

    async def aclose(self) -> None:
        """Close the connections to the backend; its sandboxes stay. Idempotent."""
        if not self._closed:
            self._closed = True
            await to_the_end(self._backend.aclose())

    async def close_if_unused(self) -> None:
        """Close the connections unless a sandbox has taken them over."""
        if not self._served:
            await self.aclose()

    async def __aenter__(self) -> AsyncSandboxClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.backend_name}{', closed' if self._closed else ''}>"

    def _operation(self, name: str, *, requires: Capability | None = None) -> Operation:
        if self._closed:
            raise SandboxClosedError("this client has been closed", backend=self.backend_name)
        return Operation(name, self._backend, requires=requires)

    def _held(self, handle: Handle, labels: Mapping[str, str], *, kept: bool) -> AsyncSandbox:
        self._served = self._serves_one
        return AsyncSandbox(
            handle, self._backend, labels=labels, owns_backend=self._serves_one, kept=kept
        )

    async def _create(self, options: Mapping[str, Any]) -> AsyncSandbox:
        spec = self._honoured(_checks.make_spec(options))
        async with self._operation("create") as op:
            handle = await self._backend.create(spec)
            op.created(handle.id)
            try:
                if spec.keep:
                    handle.session_state()
                await _write_files(handle, spec)
            except BaseException:
                await to_the_end(handle.destroy())
                raise
            return self._held(handle, spec.labels, kept=spec.keep)

    def _honoured(self, spec: SandboxSpec) -> SandboxSpec:
        """Return the part of the spec that the backend honours; refuse the rest.

        With ``best_effort`` the rest becomes a notice instead of an error.
        """
        backend = self._backend
        if spec.keep and Capability.RECONNECT not in backend.capabilities:
            Operation("create", backend, requires=Capability.RECONNECT)
        refused: dict[str, str] = {}
        for name in sorted(_checks.asked_for(spec) - backend.accepts - _checks.HONOURED_BY_ALL):
            error = _checks.unsupported_field(
                name, backend.name, registry.backends_that_accept(name)
            )
            if not spec.best_effort:
                raise error
            refused[name] = error.message
        spec = _checks.without(spec, set(refused))
        while True:
            try:
                backend.check(spec)
                break
            except FeatureNotSupportedError as exc:
                if not spec.best_effort or not exc.field or exc.field in refused:
                    exc.locate(backend=backend.name, op="create", sandbox_id=None)
                    raise
                refused[exc.field] = exc.message
                spec = _checks.without(spec, {exc.field})
        for name, reason in refused.items():
            notice("option.unsupported", backend, option=name, reason=reason)
        return spec


async def _write_files(handle: Handle, spec: SandboxSpec) -> None:
    for path, content in spec.files.items():
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        try:
            await handle.write(path, data)
        except SandboxError as exc:
            raise WorkspaceError(f"files: {path!r} could not be written: {exc.message}") from exc


def _default_backend() -> str:
    if name := os.environ.get("SANDLOT_BACKEND"):
        return name
    raise SandboxConfigurationError(
        "no backend named",
        hint="name one, such as 'local' (which isolates nothing), or set SANDLOT_BACKEND; "
        f"installed backends: {', '.join(registry.names())}",
    )
