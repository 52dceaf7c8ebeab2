from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import pytest

from sandlot.backends.local.code_server import PROGRAM, CodeRun, CodeServer, socketpair
from sandlot.errors import SandboxConnectionError, SandboxExecutionError
from sandlot.types import Exit

PYTHON = os.environ.get("SANDLOT_TEST_PYTHON", sys.executable)
"""An interpreter in a sandbox need not be the one that runs the tests."""
ENV = {
    key: value
    for key, value in os.environ.items()
    if not key.startswith(("PYTHON", "COV", "PYTEST"))
} | {"MARK": "of the server"}
NO_CHANGE: Mapping[str, str] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Ran:
    exit: Exit
    stdout: bytes
    stderr: bytes


class Server(CodeServer):
    """A server with its process, and an easy way to run code to its end."""

    process: subprocess.Popen[bytes]

    async def run(
        self,
        code: str,
        stdin: bytes = b"",
        cwd: str = "/",
        env: Mapping[str, str | None] = NO_CHANGE,
    ) -> Ran:
        async with self.running(code, stdin, cwd, env) as (run, streams):
            # Read along: who fills a pipe that nobody reads never ends.
            reading = [asyncio.to_thread(read, fd) for fd in streams]
            stdout, stderr = await asyncio.gather(*reading)
            ended = await run.exited
            return Ran(ended, stdout, stderr)

    @asynccontextmanager
    async def running(
        self,
        code: str,
        stdin: bytes = b"",
        cwd: str = "/",
        env: Mapping[str, str | None] = NO_CHANGE,
    ) -> AsyncIterator[tuple[CodeRun, list[int]]]:
        """Start code; yield it with the ends of its output to read from."""
        (source, feed), (out, out_end), (err, err_end) = os.pipe(), os.pipe(), os.pipe()
        assert len(stdin) <= 65536  # it fits into the pipe
        os.write(feed, stdin)
        os.close(feed)
        try:
            try:
                run = await self.start(code, cwd=cwd, env=env, fds=(source, out_end, err_end))
            finally:
                for fd in (source, out_end, err_end):
                    os.close(fd)
            yield run, [out, err]
        finally:
            os.close(out)
            os.close(err)


def read(fd: int) -> bytes:
    with os.fdopen(os.dup(fd), "rb") as file:
        return file.read()


@asynccontextmanager
async def serving(*modules: str, python: str = PYTHON, **env: str) -> AsyncIterator[Server]:
    before = set(os.listdir("/proc/self/fd"))
    ours, theirs = socketpair()
    with theirs:
        process = await asyncio.to_thread(
            lambda: subprocess.Popen(
                [python, PROGRAM, *modules], stdin=theirs.fileno(), env=ENV | env
            )
        )
    server = Server(ours)
    server.process = process
    try:
        yield server
    finally:
        server.close()
        assert await asyncio.wait_for(asyncio.to_thread(process.wait), 20) is not None
    assert set(os.listdir("/proc/self/fd")) == before, "a descriptor was leaked"


def plain(code: str, stdin: bytes = b"", cwd: str = "/", env: Mapping[str, str] = NO_CHANGE) -> Ran:
    """Run code as the server should."""
    done = subprocess.run(
        [PYTHON, "-c", code],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env={**ENV, **env},
        check=False,
    )
    number = -done.returncode if done.returncode < 0 else None
    code_ = 128 + number if number else done.returncode
    return Ran(Exit(exit_code=code_, signal=number), done.stdout, done.stderr)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (it is about other processes)
            await asyncio.sleep(0.01)


