"""A program that spreads processes in all ways that escape a careless killer.

Its arguments: a directory, and a mark that all its processes carry in their command line.
It prints "ready" when all run. Each touches no file but one: the last, which never stays the
same process, writes its heartbeat to the directory.
"""

import os
import signal
import sys
import time

directory, mark = sys.argv[1:3]


def spawn(
    *, session: bool = False, daemon: bool = False, deaf: bool = False, bare: bool = False
) -> None:
    child = os.fork()
    if child:
        if daemon:
            os.waitpid(child, 0)
        return
    if session or daemon:
        os.setsid()
    if daemon and os.fork():
        os._exit(0)
    if deaf:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    script = "while :; do sleep 300; done"
    os.execve("/bin/sh", [mark, "-c", script], {} if bare else dict(os.environ))


def refork() -> None:
    """Be a new process in a new session every 2 ms."""
    while True:
        if os.fork():
            os._exit(0)
        os.setsid()
        with open(f"{directory}/heartbeat", "w") as file:
            file.write(str(os.getpid()))
        time.sleep(0.002)


spawn()
spawn(session=True)
spawn(daemon=True)
spawn(daemon=True, bare=True)
spawn(deaf=True)
if not os.fork():
    refork()
print("ready", flush=True)
if sys.argv[3:] == ["leave"]:
    sys.exit(7)
time.sleep(300)
