# ruff: noqa: E402  (where imports are looked for is set before the first of them)
"""Starts Python code at once, by forking an interpreter that is warm. One file, no package.

Run inside a sandbox as ``python zygote.py [MODULE...]``, standard input being one end of a
SOCK_SEQPACKET pair. It imports the modules, forks, and the fork waits for code:

    zygote ─┬─ keeper ─── runner     waits for the next request
            ├─ keeper ─── runner     runs one, as ``python -c`` would
            ╰─ keeper                whose runner has exited, and left processes behind

A request is one message of any content with five descriptors: *control*, a socket of the
same kind; a file that holds ``{"code": str, "cwd": str, "env": {name: value or null}}``; and
standard input, output and error. On control the sandbox says ``failed ERRNO``, or ``started
PID`` and later ``exited STATUS USER_US SYSTEM_US PEAK_KIB``; it ends when no process of the
request is left. Any message to it, or its end, kills them all, whatever sessions they made.
The end of standard input kills everything, the zygote included. When ready, the zygote sends
``{"pid": int, "missing": {module: why it could not be imported}}``.

What differs from a new interpreter: all runs share a hash seed, the modules are imported
already, and there are some more frames below the code's. Where more would differ (something
was installed since, a file shadows an imported module, the environment changes what an
interpreter reads as it starts), the runner becomes a new interpreter instead.
"""

from __future__ import annotations

import sys

_AT_START = frozenset(sys.modules)
_SAFE_PATH = bool(getattr(sys.flags, "safe_path", sys.flags.isolated))
if __name__ == "__main__" and not _SAFE_PATH:
    del sys.path[0]  # the directory of this file

import array
import builtins
import ctypes
import errno
import gc
import io
import json
import os
import select
import signal
import socket
import types
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

_MODULES: tuple[str, ...] = (
    *("base64", "bisect", "collections", "csv", "dataclasses", "datetime", "decimal"),
    *("functools", "glob", "hashlib", "heapq", "importlib.util", "inspect", "itertools"),
    *("logging", "math", "operator", "pathlib", "pprint", "random", "re", "shutil"),
    *("statistics", "string", "struct", "subprocess", "tempfile", "textwrap", "threading"),
    *("traceback", "uuid"),
)
"""What is imported unless told otherwise: what short programs use, without the heavy."""
_READ_AT_START = ("PYTHON", "LD_", "LC_", "MALLOC_", "GLIBC_", "OMP_", "OPENBLAS_", "MKL_")
_ALSO_READ_AT_START = frozenset({"LANG", "LANGUAGE", "TZ", "HOME"})
_LONGEST_ARGUMENT = 128 * 1024 - 1
_PR_SET_CHILD_SUBREAPER = 36
_IO: Any = io.IOBase.__base__
"""The class of all files; asking it, unlike the abstract ones, runs none of the code's own."""
_KEEPERS = "--keepers="

# What the zygote is told through its pipe. Python writes the numbers of signals there too.
_TAKEN, _STALE, _ENDED, _NOTHING = b"T", b"S", b"E", b"\0"
_PID_SIZE = 4
"""Who has taken a request says so with the keeper's process id behind."""


