"""What every backend must do: the definition of a backend, as tests.

An adapter's test file is a subclass, and that is all of it:

    from sandlot.testing import BackendConformance, never

    class TestAcme(BackendConformance):
        mode = "emulated"
        gaps = {"a_timeout_kills_daemons": never("the provider kills the shell alone")}

        def backend(self):
            return AcmeBackend(url=emulator.url)

Behaviours read as sentences. One that needs a capability which the backend does not declare
is not skipped: that it is refused before any I/O is what is asserted then. One that does not
hold is declared in ``gaps``, with a word and a reason, and is tried all the same.
"""

from __future__ import annotations

from sandlot.testing.conformance.base import Behaviours, accepts, requires
from sandlot.testing.conformance.blocking import Blocking
from sandlot.testing.conformance.concurrency import Concurrency
from sandlot.testing.conformance.directories import Directories
from sandlot.testing.conformance.environment import Environment
from sandlot.testing.conformance.execution import Execution
from sandlot.testing.conformance.files import Files
from sandlot.testing.conformance.finding import Finding
from sandlot.testing.conformance.lifecycle import Lifecycle
from sandlot.testing.conformance.output import Output
from sandlot.testing.conformance.processes import Processes
from sandlot.testing.conformance.refusals import Refusals
from sandlot.testing.conformance.reports import Reports
from sandlot.testing.conformance.stdin import Stdin
from sandlot.testing.conformance.terminal import Terminal
from sandlot.testing.conformance.timeouts import Timeouts
from sandlot.testing.conformance.trees import Trees

__all__ = ["BackendConformance", "Behaviours", "accepts", "requires"]


class BackendConformance(
    Lifecycle,
    Refusals,
    Execution,
    Environment,
    Stdin,
    Timeouts,
    Output,
    Processes,
    Terminal,
    Files,
    Directories,
    Trees,
    Concurrency,
    Finding,
    Reports,
    Blocking,
):
    """All behaviours."""
