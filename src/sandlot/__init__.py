"""One API for every sandbox.

    from sandlot import Sandbox

    with Sandbox("local") as sb:
        print(sb.execute_code("print('hello')").stdout)

Names are imported when first used, so that ``import sandlot`` stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sandlot._parse import json_schema as json_schema
    from sandlot._parse import parse_as as parse_as
    from sandlot._sync import Process as Process
    from sandlot._sync import Sandbox as Sandbox
    from sandlot._sync import SandboxClient as SandboxClient
    from sandlot._sync import run as run
    from sandlot._sync import run_many as run_many
    from sandlot.capabilities import Capability as Capability
    from sandlot.capabilities import Isolation as Isolation
    from sandlot.client import AsyncSandboxClient as AsyncSandboxClient
    from sandlot.errors import BackendNotInstalledError as BackendNotInstalledError
    from sandlot.errors import CommandFailedError as CommandFailedError
    from sandlot.errors import ErrorOutcome as ErrorOutcome
    from sandlot.errors import FeatureNotSupportedError as FeatureNotSupportedError
    from sandlot.errors import OutputParseError as OutputParseError
    from sandlot.errors import SandboxAuthenticationError as SandboxAuthenticationError
    from sandlot.errors import SandboxClosedError as SandboxClosedError
    from sandlot.errors import SandboxConfigurationError as SandboxConfigurationError
    from sandlot.errors import SandboxConnectionError as SandboxConnectionError
    from sandlot.errors import SandboxCreationError as SandboxCreationError
    from sandlot.errors import SandboxError as SandboxError
    from sandlot.errors import SandboxExecutionError as SandboxExecutionError
    from sandlot.errors import SandboxFileError as SandboxFileError
    from sandlot.errors import SandboxFileExistsError as SandboxFileExistsError
    from sandlot.errors import SandboxFileNotFoundError as SandboxFileNotFoundError
    from sandlot.errors import SandboxFilePermissionError as SandboxFilePermissionError
    from sandlot.errors import SandboxIsADirectoryError as SandboxIsADirectoryError
    from sandlot.errors import SandboxNotADirectoryError as SandboxNotADirectoryError
    from sandlot.errors import SandboxNotFoundError as SandboxNotFoundError
    from sandlot.errors import SandboxRateLimitError as SandboxRateLimitError
    from sandlot.errors import SandboxTimeoutError as SandboxTimeoutError
    from sandlot.errors import UnsafeArchiveError as UnsafeArchiveError
    from sandlot.errors import WorkspaceError as WorkspaceError
    from sandlot.events import Event as Event
    from sandlot.events import subscribe as subscribe
    from sandlot.process import AsyncProcess as AsyncProcess
    from sandlot.sandbox import AsyncSandbox as AsyncSandbox
    from sandlot.sandbox import async_run as async_run
    from sandlot.sandbox import async_run_many as async_run_many
    from sandlot.types import Chunk as Chunk
    from sandlot.types import Enforcement as Enforcement
    from sandlot.types import EnforcementLevel as EnforcementLevel
    from sandlot.types import ExposedPort as ExposedPort
    from sandlot.types import FileInfo as FileInfo
    from sandlot.types import FileType as FileType
    from sandlot.types import PtySize as PtySize
    from sandlot.types import ResourceUsage as ResourceUsage
    from sandlot.types import SandboxInfo as SandboxInfo
    from sandlot.types import SandboxResult as SandboxResult
    from sandlot.types import SandboxSessionState as SandboxSessionState
    from sandlot.types import SandboxSpec as SandboxSpec
    from sandlot.types import SandboxState as SandboxState
    from sandlot.types import SnapshotInfo as SnapshotInfo

_HOMES = {
    "_parse": "json_schema parse_as",
    "_sync": "Process Sandbox SandboxClient run run_many",
    "capabilities": "Capability Isolation",
    "client": "AsyncSandboxClient",
    "errors": "BackendNotInstalledError CommandFailedError ErrorOutcome "
    "FeatureNotSupportedError OutputParseError SandboxAuthenticationError "
    "SandboxClosedError SandboxConfigurationError SandboxConnectionError "
    "SandboxCreationError SandboxError SandboxExecutionError SandboxFileError "
    "SandboxFileExistsError SandboxFileNotFoundError SandboxFilePermissionError "
    "SandboxIsADirectoryError SandboxNotADirectoryError SandboxNotFoundError "
    "SandboxRateLimitError SandboxTimeoutError UnsafeArchiveError WorkspaceError",
    "events": "Event subscribe",
    "process": "AsyncProcess",
    "sandbox": "AsyncSandbox async_run async_run_many",
    "types": "Chunk Enforcement EnforcementLevel ExposedPort FileInfo FileType PtySize "
    "ResourceUsage SandboxInfo SandboxResult SandboxSessionState SandboxSpec SandboxState "
    "SnapshotInfo",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = ["__version__", *sorted(_HOME_OF)]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'sandlot' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"sandlot.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