class _Zygote:
    """The warm interpreter. It runs no code itself."""

    def __init__(self, modules: list[str], keepers: set[int]) -> None:
        self._modules = modules
        self._keepers = keepers
        self._waiting: set[int] = set()
        """Those keepers whose runners wait for a request."""
        self._ended = self._stale = False
        self._requests = socket.socket(fileno=os.dup(0))
        with open(os.devnull, "rb") as null:
            os.dup2(null.fileno(), 0)
        missing = _import_all(modules or [*_MODULES])
        self._sites = _site_state()
        self._imported = {name.partition(".")[0] for name in set(sys.modules) - _AT_START}
        _become_subreaper()
        self._hear, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(self._tell)
        gc.collect()
        gc.freeze()  # a collection would touch, and so copy, every page in each fork
        _say(self._requests, json.dumps({"pid": os.getpid(), "missing": missing}))

    def serve(self) -> _Job | None:
        """Keep a pair waiting. Returns in each runner what to run, and ``None`` at the end."""
        while True:
            self._reap()
            if self._ended and not self._keepers:
                return None
            if not (self._ended or self._waiting):
                if self._stale:
                    self._restart()
                job = self._fork_pair()
                if job is not None:
                    return job
            said = os.read(self._hear, 1)
            if said in (_TAKEN, _STALE):
                keeper = int.from_bytes(os.read(self._hear, _PID_SIZE), "big")
                self._waiting.discard(keeper)
            self._stale |= said == _STALE
            self._ended |= said == _ENDED

    def _fork_pair(self) -> _Job | None:
        try:
            pid = os.fork()
        except OSError as exc:
            self._refuse(exc.errno)
            return None
        if pid:
            self._waiting.add(pid)
            self._keepers.add(pid)
            return None
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self._hear)
            return self._pair()
        except BaseException as exc:  # noqa: BLE001  (it must never go on as a second zygote)
            _show(exc)
            os._exit(1)

    def _pair(self) -> _Job:
        """Be a keeper, and return only in the runner."""
        _become_subreaper()
        keeper, runner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:
            os._exit(1)
        if not pid:
            keeper.close()
            return self._await_request(runner)
        runner.close()
        self._requests.close()
        said, descriptors = _receive(keeper, 1)
        if not descriptors:  # the end, or it could not run what it took
            os.waitpid(pid, 0)
            os._exit(0)
        keeper.close()
        os.write(self._tell, said + os.getpid().to_bytes(_PID_SIZE, "big"))
        os.close(self._tell)
        _keep(socket.socket(fileno=descriptors[0]), pid)
        os._exit(0)

    def _await_request(self, keeper: socket.socket) -> _Job:
        os.setsid()
        said, descriptors = _receive(self._requests, 5)
        if len(descriptors) < 5:
            if not said:
                os.write(self._tell, _ENDED)
            os._exit(0)
        control = descriptors[0]
        try:
            with open(descriptors[1], "rb") as file:
                request = json.loads(file.read())
            os.chdir(request["cwd"])
        except OSError as exc:
            _say(socket.socket(fileno=control), f"failed {exc.errno}")
            os._exit(0)
        needs_new = self._needs_new(request["env"])
        taken = _STALE if needs_new == _STALE else _TAKEN
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [control]))
        keeper.sendmsg([taken], [rights])
        for number, fd in enumerate(descriptors[2:]):
            os.dup2(fd, number)
        for sock in (keeper, self._requests):
            sock.detach()  # or the collector would close a descriptor that is the code's then
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        return _Job(request["code"], request["env"], needs_new is not None)

    def _needs_new(self, env: dict[str, str | None]) -> bytes | None:
        """Return why only a new interpreter will do, if so."""
        if _site_state() != self._sites:
            return _STALE
        for name, value in env.items():
            at_start = name.startswith(_READ_AT_START) or name in _ALSO_READ_AT_START
            if at_start and os.environ.get(name) != value:
                return _TAKEN
        try:
            here = os.listdir(".")
        except OSError:  # then nothing can be imported from it either
            return None
        names = {name.partition(".")[0] for name in here if name.endswith((".py", ".so"))}
        shadows = not self._imported.isdisjoint(names.union(here))
        return _TAKEN if shadows and not _SAFE_PATH else None

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                break
            self._keepers.discard(pid)
            if pid in self._waiting:
                self._waiting.discard(pid)
                if status:  # it could not fork
                    self._refuse(errno.EAGAIN)
        # A keeper that was killed has left its processes to us.
        for pid in set(_children(os.getpid())) - self._keepers:
            _kill(pid)

    def _refuse(self, number: int | None) -> None:
        """Answer the request for which there can be no process, or wait a while for one."""
        if select.select([self._requests], [], [], 0)[0]:
            said, descriptors = _receive(self._requests, 5)
            self._ended |= not said
            for fd in descriptors[1:]:
                os.close(fd)
            if descriptors:
                with socket.socket(fileno=descriptors[0]) as control:
                    _say(control, f"failed {number}")
        select.select([self._requests], [], [], 0.05)
        os.write(self._tell, _NOTHING)  # to try again

    def _restart(self) -> None:
        """Begin anew, and so see what has been installed; children stay children."""
        os.dup2(self._requests.fileno(), 0)
        keepers = _KEEPERS + ",".join(map(str, self._keepers))
        program = os.path.abspath(__file__)
        os.execv(sys.executable, [sys.executable, program, keepers, *self._modules])


