"""One call: who may make it, what it sees, what it gives back."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest
from child import run_child
from scratch_backend import ScratchBackend

from sandlot import Event, Sandbox, SandboxClosedError, subscribe
from sandlot._bridge import Bridge

colour: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture
def own() -> Iterator[Bridge]:
    """A bridge of the test's own, to be closed, broken and counted on."""
    own = Bridge()
    yield own
    own.close()


@pytest.fixture
def own_api(own: Bridge, monkeypatch: pytest.MonkeyPatch) -> Bridge:
    """Have the blocking API go over the test's own bridge."""
    monkeypatch.setattr("sandlot._sync.BRIDGE", own)
    monkeypatch.setattr("sandlot._bridge.BRIDGE", own)
    return own


def threads_of_bridges() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sandlot"]


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("sandlot-worker")]


# --------------------------------------------------------------------- threads
def test_fifty_threads_call_at_once(own: Bridge) -> None:
    everybody_is_here = asyncio.Event()
    waiting = 0

    async def meet(number: int) -> int:
        nonlocal waiting
        waiting += 1
        if waiting == 50:
            everybody_is_here.set()
        await everybody_is_here.wait()
        return number

    before = len(threads_of_bridges())
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(own.run(meet(n)))) for n in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == list(range(50))
    assert len(threads_of_bridges()) == before + 1


def test_closing_ends_the_thread(own: Bridge) -> None:
    before = len(threads_of_bridges())
    own.run(asyncio.sleep(0))
    assert len(threads_of_bridges()) == before + 1
    own.close()
    assert len(threads_of_bridges()) == before


def test_a_plain_function_is_called_in_the_loops_thread(own: Bridge) -> None:
    assert own.call(threading.get_ident) == own.call(threading.get_ident)
    assert own.call(threading.get_ident) != threading.get_ident()


# --------------------------------------------------------------------- context
def test_the_callers_context_is_seen_and_not_changed(own: Bridge) -> None:
    async def paint() -> str:
        seen = colour.get()
        colour.set("green")
        return seen

    colour.set("red")
    assert own.run(paint()) == "red"
    assert colour.get() == "red"


# ---------------------------------------------------------------------- errors
def test_an_error_crosses_with_a_traceback_through_both_sides(own: Bridge) -> None:
    async def inner_work() -> None:
        raise LookupError("not here")

    def outer_call() -> None:
        own.run(inner_work())

    with pytest.raises(LookupError, match="not here") as caught:
        outer_call()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names.index("outer_call") < names.index("inner_work") == len(names) - 1
    assert len(names) < 8


def test_an_error_is_freed_without_the_garbage_collector(own: Bridge) -> None:
    class Marked(Exception):
        pass

    async def work() -> None:
        raise Marked

    def mark() -> weakref.ref[Marked]:
        try:
            own.run(work())
        except Marked as exc:
            return weakref.ref(exc)
        raise AssertionError

    own.run(asyncio.sleep(0))
    gc.disable()
    try:
        marked = mark()
        own.run(asyncio.sleep(0))  # the loop has let go of the task as well
        assert marked() is None
    finally:
        gc.enable()


def test_sys_exit_in_the_loop_ends_the_caller_and_not_the_loop(own: Bridge) -> None:
    async def leave() -> None:
        sys.exit(3)

    with pytest.raises(SystemExit):
        own.run(leave())
    assert own.run(asyncio.sleep(0, "alive")) == "alive"


# ------------------------------------------------------------------- the loop
def test_a_call_from_the_loops_own_thread_is_refused_at_once(own: Bridge) -> None:
    async def reenter() -> None:
        own.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="would wait for itself"):
        own.run(reenter())


def test_a_subscriber_that_calls_back_is_refused_and_the_call_goes_on(tmp_path: Path) -> None:
    refusals: list[str] = []
    with Sandbox(ScratchBackend(tmp_path)) as sandbox:

        def subscriber(event: Event) -> None:
            try:
                sandbox.info()
            except RuntimeError as exc:
                refusals.append(str(exc))

        unsubscribe = subscribe(subscriber)
        try:
            assert sandbox.execute_command("echo hello").stdout == "hello\n"
        finally:
            unsubscribe()
    assert len(refusals) == 2
    assert "would wait for itself" in refusals[0]


def test_a_source_of_content_may_itself_call(tmp_path: Path, own_api: Bridge) -> None:
    with Sandbox(ScratchBackend(tmp_path)) as one, Sandbox(ScratchBackend(tmp_path)) as other:
        one.write_file("a", b"content")
        other.write_file("b", one.stream_file("a"))
        assert other.read_file("b") == b"content"


INSIDE = """
    import types, warnings

    def calls_inside_a_running_loop():
        async def cell():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for number in range(3):
                    with Sandbox(ScratchBackend(root)) as sandbox:
                        say(sandbox.execute_command(f"echo {number}").stdout.strip())
            return caught
        return asyncio.run(cell())

    def pretend_ipython(shell):
        sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
"""


def test_a_call_inside_a_running_loop_works_and_warns_once(tmp_path: Path) -> None:
    child = run_child(
        INSIDE
        + """
    for warning in calls_inside_a_running_loop():
        say(warning.filename, warning.message)
    """,
        tmp_path,
    )
    assert child.said[:3] == ["0", "1", "2"]
    (warning,) = child.said[3:]
    assert warning.startswith("<string> a blocking call inside a running event loop")
    assert "use AsyncSandbox there" in warning


def test_a_notebook_is_not_warned(tmp_path: Path) -> None:
    child = run_child(
        INSIDE
        + """
    pretend_ipython(types.SimpleNamespace(kernel=object()))
    say(len(calls_inside_a_running_loop()))
    """,
        tmp_path,
    )
    assert child.said == ["0", "1", "2", "0"]


def test_ipython_in_a_terminal_is_warned(tmp_path: Path) -> None:
    child = run_child(
        INSIDE
        + """
    pretend_ipython(types.SimpleNamespace())
    say(len(calls_inside_a_running_loop()))
    """,
        tmp_path,
    )
    assert child.said == ["0", "1", "2", "1"]


# --------------------------------------------------------------------- the end
def test_a_call_after_closing_is_refused(own: Bridge) -> None:
    own.run(asyncio.sleep(0))
    own.close()
    with pytest.raises(SandboxClosedError, match="has ended"):
        own.run(asyncio.sleep(0))


def test_a_loop_that_dies_ends_the_calls_that_wait_and_those_that_come(own: Bridge) -> None:
    async def die() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.Event().wait()

    with pytest.raises(SandboxClosedError, match="has ended"):
        own.run(die())
    with pytest.raises(SandboxClosedError, match="has ended"):
        own.run(asyncio.sleep(0))


def test_sandboxes_that_have_ended_are_not_held_for_ever(tmp_path: Path, own_api: Bridge) -> None:
    left = Sandbox(ScratchBackend(tmp_path))
    gone = []
    for _ in range(100):
        with Sandbox(ScratchBackend(tmp_path)) as sandbox:
            gone.append(weakref.ref(sandbox._inner))
    del sandbox
    gc.collect()
    assert sum(ref() is not None for ref in gone) < 40
    own_api.close()
    assert not left.is_alive


def test_closing_ends_the_threads_for_blocking_work(own: Bridge) -> None:
    own.run(asyncio.to_thread(bool))
    assert workers()
    own.close()
    for worker in workers():
        worker.join(30)
    assert not workers()
