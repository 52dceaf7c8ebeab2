"""The one crossing that every call makes on its way to a backend and back."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

from sandlot.capabilities import Capability
from sandlot.contract import Backend, lacking
from sandlot.errors import SandboxError, SandboxExecutionError
from sandlot.events import Event, emit, listening

_ids = itertools.count(1)
_current: ContextVar[int | None] = ContextVar("sandlot_operation", default=None)


class Operation:
    """Wrap a call into a backend.

    On the way in it refuses what the backend can't do and says that the operation starts.
    On the way out it gives every error its place (backend, operation, sandbox), turns what
    an adapter let slip into a `SandboxError`, and says how the operation ended.

        async with Operation("exec", backend, handle.id) as op:
            result = await handle.exec(command)
            op.note(exit_code=result.exit_code)
    """

    __slots__ = ("_attributes", "_backend", "_id", "_name", "_parent", "_passes", "_sandbox_id",
                 "_start", "_token")  # fmt: skip

    def __init__(
        self,
        name: str,
        backend: Backend,
        sandbox_id: str | None = None,
        *,
        requires: Capability | None = None,
        passes: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> None:
        """Refuse the operation if the backend lacks what it ``requires``.

        Args:
            name: What events and errors call it.
            backend: Where it goes.
            sandbox_id: The sandbox it is about, if there is one yet.
            requires: The capability it needs.
            passes: Exceptions that are the caller's own, such as an `OSError` of this
                machine's disk, and so are let through as they are.

        Raises:
            FeatureNotSupportedError: If the capability is lacking.
        """
        self._passes = passes
        self._name = name
        self._backend = backend
        self._sandbox_id = sandbox_id
        self._attributes: dict[str, Any] = {}
        self._id = next(_ids)
        self._parent = _current.get()
        if requires is not None and requires not in backend.capabilities:
            raise lacking(backend, requires, op=name, sandbox_id=sandbox_id)

    def note(self, **attributes: Any) -> None:
        """Add facts to the event that will end this operation."""
        self._attributes.update(attributes)

    def created(self, sandbox_id: str) -> None:
        """Name the sandbox, once a create knows it."""
        self._sandbox_id = sandbox_id

    async def __aenter__(self) -> Operation:
        self._start = time.perf_counter()
        self._token: Token[int | None] = _current.set(self._id)
        if listening():
            self._emit("started")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(ValueError):  # a generator may be closed from another context
            _current.reset(self._token)
        error = self._placed(exc)
        if listening():
            took = time.perf_counter() - self._start
            self._emit("failed" if error else "finished", duration=took, error=error)
        if error is not exc and error is not None:
            raise error from exc

    def _placed(self, exc: BaseException | None) -> BaseException | None:
        if isinstance(exc, SandboxError):
            exc.locate(backend=self._backend.name, op=self._name, sandbox_id=self._sandbox_id)
        elif isinstance(exc, Exception) and not isinstance(exc, self._passes):
            return SandboxExecutionError(
                f"the {self._backend.name} backend failed in an unforeseen way: "
                f"{type(exc).__name__}: {exc}",
                backend=self._backend.name,
                op=self._name,
                sandbox_id=self._sandbox_id,
                hint="this is a defect of the backend's adapter; please report it",
            )
        return exc

    def _emit(self, phase: str, **facts: Any) -> None:
        emit(
            Event(
                name=f"{self._name}.{phase}",
                backend=self._backend.name,
                sandbox_id=self._sandbox_id,
                operation_id=self._id,
                parent_id=self._parent,
                at=time.time(),
                attributes=dict(self._attributes),
                **facts,
            )
        )


def notice(name: str, backend: Backend, sandbox_id: str | None = None, **attributes: Any) -> None:
    """Tell subscribers something that is not the start or end of an operation."""
    if listening():
        emit(
            Event(
                name=name,
                backend=backend.name,
                sandbox_id=sandbox_id,
                operation_id=_current.get() or next(_ids),
                parent_id=None,
                at=time.time(),
                attributes=attributes,
            )
        )