# ---------------------------------------------------------------------- keeper
def _keep(control: socket.socket, runner: int) -> None:
    """Stay with a runner and all its descendants until none is left."""
    hear, tell = os.pipe()
    for fd in (hear, tell):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, _ignore)
    signal.set_wakeup_fd(tell)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(hear, select.POLLIN)
    _say(control, f"started {runner}")
    killing = False
    while _reap_any(control, runner):
        if killing:
            for pid in _descendants():
                _kill(pid)
        # Each death is a signal, so the timeout is only for what can't be thought of.
        for fd, _ in poll.poll(100 if killing else None):
            if fd == hear:
                os.read(hear, 4096)
            else:
                killing = True
                poll.unregister(control)
                _receive(control, 0)  # or the client would get an error for what is unread


def _reap_any(control: socket.socket, runner: int) -> bool:
    """Reap who has died, tell of the runner, and return whether anybody is left."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if not pid:
            return True
        if pid == runner:
            times = (round(secs * 1_000_000) for secs in (usage.ru_utime, usage.ru_stime))
            _say(control, " ".join(map(str, ("exited", status, *times, usage.ru_maxrss))))


def _descendants() -> list[int]:
    found = _children(os.getpid())
    for pid in found:  # which grows on the way
        found += _children(pid)
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    return children


def _ignore(number: int, frame: object) -> None:
    """Be interrupted, no more: it is the wakeup descriptor that tells of a signal."""


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's
        os.kill(pid, signal.SIGKILL)


# ---------------------------------------------------------------------- runner
class _Job(NamedTuple):
    """What a runner is to run."""

    code: str
    env: dict[str, str | None]
    needs_new: bool

    def run(self) -> NoReturn:
        """Run it as ``python -c`` would, to the end of the process."""
        for name, value in self.env.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
        encoded = self.code.encode("utf-8", "surrogateescape")
        if self.needs_new and len(encoded) <= _LONGEST_ARGUMENT:
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
                signal.signal(number, signal.SIG_DFL)
            os.execv(sys.executable, [os.fsencode(sys.executable), b"-c", encoded])
        known = set(sys.modules) - {"__main__"}
        _look_new(self.code)
        _end(_execute(self.code), known)


def _look_new(code: str) -> None:
    """Make what can be seen of the interpreter look as if it had just started."""
    if not _SAFE_PATH:
        sys.path.insert(0, "")
    sys.argv = ["-c"]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [sys.executable, "-c", code]
    raw = isinstance(getattr(sys.__stdout__, "buffer", None), io.RawIOBase)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(fd, f"<{name}>", getattr(sys, f"__{name}__"), raw=raw)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    main = types.ModuleType("__main__")
    main.__loader__ = sys.modules["_frozen_importlib"].BuiltinImporter
    main.__builtins__ = builtins  # type: ignore[attr-defined]
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:  # the standard library's reseeds itself when forked
        numpy_random.seed()


def _stream(fd: int, name: str, like: Any, *, raw: bool) -> Any:
    """Return a standard stream made as the interpreter makes it, for a new descriptor."""
    mode = "w" if fd else "r"
    unbuffered = raw and mode == "w"
    binary: Any = open(fd, f"{mode}b", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    (binary if unbuffered else binary.raw).name = name
    stream: Any = io.TextIOWrapper(
        binary,
        like.encoding if like else "utf-8",
        like.errors if like else "strict",
        newline="\n",
        line_buffering=not unbuffered and (fd == 2 or binary.isatty()),
        write_through=unbuffered,
    )
    stream.mode = mode
    return stream


def _execute(code: str) -> int:
    """Run code in ``__main__`` and return its exit code, negative for a signal."""
    try:
        if sys.version_info >= (3, 13):  # tracebacks show the code's lines
            import linecache

            linecache.cache["<string>"] = len(code), None, code.splitlines(True), "<string>"
        if sys.version_info >= (3, 14):
            import textwrap

            code = textwrap.dedent(code)
        compiled = compile(code, "<string>", "exec", dont_inherit=True)
        exec(compiled, sys.modules["__main__"].__dict__)
        return 0
    except SystemExit as exc:
        return _exit_code(exc.code)
    except BaseException as exc:  # noqa: BLE001  (the code's, whatever it is)
        failure = _without_frame(exc)
    return _report(failure)


def _without_frame(exc: BaseException) -> BaseException:
    return exc.with_traceback(exc.__traceback__ and exc.__traceback__.tb_next)


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(2**63) <= code < 2**63 else 0xFF
    _flush()
    if sys.stderr is not None:
        print(code, file=sys.stderr)
    return 1


def _report(exc: BaseException) -> int:
    sys.last_type, sys.last_value, sys.last_traceback = type(exc), exc, exc.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = exc
    _flush()
    try:
        sys.excepthook(type(exc), exc, exc.__traceback__)
    except SystemExit as other:
        return _exit_code(other.code)
    except BaseException as other:  # noqa: BLE001  (the code's own hook)
        print("Error in sys.excepthook:", file=sys.stderr)
        _show(_without_frame(other))
        print("\nOriginal exception was:", file=sys.stderr)
        _show(exc)
    return -signal.SIGINT if isinstance(exc, KeyboardInterrupt) else 1


def _show(exc: BaseException) -> None:
    sys.__excepthook__(type(exc), exc, exc.__traceback__)


def _end(status: int, known: set[str]) -> NoReturn:
    """End the process as the interpreter does, in all that can be noticed.

    Taking down all modules in order would take three times as long as everything else. So
    only what the code has made is let go of, which closes its files and runs ``__del__``.
    """
    try:
        for last in (sys.modules["threading"]._shutdown, sys.modules["atexit"]._run_exitfuncs):
            with suppress(BaseException):  # the code's own; it has been shown
                last()
        flushed = _flush()
        for name in set(sys.modules) - known:
            del sys.modules[name]
        sys.last_type = sys.last_value = sys.last_traceback = None
        if sys.version_info >= (3, 12):
            sys.last_exc = None  # type: ignore[assignment]
        _flush_files()  # the collector may close a file below its buffer first
        gc.collect()
        _flush_files()
        if not (flushed and _flush()):
            status = 120
        if status < 0:
            signal.signal(-status, signal.SIG_DFL)
            os.kill(os.getpid(), -status)
    finally:
        os._exit(status)


def _flush_files() -> None:
    """Flush all files that are open, for some are held by what stays."""
    for thing in gc.get_objects():
        if issubclass(type(thing), _IO):
            try:
                if not thing.closed:
                    thing.flush()
            except (OSError, ValueError):
                pass  # as when the interpreter closes it in the end


def _flush() -> bool:
    good = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException as exc:  # noqa: BLE001  (it may be the code's own class)
            good = False
            if stream is sys.stdout and sys.stderr is not None:
                new = sys.version_info >= (3, 13)
                where = "on flushing sys.stdout:" if new else f"in: {stream!r}"
                print(f"Exception ignored {where}", file=sys.stderr)
                print(f"{type(exc).__name__}: {exc}", file=sys.stderr)
    return good


# ----------------------------------------------------------------------- steps
def _import_all(modules: list[str]) -> dict[str, str]:
    """Import modules; return which could not be, and why."""
    missing: dict[str, str] = {}
    for name in (*modules, "atexit", "threading"):  # code ends by the last two
        try:
            __import__(name)
        except Exception as exc:  # noqa: BLE001  (a module may raise anything)
            missing[name] = f"{type(exc).__name__}: {exc}"
    return missing


def _site_state() -> list[tuple[str, int]]:
    """Return what changes when something is installed."""
    site = sys.modules.get("site")
    if site is None:
        return []
    state: list[tuple[str, int]] = []
    for path in [*site.getsitepackages(), site.getusersitepackages()]:
        try:
            state.append((path, os.stat(path).st_mtime_ns))
        except OSError:
            state.append((path, 0))
    return state


def _become_subreaper() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _receive(sock: socket.socket, most: int) -> tuple[bytes, list[int]]:
    try:
        said, ancillary, _, _ = sock.recvmsg(64, socket.CMSG_SPACE(most * 4))
    except ConnectionResetError:  # the other end is gone, and has left something unread
        said, ancillary, _, _ = sock.recvmsg(64, socket.CMSG_SPACE(most * 4))
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % 4])
    return said, list(descriptors)


def _say(sock: socket.socket, text: str) -> None:
    # If nobody is there to be told, that is seen, and acted on, elsewhere.
    with suppress(BrokenPipeError, ConnectionResetError):
        sock.send(text.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _main(arguments: list[str]) -> None:
    keepers: set[int] = set()
    if arguments and arguments[0].startswith(_KEEPERS):
        keepers = {int(pid) for pid in arguments.pop(0)[len(_KEEPERS) :].split(",") if pid}
    job = _Zygote(arguments, keepers).serve()
    if job is not None:
        job.run()


if __name__ == "__main__":
    _main(sys.argv[1:])
