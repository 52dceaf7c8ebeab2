"""Every error that Sandlot raises.

    SandboxError
    ├── SandboxConfigurationError (ValueError)        an option that makes no sense
    ├── BackendNotInstalledError (ImportError)        what to install is in the hint
    ├── FeatureNotSupportedError (NotImplementedError) this backend can't; nothing was started
    ├── SandboxCreationError                          the sandbox did not come to be
    │   └── SandboxAuthenticationError (PermissionError)
    ├── SandboxNotFoundError (LookupError)            no such sandbox, or it is gone
    ├── SandboxConnectionError (ConnectionError)      the backend could not be reached
    │   └── SandboxRateLimitError                     asked too often; see retry_after
    ├── SandboxTimeoutError (TimeoutError)            a call ran into its limit
    ├── SandboxExecutionError                         a command could not be run
    │   ├── CommandFailedError                        it ran, and exited with another code than 0
    │   └── OutputParseError (ValueError)             its output is not what return_type asked for
    ├── SandboxFileError (OSError)                    a file operation inside the sandbox
    │   ├── SandboxFileNotFoundError (FileNotFoundError)
    │   ├── SandboxFileExistsError (FileExistsError)
    │   ├── SandboxFilePermissionError (PermissionError)
    │   ├── SandboxIsADirectoryError (IsADirectoryError)
    │   └── SandboxNotADirectoryError (NotADirectoryError)
    ├── WorkspaceError                                filling a new sandbox failed
    ├── UnsafeArchiveError                            an archive that would write outside its place
    └── SandboxClosedError (RuntimeError)             used after close() or destroy()

Each is also the builtin that a reader would expect, so ``except TimeoutError`` works.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from sandlot.types import SandboxResult


class ErrorOutcome(StrEnum):
    """What a failed operation may have left behind."""

    NOT_STARTED = "not_started"
    """Nothing happened; repeating it is safe."""
    UNKNOWN = "unknown"
    """The reply was lost; it may or may not have happened."""
    DONE = "done"
    """It happened, and this is how it ended."""


class SandboxError(Exception):
    """The base of all errors of Sandlot.

    Attributes:
        code: Stable, machine-readable name of the kind of error.
        backend: Name of the backend, when one was involved.
        op: The operation that failed, such as ``"create"`` or ``"exec"``.
        sandbox_id: The sandbox, when there was one.
        retryable: Whether the same call may succeed later.
        outcome: What may have been left behind; see `ErrorOutcome`.
        hint: What to do about it, in a sentence.
        context: Further facts, never secrets.
    """

    code: ClassVar[str] = "sandbox_error"
    default_retryable: ClassVar[bool] = False
    default_outcome: ClassVar[ErrorOutcome] = ErrorOutcome.DONE

    def __init__(
        self,
        message: str,
        *,
        backend: str | None = None,
        op: str | None = None,
        sandbox_id: str | None = None,
        retryable: bool | None = None,
        outcome: ErrorOutcome | None = None,
        hint: str | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.backend = backend
        self.op = op
        self.sandbox_id = sandbox_id
        self.retryable = self.default_retryable if retryable is None else retryable
        self.outcome = self.default_outcome if outcome is None else outcome
        self.hint = hint
        self.context: dict[str, Any] = dict(context or {})

    def __str__(self) -> str:
        where = [f"{name}={value}" for name, value in self._place() if value]
        text = f"{self.message} [{' '.join(where)}]" if where else self.message
        return f"{text}\n  hint: {self.hint}" if self.hint else text

    def _place(self) -> tuple[tuple[str, str | None], ...]:
        return ("backend", self.backend), ("op", self.op), ("sandbox", self.sandbox_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, dict(self.__dict__))

    def locate(self, *, backend: str | None, op: str | None, sandbox_id: str | None) -> None:
        """Fill in where the error arose, without overwriting what is known."""
        self.backend = self.backend or backend
        self.op = self.op or op
        self.sandbox_id = self.sandbox_id or sandbox_id


def _rebuild(cls: type[SandboxError], message: str, state: dict[str, Any]) -> SandboxError:
    error = cls(message)
    error.__dict__.update(state)
    return error


class SandboxConfigurationError(SandboxError, ValueError):
    """An option, name or argument that makes no sense."""

    code = "configuration"
    default_outcome = ErrorOutcome.NOT_STARTED


class BackendNotInstalledError(SandboxError, ImportError):
    """The chosen backend needs something that is not installed."""

    code = "backend_not_installed"
    default_outcome = ErrorOutcome.NOT_STARTED


class FeatureNotSupportedError(SandboxError, NotImplementedError):
    """The backend can't do what was asked; nothing was started.

    Attributes:
        capability: The capability that is missing, if that is the reason.
        field: The `SandboxSpec` field that can't be honoured, if that is the reason.
    """

    code = "feature_not_supported"
    default_outcome = ErrorOutcome.NOT_STARTED

    def __init__(
        self,
        message: str,
        *,
        capability: str | None = None,
        field: str | None = None,
        **where: Any,
    ) -> None:
        super().__init__(message, **where)
        self.capability = capability
        self.field = field


class SandboxCreationError(SandboxError):
    """The sandbox did not come to be."""

    code = "creation_failed"


class SandboxAuthenticationError(SandboxCreationError, PermissionError):
    """The provider did not accept the credentials."""

    code = "authentication"
    default_outcome = ErrorOutcome.NOT_STARTED


class SandboxNotFoundError(SandboxError, LookupError):
    """There is no such sandbox, or it is gone."""

    code = "not_found"


class SandboxConnectionError(SandboxError, ConnectionError):
    """The backend could not be reached, or the connection broke."""

    code = "connection"
    default_retryable = True
    default_outcome = ErrorOutcome.UNKNOWN


class SandboxRateLimitError(SandboxConnectionError):
    """The provider was asked too often.

    Attributes:
        retry_after: Seconds to wait, where the provider says so.
    """

    code = "rate_limited"
    default_outcome = ErrorOutcome.NOT_STARTED

    def __init__(self, message: str, *, retry_after: float | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.retry_after = retry_after


class SandboxTimeoutError(SandboxError, TimeoutError):
    """A call ran into its limit.

    Attributes:
        result: What the command had printed by then, where there was a command.
    """

    code = "timeout"
    default_retryable = True
    default_outcome = ErrorOutcome.UNKNOWN

    def __init__(self, message: str, *, result: SandboxResult | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.result = result


class SandboxExecutionError(SandboxError):
    """A command or code could not be run, or its reply not understood."""

    code = "execution_failed"


class CommandFailedError(SandboxExecutionError):
    """A command exited with another code than 0, and the caller asked to be told.

    Attributes:
        result: The whole result.
        exit_code: Its exit code.
        stdout: Its standard output, as text.
        stderr: Its standard error, as text.
    """

    code = "command_failed"

    def __init__(self, message: str, *, result: SandboxResult | None = None, **where: Any) -> None:
        super().__init__(message, **where)
        self.result = result
        self.exit_code = result.exit_code if result else None
        self.stdout = result.stdout if result else ""
        self.stderr = result.stderr if result else ""


class OutputParseError(SandboxExecutionError, ValueError):
    """The output does not hold what ``return_type`` asked for."""

    code = "output_parse"


class SandboxFileError(SandboxError, OSError):
    """A file operation inside the sandbox failed."""

    code = "file_error"


class SandboxFileNotFoundError(SandboxFileError, FileNotFoundError):
    """There is no such file or directory in the sandbox."""

    code = "file_not_found"


class SandboxFileExistsError(SandboxFileError, FileExistsError):
    """Something of that name is there already."""

    code = "file_exists"


class SandboxFilePermissionError(SandboxFileError, PermissionError):
    """The sandbox's user may not touch that path."""

    code = "file_permission"


