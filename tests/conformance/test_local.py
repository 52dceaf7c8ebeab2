"""The backend that runs commands on this machine, against the suite."""

from __future__ import annotations

from sandlot.backends.local import LocalBackend
from sandlot.testing import BackendConformance, never


class TestLocal(BackendConformance):
    mode = "live"
    gaps = {
        "commands_find_a_file_by_its_absolute_path": never(
            "commands see this host's own paths; command_path() gives them, and so do relative "
            "paths"
        ),
    }

    def backend(self) -> LocalBackend:
        return LocalBackend()