# ----------------------------------------------------------------- as python -c would
PROGRAMS = {
    "nothing": "",
    "output": "print('to out'); import sys; print('to err', file=sys.stderr)",
    "no newline": "print('x', end='')",
    "syntax error": "print(1",
    "indentation error": "if True:\npass",
    "tab error": "if 1:\n\tx = 1\n        y = 2",
    "null byte": "x = '\\0'\nprint(ascii(x))",
    "exception": "def f():\n    1 / 0\n\nf()",
    "chained": "try:\n    {}[1]\nexcept KeyError as e:\n    raise ValueError('no') from e",
    "in context": "try:\n    {}[1]\nexcept KeyError:\n    undefined",
    "group": "import sys\nif sys.version_info < (3, 11): sys.exit()\n"
    "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "own exception": "class Odd(Exception): pass\nraise Odd('is', 'odd')",
    "exit 0": "import sys; sys.exit()",
    "exit 3": "import sys; sys.exit(3)",
    "exit 256": "import sys; sys.exit(256)",
    "exit -1": "import sys; sys.exit(-1)",
    "exit far": "import sys; sys.exit(2 ** 40)",
    "exit True": "import sys; sys.exit(True)",
    "exit text": "import sys; print('before'); sys.exit('what went wrong')",
    "exit tuple": "raise SystemExit(1, 2)",
    "exit by name": "exit(4)",
    "exit hard": "import os; print('lost'); os._exit(5)",
    "exit in thread": "import threading, sys\n"
    "t = threading.Thread(target=lambda: sys.exit(9)); t.start(); t.join(); print('on')",
    "exit in finally": "import sys\ntry:\n    1 / 0\nfinally:\n    sys.exit(6)",
    "interrupt": "raise KeyboardInterrupt",
    "killed": "import os, signal; print('x', flush=True); os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    "aborted": "import os; os.abort()",
    "signals": "import signal\n"
    "for n in (1, 2, 13, 15, 17, 25):\n    print(n, signal.getsignal(n))\n"
    "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))",
    "input": "name = input('who? ')\nprint('hello', name)\nprint(repr(input()))",
    "stdin": "import sys\nprint(len(sys.stdin.buffer.read()), sys.stdin.read())",
    "stdin bytes": "import os; print(os.read(0, 4), os.read(0, 100))",
    "deep": "def f(n): return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError as e:\n    print(e)",
    "too deep": "def f(): f()\nf()",
    "unicode": "print('häß 🐍 \\udc80'.encode('utf-8', 'surrogateescape'))\nprint('häß 🐍')",
    "surrogate": "print('\\ud800')",
    "bytes": "import sys; sys.stdout.buffer.write(bytes(range(256)))",
    "much": "import sys\nfor i in range(20000): print(i, 'x' * 20)\nsys.stderr.write('y' * 99999)",
    "main": "if __name__ == '__main__': print('it is')",
    "names": "print(sorted(globals()), __name__, __doc__, __spec__, __package__, __loader__)\n"
    "print(__builtins__, __annotations__ if '__annotations__' in globals() else None)",
    "module": "import sys\nx = 5\nmain = sys.modules['__main__']\nprint(main.x, main)",
    "sys": "import sys\nprint(sys.argv, sys.path, sys.flags, sys.executable, sys.warnoptions)\n"
    "print(sys.stdin, sys.stdout, sys.stderr, sys.stdout.line_buffering, sys.stderr.errors)\n"
    "print(sys.stdout.buffer, sys.stdin.buffer.raw.name, sys.stdout.seekable(), sys.stdout.mode)\n"
    "print(sys.stdout is sys.__stdout__, sys.getrecursionlimit(), sys.stdout.write_through)",
    "orig_argv": "import sys; print(getattr(sys, 'orig_argv', None))",
    "future": "from __future__ import annotations\nx: undefined = 1\nprint(__annotations__)",
    "no future": "x: (1 / 0) = 1",
    "future is not inherited": "def f(a: 1): pass\nprint(f.__annotations__)",
    "ids": "import os; print(os.getsid(0) == os.getpid() == os.getpgid(0), os.getcwd())",
    "own session": "import os; print(sorted(os.listdir('/proc/self/fd')))",
    "umask": "import os; print(os.umask(0))",
    "threads": "import threading, time\n"
    "over = threading.Event()\n"
    "def late(): over.wait(); time.sleep(0.05); print('thread')\n"
    "for n in range(3): threading.Thread(target=late).start()\nprint('main')\nover.set()",
    "daemon threads": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint('main')",
    "exception in thread": "import threading\n"
    "t = threading.Thread(target=lambda: 1 / 0, name='it'); t.start(); t.join()",
    "pool": "from concurrent.futures import ThreadPoolExecutor\n"
    "p = ThreadPoolExecutor(2)\np.submit(print, 'in pool')\nprint(sum(p.map(abs, [-1, 2])))",
    "atexit": "import atexit\natexit.register(print, 'last')\natexit.register(print, 'first')\n"
    "print('main')",
    "atexit after failure": "import atexit\natexit.register(print, 'bye')\nraise ValueError",
    "atexit fails": "import atexit\natexit.register(lambda: 1 / 0)\natexit.register(print, 'x')",
    "finalizers": "class A:\n    def __del__(self): print('gone', self.n)\n"
    "a = A(); a.n = 1\nb = A(); b.n = 2; b.me = b",
    "weakref": "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'finalized')",
    "excepthook": "import sys\nsys.excepthook = lambda t, v, tb: print('mine', t, v)\n1 / 0",
    "bad excepthook": "import sys\n"
    "def hook(*a): raise OSError('bad')\nsys.excepthook = hook\n1 / 0",
    "exiting hook": "import sys\ndef hook(*a): sys.exit(8)\nsys.excepthook = hook\n1 / 0",
    "warnings": "import warnings\nwarnings.warn('careful')\n"
    "warnings.warn('old', DeprecationWarning)",
    "closed stdout": "import sys; sys.stdout.close()",
    "no stdout": "import os; os.close(1); print('x')",
    "stdout is none": "import sys; sys.stdout = None; print('x'); sys.stderr.write('y')",
    "replaced stdout": "import sys, io; sys.stdout = io.StringIO(); print('x')",
    "full": "import os\nos.dup2(os.open('/dev/full', os.O_WRONLY), 1)\nprint('x')",
    "asyncio": "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    print('async')\n"
    "asyncio.run(f())",
    "subprocess": "import subprocess\nprint(subprocess.run(['echo', 'hi'], capture_output=True))\n"
    "subprocess.run('echo to out; echo to err >&2; cat', shell=True)",
    "fork": "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n"
    "print('child' if not pid else 'parent')",
    "processes": "import multiprocessing as m\n"
    "class Point:\n    def __init__(self, x): self.x = x\n"
    "def double(p): return Point(2 * p.x)\n"
    "if __name__ == '__main__':\n"
    "    with m.get_context('fork').Pool(2) as pool:\n"
    "        print([p.x for p in pool.map(double, [Point(1), Point(2)])])",
    "spawn": "import multiprocessing as m\n"
    "if __name__ == '__main__':\n"
    "    p = m.get_context('spawn').Process(target=print, args=('spawned',))\n"
    "    p.start(); p.join(); print(p.exitcode)",
    "pickle": "import pickle\nclass A:\n    x = 1\nprint(pickle.loads(pickle.dumps(A())).x, A)",
    "traceback module": "import traceback\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n"
    "    traceback.print_exc()\n    print(traceback.format_exc())",
    "inspect": "import inspect\ndef f(): pass\n"
    "try: print(inspect.getsource(f))\nexcept OSError as e: print(e)",
    "logging": "import logging\n"
    "logging.warning('w')\nlogging.basicConfig(level=0)\nlogging.info('i')",
    "faulthandler": "import faulthandler; faulthandler.enable(); print(faulthandler.is_enabled())",
    "import error": "import no_such_module",
    "encoding": "import sys, locale\n"
    "print(sys.getdefaultencoding(), sys.getfilesystemencoding(), locale.getpreferredencoding())",
}


