"""What is known of the installed backends without starting anything."""

from __future__ import annotations

from dataclasses import dataclass

from sandlot import registry
from sandlot.capabilities import Capability, Isolation
from sandlot.errors import BackendNotInstalledError


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One backend."""

    name: str
    reason: str | None
    """Why it can't be used here and what to do about it; ``None`` if it can."""
    isolation: Isolation | None = None
    capabilities: frozenset[Capability] = frozenset()
    accepts: frozenset[str] = frozenset()

    def as_object(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "name": self.name,
            "usable": self.reason is None,
            "reason": self.reason,
            "isolation": self.isolation and str(self.isolation),
            "capabilities": sorted(self.capabilities),
            "accepts": sorted(self.accepts),
        }


def known(backend: str | None) -> list[Known]:
    """Return one backend, or all that are installed.

    Raises:
        SandboxConfigurationError: If there is no backend of this name.
    """
    return [_known(name) for name in ([backend] if backend else registry.names())]


def _known(name: str) -> Known:
    try:
        cls = registry.backend_class(name)
    except BackendNotInstalledError as exc:
        return Known(name=name, reason=f"{exc.message}; {exc.hint}")
    return Known(
        name=cls.name,
        reason=cls.why_not(),
        isolation=cls.isolation,
        capabilities=cls.capabilities,
        accepts=cls.accepts,
    )
