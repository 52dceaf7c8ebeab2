"""The suite itself is tested: backends that are wrong in one way must not pass it."""

from __future__ import annotations

from typing import Any

import mutants_keeping
import mutants_running
import pytest
from mutants import MUTANTS, Patch

from sandlot import operation
from sandlot.testing import BackendConformance, MemoryBackend, MemoryWorld
from sandlot.testing import _memory_handle as handles

# Importing them has declared their mutants.
_DECLARED_IN = (mutants_running, mutants_keeping)


class _Suite(BackendConformance):
    __test__ = False
    patience = 2.0

    def __init__(self) -> None:
        self.world = MemoryWorld()

    def backend(self) -> MemoryBackend:
        return MemoryBackend(self.world)


class _BareSuite(_Suite):
    def backend(self) -> MemoryBackend:
        return MemoryBackend(self.world, capabilities=(), accepts=())


def _run(suite: type[_Suite], behaviour: str) -> None:
    getattr(suite(), f"test_{behaviour}")()


# ---------------------------------------------------------------------- the tests


_PAIRS = [(name, behaviour) for name, (_, noticing) in MUTANTS.items() for behaviour in noticing]


@pytest.mark.parametrize(("name", "behaviour"), _PAIRS)
def test_a_mutant_is_noticed(monkeypatch: Patch, name: str, behaviour: str) -> None:
    change, _ = MUTANTS[name]
    change(monkeypatch)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        _run(_Suite, behaviour)
    # A mutant that does not even run proves nothing.
    assert not isinstance(caught.value, TypeError | AttributeError | NameError)
    assert "unforeseen" not in str(caught.value)


@pytest.mark.parametrize("behaviour", sorted({behaviour for _, behaviour in _PAIRS}))
def test_the_unharmed_backend_passes(behaviour: str) -> None:
    _run(_Suite, behaviour)


# ------------------------------------------------------- a backend that can nothing


def test_a_refusal_by_the_adapter_is_noticed(monkeypatch: Patch) -> None:
    """What is missing must be refused before the adapter is asked."""
    begin = operation.Operation.__init__

    def unchecked(self: operation.Operation, *args: Any, **keywords: Any) -> None:
        begin(self, *args, **{**keywords, "requires": None})

    monkeypatch.setattr(operation.Operation, "__init__", unchecked)
    for behaviour in (
        "output_arrives_while_the_command_runs",
        "a_process_that_never_was_is_not_found",
        "a_snapshot_is_what_it_was_when_taken",
    ):
        with pytest.raises(AssertionError, match="refused by the adapter"):
            _run(_BareSuite, behaviour)


def test_what_is_missing_and_yet_works_is_noticed(monkeypatch: Patch) -> None:
    """A capability that is not declared must not be there either."""
    begin = operation.Operation.__init__

    def unchecked(self: operation.Operation, *args: Any, **keywords: Any) -> None:
        begin(self, *args, **{**keywords, "requires": None})

    monkeypatch.setattr(operation.Operation, "__init__", unchecked)
    monkeypatch.setattr(handles.MemoryHandle, "_need", lambda self, capability, operation: None)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        _run(_BareSuite, "output_arrives_while_the_command_runs")
