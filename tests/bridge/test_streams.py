"""Streams: batches instead of a hop for each item, and an end that comes with the reader's."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest
from scratch_backend import ScratchBackend, is_running

from sandlot import CommandFailedError, Sandbox
from sandlot._bridge import Bridge

colour: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture
def own() -> Iterator[Bridge]:
    """A bridge of the test's own, to be closed, broken and counted on."""
    own = Bridge()
    yield own
    own.close()


class Source:
    """Yields numbers, and knows how far it came and whether it has been closed."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count = count
        self.error = error
        self.yielded = 0
        self.closed = False

    async def numbers(self) -> AsyncIterator[int]:
        try:
            while self.yielded < self.count:
                self.yielded += 1
                yield self.yielded
            if self.error:
                raise self.error
        finally:
            await asyncio.sleep(0)
            self.closed = True


def test_every_item_arrives_in_order(own: Bridge) -> None:
    assert list(own.iterate(Source(1000).numbers())) == list(range(1, 1001))


def test_items_that_are_there_cross_together(own: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    hops = 0
    run = own.run

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal hops
        hops += 1
        return run(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(own, "run", counted)
    assert len(list(own.iterate(Source(1600).numbers()))) == 1600
    assert hops <= 1600 / 16 + 2


def test_a_slow_reader_holds_the_source_back(own: Bridge) -> None:
    source = Source(1000)
    numbers = own.iterate(source.numbers())
    assert next(numbers) == 1
    own.run(asyncio.sleep(0.05))
    assert source.yielded < 50
    numbers.close()


def test_nothing_begins_before_the_first_item_is_asked_for(own: Bridge) -> None:
    source = Source(3)
    numbers = own.iterate(source.numbers())
    own.run(asyncio.sleep(0))
    assert source.yielded == 0
    numbers.close()


def test_a_reader_that_breaks_closes_the_source_at_once(own: Bridge) -> None:
    source = Source(10**9)
    for number in own.iterate(source.numbers()):
        if number == 5:
            break
    assert source.closed


def test_a_reader_that_breaks_kills_the_command_at_once(tmp_path: Path) -> None:
    with Sandbox(ScratchBackend(tmp_path)) as sandbox:
        for chunk in sandbox.stream("echo $$; while :; do echo more; sleep 0.01; done"):
            pid = int(chunk.text.split()[0])
            break
        assert not is_running(pid)


def test_an_error_comes_after_the_items_before_it(own: Bridge) -> None:
    seen: list[int] = []
    numbers = own.iterate(Source(20, LookupError("lost")).numbers())
    with pytest.raises(LookupError, match="lost"):
        seen.extend(numbers)
    assert seen == list(range(1, 21))


def test_a_failed_command_raises_after_its_output(tmp_path: Path) -> None:
    with Sandbox(ScratchBackend(tmp_path)) as sandbox:
        chunks = sandbox.stream("echo hello; exit 3", check=True)
        text = next(chunks).text
        with pytest.raises(CommandFailedError):
            text += "".join(chunk.text for chunk in chunks)
    assert text == "hello\n"


def test_an_error_that_the_reader_did_not_come_to_is_not_raised(
    own: Bridge, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = own.iterate(Source(3, LookupError("never seen")).numbers())
    assert next(numbers) == 1
    own.run(asyncio.sleep(0.01))
    numbers.close()
    del numbers
    gc.collect()
    assert not caplog.records  # asyncio complains about errors that nobody has looked at


def test_an_error_while_closing_is_raised(own: Bridge) -> None:
    async def source() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            raise LookupError("could not be closed")

    numbers = own.iterate(source())
    next(numbers)
    with pytest.raises(LookupError, match="could not be closed"):
        numbers.close()


def test_a_generator_forgotten_in_the_loops_thread_closes_its_source(own: Bridge) -> None:
    source = Source(10**9)

    class Holder:
        def __init__(self) -> None:
            self.numbers = own.iterate(source.numbers())
            self.me = self  # only the garbage collector can free it

    gc.disable()
    try:
        holder = Holder()
        next(holder.numbers)
        del holder
        own.call(gc.collect)
    finally:
        gc.enable()
    deadline = time.monotonic() + 30
    while not source.closed and time.monotonic() < deadline:
        own.run(asyncio.sleep(0.01))
    assert source.closed


def test_the_source_sees_the_readers_context(own: Bridge) -> None:
    async def source() -> AsyncIterator[str]:
        yield colour.get()
        yield colour.get()

    colour.set("red")
    assert list(own.iterate(source())) == ["red", "red"]


def test_another_thread_may_read_on(own: Bridge) -> None:
    numbers = own.iterate(Source(100).numbers())
    seen = [next(numbers)]
    thread = threading.Thread(target=lambda: seen.extend(numbers))
    thread.start()
    thread.join(30)
    assert seen == list(range(1, 101))


def test_a_process_is_read_and_goes_on_when_the_reader_stops(tmp_path: Path) -> None:
    with Sandbox(ScratchBackend(tmp_path)) as sandbox:
        with sandbox.start("echo one; sleep 0.2; echo two") as process:
            for chunk in process:
                assert chunk.text == "one\n"
                break
            assert process.wait().stdout == "one\ntwo\n"


def test_leaving_a_process_kills_it(tmp_path: Path) -> None:
    with Sandbox(ScratchBackend(tmp_path)) as sandbox:
        with sandbox.start(["sleep", "600"]) as process:
            assert process.pid is not None
            assert is_running(process.pid)
        assert not is_running(process.pid)