def comparable(ran: Ran) -> tuple[int, int | None, bytes, bytes]:
    # Addresses differ from run to run; and the frames below the code count into its depth.
    stdout, stderr = (re.sub(rb"0x\w+", b"0x", text) for text in (ran.stdout, ran.stderr))
    stderr = re.sub(rb"repeated \d+ more", b"repeated", stderr)
    return ran.exit.exit_code, ran.exit.signal, stdout, stderr


async def test_code_does_just_what_a_new_interpreter_would_do() -> None:
    different = []
    async with serving() as server:
        for name, code in PROGRAMS.items():
            stdin = "Zoë\nrest".encode()
            expected = await asyncio.to_thread(
                plain, f"import os; os.setsid()\n{code}" if name == "ids" else code, stdin
            )
            found = await asyncio.wait_for(server.run(code, stdin), 30)
            if comparable(found) != comparable(expected):
                different.append((name, comparable(found), comparable(expected)))
    assert different == []


async def test_code_runs_where_and_with_what_it_is_told(tmp_path: Path) -> None:
    show = "import os; print(os.getcwd(), os.environ.get('MARK'), os.environ.get('NEW'))"
    async with serving() as server:
        assert (await server.run(show)).stdout == b"/ of the server None\n"
        env = {"MARK": None, "NEW": "schön\udc80"}
        shown = await server.run(
            "import os\n"
            "print(os.getcwd(), os.environ.get('MARK'), os.environb[b'NEW'], flush=True)\n"
            "os.system('echo $MARK:$NEW')",
            cwd=str(tmp_path),
            env=env,
        )
        assert shown.stdout == b"%s None %r\n:sch\xc3\xb6n\x80\n" % (
            os.fsencode(tmp_path),
            "schön".encode() + b"\x80",
        )
        (tmp_path / "beside.py").write_text("x = 7")
        found = await server.run("import beside; print(beside.x)", cwd=str(tmp_path))
        assert found.stdout == b"7\n"


