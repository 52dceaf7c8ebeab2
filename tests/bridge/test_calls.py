"""One call: who may make it, what it sees, what it gives back."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import traceback
import types
import warnings
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest
from scratch_backend import ScratchBackend

from sandlot import Event, Sandbox, SandboxClosedError, subscribe
from sandlot._bridge import Bridge

colour: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    bridge = Bridge()
    yield bridge
    bridge.close()


def threads_of_bridges() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sandlot"]


# --------------------------------------------------------------------- threads
def test_fifty_threads_call_at_once(bridge: Bridge) -> None:
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
        threading.Thread(target=lambda n=n: results.append(bridge.run(meet(n)))) for n in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == list(range(50))
    assert len(threads_of_bridges()) == before + 1


def test_closing_ends_the_thread(bridge: Bridge) -> None:
    before = len(threads_of_bridges())
    bridge.run(asyncio.sleep(0))
    assert len(threads_of_bridges()) == before + 1
    bridge.close()
    assert len(threads_of_bridges()) == before


def test_a_plain_function_is_called_in_the_loops_thread(bridge: Bridge) -> None:
    assert bridge.call(threading.get_ident) == bridge.call(threading.get_ident)
    assert bridge.call(threading.get_ident) != threading.get_ident()


# --------------------------------------------------------------------- context
def test_the_callers_context_is_seen_and_not_changed(bridge: Bridge) -> None:
    async def paint() -> str:
        seen = colour.get()
        colour.set("green")
        return seen

    colour.set("red")
    assert bridge.run(paint()) == "red"
    assert colour.get() == "red"


# ---------------------------------------------------------------------- errors
def test_an_error_crosses_with_a_traceback_through_both_sides(bridge: Bridge) -> None:
    async def inner_work() -> None:
        raise LookupError("not here")

    def outer_call() -> None:
        bridge.run(inner_work())

    with pytest.raises(LookupError, match="not here") as caught:
        outer_call()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names.index("outer_call") < names.index("inner_work") == len(names) - 1
    assert len(names) < 8


def test_an_error_is_freed_without_the_garbage_collector(bridge: Bridge) -> None:
    class Marked(Exception):
        pass

    async def work() -> None:
        raise Marked

    def mark() -> weakref.ref[Marked]:
        try:
            bridge.run(work())
        except Marked as exc:
            return weakref.ref(exc)
        raise AssertionError

    bridge.run(asyncio.sleep(0))
    gc.disable()
    try:
        marked = mark()
        bridge.run(asyncio.sleep(0))  # the loop has let go of the task as well
        assert marked() is None
    finally:
        gc.enable()


def test_sys_exit_in_the_loop_ends_the_caller_and_not_the_loop(bridge: Bridge) -> None:
    async def leave() -> None:
        sys.exit(3)

    with pytest.raises(SystemExit):
        bridge.run(leave())
    assert bridge.run(asyncio.sleep(0, "alive")) == "alive"


# ------------------------------------------------------------------- the loop
def test_a_call_from_the_loops_own_thread_is_refused_at_once(bridge: Bridge) -> None:
    async def reenter() -> None:
        bridge.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="would wait for itself"):
        bridge.run(reenter())


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


def test_a_source_of_content_may_itself_call(tmp_path: Path) -> None:
    with Sandbox(ScratchBackend(tmp_path)) as one, Sandbox(ScratchBackend(tmp_path)) as other:
        one.write_file("a", b"content")
        other.write_file("b", one.stream_file("a"))
        assert other.read_file("b") == b"content"


def test_a_call_inside_a_running_loop_works_and_warns_once(tmp_path: Path, bridge: Bridge) -> None:
    async def main() -> str:
        with pytest.warns(UserWarning, match="use AsyncSandbox there") as caught:
            first = bridge.run(asyncio.sleep(0, "first"))
        assert caught[0].filename == __file__
        return first + bridge.run(asyncio.sleep(0, "second"))

    assert asyncio.run(main()) == "firstsecond"


def test_the_warning_names_the_line_of_the_user(
    tmp_path: Path, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlot._sync.BRIDGE", bridge)
    monkeypatch.setattr("sandlot._bridge.BRIDGE", bridge)

    async def main() -> None:
        with pytest.warns(UserWarning, match="use AsyncSandbox there") as caught:
            with Sandbox(ScratchBackend(tmp_path)):
                pass
        assert caught[0].filename == __file__

    asyncio.run(main())


def test_a_notebook_is_not_warned(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)

    async def cell() -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return bridge.run(asyncio.sleep(0, "fine"))

    assert asyncio.run(cell()) == "fine"


def test_a_terminal_ipython_is_warned(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = types.SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)

    async def cell() -> None:
        with pytest.warns(UserWarning, match="use AsyncSandbox there"):
            bridge.run(asyncio.sleep(0))

    asyncio.run(cell())


# --------------------------------------------------------------------- the end
def test_a_call_after_closing_is_refused(bridge: Bridge) -> None:
    bridge.run(asyncio.sleep(0))
    bridge.close()
    with pytest.raises(SandboxClosedError, match="has ended"):
        bridge.run(asyncio.sleep(0))


def test_a_loop_that_dies_ends_the_calls_that_wait_and_those_that_come(bridge: Bridge) -> None:
    async def die() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.Event().wait()

    with pytest.raises(SandboxClosedError, match="has ended"):
        bridge.run(die())
    with pytest.raises(SandboxClosedError, match="has ended"):
        bridge.run(asyncio.sleep(0))


def test_sandboxes_that_have_ended_are_not_held_for_ever(
    tmp_path: Path, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlot._sync.BRIDGE", bridge)
    monkeypatch.setattr("sandlot._bridge.BRIDGE", bridge)
    kept_busy = Sandbox(ScratchBackend(tmp_path))
    gone = []
    for _ in range(100):
        with Sandbox(ScratchBackend(tmp_path)) as sandbox:
            gone.append(weakref.ref(sandbox._inner))
    del sandbox
    gc.collect()
    assert sum(ref() is not None for ref in gone) < 40
    bridge.close()
    assert not kept_busy.is_alive
