"""Ctrl-C: a real SIGINT to a real process in the middle of a blocking call."""

from __future__ import annotations

from pathlib import Path

from child import Child, remaining
from scratch_backend import is_running


def test_ctrl_c_kills_the_command_before_it_is_raised(tmp_path: Path) -> None:
    child = Child(
        """
        with Sandbox(ScratchBackend(root)) as sandbox:
            try:
                sandbox.execute_command("echo $$ > pid; exec sleep 600")
            except KeyboardInterrupt:
                pid = int(sandbox.read_file("pid"))
                say("interrupted", is_running(pid))
        """,
        tmp_path,
    )
    child.await_file("*/pid")
    child.interrupt()
    assert child.end() == 0, child.errors
    assert child.said == ["interrupted False"]
    assert remaining(tmp_path) == []


def test_ctrl_c_that_nobody_catches_leaves_nothing_behind(tmp_path: Path) -> None:
    child = Child(
        """
        sandbox = Sandbox(ScratchBackend(root))
        sandbox.execute_command("echo $$ > pid; exec sleep 600")
        """,
        tmp_path,
    )
    pid = int(child.await_file("*/pid").read_text())
    child.interrupt()
    assert child.end() != 0
    assert child.errors.rstrip().endswith("KeyboardInterrupt")
    assert not is_running(pid)
    assert remaining(tmp_path) == []


def test_ctrl_c_during_a_create_leaves_nothing_behind(tmp_path: Path) -> None:
    child = Child(
        """
        threading.Thread(target=tell_when_creating).start()
        try:
            Sandbox(ScratchBackend(root, slow_create=600))
        except KeyboardInterrupt:
            say(there())
        """,
        tmp_path,
    )
    child.await_line("creating")
    child.interrupt()
    assert child.end() == 0, child.errors
    assert child.said[1:] == ["[]"]


def test_a_sandbox_that_came_to_be_despite_ctrl_c_is_destroyed(tmp_path: Path) -> None:
    child = Child(
        """
        threading.Thread(target=tell_when_creating).start()
        try:
            Sandbox(ScratchBackend(root, slow_create=1, stubborn=True))
        except KeyboardInterrupt:
            say(there())
        """,
        tmp_path,
    )
    child.await_line("creating")
    child.interrupt()
    assert child.end() == 0, child.errors
    assert child.said[1:] == ["[]"]


def test_ctrl_c_during_a_stream_kills_the_command(tmp_path: Path) -> None:
    child = Child(
        """
        with Sandbox(ScratchBackend(root)) as sandbox:
            try:
                for chunk in sandbox.stream("echo $$; exec sleep 600"):
                    pid = int(chunk.text)
                    say("streaming")
            except KeyboardInterrupt:
                say("interrupted", is_running(pid))
        """,
        tmp_path,
    )
    child.await_line("streaming")
    child.interrupt()
    assert child.end() == 0, child.errors
    assert child.said[1:] == ["interrupted False"]


def test_ctrl_c_waits_for_clean_up(tmp_path: Path) -> None:
    child = Child(
        """
        async def work():
            try:
                say("working")
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(0.5)
                say("cleaned")

        try:
            BRIDGE.run(work())
        except KeyboardInterrupt:
            say("interrupted")
        """,
        tmp_path,
    )
    child.await_line("working")
    child.interrupt()
    assert child.end() == 0, child.errors
    assert child.said == ["working", "cleaned", "interrupted"]


def test_a_signal_that_does_not_wake_the_waiting_thread_is_seen_all_the_same(
    tmp_path: Path,
) -> None:
    child = Child(
        """
        import signal

        async def work():
            await asyncio.sleep(0.3)
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            await asyncio.sleep(600)

        try:
            BRIDGE.run(work())
        except KeyboardInterrupt:
            say("interrupted")
        """,
        tmp_path,
    )
    assert child.end() == 0, child.errors
    assert child.said == ["interrupted"]


