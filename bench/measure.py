"""Paired measurements: two ways of doing the same, in turn, in the same run.

A ratio of medians from interleaved rounds says more than either time: both sides meet the
same machine in the same mood.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pair:
    """How ours compares with a peer or a floor."""

    what: str
    ours: list[float]
    theirs: list[float]
    against: str
    goal: float | None = None

    @property
    def ratio(self) -> float:
        """Our median over theirs."""
        return statistics.median(self.ours) / statistics.median(self.theirs)

    def row(self) -> str:
        """Return it as a line of the report."""
        ours, theirs = (statistics.median(times) * 1e3 for times in (self.ours, self.theirs))
        goal = f"  (goal <= {self.goal})" if self.goal else ""
        return (
            f"{self.what:<38} {ours:>9.2f} ms   {self.against:<30} {theirs:>9.2f} ms   "
            f"ratio {self.ratio:5.2f}{goal}"
        )


async def pair(
    what: str,
    ours: Callable[[], Awaitable[object]],
    theirs: Callable[[], Awaitable[object]],
    *,
    against: str,
    rounds: int,
    goal: float | None = None,
) -> Pair:
    """Measure both in turn, after one round that does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for side, call in enumerate((ours, theirs)):
            begin = time.perf_counter()
            await call()
            if number:
                times[side].append(time.perf_counter() - begin)
    return Pair(what, *times, against=against, goal=goal)
