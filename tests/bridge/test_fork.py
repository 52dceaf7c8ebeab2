"""os.fork: the child has a loop of its own, and what is the parent's stays the parent's."""

from __future__ import annotations

from pathlib import Path

from child import Child, remaining, run_child

FORK = """
    def in_child(work):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                work()
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def test_parent_and_child_both_go_on_calling(tmp_path: Path) -> None:
    child = run_child(
        FORK
        + """
    with Sandbox(ScratchBackend(root)) as sandbox:
        def work():
            with Sandbox(ScratchBackend(root)) as own:
                say("child", own.execute_command("echo hello").stdout.strip())
        say("exit code", in_child(work))
        say("parent", sandbox.execute_command("echo hello").stdout.strip())
    """,
        tmp_path,
    )
    assert child.said == ["child hello", "exit code 0", "parent hello"]
    assert remaining(tmp_path) == []


def test_forking_while_other_threads_call_never_hangs_the_child(tmp_path: Path) -> None:
    child = run_child(
        FORK
        + """
    calling = True
    def call():
        while calling:
            BRIDGE.run(asyncio.sleep(0))
    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes = [in_child(lambda: BRIDGE.run(asyncio.sleep(0))) for _ in range(40)]
    calling = False
    for thread in threads:
        thread.join()
    say(set(codes))
    """,
        tmp_path,
    )
    assert child.said == ["{0}"]


def test_workers_of_a_forked_pool_make_sandboxes(tmp_path: Path) -> None:
    child = run_child(
        """
        import multiprocessing

        def work(number):
            with Sandbox(ScratchBackend(root)) as sandbox:
                return sandbox.execute_command(f"echo {number}").stdout.strip()

        say(work(0))
        with multiprocessing.get_context("fork").Pool(2) as pool:
            say(*pool.map(work, range(1, 5)))
        """,
        tmp_path,
    )
    assert child.said == ["0", "1 2 3 4"]
    assert remaining(tmp_path) == []


def test_what_a_forked_worker_forgets_is_destroyed_at_its_end(tmp_path: Path) -> None:
    child = run_child(
        """
        import multiprocessing

        def work():
            Sandbox(ScratchBackend(root))
            say("made", len(there()))

        sandbox = Sandbox(ScratchBackend(root))
        worker = multiprocessing.get_context("fork").Process(target=work)
        worker.start()
        worker.join()
        say("left", there() == [sandbox.id])
        """,
        tmp_path,
    )
    assert child.said == ["made 2", "left True"]


def test_a_child_that_leaves_the_block_does_not_destroy_the_parents_sandbox(
    tmp_path: Path,
) -> None:
    child = Child(
        """
        with Sandbox(ScratchBackend(root)) as sandbox:
            pid = os.fork()
            if pid == 0:
                sys.exit(3)  # through the block, and through the exit handlers
            say("exit code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            say("parent", sandbox.execute_command("echo hello").stdout.strip())
        """,
        tmp_path,
    )
    assert child.end() == 0, child.errors
    assert child.said == ["exit code 3", "parent hello"]
    assert child.errors == ""


def test_a_child_is_refused_the_parents_sandbox(tmp_path: Path) -> None:
    child = run_child(
        FORK
        + """
    with Sandbox(ScratchBackend(root)) as sandbox:
        def work():
            try:
                sandbox.execute_command("true")
            except SandboxClosedError as exc:
                say(exc.message)
            say("facts", sandbox.id == there()[0])
        in_child(work)
    """,
        tmp_path,
    )
    assert child.said == [
        "this was made before os.fork() and belongs to the parent process",
        "facts True",
    ]


def test_a_child_that_drops_a_stream_does_not_end_it_for_the_parent(tmp_path: Path) -> None:
    child = run_child(
        FORK
        + """
    with Sandbox(ScratchBackend(root)) as sandbox:
        chunks = sandbox.stream("echo one; while [ ! -e go ]; do sleep 0.05; done; echo two")
        say(next(chunks).text.strip())
        in_child(lambda: chunks.close())
        sandbox.write_file("go", "")
        say(*[chunk.text.strip() for chunk in chunks])
    """,
        tmp_path,
    )
    assert child.said == ["one", "two"]
