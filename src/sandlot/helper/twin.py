"""The helper in Python: what ``init.c`` and its neighbours do, for where no compiler was.

Runs as ``python -I -S twin.py [options]`` and imports nothing but the standard library, so it
is one file, and says again what ``protocol.py`` says. PROTOCOL.md tells what it does.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import stat
import struct
import sys
import time
import traceback
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple, NoReturn

VERSION = 1
OWNER_FD = 3
MAX_FRAME = 16 * 1024 * 1024
MAX_WAITING_FDS = 16
PAUSE_OUTPUT = 256 * 1024
MAX_OUTPUT = 4 * 1024 * 1024
MAX_LISTED_ARGV = 4096

START, SIGNAL, KILL, SHUTDOWN, LIFETIME, KEEP, LIST, WATCH, OWN, INPUT = range(0x01, 0x0B)
HELLO, STARTED, FAILED, EXITED, GONE, DONE, ERROR, LISTING, WATCHING = range(0x81, 0x8A)
OUTPUT, ENDING = 0x8A, 0x8B
START_PTY, START_QUIET = 1, 2
SCOPE_GROUP, SCOPE_TREE = 0, 1
STAGE_SETUP, STAGE_CHDIR, STAGE_EXEC = 1, 2, 3
STARTING, RUNNING, LEADER_EXITED = 0, 1, 2
FEATURE_FDS, FEATURE_PTY, FEATURE_NATIVE = 1, 2, 4

HEADER = struct.Struct("<IBI")
START_BODY = struct.Struct("<IIII")
SIGNAL_BODY = struct.Struct("<III")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
PAIR = struct.Struct("<II")
HELLO_BODY = struct.Struct("<III")
EXITED_BODY = struct.Struct("<IIQQQ")
LISTED_HEAD = struct.Struct("<IIIQI")

DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"
MORE_LIKELY_OOM = 500
MAX_CONNECTIONS = 256
MAX_IDLE = 4
MAX_SENT_ORDER = 64 * 1024
IDLE_DELAY = 0.003
KILL_PATIENCE = 5.0
LAST_WORDS = 2.0
SUSPEND_CHECK = 10.0
"""A sleeping machine's clock stops for poll(), but not for LIFETIME."""


# ------------------------------------------------------------------------ the kernel
_libc = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36


def prctl(option: int, value: int) -> None:
    """Change a property of this process.

    Raises:
        OSError: If the kernel refuses.
    """
    if _libc.prctl(option, *(ctypes.c_ulong(number) for number in (value, 0, 0, 0))):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def ignore_signal(_number: int, _frame: Any) -> None:
    """Do nothing; that it came is read elsewhere."""


def take_signals() -> None:
    """Let signals do nothing here and their default in commands: exec undoes a handler."""
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
    for number in signal.valid_signals() - faults - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, ignore_signal)


# ------------------------------------------------------------ processes and their children
class Process(NamedTuple):
    """A process as it was seen."""

    pid: int
    parent: int


def parent_of(pid: int) -> int | None:
    """Return a process's parent, or ``None`` if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def children_of_threads(pid: int) -> list[int] | None:
    """Return a process's children from where some kernels list them, or ``None``."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has ended, or the kernel has no such lists
    return children


def descendants(root: int, skip: set[int]) -> list[Process]:
    """Return all descendants, parents before children; without ``skip`` and theirs."""
    listed = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
    by_parent: dict[int | None, list[int]] = {}
    if not listed:
        for name in os.listdir("/proc"):
            if name.isdigit():
                by_parent.setdefault(parent_of(int(name)), []).append(int(name))
    tree: list[Process] = []
    parents = [root]
    for parent in parents:
        children = children_of_threads(parent) if listed else by_parent.get(parent)
        found = [pid for pid in children or () if pid not in skip]
        tree += (Process(pid, parent) for pid in found)
        parents += found
    return tree


def signal_process(seen: Process, root: int, number: int) -> None:
    """Signal a process only if it still is what was seen; its number may be a stranger's now."""
    try:
        fd = os.pidfd_open(seen.pid)
    except ProcessLookupError:
        return
    try:
        if parent_of(seen.pid) in (seen.parent, root):
            signal.pidfd_send_signal(fd, number)
    except (ProcessLookupError, PermissionError):
        pass  # ended, or another user's: it counts as left
    finally:
        os.close(fd)


def tree_signal(root: int, number: int, skip: set[int] | None = None) -> int:
    """Signal all descendants of a process, but not itself; return how many there were."""
    tree = descendants(root, skip or set())
    for process in tree:
        signal_process(process, root, number)
    return len(tree)


