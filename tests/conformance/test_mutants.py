"""The suite itself is tested: backends that are wrong in one way must not pass it.

Each mutant changes one thing of the simulated backend, or of what stands between it and the
caller, and names the behaviours that have to notice.
"""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeAlias

import pytest

from sandlot import _exec, operation
from sandlot._output import Output
from sandlot.contract import Handle
from sandlot.errors import FeatureNotSupportedError, SandboxExecutionError, SandboxNotFoundError
from sandlot.testing import BackendConformance, MemoryBackend, MemoryWorld
from sandlot.testing import _memory_files as files
from sandlot.testing import _memory_handle as handles
from sandlot.testing import _memory_kernel as kernels
from sandlot.testing import _memory_process as processes
from sandlot.types import (
    Captured,
    Command,
    Exit,
    FileInfo,
    SandboxInfo,
    SandboxResult,
    SandboxSessionState,
    SandboxSpec,
)

Patch: TypeAlias = pytest.MonkeyPatch
MUTANTS: dict[str, tuple[Callable[[Patch], None], tuple[str, ...]]] = {}


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


def mutant(*behaviours: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Declare a mutant and the behaviours that must notice it."""

    def register(change: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTANTS[change.__name__] = change, behaviours
        return change

    return register


def _run(suite: type[_Suite], behaviour: str) -> None:
    getattr(suite(), f"test_{behaviour}")()


# ------------------------------------------------------------------------ killing


@mutant("a_timeout_is_told_by_the_result")
def nothing_is_killed(patch: Patch) -> None:
    async def kill_job(self: kernels.Kernel, job: int) -> None:
        await asyncio.sleep(0)

    patch.setattr(kernels.Kernel, "kill_job", kill_job)


def _killing(patch: Patch, chosen: Callable[[kernels.Process, int], bool], number: int = 9) -> None:
    async def kill_job(self: kernels.Kernel, job: int) -> None:
        for process in [p for p in self.processes.values() if chosen(p, job)]:
            self.signal(process, number)
        await asyncio.sleep(0.01)

    patch.setattr(kernels.Kernel, "kill_job", kill_job)


@mutant("a_timeout_kills_the_children", "kill_ends_all_that_came_of_it")
def only_the_leader_is_killed(patch: Patch) -> None:
    _killing(patch, lambda process, job: process.pid == job)


@mutant("a_timeout_kills_what_left_its_session", "a_timeout_kills_daemons")
def only_the_group_is_killed(patch: Patch) -> None:
    _killing(patch, lambda process, job: process.group == job)


@mutant("a_timeout_kills_what_ignores_signals")
def killing_is_done_politely(patch: Patch) -> None:
    _killing(patch, lambda process, job: process.job == job, 15)


@mutant("a_command_that_is_given_up_is_killed")
def a_cancelled_command_runs_on(patch: Patch) -> None:
    async def exec_by_start(handle: Handle, command: Command) -> SandboxResult:
        output = Output(command.max_output_bytes)
        process = await handle.start(command, output)
        return _exec.result_of(await process.wait(), output, 0.1, timed_out=False)

    patch.setattr(handles, "exec_by_start", exec_by_start)


@mutant("what_uses_it_meanwhile_is_told_that_it_is_gone")
def destroy_leaves_processes(patch: Patch) -> None:
    async def all_ended(self: kernels.Kernel) -> None:
        await asyncio.sleep(0)

    patch.setattr(kernels.Kernel, "kill_all", lambda self: None)
    patch.setattr(kernels.Kernel, "all_ended", all_ended)


@mutant("what_uses_it_meanwhile_is_told_that_it_is_gone")
def a_dead_sandbox_looks_like_a_result(patch: Patch) -> None:
    async def wait(self: processes.MemoryProcess) -> Exit:
        return await asyncio.shield(self._process.ended)

    patch.setattr(processes.MemoryProcess, "wait", wait)


# -------------------------------------------------------------------- background


@mutant("a_background_child_does_not_hold_the_command_up")
def the_end_of_all_children_is_waited_for(patch: Patch) -> None:
    async def wait(self: processes.MemoryProcess) -> Exit:
        kernel, job = self._process.kernel, self._process.job
        while children := {p.ended for p in kernel.processes.values() if p.job == job}:
            await asyncio.wait(children)
        return self._process.ended.result()

    patch.setattr(processes.MemoryProcess, "wait", wait)


@mutant("a_background_process_outlives_its_command")
def background_processes_end_with_their_command(patch: Patch) -> None:
    finish = processes.MemoryProcess._finish

    def _finish(self: processes.MemoryProcess) -> None:
        for process in list(self._process.kernel.processes.values()):
            if process.job == self._process.job:
                process.kernel.signal(process, 9)
        finish(self)

    patch.setattr(processes.MemoryProcess, "_finish", _finish)


@mutant("a_background_process_may_go_on_printing")
def printing_to_nobody_kills(patch: Patch) -> None:
    write = kernels.Sink.write

    async def write_if_heard(self: kernels.Sink, data: bytes) -> None:
        if not self.listeners:
            raise kernels.BrokenPipe
        await write(self, data)

    patch.setattr(kernels.Sink, "write", write_if_heard)


# ------------------------------------------------------------------------- output


@mutant("a_character_cut_in_two_arrives_whole", "a_character_never_finished_is_replaced_at_the_end")
def each_chunk_is_decoded_alone(patch: Patch) -> None:
    class Decoder(codecs.IncrementalDecoder):
        def decode(self, input: Any, final: bool = False) -> str:
            return bytes(input).decode("utf-8", "ignore")

    patch.setattr("sandlot._output.codecs.getincrementaldecoder", lambda name: Decoder)


@mutant("a_limit_keeps_head_and_tail")
def the_limit_is_ignored(patch: Patch) -> None:
    patch.setattr(_exec, "Output", lambda limit: Output())


@mutant("a_limit_keeps_head_and_tail")
def the_tail_is_lost(patch: Patch) -> None:
    captured = Output.captured

    def head_only(self: Output, stream: Any) -> Captured:
        return dataclasses.replace(captured(self, stream), tail=b"")

    patch.setattr(Output, "captured", head_only)


@mutant("a_limit_keeps_head_and_tail")
def the_true_size_is_lost(patch: Patch) -> None:
    captured = Output.captured

    def untold(self: Output, stream: Any) -> Captured:
        kept = captured(self, stream)
        return dataclasses.replace(kept, size=len(kept.data))

    patch.setattr(Output, "captured", untold)


@mutant("a_limit_does_not_stop_the_command")
def the_limit_stops_the_command(patch: Patch) -> None:
    write = kernels.Sink.write

    async def write_up_to(self: kernels.Sink, data: bytes) -> None:
        await write(self, data)
        if any(output.captured("stdout").dropped for output in self.listeners):
            raise kernels.BrokenPipe

    patch.setattr(kernels.Sink, "write", write_up_to)


@mutant("newlines_nul_and_escapes_are_kept", "bytes_come_out_as_they_are")
def newlines_are_translated(patch: Patch) -> None:
    write = kernels.Sink.write

    async def translated(self: kernels.Sink, data: bytes) -> None:
        await write(self, data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"))

    patch.setattr(kernels.Sink, "write", translated)


@mutant("stdout_and_stderr_stay_apart", "chunks_tell_their_stream")
def errors_are_merged_into_the_output(patch: Patch) -> None:
    def merged(self: processes.MemoryProcess) -> kernels.Descriptors:
        return {0: kernels.DevNull(), 1: self._sinks[0], 2: self._sinks[0]}

    patch.setattr(processes.MemoryProcess, "descriptors", property(merged))


@mutant("a_slow_reader_makes_the_command_wait")
def nothing_waits_for_a_reader(patch: Patch) -> None:
    async def write(self: kernels.Sink, data: bytes) -> None:
        for output in self.listeners:
            output.feed(self._stream, data)
        await asyncio.sleep(0.01)

    patch.setattr(kernels.Sink, "write", write)


@mutant("output_arrives_while_the_command_runs")
def output_is_held_back_until_the_end(patch: Patch) -> None:
    held: list[tuple[kernels.Sink, bytes]] = []

    async def write(self: kernels.Sink, data: bytes) -> None:
        held.append((self, data))
        await asyncio.sleep(0)

    def detach(self: kernels.Sink) -> None:
        for sink, data in held:
            for output in sink.listeners:
                output.feed(sink._stream, data)
        held.clear()

    patch.setattr(kernels.Sink, "write", write)
    patch.setattr(kernels.Sink, "detach", detach)


# ------------------------------------------------------------------------ results


def _results(patch: Patch, change: Callable[[SandboxResult], SandboxResult]) -> None:
    result_of = _exec.result_of

    def changed(*args: Any, **keywords: Any) -> SandboxResult:
        return change(result_of(*args, **keywords))

    patch.setattr(_exec, "result_of", changed)


@mutant("a_program_may_exit_with_124_itself")
def a_timeout_is_guessed_from_124(patch: Patch) -> None:
    _results(patch, lambda result: dataclasses.replace(result, timed_out=result.exit_code == 124))


@mutant("a_timeout_keeps_what_was_printed")
def a_timeout_loses_what_was_printed(patch: Patch) -> None:
    _results(
        patch,
        lambda result: dataclasses.replace(result, out=Captured()) if result.timed_out else result,
    )


@mutant("a_signal_that_ends_a_command_is_told", "kill_ends_all_that_came_of_it")
def signals_are_negative_exit_codes(patch: Patch) -> None:
    wait = processes.MemoryProcess.wait

    async def negative(self: processes.MemoryProcess) -> Exit:
        ended = await wait(self)
        return Exit(exit_code=-ended.signal) if ended.signal else ended

    patch.setattr(processes.MemoryProcess, "wait", negative)


# -------------------------------------------------------- commands and environment


def _commands(patch: Patch, change: Callable[[handles.MemoryHandle, Command], Command]) -> None:
    launch = handles.MemoryHandle.launch

    def changed(
        self: handles.MemoryHandle, command: Command, output: Output
    ) -> processes.MemoryProcess:
        return launch(self, change(self, command), output)

    patch.setattr(handles.MemoryHandle, "launch", changed)


@mutant("a_list_is_run_without_a_shell", "many_arguments_arrive")
def words_are_joined_for_a_shell(patch: Patch) -> None:
    def joined(handle: handles.MemoryHandle, command: Command) -> Command:
        words = command.argv
        if words[0] == "/bin/sh":
            return command
        return dataclasses.replace(command, argv=("/bin/sh", "-c", " ".join(words)[:4096]))

    _commands(patch, joined)


@mutant("variables_of_one_call_are_of_that_call")
def variables_stay_for_the_next_call(patch: Patch) -> None:
    def leaking(handle: handles.MemoryHandle, command: Command) -> Command:
        handle._box.env.update(command.env)
        return command

    _commands(patch, leaking)


@mutant("variables_arrive_byte_for_byte")
def values_are_stripped(patch: Patch) -> None:
    def stripped(handle: handles.MemoryHandle, command: Command) -> Command:
        env = {name: value.strip() for name, value in command.env.items()}
        return dataclasses.replace(command, env=env)

    _commands(patch, stripped)


@mutant("the_callers_variables_stay_outside")
def the_callers_environment_is_passed_on(patch: Patch) -> None:
    def inheriting(handle: handles.MemoryHandle, command: Command) -> Command:
        return dataclasses.replace(command, env={**os.environ, **command.env})

    _commands(patch, inheriting)


@mutant("without_input_a_command_sees_its_end_at_once")
def input_stays_open(patch: Patch) -> None:
    _commands(patch, lambda handle, command: dataclasses.replace(command, keep_stdin_open=True))


@mutant("a_missing_cwd_is_an_error", "an_absolute_cwd_is_where_the_command_starts")
def the_cwd_is_ignored(patch: Patch) -> None:
    _commands(patch, lambda handle, command: dataclasses.replace(command, cwd=None))


@mutant("secrets_stay_out_of_errors_and_events")
def an_error_quotes_the_environment(patch: Patch) -> None:
    launch = handles.MemoryHandle.launch

    def chatty(
        self: handles.MemoryHandle, command: Command, output: Output
    ) -> processes.MemoryProcess:
        try:
            return launch(self, command, output)
        except SandboxExecutionError as exc:
            raise SandboxExecutionError(f"{exc.message} with {dict(command.env)}") from exc

    patch.setattr(handles.MemoryHandle, "launch", chatty)


# -------------------------------------------------------------------------- files


@mutant("a_link_is_described_as_itself", "stat_tells_what_a_path_is")
def stat_follows_links(patch: Patch) -> None:
    def describe(self: files.FileTree, path: str, *, superuser: bool = False) -> FileInfo:
        return files._info(path, self.find(path, superuser=superuser))

    patch.setattr(files.FileTree, "describe", describe)


@mutant("writing_again_keeps_the_mode")
def writing_resets_the_mode(patch: Patch) -> None:
    open_for_writing = files.FileTree.open_for_writing

    def resetting(self: files.FileTree, path: str, **options: Any) -> files.File:
        file = open_for_writing(self, path, **options)
        file.mode = 0o644
        return file

    patch.setattr(files.FileTree, "open_for_writing", resetting)


@mutant("pieces_that_fail_leave_the_file_as_it_was", "an_upload_that_is_given_up_leaves_no_trace")
def pieces_are_written_as_they_come(patch: Patch) -> None:
    async def write_stream(
        self: handles.MemoryHandle, path: str, data: AsyncIterator[bytes]
    ) -> None:
        content = b""
        async for piece in data:
            content += piece
            await self.write(path, content)

    patch.setattr(handles.MemoryHandle, "write_stream", write_stream)


@mutant("removing_a_link_leaves_its_target")
def removing_follows_links(patch: Patch) -> None:
    remove = files.FileTree.remove

    def following(self: files.FileTree, path: str, **options: Any) -> None:
        node = self.find(path, superuser=True)
        if options.get("recursive") and isinstance(node, files.Directory):
            node.entries.clear()
        remove(self, path, **options)

    patch.setattr(files.FileTree, "remove", following)


@mutant("a_listing_is_sorted_by_name")
def a_listing_has_any_order(patch: Patch) -> None:
    list_dir = files.FileTree.list_dir

    def reversed_list(self: files.FileTree, path: str, **options: Any) -> list[FileInfo]:
        return list_dir(self, path, **options)[::-1]

    patch.setattr(files.FileTree, "list_dir", reversed_list)


@mutant("a_tree_comes_back_as_it_went")
def a_tree_loses_its_empty_directories(patch: Patch) -> None:
    make_dirs = files.FileTree.unpack

    def unpack(self: files.FileTree, path: str, archive: bytes, **options: Any) -> None:
        make_dirs(self, path, archive, **options)
        _prune(self.directory(path, superuser=True))

    def _prune(directory: files.Directory) -> None:
        for name, node in list(directory.entries.items()):
            if isinstance(node, files.Directory):
                _prune(node)
                if not node.entries:
                    del directory.entries[name]

    patch.setattr(files.FileTree, "unpack", unpack)


# --------------------------------------------------------------- lives and finding


@mutant("the_backend_destroys_twice_as_well")
def destroying_twice_is_an_error(patch: Patch) -> None:
    destroy = handles.MemoryHandle.destroy

    async def once(self: handles.MemoryHandle) -> None:
        if self._box.gone:
            raise SandboxNotFoundError("this sandbox is gone")
        await destroy(self)

    patch.setattr(handles.MemoryHandle, "destroy", once)


@mutant("sandboxes_are_listed_by_their_labels", "find_takes_the_newest")
def a_list_ignores_labels(patch: Patch) -> None:
    listing = MemoryBackend.list

    def everything(self: MemoryBackend, labels: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        return listing(self, {})

    patch.setattr(MemoryBackend, "list", everything)


@mutant("another_program_takes_over", "a_sandbox_is_found_by_its_id")
def another_sandbox_is_taken_over(patch: Patch) -> None:
    async def attach(self: MemoryBackend, state: SandboxSessionState) -> handles.MemoryHandle:
        return await self.create(SandboxSpec())

    patch.setattr(MemoryBackend, "attach", attach)


@mutant("a_sandbox_that_is_given_up_is_not_left_behind")
def a_cancelled_create_leaves_its_sandbox(patch: Patch) -> None:
    create = MemoryBackend.create

    async def careless(self: MemoryBackend, spec: SandboxSpec) -> handles.MemoryHandle:
        handle = await create(self, spec)
        await asyncio.sleep(0.05)
        return handle

    patch.setattr(MemoryBackend, "create", careless)


@mutant("a_sandbox_ends_when_its_time_is_over")
def a_life_never_ends(patch: Patch) -> None:
    patch.setattr(handles.Box, "let_live", lambda self, seconds: None)


@mutant("a_life_can_be_made_longer")
def a_declared_capability_raises(patch: Patch) -> None:
    async def extend(self: handles.MemoryHandle, seconds: float) -> None:
        raise FeatureNotSupportedError("not after all", capability="extend")

    patch.setattr(handles.MemoryHandle, "extend", extend)


@mutant("what_is_declared_is_implemented")
def a_declared_capability_is_not_there(patch: Patch) -> None:
    patch.setattr(handles.MemoryHandle, "extend", Handle.extend)


@mutant("a_snapshot_is_what_it_was_when_taken")
def a_snapshot_goes_on_changing(patch: Patch) -> None:
    patch.setattr("sandlot.testing.memory.copy.deepcopy", lambda value: value)


@mutant("an_error_tells_where_it_arose")
def errors_have_no_place(patch: Patch) -> None:
    def _placed(self: operation.Operation, exc: BaseException | None) -> BaseException | None:
        return exc

    patch.setattr(operation.Operation, "_placed", _placed)


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
