"""Words for a behaviour that a backend does not have, each with a reason.

A gap is strict: the behaviour is tried all the same, and if it holds, the run fails until
the gap is taken out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gap:
    """Why a behaviour does not hold on a backend."""

    word: str
    """``notimpl``, ``notyet`` or ``never``."""
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}" if self.reason else self.word


notimpl = Gap("notimpl")
"""The provider could, and the adapter does not do it."""


def notyet(reason: str) -> Gap:
    """The provider can't do it yet; the reason says what is awaited."""
    return Gap("notyet", reason)


def never(reason: str) -> Gap:
    """It can't hold there, by the nature of the place."""
    return Gap("never", reason)