# -------------------------------------------------------------------------- removing trees
def open_dir(parent: int | None, name: str) -> int:
    """Open a directory, making it accessible first if only its mode stands in the way."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
        os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, flags, dir_fd=parent)


def remove_one(parent: int | None, name: str) -> bool:
    """Remove a file, a link or an empty directory; return false if it is not empty."""
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError as exc:
        if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def empty_dir(dir_fd: int, top: int, serial: list[int]) -> OSError | None:
    """Empty a directory, moving what is not empty to the top; return the first error."""
    first: OSError | None = None
    for name in os.listdir(dir_fd):
        try:
            if not remove_one(dir_fd, name):
                os.close(open_dir(dir_fd, name))  # a rename needs write access to it
                serial[0] += 1
                os.rename(
                    name,
                    f".removing-{os.getpid()}-{serial[0]}",
                    src_dir_fd=dir_fd,
                    dst_dir_fd=top,
                )
        except OSError as exc:
            first = first or exc
    return first


def empty_children(top: int, serial: list[int]) -> tuple[bool, OSError | None]:
    """Empty each directory at the top; return whether there was one, and the first error."""
    moved, first = False, None
    for name in os.listdir(top):
        try:
            if remove_one(top, name):
                continue
            moved = True
            child = open_dir(top, name)
            try:
                failed = empty_dir(child, top, serial)
            finally:
                os.close(child)
            if failed is None and not remove_one(top, name):
                failed = OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        except OSError as exc:
            failed = exc
        first = first or failed
    return moved, first


def remove_tree(parent: int | None, path: str) -> None:
    """Remove a directory tree of any depth, without following links and without recursion.

    Raises:
        OSError: The first thing that could not be removed.
    """
    if remove_one(parent, path):
        return
    top, serial, moved = open_dir(parent, path), [0], True
    try:
        while moved:
            moved, error = empty_children(top, serial)
            if error:
                raise error
    finally:
        os.close(top)
    if not remove_one(parent, path):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))


# ------------------------------------------------------------- one command's own process
class Order(NamedTuple):
    """What a START asks for."""

    serial: int
    body: bytes
    fds: tuple[int, ...]


class Request(NamedTuple):
    """A START's body, taken apart."""

    flags: int
    cwd: bytes
    argv: list[bytes]
    env: list[bytes]


def parse_start(body: bytes) -> Request | None:
    """Take a START's body apart; return ``None`` if it is malformed."""
    if len(body) <= START_BODY.size or body[-1]:
        return None
    flags, fds, argc, envc = START_BODY.unpack_from(body)
    cwd, *strings = body[START_BODY.size : -1].split(b"\0")
    env = strings[argc:]
    if fds not in (0, 3) or len(strings) != argc + envc:
        return None
    if any(entry[:1] in (b"", b"=") for entry in env):
        return None
    return Request(flags, cwd, strings[:argc], env)


class Supervisor(NamedTuple):
    """A process that stands between the helper and one command at a time."""

    pid: int
    orders: socket.socket | None
    """Where it waits for orders; ``None`` if it ends after its only one."""


REPORT = struct.Struct("<QIIIIQQQ")
"""Serial, kind, pid, status or errno, stage or "nothing left", usage. Below PIPE_BUF."""
REPORT_STARTED, REPORT_FAILED, REPORT_EXITED, REPORT_GONE = range(4)


class SetupError(Exception):
    """A command could not be started: errno and stage."""


def merged_environment(overlay: list[bytes]) -> dict[bytes, bytes]:
    """Return this process's environment with an order's merged over it."""
    env = dict(os.environb)
    for entry in overlay:
        name, equals, value = entry.partition(b"=")
        if equals:
            env[name] = value
        else:
            env.pop(name, None)
    return env


def executable_for(name: bytes, env: dict[bytes, bytes]) -> bytes:
    """Return what to run: the name, which Popen looks up, unless there is no PATH."""
    if b"/" in name or b"PATH" in env:
        return name
    candidates = [directory + b"/" + name for directory in DEFAULT_PATH.split(b":")]
    return next(filter(os.path.exists, candidates), candidates[0])


def launch_leader(request: Request, fds: tuple[int, ...]) -> int:
    """Start a command's program in a session of its own; return its pid.

    Raises:
        SetupError: If it could not be started.
    """
    import subprocess

    if not request.argv:
        raise SetupError(errno.EINVAL, STAGE_EXEC)
    if not request.argv[0]:
        raise SetupError(errno.ENOENT, STAGE_EXEC)
    terminal = bool(request.flags & START_PTY)
    streams = fds or (subprocess.DEVNULL,) * 3
    if terminal and not (fds and os.isatty(fds[0])):
        raise SetupError(errno.ENOTTY, STAGE_SETUP)
    if request.cwd:
        try:
            os.chdir(request.cwd)
        except OSError as exc:
            raise SetupError(exc.errno, STAGE_CHDIR) from exc
    env = merged_environment(request.env)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        process = subprocess.Popen(
            request.argv,
            executable=executable_for(request.argv[0], env),
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            env=env,
            start_new_session=True,
            preexec_fn=take_terminal if terminal else None,
        )
    except subprocess.SubprocessError as exc:
        raise SetupError(errno.EPERM, STAGE_SETUP) from exc
    except OSError as exc:
        raise SetupError(exc.errno, STAGE_EXEC if exc.filename else STAGE_SETUP) from exc
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    process.returncode = 0  # or it would reap the leader when it is collected
    return process.pid


