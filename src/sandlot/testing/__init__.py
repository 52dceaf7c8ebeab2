"""What tests of Sandlot, of its backends and of programs that use it are made with.

- `MemoryBackend`: sandboxes that are simulated in memory, scripted by the test.
- `BackendConformance`: what every backend must do; an adapter's test subclasses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandlot.testing.conformance import BackendConformance as BackendConformance
    from sandlot.testing.conformance.gaps import Gap as Gap
    from sandlot.testing.conformance.gaps import never as never
    from sandlot.testing.conformance.gaps import notimpl as notimpl
    from sandlot.testing.conformance.gaps import notyet as notyet
    from sandlot.testing.memory import MemoryBackend as MemoryBackend
    from sandlot.testing.memory import MemoryWorld as MemoryWorld

_HOMES = {
    "conformance": "BackendConformance",
    "conformance.gaps": "Gap never notimpl notyet",
    "memory": "MemoryBackend MemoryWorld",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "BackendConformance",
    "Gap",
    "MemoryBackend",
    "MemoryWorld",
    "never",
    "notimpl",
    "notyet",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'sandlot.testing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"sandlot.testing.{home}"), name)
