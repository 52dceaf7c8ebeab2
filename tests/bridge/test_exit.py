"""The end of the program: what nobody asked to keep is gone, however the program ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from child import Child, remaining, run_child
from scratch_backend import is_running


@pytest.mark.parametrize(
    ("ending", "code"),
    [("pass", 0), ("sys.exit(3)", 3), ("raise ValueError", 1), ("def f(): f()\nf()", 1)],
    ids=["end", "sys.exit", "error", "recursion"],
)
def test_a_forgotten_sandbox_is_destroyed(tmp_path: Path, ending: str, code: int) -> None:
    make = "sandbox = Sandbox(ScratchBackend(root, threaded=True))\nsay(len(there()))\n"
    child = Child(make + ending, tmp_path)
    assert child.end() == code, child.errors
    assert child.said == ["1"]
    assert remaining(tmp_path) == []


def test_sys_exit_in_a_block_destroys_and_keeps_its_code(tmp_path: Path) -> None:
    child = Child("with Sandbox(ScratchBackend(root)) as sandbox:\n    sys.exit(3)", tmp_path)
    assert child.end() == 3
    assert child.errors == ""
    assert remaining(tmp_path) == []


def test_sandboxes_that_were_to_be_kept_are_left(tmp_path: Path) -> None:
    child = run_child(
        """
        kept = Sandbox(ScratchBackend(root), keep=True)
        handed_over = Sandbox(ScratchBackend(root))
        handed_over.session_state()
        let_go = Sandbox(ScratchBackend(root))
        state = let_go.detach()
        Sandbox(ScratchBackend(root))
        with SandboxClient(ScratchBackend(root)) as client:
            again = client.resume(state)
        say(*sorted([kept.id, handed_over.id, let_go.id]))
        """,
        tmp_path,
    )
    assert remaining(tmp_path) == child.said[0].split()


def test_a_call_in_a_daemon_thread_is_cancelled(tmp_path: Path) -> None:
    child = Child(
        """
        def work():
            try:
                sandbox.execute_command("echo $$ > pid; exec sleep 600")
            except SandboxClosedError as exc:
                say("refused")

        sandbox = Sandbox(ScratchBackend(root), keep=True)
        threading.Thread(target=work, daemon=True).start()
        sys.stdin.read()
        """,
        tmp_path,
    )
    pid = int(child.await_file("*/pid").read_text())
    assert child.end() == 0, child.errors
    assert not is_running(pid)
    assert child.said in (["refused"], [])  # a daemon thread may not live to tell
    assert child.errors == ""


def test_a_create_that_comes_to_its_end_meanwhile_is_undone(tmp_path: Path) -> None:
    child = Child(
        """
        def work():
            try:
                Sandbox(ScratchBackend(root, slow_create=1, stubborn=True))
            except SandboxClosedError:
                pass

        threading.Thread(target=work, daemon=True).start()
        while not there():
            time.sleep(0.01)
        say("creating")
        """,
        tmp_path,
    )
    assert child.end() == 0, child.errors
    assert child.said == ["creating"]
    assert remaining(tmp_path) == []


def test_an_unfinished_stream_is_ended(tmp_path: Path) -> None:
    child = Child(
        """
        sandbox = Sandbox(ScratchBackend(root), keep=True)
        chunks = sandbox.stream("echo $$ > pid; echo; exec sleep 600")
        next(chunks)
        sys.stdin.read()
        """,
        tmp_path,
    )
    pid = int(child.await_file("*/pid").read_text())
    assert child.end() == 0, child.errors
    assert not is_running(pid)
    assert child.errors == ""


def test_a_stream_is_closed_while_all_that_it_needs_still_runs(tmp_path: Path) -> None:
    child = run_child(
        """
        async def source():
            helper = asyncio.create_task(asyncio.sleep(0.3, "closed with help"))
            try:
                yield
                await asyncio.sleep(600)
            finally:
                say(await helper)

        items = BRIDGE.iterate(source())
        next(items)
        """,
        tmp_path,
    )
    assert child.said == ["closed with help"]


def test_a_destroy_that_hangs_holds_the_program_only_so_long_and_is_told(tmp_path: Path) -> None:
    child = Child(
        """
        _at_exit.PATIENCE = 0.3
        stuck = Sandbox(ScratchBackend(root, slow_destroy=600))
        other = Sandbox(ScratchBackend(root))
        say(stuck.id)
        """,
        tmp_path,
    )
    assert child.end() == 0, child.errors
    assert remaining(tmp_path) == child.said
    assert child.said[0] in child.errors
    assert "may outlive this program" in child.errors


def test_exit_handlers_of_the_program_can_still_call(tmp_path: Path) -> None:
    child = run_child(
        """
        sandbox = Sandbox(ScratchBackend(root))
        atexit.register(lambda: say(sandbox.execute_command("echo hello").stdout.strip()))
        """,
        tmp_path,
    )
    assert child.said == ["hello"]
    assert remaining(tmp_path) == []


def test_threads_that_outlive_the_main_one_can_still_call(tmp_path: Path) -> None:
    child = run_child(
        """
        def work():
            threading.main_thread().join()
            say(sandbox.execute_command("echo hello").stdout.strip())
            sandbox.destroy()
            say(there())

        sandbox = Sandbox(ScratchBackend(root, threaded=True))
        threading.Thread(target=work).start()
        """,
        tmp_path,
    )
    assert child.said == ["hello", "[]"]


def test_a_call_after_the_end_is_refused(tmp_path: Path) -> None:
    child = run_child(
        """
        def late():
            for call in (sandbox.info, sandbox.destroy, lambda: Sandbox(ScratchBackend(root))):
                try:
                    call()
                except SandboxClosedError as exc:
                    say(exc.message)

        sandbox = Sandbox(ScratchBackend(root), keep=True)
        atexit.register(late)
        atexit.unregister(BRIDGE.close)
        atexit.register(BRIDGE.close)  # as if `late` had been registered before the import
        """,
        tmp_path,
    )
    assert child.said == ["the event loop behind the blocking API has ended"] * 3


def test_a_program_that_never_called_ends_without_a_thread_having_begun(tmp_path: Path) -> None:
    child = run_child("say(threading.active_count())", tmp_path)
    assert child.said == ["1"]
