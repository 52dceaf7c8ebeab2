"""A sandbox, as users hold it: making and finding it, its facts, its life."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack

from sandlot import _checks
from sandlot._commands import CommandOperations
from sandlot._exec import to_the_end
from sandlot._files import FileOperations
from sandlot._options import SandboxOptions
from sandlot.capabilities import Capability
from sandlot.contract import Backend, Handle
from sandlot.errors import SandboxConfigurationError
from sandlot.operation import Operation
from sandlot.types import (
    EMPTY,
    Enforcement,
    ExposedPort,
    SandboxInfo,
    SandboxResult,
    SandboxSessionState,
    SnapshotInfo,
)

if TYPE_CHECKING:
    from sandlot.client import AsyncSandboxClient

T = TypeVar("T")
InfoList: TypeAlias = list[SandboxInfo]
ResultList: TypeAlias = list[SandboxResult]


class AsyncSandbox(CommandOperations, FileOperations):
    """A running sandbox. Made by `AsyncSandboxClient`, or by `AsyncSandbox.create`.

    Used as a context manager, it is destroyed at the end.
    """

    def __init__(
        self,
        handle: Handle,
        backend: Backend,
        *,
        labels: Mapping[str, str] = EMPTY,
        owns_backend: bool = False,
        kept: bool = False,
    ) -> None:
        super().__init__(handle, backend)
        self._labels = dict(labels)
        self._owns_backend = owns_backend
        self._kept = kept

    # ---------------------------------------------------------- making, finding
    @classmethod
    def create(
        cls, backend: str | Backend | None = None, **options: Unpack[SandboxOptions]
    ) -> SandboxCreation:
        """Make a sandbox: ``await AsyncSandbox.create("local")``, or ``async with`` it.

        Args:
            backend: Where; omitted: the variable ``SANDLOT_BACKEND``.
            **options: The fields of `SandboxSpec`.

        Raises:
            SandboxConfigurationError: If an option makes no sense.
            BackendNotInstalledError: If the backend can't be used here.
            FeatureNotSupportedError: If it can't honour an option; nothing was started.
            SandboxCreationError: If the sandbox did not come to be.
            WorkspaceError: If its files could not be written; it is destroyed then.
        """
        return SandboxCreation(lambda: _made(backend, options))

    @classmethod
    async def resume(cls, state: SandboxSessionState) -> AsyncSandbox:
        """Take over a running sandbox from the state that `session_state` gave.

        Raises:
            SandboxNotFoundError: If it is gone.
        """
        async with _client(state.backend) as client:
            return await client.resume(state)

    @classmethod
    async def list(
        cls, labels: Mapping[str, str] | None = None, *, backend: str | Backend | None = None
    ) -> InfoList:
        """Return the sandboxes that carry all these labels, whoever made them.

        Args:
            labels: Omitted: all sandboxes.
            backend: Omitted: all backends that can be used here and can list.
        """
        from sandlot import registry
        from sandlot.client import AsyncSandboxClient

        found: InfoList = []
        for name in [backend] if backend is not None else registry.usable():
            async with AsyncSandboxClient(name) as client:
                if backend is not None or client.can(Capability.LIST):
                    found += await client.list(labels)
        return found

    @classmethod
    async def find(
        cls, labels: Mapping[str, str], *, backend: str | Backend | None = None
    ) -> AsyncSandbox | None:
        """Take hold of the newest running sandbox that carries all these labels."""
        async with _client(backend) as client:
            return await client.find(labels)

    @classmethod
    async def get(cls, sandbox_id: str, *, backend: str | Backend | None = None) -> AsyncSandbox:
        """Take hold of a running sandbox by its id.

        Raises:
            SandboxNotFoundError: If there is none.
        """
        async with _client(backend) as client:
            return await client.get(sandbox_id)

    @classmethod
    async def get_or_create(
        cls, *, backend: str | Backend | None = None, **options: Unpack[SandboxOptions]
    ) -> AsyncSandbox:
        """Return the sandbox that carries these ``labels``, made if there is none.

        However many callers on this machine ask at once, they get the same one. It
        outlives them: ``keep`` is set unless you say otherwise.
        """
        async with _client(backend) as client:
            return await client.get_or_create(**options)

    @staticmethod
    def parse_as(text: str, type_: type[T]) -> T:
        """Find the JSON in a text and make a ``type_`` of it.

        Raises:
            OutputParseError: Saying what came nearest and why it did not fit.
        """
        from sandlot._parse import parse_as

        return parse_as(text, type_)

    # ------------------------------------------------------------------ facts
    @property
    def provider_resource_id(self) -> str | None:
        """The provider's own name for it: a container, a machine; ``None`` if it has none."""
        return self._handle.resource_id

    @property
    def labels(self) -> dict[str, str]:
        """The labels it was made with."""
        return dict(self._labels)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do beyond running commands and moving files."""
        return self._backend.capabilities

    @property
    def enforcement(self) -> dict[str, Enforcement]:
        """How far each limit and policy that was asked for really holds."""
        return dict(self._handle.enforcement)

    @property
    def ends_with_program(self) -> bool:
        """Whether it is this program's to destroy: made here, and nobody asked to keep it."""
        return self._closed is None and not self._kept

    async def info(self) -> SandboxInfo:
        """Ask the backend how it stands now.

        Raises:
            SandboxNotFoundError: If it is gone.
        """
        async with self._operation("info"):
            return await self._handle.info()

    # ------------------------------------------------------------------- life
    def session_state(self) -> SandboxSessionState:
        """Return what another process needs to take it over with ``resume``.

        From now on it outlives this program: a state that dies with its writer would be of
        no use. `destroy`, or the end of a ``with`` block, still ends it.
        """
        self._check_open()
        if Capability.RECONNECT not in self._backend.capabilities:
            Operation("session_state", self._backend, self.id, requires=Capability.RECONNECT)
        state = self._handle.session_state()
        self._kept = True
        return state

    async def extend(self, timeout_secs: float) -> None:
        """Let it live for ``timeout_secs`` from now, whatever its limit was."""
        _checks.check_positive("timeout_secs", timeout_secs)
        async with self._operation("extend", requires=Capability.EXTEND):
            await self._handle.extend(timeout_secs)

    async def snapshot(self) -> SnapshotInfo:
        """Save its state; ``snapshot_id=`` starts from it."""
        async with self._operation("snapshot", requires=Capability.SNAPSHOT):
            return await self._handle.snapshot()

    async def expose_port(self, port: int) -> ExposedPort:
        """Make a port inside reachable from outside."""
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
            raise SandboxConfigurationError(f"port: {port!r} is not a port's number")
        async with self._operation("expose", requires=Capability.EXPOSE):
            return await self._handle.expose(port)

    async def destroy(self) -> None:
        """End it and all that runs in it, and return when it is gone. Idempotent.

        Raises:
            SandboxError: Saying what may still be there; calling again tries again.
        """
        if self._closed is None:
            await to_the_end(self._destroy())

    async def detach(self) -> SandboxSessionState:
        """Let go of it while it lives on; return what ``resume`` needs."""
        state = self.session_state()
        self._closed = "let go of"
        self._handle.abandon()
        if self._owns_backend:
            await to_the_end(self._backend.aclose())
        return state

    async def _destroy(self) -> None:
        async with Operation("destroy", self._backend, self.id):
            await self._handle.destroy()
        self._closed = "destroyed"
        if self._owns_backend:
            await self._backend.aclose()

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.destroy()

    def __repr__(self) -> str:
        state = "running" if self.is_alive else "gone"
        return f"<{type(self).__name__} {self.id} on {self.backend_name}, {state}>"