async def test_runs_share_nothing_but_what_was_imported() -> None:
    async with serving() as server:
        await server.run("import json, builtins, os\njson.x = builtins.x = os.environ['X'] = '1'")
        seen = await server.run(
            "import json, os, builtins\n"
            "print(hasattr(json, 'x'), os.environ.get('X'), hasattr(builtins, 'x'))"
        )
        assert seen.stdout == b"False None False\n"
        randoms = [
            (await server.run("import random, uuid; print(random.random(), uuid.uuid4())")).stdout
            for _ in range(3)
        ]
        assert len(set(randoms)) == 3


async def test_what_was_written_to_files_is_there_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("log = open('module', 'w'); log.write('x')")
    code = (
        "open('dropped', 'w').write('x')\n"
        "f = open('global', 'w'); f.write('x')\n"
        "import json, mine, logging\n"
        "json.f = open('on a module', 'w'); json.f.write('x')\n"
        "loop = [open('in a loop', 'w')]; loop.append(loop); loop[0].write('x')\n"
        "logging.basicConfig(filename='log', format='%(message)s'); logging.warning('x')\n"
    )
    async with serving() as server:
        assert (await server.run(code, cwd=str(tmp_path))).exit.exit_code == 0
    for name in ("dropped", "global", "module", "on a module", "in a loop", "log"):
        assert (tmp_path / name).read_text().strip() == "x", name


async def test_code_and_output_can_be_large() -> None:
    async with serving() as server:
        found = await server.run(f"data = {'x' * 5_000_000!r}\nprint(data)")
        assert found.stdout == b"x" * 5_000_000 + b"\n"


