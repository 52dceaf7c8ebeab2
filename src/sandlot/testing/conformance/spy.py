"""A look at what a backend is asked, to prove that a refusal came before it was."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from sandlot.contract import Backend, Handle
from sandlot.errors import FeatureNotSupportedError

_BACKEND = ("create", "attach", "find")
_HANDLE = tuple(name for name, value in vars(Handle).items() if inspect.iscoroutinefunction(value))


class Spy:
    """Notes which calls reach the backends that ``make`` returns, and which they refuse."""

    def __init__(self, make: Callable[[], Backend]) -> None:
        self._make = make
        self.calls: list[str] = []
        self.refusals: list[str] = []

    def backend(self) -> Backend:
        """Return a backend that is watched."""
        backend = self._make()
        for name in _BACKEND:
            self._watch(backend, name)
        return backend

    def _watch(self, target: Any, name: str) -> None:
        method = getattr(target, name)

        async def watched(*args: Any, **keywords: Any) -> Any:
            self.calls.append(name)
            try:
                result = await method(*args, **keywords)
            except FeatureNotSupportedError:
                self.refusals.append(name)
                raise
            if isinstance(result, Handle):
                for each in _HANDLE:
                    self._watch(result, each)
            return result

        setattr(target, name, watched)
