"""What the operations of a sandbox have in common."""

from __future__ import annotations

from sandlot.capabilities import Capability
from sandlot.contract import Backend, Handle
from sandlot.errors import SandboxClosedError
from sandlot.operation import Operation


class SandboxBase:
    """A handle, its backend, and the crossing between a user's call and them."""

    def __init__(self, handle: Handle, backend: Backend) -> None:
        self._handle = handle
        self._backend = backend
        self._closed: str | None = None

    @property
    def id(self) -> str:
        """Finds it again, on its backend."""
        return self._handle.id

    @property
    def backend_name(self) -> str:
        """The name of its backend."""
        return self._backend.name

    @property
    def is_alive(self) -> bool:
        """False after `destroy`, and once it is known to be gone. Asks nobody; `info` does."""
        return self._closed is None and self._handle.alive

    def _operation(
        self,
        name: str,
        *,
        requires: Capability | None = None,
        passes: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> Operation:
        self._check_open()
        return Operation(name, self._backend, self.id, requires=requires, passes=passes)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise SandboxClosedError(
                f"this sandbox has been {self._closed}",
                backend=self.backend_name,
                sandbox_id=self.id,
            )
