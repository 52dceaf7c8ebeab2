"""What a backend can do, as data.

A backend declares a set of these; a layer forwards or edits the set; nobody asks
``isinstance``. The conformance suite proves each that is declared, and proves that
each that is not raises `FeatureNotSupportedError` before anything happens.
"""

from __future__ import annotations

from enum import StrEnum


class Capability(StrEnum):
    """An ability beyond creating, running, reading, writing and destroying."""

    STREAM = "stream"
    """Output arrives while the command runs: ``start()``, ``stream()``."""
    STDIN = "stdin"
    """A command can be given input: ``stdin=``, ``Process.write()``."""
    PTY = "pty"
    """A command can have a terminal: ``start(pty=...)``, ``resize()``."""
    SIGNALS = "signals"
    """Any signal can be sent to a running command: ``Process.signal()``."""
    PROCESSES = "processes"
    """A running process can be found again by its id: ``process(id)``."""
    USERS = "users"
    """A command can run as another user: ``user=``."""
    LABELS = "labels"
    """Labels are kept with the sandbox, and sandboxes are found by them."""
    LIST = "list"
    """All sandboxes of this backend can be listed, also from another process."""
    RECONNECT = "reconnect"
    """Another process can take over: ``session_state()``, ``resume()``."""
    LIFETIME = "lifetime"
    """``timeout_secs`` ends the sandbox although its creator is gone."""
    EXTEND = "extend"
    """The end of life can be moved: ``extend()``."""
    SNAPSHOT = "snapshot"
    """The state can be saved and restored: ``snapshot()``, ``snapshot_id=``."""
    EXPOSE = "expose"
    """A port inside can be reached from outside: ``expose_port()``."""
    NETWORK_OFF = "network_off"
    """``allow_internet=False`` is enforced."""
    GPU = "gpu"
    """A GPU can be reserved: ``gpu=``."""


class Isolation(StrEnum):
    """How far what runs inside is kept from the machine it runs on, weakest first."""

    NONE = "none"
    """Runs as the caller, with all that the caller may do."""
    PROCESS = "process"
    """Kernel rules on one process tree: Landlock, Seatbelt."""
    SANDBOX = "sandbox"
    """Namespaces and a system call filter: bubblewrap."""
    CONTAINER = "container"
    """A container with its own root file system."""
    GVISOR = "gvisor"
    """A user-space kernel between the code and the host's."""
    MICROVM = "microvm"
    """A small virtual machine."""
    VM = "vm"
    """A whole virtual machine."""

    @property
    def rank(self) -> int:
        """Its place in the order, 0 for `NONE`."""
        return list(Isolation).index(self)