STUCK = """
    async def stuck():
        try:
            say("working")
            await asyncio.sleep(600)
        finally:
            say("cleaning")
            await asyncio.sleep(600)
"""


def test_clean_up_that_does_not_end_is_waited_for_only_so_long(tmp_path: Path) -> None:
    child = Child(
        STUCK
        + """
    _bridge._PATIENCE = 0.3
    try:
        BRIDGE.run(stuck())
    except KeyboardInterrupt:
        say("interrupted")
    say(BRIDGE.run(asyncio.sleep(0, "next")))
    """,
        tmp_path,
    )
    child.await_line("working")
    child.interrupt()
    assert child.end() == 0, child.errors
    assert child.said == ["working", "cleaning", "interrupted", "next"]
    assert "still cleaning up" in child.errors


def test_a_second_ctrl_c_ends_the_wait_for_clean_up(tmp_path: Path) -> None:
    child = Child(
        STUCK
        + """
    _bridge._PATIENCE = 600
    try:
        BRIDGE.run(stuck())
    except KeyboardInterrupt:
        say("interrupted")
    """,
        tmp_path,
    )
    child.await_line("working")
    child.interrupt()
    child.await_line("cleaning")
    child.interrupt()
    assert child.end() == 0, child.errors
    assert child.said == ["working", "cleaning", "interrupted"]


def test_what_fails_while_being_interrupted_is_not_lost(tmp_path: Path) -> None:
    child = Child(
        """
        async def failing():
            try:
                say("working")
                await asyncio.sleep(600)
            finally:
                raise OSError("the clean-up failed")

        try:
            BRIDGE.run(failing())
        except KeyboardInterrupt:
            say("interrupted")
        """,
        tmp_path,
    )
    child.await_line("working")
    child.interrupt()
    assert child.end() == 0, child.errors
    assert "the clean-up failed" in child.errors


STUCK_STREAM = """
    async def stuck():
        try:
            say("streaming")  # in the loop's thread, when the reader has begun to wait
            await asyncio.sleep(600)
            yield
        finally:
            say("cleaning")
            while True:
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    pass

    def read():
        try:
            for _ in BRIDGE.iterate(stuck()):
                pass
        except KeyboardInterrupt:
            say("interrupted")

    _at_exit.PATIENCE = 0.1
"""


def test_a_stream_that_does_not_close_is_waited_for_only_so_long(tmp_path: Path) -> None:
    child = Child(STUCK_STREAM + "    _bridge._PATIENCE = 0.3\n    read()", tmp_path)
    child.await_line("streaming")
    child.interrupt()
    assert child.end() == 0, child.errors
    assert child.said == ["streaming", "cleaning", "interrupted"]
    assert "still cleaning up" in child.errors


def test_a_second_ctrl_c_ends_the_wait_for_a_stream_that_does_not_close(tmp_path: Path) -> None:
    child = Child(STUCK_STREAM + "    _bridge._PATIENCE = 600\n    read()", tmp_path)
    child.await_line("streaming")
    child.interrupt()
    child.await_line("cleaning")
    child.interrupt()
    assert child.end() == 0, child.errors
    assert child.said == ["streaming", "cleaning", "interrupted"]


def test_a_process_that_was_started_despite_ctrl_c_is_killed(tmp_path: Path) -> None:
    child = Child(
        """
        from sandlot import AsyncProcess

        async def start():
            process = await sandbox._inner.start(["sleep", "600"])
            pids.append(process.pid)
            os.kill(os.getpid(), 2)  # there is no await any more for it to be cancelled at
            return process

        pids = []
        with Sandbox(ScratchBackend(root)) as sandbox:
            try:
                BRIDGE.run(start(), undo=AsyncProcess.kill)
            except KeyboardInterrupt:
                say("interrupted", is_running(pids[0]))
        """,
        tmp_path,
    )
    assert child.end() == 0, child.errors
    assert child.said == ["interrupted False"]
