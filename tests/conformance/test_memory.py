"""The simulated backend, against the suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sandlot.testing import BackendConformance, Gap, MemoryBackend, MemoryWorld, never


class TestMemory(BackendConformance):
    mode = "live"
    world = MemoryWorld()
    gaps: ClassVar[Mapping[str, Gap]] = {
        "a_file_larger_than_the_memory_for_it_passes_in_pieces": never(
            "its files are this process's memory"
        ),
    }

    def backend(self) -> MemoryBackend:
        return MemoryBackend(self.world)


class TestMemoryThatCanDoNothingMore(TestMemory):
    """Without any capability: what is missing is refused, and the rest holds."""

    in_matrix = False

    def backend(self) -> MemoryBackend:
        return MemoryBackend(self.world, capabilities=(), accepts=())
