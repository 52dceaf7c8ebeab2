"""One local sandbox: its helper, its files, its record."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import ParamSpec, TypeVar

from sandlot._archive import Extractor, Limits, pack
from sandlot._exec import run_to_end, to_the_end
from sandlot._output import Output
from sandlot.backends.local import limits, programs, tree
from sandlot.backends.local.process import Channels, LocalProcess, failure
from sandlot.backends.local.record import Record
from sandlot.backends.local.threads import in_thread
from sandlot.backends.local.warm import FORK_SERVER, ForkServer
from sandlot.contract import Backend, Handle, ProcessHandle
from sandlot.errors import (
    SandboxError,
    SandboxNotFoundError,
    file_error,
)
from sandlot.helper.client import HelperCommand, HelperConnection, HelperError
from sandlot.types import (
    Command,
    Enforcement,
    FileInfo,
    SandboxInfo,
    SandboxResult,
    SandboxSessionState,
)

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 20.0
"""Seconds for the helper to kill and remove everything."""
_PIECE = 1024 * 1024
_NO_LIMITS = Limits(max_files=2**62, max_bytes=2**62)
"""For what comes from our own side: this machine's disk is the limit."""


class LocalHandle(Handle):
    """A local sandbox. Without a helper it is what is left of one: only `destroy` works."""

    def __init__(
        self,
        backend: Backend,
        record: Record,
        helper: HelperConnection | None,
        *,
        path: str,
        fork_server: ForkServer | None = None,
    ) -> None:
        super().__init__(backend)
        self.id = record.id
        self.shell = programs.shell(path)
        self._path = path
        self._python: str | None = None
        self._record = record
        self._helper = helper
        self._fork_server = fork_server
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._processes: dict[str, LocalProcess] = {}
        self._lingering: set[LocalProcess] = set()
        self._tree = tree.ConfinedTree(record.root, {"/tmp": record.tmp, "/home": record.home})
        if helper is not None:
            helper.closed.add_done_callback(lambda _: self._release())

    @property
    def kept(self) -> bool:
        """Whether it outlives this connection: asked to be kept, or another program's."""
        return self._record.kept or self._helper is None or self._helper.process_id is None

    @property
    def alive(self) -> bool:  # type: ignore[override]
        """Whether its helper is there."""
        return self._helper is not None and not self._helper.closed.done()

    @property
    def enforcement(self) -> Mapping[str, Enforcement]:
        return limits.available()

    # --------------------------------------------------------------- commands
    async def exec(self, command: Command) -> SandboxResult:
        output = Output(command.max_output_bytes)
        started = time.perf_counter()
        if self._fork_server is not None and command.argv[0] == FORK_SERVER:
            process = await self._begin_code(self._fork_server, command, output)
        else:
            process, _ = self._begin(command, output, quiet=True)
        try:
            return await run_to_end(process, command, output, started)
        finally:
            if process.has_open_pipes:
                self._lingering = {one for one in self._lingering if one.has_open_pipes}
                self._lingering.add(process)

    async def start(self, command: Command, output: Output) -> ProcessHandle:
        process, helper_command = self._begin(command, output, quiet=False)
        try:
            await helper_command.started()
        except asyncio.CancelledError:
            await to_the_end(process.kill())
            raise
        except OSError as exc:
            raise failure(exc, command) from exc
        self._processes = {key: one for key, one in self._processes.items() if one.running}
        self._processes[process.id] = process
        return process

    async def process(self, process_id: str, output: Output) -> ProcessHandle:
        known = self._processes.get(process_id)
        if known is not None and known.running:
            known.also_to(output)
            return known
        if not process_id.isdigit():
            raise SandboxNotFoundError(f"there is no running process {process_id!r}")
        try:
            found = await self._live().watch(int(process_id))
        except HelperError as exc:
            raise SandboxNotFoundError(f"there is no running process {process_id}") from exc
        # Its pipes are held by whoever started it: from here its output can't be seen.
        return LocalProcess(found, output=output)

    def _begin(
        self, command: Command, output: Output, *, quiet: bool
    ) -> tuple[LocalProcess, HelperCommand]:
        helper = self._live()
        channels = Channels(command, self._null)
        try:
            env = dict(command.env)
            if command.pty:
                env.setdefault("TERM", "xterm-256color")
            started = helper.start_nowait(
                command.argv,
                cwd=self._tree.command_path(command.cwd) if command.cwd else "",
                env=env,
                fds=channels.fds,
                pty=command.pty is not None,
                quiet=quiet,
            )
        except ConnectionError as exc:
            channels.close()
            raise self._gone() from exc
        except BaseException:
            channels.close()
            raise
        channels.handed_over()
        return LocalProcess(started, command, channels, output), started

    async def _begin_code(
        self, server: ForkServer, command: Command, output: Output
    ) -> LocalProcess:
        self._live()
        channels = Channels(command, self._null)
        try:
            leader = await server.start(
                command.argv[-1],
                cwd=self._tree.command_path(command.cwd or "."),
                env=command.env,
                fds=channels.fds,
            )
        except BaseException:
            channels.close()
            raise
        channels.handed_over()
        return LocalProcess(leader, command, channels, output)

    def _live(self) -> HelperConnection:
        if self._helper is None or self._helper.closed.done():
            raise self._gone()
        return self._helper

    def _gone(self) -> SandboxNotFoundError:
        return SandboxNotFoundError(
            "the sandbox has ended", hint="its time was over, or it was destroyed or killed"
        )

    async def interpreter(self, language: str) -> str | None:
        if language != "python":
            return None
        if self._fork_server is not None:
            return FORK_SERVER
        if self._python is None:
            self._python = await in_thread(programs.python, self._path) or ""
        return self._python or None

    # ------------------------------------------------------------------ files
    def command_path(self, path: str) -> str:
        return self._tree.command_path(path)

    async def read(self, path: str) -> bytes:
        return await self._on_disk(path, self._tree.read, path)

    async def write(self, path: str, data: bytes) -> None:
        await self._on_disk(path, self._tree.write, path, data)

    async def list_dir(self, path: str) -> list[FileInfo]:
        return await self._on_disk(path, self._tree.list_dir, path)

    async def stat(self, path: str) -> FileInfo:
        return await self._on_disk(path, self._tree.stat, path)

    async def make_dir(self, path: str) -> None:
        await self._on_disk(path, self._tree.make_dir, path)

    async def remove(self, path: str, *, recursive: bool) -> None:
        await self._on_disk(path, self._tree.remove, path, recursive=recursive)

    async def move(self, source: str, target: str) -> None:
        await self._on_disk(source, self._tree.move, source, target)

    async def link(self, path: str, target: str) -> None:
        await self._on_disk(path, self._tree.link, path, target)

    async def set_mode(self, path: str, mode: int) -> None:
        await self._on_disk(path, self._tree.set_mode, path, mode)

    async def read_stream(self, path: str) -> AsyncGenerator[bytes, None]:
        descriptor = await self._on_disk(path, self._tree.open_read, path)
        try:
            while data := await self._on_disk(path, os.read, descriptor, _PIECE):
                yield data
        finally:
            os.close(descriptor)

    async def write_stream(self, path: str, data: AsyncIterator[bytes]) -> None:
        file = await self._on_disk(path, self._tree.open_write, path)
        try:
            async for piece in data:
                await self._on_disk(path, file.write, piece)
        except BaseException:
            file.discard()
            raise
        await self._on_disk(path, file.commit)

    async def upload_tar(self, path: str, archive: AsyncIterator[bytes]) -> None:
        async with self._host_dir(path) as directory:
            # The links are the user's own, and this sandbox's file operations don't leave by them.
            extractor = Extractor(directory, _NO_LIMITS, any_links=True)
            try:
                async for piece in archive:
                    await self._on_disk(path, extractor.feed, piece)
                await self._on_disk(path, extractor.finish)
            finally:
                await to_the_end(in_thread(extractor.close))

    async def download_tar(self, path: str) -> AsyncIterator[bytes]:
        async with self._host_dir(path) as directory:
            packed = pack(directory)
            try:
                while piece := await self._on_disk(path, next, packed, b""):
                    yield piece
            finally:
                await to_the_end(in_thread(packed.close))

    @asynccontextmanager
    async def _host_dir(self, path: str) -> AsyncGenerator[str, None]:
        """Yield a host path that is this very directory while the context lasts."""
        with ExitStack() as stack:
            yield await self._on_disk(path, stack.enter_context, self._tree.host_dir(path))

    async def _on_disk(
        self, path: str, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._live()
        try:
            return await in_thread(work, *args, **kwargs)
        except SandboxError:
            raise
        except OSError as exc:
            raise file_error(exc, path) from exc

    # ------------------------------------------------------------------- life
    async def info(self) -> SandboxInfo:
        record = await in_thread(self._record.reread)
        running = self.alive or await in_thread(lambda: record.running)
        return record.info(running=running)

    def session_state(self) -> SandboxSessionState:
        self._live().keep(True)
        if not self._record.kept:
            self._record = self._record.changed(kept=True)
        return self._record.session_state()

    async def extend(self, seconds: float) -> None:
        try:
            await self._live().lifetime(max(1, round(seconds * 1000)))
        except ConnectionError as exc:
            raise self._gone() from exc
        expires = time.time() + seconds
        self._record = await in_thread(lambda: self._record.reread().changed(expires=expires))

    async def destroy(self) -> None:
        if not self.alive:  # it may have been killed, and what it ran with it: look
            await in_thread(self._record.kill_marked)
        trouble = await self._end_helper()
        self._release()
        trouble += await in_thread(self._record.remove)
        if trouble:
            raise SandboxError("something of the sandbox is left: " + "; ".join(trouble))

    async def _end_helper(self) -> list[str]:
        if not self.alive or self._helper is None:
            return []
        try:
            end = await self._helper.shutdown(patience=PATIENCE)
        except TimeoutError:
            return [f"its helper did not end within {PATIENCE:.0f} s and was killed"]
        except ConnectionError:
            return []  # it ended by itself in this moment
        survivors = [f"{end.survivors} processes outlived SIGKILL"] if end.survivors else []
        return survivors + ([end.trouble] if end.trouble else [])

    def abandon(self) -> None:
        if self._helper is not None:
            self._helper.close()
        self._release()

    def _release(self) -> None:
        """Close the descriptors that are ours; idempotent."""
        if self._fork_server is not None:
            self._fork_server.close()
        if self._null >= 0:
            os.close(self._null)
            self._null = -1
        for process in (*self._lingering, *self._processes.values()):
            process.close()
        self._lingering.clear()
        self._processes.clear()
