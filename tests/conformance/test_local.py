"""The backend that runs commands on this machine, against the suite."""

from __future__ import annotations

from sandlot.backends.local import LocalBackend
from sandlot.testing import BackendConformance


class TestLocal(BackendConformance):
    mode = "live"

    def backend(self) -> LocalBackend:
        return LocalBackend()