class SandboxIsADirectoryError(SandboxFileError, IsADirectoryError):
    """A file was asked for, and the path is a directory."""

    code = "is_a_directory"


class SandboxNotADirectoryError(SandboxFileError, NotADirectoryError):
    """A directory was asked for, and the path is something else."""

    code = "not_a_directory"


class WorkspaceError(SandboxError):
    """Filling a new sandbox with its files failed."""

    code = "workspace"


class UnsafeArchiveError(SandboxError):
    """An archive from a sandbox holds an entry that would be written outside its place."""

    code = "unsafe_archive"


class SandboxClosedError(SandboxError, RuntimeError):
    """A sandbox was used after destroy(), or a client after close()."""

    code = "closed"
    default_outcome = ErrorOutcome.NOT_STARTED


FILE_ERRORS: Mapping[type[OSError], type[SandboxFileError]] = {
    FileNotFoundError: SandboxFileNotFoundError,
    FileExistsError: SandboxFileExistsError,
    PermissionError: SandboxFilePermissionError,
    IsADirectoryError: SandboxIsADirectoryError,
    NotADirectoryError: SandboxNotADirectoryError,
}
"""Which error of ours stands for which of the operating system's."""


def file_error(exc: OSError, path: str) -> SandboxFileError:
    """Return our error for an `OSError` that arose at ``path`` inside a sandbox."""
    kind = FILE_ERRORS.get(type(exc), SandboxFileError)
    return kind(f"{path}: {exc.strerror or exc}", context={"path": path, "errno": exc.errno})


@contextmanager
def translate(
    table: Mapping[type[BaseException], type[SandboxError]],
) -> Generator[None, None, None]:
    """Turn foreign exceptions into ours by a table, the most specific class first.

    An adapter wraps each call into its vendor's SDK with this, and nothing else
    catches vendor errors.
    """
    try:
        yield
    except SandboxError:
        raise
    except tuple(table) as exc:
        for cls in type(exc).__mro__:
            if cls in table:
                raise table[cls](str(exc) or cls.__name__) from exc
        raise