@pytest.mark.parametrize(
    ("files", "env", "code"),
    [
        ({"random.py": "x = 'mine'"}, {}, "import random; print(random.x)"),
        ({"json/__init__.py": "x = 'mine'"}, {}, "import json; print(json.x)"),
        ({"lib/own.py": "x = 'mine'"}, {"PYTHONPATH": "lib"}, "import own; print(own.x)"),
        ({}, {"PYTHONHASHSEED": "0"}, "print('mine' if hash('a') == {seed} else '')"),
        ({}, {"TZ": "XXX-5"}, "import time; print('mine' if time.tzname[0] == 'XXX' else '')"),
        ({}, {"HOME": "/none"}, "import site; print('mine' if '/none' in site.USER_BASE else '')"),
    ],
)
async def test_where_a_new_interpreter_would_differ_there_is_one(
    tmp_path: Path, files: dict[str, str], env: dict[str, str], code: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    seed = plain("print(hash('a'))", env={"PYTHONHASHSEED": "0"}).stdout.decode().strip()
    code = code.replace("{seed}", seed) + "\nimport sys; sys.exit(3)"
    async with serving() as server:
        found = await server.run(code, cwd=str(tmp_path), env=env)
    expected = plain(code, cwd=str(tmp_path), env=env)
    assert comparable(found) == comparable(expected) == (3, None, b"mine\n", b"")


def made_venv(path: Path) -> Path:
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", path], check=True)
    (site,) = path.glob("lib/python3*/site-packages")
    return site


async def test_what_is_installed_meanwhile_is_seen(tmp_path: Path) -> None:
    site = await asyncio.to_thread(made_venv, tmp_path)
    code = "import sys, added; print(added.x, 'decimal' in sys.modules)"
    async with serving("decimal", python=str(tmp_path / "bin/python")) as server:
        assert b"No module named 'added'" in (await server.run(code)).stderr
        background = "import os, time\nif not os.fork(): time.sleep(100)"
        async with server.running(background) as (run, _):
            assert (await run.exited).exit_code == 0
            (tmp_path / "elsewhere").mkdir()
            (tmp_path / "elsewhere/added.py").write_text("x = 1")
            (site / "added.pth").write_text(str(tmp_path / "elsewhere"))
            # At first by a new interpreter, and then by a server that has begun anew.
            assert (await server.run(code)).stdout == b"1 False\n"
            assert (await server.run(code)).stdout == b"1 True\n"
            assert not run.gone.done()
            await run.kill()


async def test_modules_are_imported_before_or_it_is_said_why_not(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    async with serving("decimal", "none_such", "broken", PYTHONPATH=str(tmp_path)) as server:
        missing = await asyncio.wait_for(server.ready, 20)
        assert set(missing) == {"none_such", "broken"}
        assert "ZeroDivisionError" in missing["broken"]
        found = await server.run(
            "import sys; print('decimal' in sys.modules, 'csv' in sys.modules)"
        )
        assert found.stdout == b"True False\n"


async def test_code_that_cannot_be_started_says_why() -> None:
    async with serving() as server:
        with pytest.raises(SandboxExecutionError, match="No such file"):
            await server.run("", cwd="/no/where")
        with pytest.raises(SandboxExecutionError, match="Not a directory"):
            await server.run("", cwd="/dev/null")
        assert (await server.run("print(1)")).stdout == b"1\n"


async def test_usage_is_measured() -> None:
    async with serving() as server:
        usage = (await server.run("x = b'x' * (80 << 20)\nsum(range(3_000_000))")).exit.usage
    assert usage
    assert usage.max_rss_mb > 80
    assert usage.user_secs > 0.01


# ----------------------------------------------------------------------- many at once
async def test_twenty_at_once_keep_apart() -> None:
    async with serving() as server:
        code = "import time, sys; time.sleep(0.2); print(input()); sys.exit({n})"
        found = await asyncio.gather(
            *(server.run(code.format(n=n), stdin=b"%d" % n) for n in range(20))
        )
    assert [(ran.exit.exit_code, ran.stdout) for ran in found] == [
        (n, b"%d\n" % n) for n in range(20)
    ]


async def test_more_requests_than_descriptors_allow_in_flight_wait_their_turn() -> None:
    async with serving() as server:
        null = os.open(os.devnull, os.O_RDWR)
        fds = [null, null, null]
        runs = await asyncio.gather(
            *(server.start("", cwd="/", env={}, fds=fds) for _ in range(200))
        )
        os.close(null)
        exits = await asyncio.gather(*(run.exited for run in runs))
        await asyncio.gather(*(run.gone for run in runs))
    assert {ended.exit_code for ended in exits} == {0}


# -------------------------------------------------------------------------------- ends
TREE = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def report(): print(os.getpid(), flush=True)
def forks(then):
    if not os.fork():
        then()
        report()
        time.sleep(100)
        os._exit(0)
forks(lambda: None)
forks(os.setsid)
def daemon():
    os.setsid()
    if os.fork(): os._exit(0)
    os.environ.clear()
    os.closerange(3, 100)
forks(daemon)
report()
"""


async def pids(fd: int, count: int) -> list[int]:
    text = b""
    while text.count(b"\n") < count:
        text += await asyncio.to_thread(os.read, fd, 4096)
    return [int(pid) for pid in text.split()]


@pytest.mark.parametrize("ended", [False, True])
async def test_kill_leaves_no_descendant_whatever_session_it_made(ended: bool) -> None:
    async with serving() as server:
        async with server.running(TREE + ("" if ended else "time.sleep(100)")) as (run, streams):
            tree = await pids(streams[0], 4)
            assert run.pid in tree
            assert all(alive(pid) for pid in tree if pid != run.pid)
            if ended:
                assert (await run.exited).exit_code == 0
                assert not run.gone.done()
            await asyncio.wait_for(run.kill(), 20)
            assert not any(map(alive, tree))
            assert (await run.exited).signal == (None if ended else signal.SIGKILL)
            await run.kill()
        assert (await server.run("print(1)")).stdout == b"1\n"


async def test_kill_catches_up_with_those_that_fork_and_flee() -> None:
    chain = (
        "import os, time\n"
        "while True:\n"
        "    time.sleep(0.002)\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.setsid()\n"
        "    os.write(1, b'%d\\n' % os.getpid())\n"
    )
    async with serving() as server:
        async with server.running(chain) as (run, streams):
            await pids(streams[0], 5)
            await asyncio.wait_for(run.kill(), 20)
            assert await asyncio.to_thread(lambda: read(streams[0])) is not None  # it ends


async def test_the_end_of_the_leader_is_told_at_once_and_the_rest_lives_on() -> None:
    async with serving() as server:
        code = "import os, time\nif not os.fork(): time.sleep(0.3); print('late')"
        async with server.running(code) as (run, streams):
            assert (await run.exited).exit_code == 0
            assert not run.gone.done()
            assert await asyncio.to_thread(read, streams[0]) == b"late\n"
            await asyncio.wait_for(run.gone, 20)


def tree_below(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, children) for found in (child, *tree_below(child))]


async def test_whenever_a_start_is_cancelled_nothing_is_left_running() -> None:
    async with serving() as server:
        await server.run("")
        null = os.open(os.devnull, os.O_RDWR)
        for delay in range(20):
            starting = asyncio.ensure_future(
                server.start("import time; time.sleep(100)", cwd="/", env={}, fds=[null] * 3)
            )
            await asyncio.sleep(delay / 1000)
            starting.cancel()
            with suppress(asyncio.CancelledError):
                (await starting).close()
        os.close(null)
        # Only the pair that waits is there again.
        await until(lambda: len(tree_below(server.process.pid)) == 2)
        assert (await server.run("print(1)")).stdout == b"1\n"


@pytest.mark.parametrize("way", ["close", "vanish"])
async def test_when_the_client_ends_everything_ends(way: str, tmp_path: Path) -> None:
    if way == "close":
        async with serving() as server:
            async with server.running(TREE + "time.sleep(100)") as (run, streams):
                tree = await pids(streams[0], 4)
                server.close()
                with pytest.raises(SandboxExecutionError):
                    await run.exited
                await asyncio.to_thread(server.process.wait)
        assert not any(map(alive, tree))
        return
    program = (
        "import asyncio, os, sys\n"
        f"sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
        "import test_code_server as t\n"
        "async def main():\n"
        "    async with t.serving() as server:\n"
        f"        async with server.running({TREE + 'time.sleep(100)'!r}) as (run, streams):\n"
        "            print(*await t.pids(streams[0], 4), server.process.pid, flush=True)\n"
        "            os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    everything = [int(pid) for pid in done.stdout.split()]
    assert len(everything) == 5
    await until(lambda: not any(map(alive, everything)))


async def test_a_killed_zygote_leaves_runs_to_end_and_refuses_new_ones() -> None:
    async with serving() as server:
        async with server.running("import time; input(); print('done')", b"x") as (run, streams):
            await server.ready
            server.process.kill()
            await asyncio.to_thread(server.process.wait)
            assert (await asyncio.wait_for(run.exited, 20)).exit_code == 0
            assert await asyncio.to_thread(read, streams[0]) == b"done\n"
            # The pair that waited may still take one.
            with suppress(SandboxConnectionError):
                await asyncio.wait_for(server.run("pass"), 20)
            with pytest.raises(SandboxConnectionError):
                await asyncio.wait_for(server.run("pass"), 20)
            await until(lambda: server.closed)


async def test_a_server_that_does_not_come_up_is_told() -> None:
    ours, theirs = socketpair()
    server = CodeServer(ours)
    waiting = asyncio.ensure_future(server.start("", cwd="/", env={}, fds=(0, 1, 2)))
    await asyncio.sleep(0)
    theirs.close()
    with pytest.raises(SandboxConnectionError):
        await asyncio.wait_for(server.ready, 20)
    with pytest.raises(SandboxConnectionError):
        await asyncio.wait_for(waiting, 20)
    with pytest.raises(SandboxConnectionError):
        await server.start("", cwd="/", env={}, fds=(0, 1, 2))
    server.close()


async def test_code_that_kills_its_keeper_is_killed_and_hurts_nobody_else() -> None:
    async with serving() as server:
        async with server.running(TREE + "os.kill(os.getppid(), 9)\ntime.sleep(100)") as (
            run,
            streams,
        ):
            with pytest.raises(SandboxExecutionError, match="keeper"):
                await asyncio.wait_for(run.exited, 20)
            tree = await pids(streams[0], 1)
            await until(lambda: not any(map(alive, [*tree, run.pid])))
        assert (await server.run("print(1)")).stdout == b"1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, and a cgroup to limit processes")
async def test_without_room_for_processes_a_start_fails_and_then_works_again() -> None:
    from sandlot.backends.local import limits

    name = f"sandlot-test-code-{os.getpid()}"
    cgroup = await asyncio.to_thread(limits.Cgroup.create, name, pids_limit=8)
    try:
        async with serving() as server:
            await asyncio.to_thread(move_into, cgroup.paths, server.process.pid)
            code = "import time; time.sleep(100)"
            async with AsyncExitStack() as stack:
                runs: list[CodeRun] = []

                async def fill() -> None:
                    for _ in range(8):
                        entered = server.running(code)
                        runs.append((await stack.enter_async_context(entered))[0])

                with pytest.raises(SandboxExecutionError, match="temporarily unavailable"):
                    await fill()
                assert len(runs) > 1
                for run in runs:
                    await run.kill()
            assert (await server.run("print(1)")).stdout == b"1\n"
    finally:
        await asyncio.to_thread(cgroup.remove)


def move_into(cgroup: Sequence[str], pid: int) -> None:
    for path in cgroup:
        for member in (pid, *tree_below(pid)):
            Path(path, "cgroup.procs").write_text(str(member))


async def test_it_is_faster_than_a_new_interpreter(
    record_property: Callable[[str, object], None],
) -> None:
    code = "import json, re, random, datetime, subprocess, pathlib, tempfile"
    server_times, plain_times = [], []
    async with serving() as server:
        await server.ready
        for _ in range(15):
            began = time.perf_counter()
            await server.run(code)
            server_times.append(time.perf_counter() - began)
            began = time.perf_counter()
            await asyncio.to_thread(plain, code)
            plain_times.append(time.perf_counter() - began)
    warm, cold = statistics.median(server_times), statistics.median(plain_times)
    record_property("ms", json.dumps({"server": warm * 1000, "python -c": cold * 1000}))
    assert warm < cold
