"""Backends by name: our own and other packages' come through the same entry point group."""

from __future__ import annotations

import difflib
from functools import cache
from typing import TYPE_CHECKING

from sandlot.contract import Backend
from sandlot.errors import BackendNotInstalledError, SandboxConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "sandlot.backends"


@cache
def _entry_points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.get(point.name)
        if other is not None and other.value != point.value:
            raise SandboxConfigurationError(
                f"two packages provide a backend {point.name!r}: {other.value}, {point.value}",
                hint="uninstall one of them",
            )
        found[point.name] = point
    return found


def names() -> list[str]:
    """Return the names of all installed backends, usable here or not."""
    return sorted(_entry_points())


def backend_class(name: str) -> type[Backend]:
    """Return the class of a backend, without asking whether it can be used here.

    Raises:
        SandboxConfigurationError: If there is no backend of this name.
        BackendNotInstalledError: If its module can't be imported.
    """
    key = name.strip().lower() if isinstance(name, str) else name
    point = _entry_points().get(key)
    if point is None:
        raise SandboxConfigurationError(f"there is no backend {name!r}", hint=_advice(str(name)))
    try:
        loaded = point.load()
    except ImportError as exc:
        raise BackendNotInstalledError(
            f"the {key} backend can't be loaded: {exc}",
            backend=key,
            hint=f"pip install 'sandlot[{key}]'",
        ) from exc
    if not (isinstance(loaded, type) and issubclass(loaded, Backend)):
        raise SandboxConfigurationError(f"{point.value} is not a sandlot.contract.Backend")
    return loaded


def open_backend(name: str) -> Backend:
    """Return a new instance of a backend; no I/O.

    Raises:
        SandboxConfigurationError: If there is no backend of this name.
        BackendNotInstalledError: If it can't be used here; the hint says what to do.
    """
    cls = backend_class(name)
    if reason := cls.why_not():
        raise BackendNotInstalledError(f"the {cls.name} backend can't be used here: {reason}",
                                       backend=cls.name)  # fmt: skip
    return cls()


def usable() -> list[str]:
    """Return the names of the backends that can be used here."""
    found: list[str] = []
    for name in names():
        try:
            if backend_class(name).why_not() is None:
                found.append(name)
        except BackendNotInstalledError:
            continue
    return found


def backends_that_accept(field: str) -> list[str]:
    """Return the names of the installed backends that honour a `SandboxSpec` field."""
    found: list[str] = []
    for name in names():
        try:
            if field in backend_class(name).accepts:
                found.append(name)
        except BackendNotInstalledError:
            continue
    return found


def _advice(name: str) -> str:
    known = names()
    if not known:
        return "no backend is installed; is the package itself installed, not just on the path?"
    close = difflib.get_close_matches(name.lower(), known, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    return f"{guess}installed backends: {', '.join(known)}"