def take_terminal() -> None:
    """Make standard input the controlling terminal; a child does this between fork and exec."""
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Supervising:
    """What a supervisor does: start a command, and stay until no descendant is left."""

    def __init__(self, reports: int, helper: int, oom_score: int) -> None:
        self.reports = reports
        self.helper = helper
        self.oom_score = oom_score

    def become(self, keep: list[int]) -> None:
        """Turn a fork of the helper into a supervisor.

        The helper's other descriptors must not live on in it: its lock says that the helper
        lives, and its connections end when it does.
        """
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != self.helper:
            os._exit(1)
        start = 3
        for fd in sorted([*keep, self.reports]):
            os.closerange(start, fd)
            start = fd + 1
        os.closerange(start, os.sysconf("SC_OPEN_MAX"))
        self.offer_to_oom_killer()
        self.home = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def offer_to_oom_killer(self) -> None:
        """Let the kernel, when memory runs out, take the command before the helper. A hint."""
        prctl(PR_SET_DUMPABLE, 1)  # else only root may write to it
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write(str(min(self.oom_score + MORE_LIKELY_OOM, 1000)))
        except OSError:
            pass
        finally:
            prctl(PR_SET_DUMPABLE, 0)

    def serve(self, orders: socket.socket) -> None:
        """Carry out orders until the helper wants no more."""
        while True:
            data, rights, _, _ = orders.recvmsg(U64.size + MAX_SENT_ORDER, socket.CMSG_SPACE(3 * 4))
            if not data:
                return
            self.supervise(Order(U64.unpack_from(data)[0], data[U64.size :], fds_in(rights)))

    def supervise(self, order: Order) -> None:
        """Carry out one order."""
        request = parse_start(order.body)
        assert request is not None
        try:
            leader = launch_leader(request, order.fds)
        except SetupError as exc:
            number, stage = exc.args
            self.report(order.serial, REPORT_FAILED, 0, number, stage)
            return
        finally:
            os.fchdir(self.home)
            for fd in order.fds:
                os.close(fd)
        self.watch(order.serial, leader)

    def watch(self, serial: int, leader: int) -> None:
        """Report what becomes of the leader, and stay until no descendant is left."""
        announced = ended = False
        while True:
            left, end = self.reap(leader)
            if end:
                status, usage = end
                announced = ended = True
                self.report(serial, REPORT_EXITED, leader, status, not left, *numbers_of(usage))
            elif not left:
                self.report(serial, REPORT_GONE)
            elif not announced:
                announced = True
                self.report(serial, REPORT_STARTED, leader)
            if not left:
                assert ended
                return
            orphaned = os.getppid() != self.helper
            if orphaned:
                tree_signal(os.getpid(), signal.SIGKILL)
            awaited = {signal.SIGCHLD, signal.SIGTERM}
            signal.sigtimedwait(awaited, 0.001 if orphaned else 1e6)

    def reap(self, leader: int) -> tuple[bool, Any]:
        """Reap what has ended; return whether any descendant is left, and the leader's end."""
        end = None
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False, end
            if not pid:
                return True, end
            if pid == leader:
                end = status, usage

    def report(self, serial: int, kind: int, *numbers: int) -> None:
        """Tell the helper; if that is dead, its death signal tells us."""
        report = REPORT.pack(serial, kind, *numbers, *(0,) * (6 - len(numbers)))
        with contextlib.suppress(BrokenPipeError):
            os.write(self.reports, report)


def numbers_of(usage: Any) -> tuple[int, int, int]:
    """Return user and system time in microseconds, and peak memory in KiB."""
    return int(usage.ru_utime * 1e6), int(usage.ru_stime * 1e6), usage.ru_maxrss


def fds_in(rights: list[tuple[int, int, bytes]]) -> tuple[int, ...]:
    """Return the descriptors in a message's ancillary data."""
    return tuple(
        fd
        for level, kind, data in rights
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        for (fd,) in struct.iter_unpack("i", data[: len(data) - len(data) % 4])
    )