async def _made(backend: str | Backend | None, options: SandboxOptions) -> AsyncSandbox:
    async with _client(backend) as client:
        return await client.create(**options)


@asynccontextmanager
async def _client(backend: str | Backend | None) -> AsyncGenerator[AsyncSandboxClient, None]:
    """Yield a client for one sandbox, which it hands its connections over to.

    They are closed here only if no sandbox came of it.
    """
    from sandlot.client import AsyncSandboxClient

    client = AsyncSandboxClient.for_one(backend)
    try:
        yield client
    finally:
        await client.close_if_unused()


class SandboxCreation:
    """A sandbox about to be made: await it, or enter it with ``async with``."""

    def __init__(self, create: Callable[[], Coroutine[Any, Any, AsyncSandbox]]) -> None:
        self._create = create
        self._made: AsyncSandbox | None = None

    def __await__(self) -> Generator[Any, None, AsyncSandbox]:
        return self._create().__await__()

    async def __aenter__(self) -> AsyncSandbox:
        self._made = await self._create()
        return self._made

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._made is not None:
            await self._made.destroy()


async def async_run(
    command: str | Sequence[str],
    *,
    backend: str | Backend | None = None,
    timeout: float | None = None,
    **options: Unpack[SandboxOptions],
) -> SandboxResult:
    """Run one command in a sandbox of its own, which is destroyed afterwards.

    Args:
        command: A shell line, or program and arguments as a list.
        backend: Where; omitted: the variable ``SANDLOT_BACKEND``.
        timeout: Seconds until the command is killed.
        **options: The fields of `SandboxSpec`.
    """
    async with AsyncSandbox.create(backend, **options) as sandbox:
        return await sandbox.execute_command(command, timeout=timeout)


async def async_run_many(
    commands: Sequence[str | Sequence[str]],
    *,
    backend: str | Backend | None = None,
    timeout: float | None = None,
    check: bool = False,
    **options: Unpack[SandboxOptions],
) -> ResultList:
    """Run commands one after the other in one sandbox, which is destroyed afterwards.

    Args:
        commands: Each a shell line, or program and arguments as a list.
        backend: Where; omitted: the variable ``SANDLOT_BACKEND``.
        timeout: Seconds until a command is killed.
        check: Stop at the first that fails, and raise.
        **options: The fields of `SandboxSpec`.
    """
    async with AsyncSandbox.create(backend, **options) as sandbox:
        return [
            await sandbox.execute_command(command, timeout=timeout, check=check)
            for command in commands
        ]
