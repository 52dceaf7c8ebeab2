"""Random operations on real sandboxes, compared with a model."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from sandlot.backends.local import LocalBackend
from sandlot.testing import MemoryBackend
from sandlot.testing.model import sandbox_model

TestMemoryModel = sandbox_model(MemoryBackend).TestCase
TestMemoryModel.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)

TestLocalModel = sandbox_model(LocalBackend).TestCase
TestLocalModel.settings = settings(
    max_examples=15,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
