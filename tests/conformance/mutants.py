"""Mutants: backends that are wrong in one way, and the behaviours that have to notice.

Each changes one thing of the simulated backend, or of what stands between it and the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

Patch: TypeAlias = pytest.MonkeyPatch
MUTANTS: dict[str, tuple[Callable[[Patch], None], tuple[str, ...]]] = {}


def mutant(*behaviours: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Declare a mutant and the behaviours that must notice it."""

    def register(change: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTANTS[change.__name__] = change, behaviours
        return change

    return register