# ---------------------------------------------------------------------------- one client
class Connection:
    """A client's frames, in and out, and the descriptors that come with them."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.dead = False
        self.shutdown_id: int | None = None
        self.fds: list[int] = []
        self._in = bytearray()
        self._out = bytearray()

    def interest(self) -> int:
        """Return the events to poll for: a client that does not read is not read from."""
        events = select.POLLIN if len(self._out) < PAUSE_OUTPUT else 0
        return events | (select.POLLOUT if self._out else 0)

    def close(self) -> None:
        """Close it and what nobody took."""
        self._drop_fds()
        self.sock.close()

    def _drop_fds(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def read(self) -> None:
        """Read what has come."""
        try:
            data, rights, flags, _ = self.sock.recvmsg(
                1 << 18, socket.CMSG_SPACE(MAX_WAITING_FDS * 4)
            )
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, rights, flags = b"", [], 0
        self.fds += fds_in(rights)
        if not data:
            self.dead = True
            return
        self._in += data
        if len(self.fds) > MAX_WAITING_FDS or flags & socket.MSG_CTRUNC:
            self.fail(errno.EMFILE, "too many descriptors that no frame takes")

    def may_answer(self) -> bool:
        """Whether the client takes its answers."""
        return not self.dead and len(self._out) < PAUSE_OUTPUT

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
        """Send what waits, and yield what has arrived, as long as the answers are taken.

        A frame that is left lying here is only come back to when there is something to send.
        """
        start = 0
        self.flush()
        while self.may_answer() and len(self._in) - start >= 4:
            (length,) = U32.unpack_from(self._in, start)
            if not 5 <= length <= MAX_FRAME:
                self.fail(errno.EMSGSIZE, "a frame of impossible length")
                break
            end = start + 4 + length
            if end > len(self._in):
                break
            _, kind, request_id = HEADER.unpack_from(self._in, start)
            yield kind, request_id, bytes(self._in[start + HEADER.size : end])
            start = end
            self.flush()
        del self._in[:start]
        if not self._in:
            self._drop_fds()

    def take_fds(self, count: int) -> tuple[int, ...] | None:
        """Return the first descriptors that wait, or ``None`` if there are fewer."""
        if len(self.fds) < count:
            return None
        taken, self.fds = tuple(self.fds[:count]), self.fds[count:]
        return taken

    def send(self, kind: int, request_id: int, body: bytes = b"") -> None:
        """Queue a frame."""
        if self.dead:
            return
        if len(self._out) + len(body) > MAX_OUTPUT:
            self.dead = True
            return
        self._out += HEADER.pack(5 + len(body), kind, request_id) + body

    def error(self, request_id: int, number: int, text: str) -> None:
        """Queue an ERROR."""
        self.send(ERROR, request_id, U32.pack(number) + text.encode())

    def done(self, request_id: int, value: int = 0, text: str = "") -> None:
        """Queue a DONE."""
        self.send(DONE, request_id, U32.pack(value) + text.encode("utf-8", "replace"))

    def fail(self, number: int, text: str) -> None:
        """End it, saying why."""
        self.error(0, number, text)
        self.flush()
        self.dead = True

    def flush(self) -> None:
        """Send what the socket takes."""
        while self._out and not self.dead:
            try:
                sent = self.sock.send(self._out)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.dead = True
                return
            del self._out[:sent]


# --------------------------------------------------------------------------- the helper
class Command:
    """A command that runs, and who hears of it."""

    def __init__(self, order: Order, request: Request) -> None:
        self.serial = order.serial
        self.supervisor = Supervisor(0, None)
        self.leader = 0
        self.state = STARTING
        self.status = 0
        self.quiet = bool(request.flags & START_QUIET)
        self.killed = False
        self.start_ms = time.time_ns() // 1_000_000
        self.argv = b"".join(arg + b"\0" for arg in request.argv)[:MAX_LISTED_ARGV]
        self.watchers: list[tuple[Connection, int]] = []

    def tell(self, kind: int, body: bytes = b"") -> None:
        """Send a frame to all who watch it."""
        for connection, request_id in self.watchers:
            connection.send(kind, request_id, body)

    def id_on(self, connection: Connection) -> int:
        """Return its request id on a connection, or 0."""
        return next((number for other, number in self.watchers if other is connection), 0)


class Helper:
    """One thread, one loop, which waits for nobody in particular."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.connections: list[Connection] = []
        self.owner: Connection | None = None
        self.commands: list[Command] = []
        self.idle: list[Supervisor] = []
        self.idle_due = 0.0
        self.serial = 0
        self.keep = self.shutting_down = self.strays = False
        self.kill_deadline = 0.0
        self.lifetime_end: float | None = None
        self.listener: socket.socket | None = None
        self.reports, self.reports_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.reports_in, True)
        self.signals, self.signals_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.supervising = Supervising(self.reports_in, os.getpid(), read_oom_score())
        self.handlers = {
            START: (self.on_start, None),
            SIGNAL: (self.on_signal, SIGNAL_BODY.size),
            KILL: (self.on_kill, U32.size),
            SHUTDOWN: (self.on_shutdown, 0),
            LIFETIME: (self.on_lifetime, U64.size),
            KEEP: (self.on_keep, 1),
            LIST: (self.on_list, 0),
            WATCH: (self.on_watch, U32.size),
            OWN: (self.on_own, 0),
        }

    # ----------------------------------------------------------------- finding
    def by_id(self, connection: Connection, request_id: int) -> Command | None:
        """Return the command that an id stands for on a connection."""
        wanted = (connection, request_id)
        return next((c for c in self.commands if wanted in c.watchers), None)

    def by_serial(self, serial: int) -> Command | None:
        """Return the command that a report is about."""
        return next((c for c in self.commands if c.serial == serial), None)

    # --------------------------------------------------------------- connections
    def add_connection(self, sock: socket.socket) -> Connection:
        """Greet a client."""
        connection = Connection(sock)
        self.connections.append(connection)
        features = FEATURE_FDS | FEATURE_PTY
        connection.send(HELLO, 0, HELLO_BODY.pack(VERSION, os.getpid(), features))
        return connection

    def accept(self) -> None:
        """Accept a client, if it is the same user's."""
        assert self.listener
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return  # it has changed its mind
        peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("iii", peer)[1] == os.geteuid():
            self.add_connection(sock)
        else:
            sock.close()

    def remove_dead_connections(self) -> None:
        """Forget clients that are gone."""
        for connection in [c for c in self.connections if c.dead]:
            self.connections.remove(connection)
            for command in self.commands:
                command.watchers = [w for w in command.watchers if w[0] is not connection]
            if connection is self.owner:
                self.owner = None
                if not self.keep:
                    self.begin_shutdown()
            connection.close()

    def begin_shutdown(self) -> None:
        """Kill everything, and then end."""
        if self.shutting_down:
            return
        self.shutting_down = self.strays = True
        self.kill_deadline = time.monotonic() + KILL_PATIENCE
        for connection in self.connections:
            connection.send(ENDING, 0)
        for command in self.commands:
            self.kill_command(command)
        for supervisor in self.idle:
            os.kill(supervisor.pid, signal.SIGKILL)

    # ------------------------------------------------------------------ requests
    def handle(self, sender: Connection, kind: int, request_id: int, body: bytes) -> None:
        """Serve one frame."""
        handler, size = self.handlers.get(kind, (None, None))
        if handler is None:
            sender.error(request_id, errno.ENOSYS, "unknown type of frame")
        elif size is not None and len(body) != size:
            sender.error(request_id, errno.EBADMSG, "a body of wrong size")
        else:
            handler(sender, request_id, body)

    def id_is_free(self, sender: Connection, request_id: int) -> bool:
        """Whether an id may name a command; says so if not."""
        if request_id and not self.by_id(sender, request_id):
            return True
        sender.error(request_id, errno.EEXIST, "this request id is 0 or in use")
        return False

    def on_start(self, sender: Connection, request_id: int, body: bytes) -> None:
        """START."""
        wants_fds = len(body) >= 8 and U32.unpack_from(body, 4)[0] == 3
        fds = sender.take_fds(3 if wants_fds else 0)
        try:
            request = parse_start(body)
            if request is None:
                sender.error(request_id, errno.EBADMSG, "a malformed START")
            elif self.id_is_free(sender, request_id):
                if fds is None or self.shutting_down:
                    number = errno.EBADF if fds is None else errno.ESHUTDOWN
                    sender.send(FAILED, request_id, PAIR.pack(number, STAGE_SETUP))
                else:
                    self.serial += 1
                    self.start(sender, request_id, Order(self.serial, body, fds), request)
        finally:
            for fd in fds or ():
                os.close(fd)

    def start(self, sender: Connection, request_id: int, order: Order, request: Request) -> None:
        """Have an order carried out by an idle supervisor, or by a new one."""
        command = Command(order, request)
        command.watchers.append((sender, request_id))
        self.idle_due = time.monotonic() + IDLE_DELAY
        if self.idle and self.give(self.idle[-1], order):
            command.supervisor = self.idle.pop()
            os.kill(command.supervisor.pid, signal.SIGCONT)  # a command may have stopped it
        else:
            try:
                command.supervisor = self.fork_supervisor(order)
            except OSError as exc:
                sender.send(FAILED, request_id, PAIR.pack(exc.errno, STAGE_SETUP))
                return
        self.commands.append(command)

    def on_signal(self, sender: Connection, request_id: int, body: bytes) -> None:
        """SIGNAL."""
        target, number, scope = SIGNAL_BODY.unpack(body)
        self.read_reports()  # a leader that has just ended has lost its number
        command = self.by_id(sender, target)
        if command is None:
            sender.error(request_id, errno.ESRCH, "no such command")
        elif scope > SCOPE_TREE or number > signal.SIGRTMAX:
            sender.error(request_id, errno.EINVAL, "no such signal or scope")
        elif command.state == STARTING:
            sender.error(request_id, errno.EAGAIN, "the command is still starting")
        elif scope == SCOPE_TREE:
            root = command.supervisor.pid
            sender.done(request_id, tree_signal(root, number) if root else 0)
        elif command.state == LEADER_EXITED:
            sender.error(request_id, errno.ESRCH, "the command has ended")
        else:
            try:
                os.killpg(command.leader, number)
            except OSError as exc:
                sender.error(request_id, exc.errno or errno.EPERM, str(exc))
            else:
                sender.done(request_id, 1)

    def on_kill(self, sender: Connection, request_id: int, body: bytes) -> None:
        """KILL."""
        command = self.by_id(sender, *U32.unpack(body))
        if command is None:
            sender.error(request_id, errno.ESRCH, "no such command")
            return
        self.kill_command(command)
        sender.done(request_id)

    def kill_command(self, command: Command) -> None:
        """Kill its supervisor, which makes its processes ours; sweep() does the rest."""
        command.killed = True
        if command.supervisor.pid:
            os.kill(command.supervisor.pid, signal.SIGKILL)

    def on_shutdown(self, sender: Connection, request_id: int, _body: bytes) -> None:
        """SHUTDOWN."""
        if sender.shutdown_id is not None:
            sender.error(request_id, errno.EALREADY, "asked already")
            return
        sender.shutdown_id = request_id
        self.begin_shutdown()

    def on_lifetime(self, sender: Connection, request_id: int, body: bytes) -> None:
        """LIFETIME."""
        (ms,) = U64.unpack(body)
        if ms // 1000 >= 1 << 63:
            sender.error(request_id, errno.EINVAL, "an impossible lifetime")
            return
        self.lifetime_end = time.clock_gettime(time.CLOCK_BOOTTIME) + ms / 1000 if ms else None
        sender.done(request_id)

    def on_keep(self, sender: Connection, request_id: int, body: bytes) -> None:
        """KEEP."""
        self.keep = body != b"\0"
        sender.done(request_id)

    def on_own(self, sender: Connection, request_id: int, _body: bytes) -> None:
        """OWN."""
        self.owner = sender
        sender.done(request_id)

    def on_list(self, sender: Connection, request_id: int, _body: bytes) -> None:
        """LIST."""
        entries = [
            LISTED_HEAD.pack(c.id_on(sender), c.leader, c.state, c.start_ms, len(c.argv)) + c.argv
            for c in self.commands
        ]
        sender.send(LISTING, request_id, U32.pack(len(entries)) + b"".join(entries))

    def on_watch(self, sender: Connection, request_id: int, body: bytes) -> None:
        """WATCH."""
        (pid,) = U32.unpack(body)
        found = [c for c in self.commands if c.leader == pid and pid]
        found.sort(key=lambda c: c.state)  # a running one first, should two have had the pid
        if not self.id_is_free(sender, request_id):
            return
        if not found:
            sender.error(request_id, errno.ESRCH, "no command with this pid")
            return
        command = found[0]
        sender.send(WATCHING, request_id, PAIR.pack(pid, command.state))
        if command.state == LEADER_EXITED:
            sender.send(EXITED, request_id, EXITED_BODY.pack(pid, command.status, 0, 0, 0))
        command.watchers.append((sender, request_id))

    # --------------------------------------------------------------- supervisors
    def fork_supervisor(self, order: Order | None) -> Supervisor:
        """Fork a supervisor, for one order or to be given orders."""
        importlib.import_module("subprocess")  # after HELLO, and not in each fork

        ours = theirs = None
        if order is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError:
            if ours and theirs:
                ours.close()
                theirs.close()
            raise
        if pid == 0:
            self.be_supervisor(order, theirs)
        if theirs:
            theirs.close()
        return Supervisor(pid, ours)

    def be_supervisor(self, order: Order | None, orders: socket.socket | None) -> NoReturn:
        """Live as a supervisor, in a fork of the helper."""
        code = 1
        try:
            keep = list(order.fds) if order else []
            self.supervising.become(keep + ([orders.fileno()] if orders else []))
            if order:
                self.supervising.supervise(order)
            elif orders:
                self.supervising.serve(orders)
            code = 0
        finally:
            if code:
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(code)

    def give(self, idle: Supervisor, order: Order) -> bool:
        """Hand an order to an idle supervisor, unless it is too large, or that one unwell."""
        if len(order.body) > MAX_SENT_ORDER or idle.orders is None:
            return False
        packed = struct.pack(f"{len(order.fds)}i", *order.fds)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)] if order.fds else []
        try:
            idle.orders.sendmsg([U64.pack(order.serial), order.body], rights, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def prepare_after(self) -> float | None:
        """Return in how many seconds to get a supervisor ready for the next START."""
        if self.idle or self.shutting_down:
            return None
        return max(0.0, self.idle_due - time.monotonic())

    def prepare(self) -> None:
        """Get a supervisor ready, if it is time."""
        if self.prepare_after() == 0:
            try:
                self.idle.append(self.fork_supervisor(None))
            except OSError:  # the next START tries for itself, and tells why it can't
                self.idle_due = float("inf")

    def end_command(self, command: Command) -> None:
        """Say that nothing of a command is left, and keep its supervisor for the next."""
        if command.state == STARTING:
            command.tell(FAILED, PAIR.pack(errno.EOWNERDEAD, STAGE_SETUP))
        else:
            if command.state == RUNNING:  # the supervisor could not say any more
                self.tell_exited(command, command.status)
            command.tell(GONE)
        self.remove_command(command)

    def remove_command(self, command: Command) -> None:
        """Forget a command."""
        self.commands.remove(command)
        supervisor = command.supervisor
        if supervisor.orders is None:
            return
        fit = supervisor.pid and not command.killed and not self.shutting_down
        if fit and len(self.idle) < MAX_IDLE:
            self.idle.append(supervisor)
        else:
            supervisor.orders.close()

    def tell_exited(self, command: Command, status: int, *usage: int) -> None:
        """Say how a command's leader ended."""
        command.state, command.status = LEADER_EXITED, status
        numbers = usage or (0, 0, 0)
        command.tell(EXITED, EXITED_BODY.pack(command.leader, status, *numbers))

    def read_reports(self) -> None:
        """Hear what supervisors say."""
        while True:
            try:
                data = os.read(self.reports, REPORT.size * 64)
            except BlockingIOError:
                return
            for report in REPORT.iter_unpack(data):
                self.take_report(*report)

    def take_report(
        self, serial: int, kind: int, pid: int, status: int, detail: int, *usage: int
    ) -> None:
        """Pass on what a supervisor says."""
        command = self.by_serial(serial)
        if command is None:
            return
        if kind != REPORT_FAILED and command.state == STARTING:
            command.leader, command.state = pid, RUNNING
            if not command.quiet:
                command.tell(STARTED, U32.pack(pid))
        if kind != REPORT_STARTED:
            self.idle_due = 0.0
        if kind == REPORT_FAILED:
            command.tell(FAILED, PAIR.pack(status, detail))
            self.remove_command(command)
        elif kind == REPORT_EXITED:
            self.tell_exited(command, status, *usage)
        if kind == REPORT_GONE or (kind == REPORT_EXITED and detail):
            self.end_command(command)

    def reap(self) -> None:
        """Reap children that have ended."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.read_reports()  # what a dead supervisor said last comes first
            self.child_ended(pid, status, usage)

    def child_ended(self, pid: int, status: int, usage: Any) -> None:
        """Draw the consequences.

        A supervisor with a command does not end by itself, and a leader is a child of ours
        only when its supervisor is dead.
        """
        for supervisor in [s for s in self.idle if s.pid == pid]:
            self.idle.remove(supervisor)
            if supervisor.orders:
                supervisor.orders.close()
        for command in self.commands:
            if command.supervisor.pid == pid:
                command.supervisor = command.supervisor._replace(pid=0)
                if command.state == RUNNING:
                    command.status = status
                self.strays = True
            elif command.leader == pid and command.state == RUNNING:
                self.tell_exited(command, status, *numbers_of(usage))

    def sweep(self) -> bool:
        """Kill what dead supervisors have left. Return whether to come back soon."""
        if not self.strays:
            return False
        supervisors = {s.pid for s in self.idle} | {c.supervisor.pid for c in self.commands}
        if tree_signal(os.getpid(), signal.SIGKILL, supervisors):
            return True
        self.strays = False
        for command in [c for c in self.commands if not c.supervisor.pid]:
            self.end_command(command)
        return False

    # ---------------------------------------------------------------------- loop
    def timeout(self, pause: float | None) -> float | None:
        """Return how long to wait at most, in seconds."""
        times = [pause, self.prepare_after()]
        if self.lifetime_end is not None:
            left = self.lifetime_end - time.clock_gettime(time.CLOCK_BOOTTIME)
            times.append(min(max(0.0, left), SUSPEND_CHECK))
        return min((t for t in times if t is not None), default=None)

    def turn(self, timeout: float | None) -> bool:
        """Wait for something to happen, and handle it; return whether something has."""
        poll = select.poll()
        poll.register(self.signals, select.POLLIN)
        poll.register(self.reports, select.POLLIN)
        if self.listener and len(self.connections) < MAX_CONNECTIONS:
            poll.register(self.listener, select.POLLIN)
        for connection in self.connections:
            poll.register(connection.sock, connection.interest())
        ms = None if timeout is None or timeout == float("inf") else -int(-timeout * 1000 // 1)
        events = dict(poll.poll(ms))
        if events.get(self.reports):
            self.read_reports()
        if events.get(self.signals):
            self.read_signals()
        if self.lifetime_end is not None and self.timeout(None) == 0:
            self.read_lifetime()
        for connection in self.connections:
            if events.get(connection.sock.fileno(), 0) & ~select.POLLOUT:
                connection.read()
        if self.listener and events.get(self.listener.fileno()):
            self.accept()
        return bool(events)

    def serve_connections(self) -> None:
        """Answer what can be answered.

        Comes before each wait: sending what waits may make room for the answer to a frame that
        has long arrived, and for which no event would come.
        """
        for connection in self.connections:
            for frame in connection.frames():
                self.handle(connection, *frame)
        self.remove_dead_connections()

    def read_signals(self) -> None:
        """Hear of ended children, and of SIGTERM."""
        if signal.SIGTERM in os.read(self.signals, 4096):
            self.begin_shutdown()
        self.reap()

    def read_lifetime(self) -> None:
        """End, if it is time."""
        assert self.lifetime_end is not None
        if time.clock_gettime(time.CLOCK_BOOTTIME) >= self.lifetime_end:
            self.lifetime_end = None
            self.begin_shutdown()

    def run(self) -> None:
        """Serve until the end."""
        pause = 0.001
        while True:
            again = self.sweep()
            self.serve_connections()
            if self.finished():
                return
            # What SIGKILL does not end at once must not cost a whole CPU to wait for.
            pause = min(2 * pause, 0.064) if again else 0.001
            if not self.turn(self.timeout(pause if again else None)):
                self.prepare()

    def finished(self) -> bool:
        """Whether it is time to go."""
        all_gone = not self.commands and not self.strays
        return self.shutting_down and (all_gone or time.monotonic() >= self.kill_deadline)

    def end(self, dir_fd: int) -> None:
        """Clean up, and say the last words."""
        all_gone = not self.commands and not self.strays
        survivors = 0 if all_gone else tree_signal(os.getpid(), signal.SIGKILL)
        trouble = [f"{survivors} processes survive SIGKILL"] if survivors else []
        for path in self.options.listen + self.options.remove:
            try:
                remove_tree(dir_fd, path)
            except OSError as exc:
                trouble.append(f"cannot remove {path}: {exc.strerror}")
        for path in self.options.cgroup:
            leave_cgroup(path)
        if trouble:
            print("sandlot-init:", "; ".join(trouble), file=sys.stderr)
        deadline = time.monotonic() + LAST_WORDS
        for connection in self.connections:
            if connection.shutdown_id is not None:
                connection.done(connection.shutdown_id, survivors, "; ".join(trouble)[:1000])
            connection.flush()
            while not connection.dead and connection.interest() & select.POLLOUT:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                poll = select.poll()
                poll.register(connection.sock, select.POLLOUT)
                poll.poll(int(left * 1000))
                connection.flush()


# ------------------------------------------------------------------------------- start
class Options:
    """The command line; each option is the list of its values."""

    NAMES = ("dir", "root", "listen", "lock", "remove", "cgroup", "umask")

    def __init__(self, arguments: list[str]) -> None:
        self.dir: list[str] = []
        self.root: list[str] = []
        self.listen: list[str] = []
        self.lock: list[str] = []
        self.remove: list[str] = []
        self.cgroup: list[str] = []
        self.umask: list[str] = []
        rest = iter(arguments)
        for option in rest:
            name, equals, value = option.removeprefix("--").partition("=")
            if not option.startswith("--") or name not in self.NAMES:
                die(2, f"unexpected argument: {option}")
            if not equals:
                value = next(rest, "")
                if not value:
                    die(2, f"{option} needs an argument")
            if name in ("remove", "cgroup"):
                getattr(self, name).append(value)
            else:
                setattr(self, name, [value])


def die(code: int, text: str) -> NoReturn:
    """End with a word on standard error."""
    print("sandlot-init:", text, file=sys.stderr)
    sys.exit(code)


def read_oom_score() -> int:
    """Return how likely the kernel is to kill the helper when memory runs out."""
    try:
        with open("/proc/self/oom_score_adj") as file:
            return int(file.read())
    except OSError:
        return 0


def close_inherited() -> None:
    """Close all but the standard streams and the owner's; open the former where missing."""
    os.closerange(OWNER_FD + 1, os.sysconf("SC_OPEN_MAX"))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    for fd in (1, 2):
        try:
            fcntl.fcntl(fd, fcntl.F_GETFD)
        except OSError:
            os.dup2(null, fd)
    if null > 2:
        os.close(null)


def start_listening(dir_fd: int, path: str) -> socket.socket:
    """Bind by a relative name, since a socket's address holds no long path."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            os.unlink(path, dir_fd=dir_fd)  # of one that has died
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    mask = os.umask(0o177)
    os.fchdir(dir_fd)
    listener.bind(path)
    os.umask(mask)
    listener.listen(64)
    return listener


def take_lock(dir_fd: int, path: str) -> None:
    """Lock a file for as long as this process lives."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fcntl.flock(os.open(path, flags, 0o600, dir_fd=dir_fd), fcntl.LOCK_EX | fcntl.LOCK_NB)


def leave_cgroup(path: str) -> None:
    """Remove a cgroup that this process is in, going up first; where that can't be, not."""
    with contextlib.suppress(OSError):
        join_cgroup(f"{path}/..")
        for _ in range(100):  # what was killed last may take a moment to leave
            try:
                os.rmdir(path)
                return
            except OSError as exc:
                if exc.errno != errno.EBUSY:
                    return
            time.sleep(0.002)


def join_cgroup(path: str) -> None:
    """Move this process into a cgroup."""
    with open(f"{path}/cgroup.procs", "wb", buffering=0) as file:
        file.write(b"0")


def owner_socket(may_be_missing: bool) -> socket.socket | None:
    """Return the owner's connection."""
    try:
        sock = socket.socket(fileno=OWNER_FD)
    except OSError as exc:
        if exc.errno == errno.EBADF and may_be_missing:
            return None
        die(2, f"descriptor {OWNER_FD} is not a stream socket")
    if sock.type != socket.SOCK_STREAM:
        die(2, f"descriptor {OWNER_FD} is not a stream socket")
    os.set_inheritable(OWNER_FD, False)
    return sock


def parse_umask(text: str) -> int:
    """Return a umask given in octal."""
    if not (text.isascii() and text.isdigit()) or set(text) & set("89") or int(text, 8) > 0o777:
        die(2, f"not an octal umask: {text}")
    return int(text, 8)


@contextlib.contextmanager
def or_die(action: str) -> Generator[None, None, None]:
    """End if something fails, saying what."""
    try:
        yield
    except OSError as exc:
        die(1, f"cannot {action}: {exc.strerror}")


def set_up(options: Options) -> tuple[Helper, int]:
    """Do what the options say, in the order in which it can fail."""
    for path in options.cgroup:
        with or_die(f"join cgroup {path}"):
            join_cgroup(path)
    for text in options.umask:
        os.umask(parse_umask(text))
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    directory = "".join(options.dir) or "."
    with or_die(f"open {directory}"):
        dir_fd, start_dir = os.open(directory, flags), os.open(".", flags)
    for path in options.lock:
        with or_die(f"lock {path}"):
            take_lock(dir_fd, path)
    listener = None
    for path in options.listen:
        with or_die(f"listen on {path}"):
            listener = start_listening(dir_fd, path)
    os.fchdir(start_dir)
    os.close(start_dir)
    for path in options.root:
        with or_die(f"enter {path}"):
            os.chdir(path)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    take_signals()
    helper = Helper(options)
    helper.listener = listener
    signal.set_wakeup_fd(helper.signals_in, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    prctl(PR_SET_DUMPABLE, 0)
    return helper, dir_fd


def main() -> None:
    """Run."""
    if sys.argv[1:] == ["--version"]:
        print(VERSION)
        return
    options = Options(sys.argv[1:])
    close_inherited()
    owner = owner_socket(bool(options.listen))
    helper, dir_fd = set_up(options)
    if owner:
        helper.owner = helper.add_connection(owner)
    gc.freeze()
    helper.run()
    helper.end(dir_fd)


if __name__ == "__main__":
    main()
