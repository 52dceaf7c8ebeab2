"""The simulated backend, against the suite."""

from __future__ import annotations

from sandlot.testing import BackendConformance, MemoryBackend, MemoryWorld, never


class TestMemory(BackendConformance):
    gaps = {
        "a_file_larger_than_the_memory_for_it_passes_in_pieces": never(
            "its files are this process's memory"
        ),
    }
    world = MemoryWorld()

    def backend(self) -> MemoryBackend:
        return MemoryBackend(self.world)


class TestMemoryWithoutAnything(BackendConformance):
    """The same with no capability at all: what is missing is refused, the rest holds."""

    world = MemoryWorld()
    gaps = TestMemory.gaps

    def backend(self) -> MemoryBackend:
        return MemoryBackend(self.world, capabilities=(), accepts=())


class TestMemoryInPieces(BackendConformance):
    """The same with output that arrives in pieces of five bytes."""

    __test__ = False
