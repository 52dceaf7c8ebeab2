"""Mutants that run commands wrongly."""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
import os
from collections.abc import Callable
from typing import Any

from mutants import Patch, mutant

from sandlot import _exec
from sandlot._output import Output
from sandlot.contract import Handle
from sandlot.errors import SandboxExecutionError
from sandlot.testing import _memory_handle as handles
from sandlot.testing import _memory_kernel as kernels
from sandlot.testing import _memory_process as processes
from sandlot.types import (
    Captured,
    Command,
    Exit,
    SandboxResult,
)

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
