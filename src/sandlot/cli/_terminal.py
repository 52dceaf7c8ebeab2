"""Lending this terminal to a command in a sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import tty
from collections.abc import Generator
from contextlib import contextmanager, suppress

import click

from sandlot.cli._signals import undone_at_exit
from sandlot.process import AsyncProcess
from sandlot.types import PtySize


def require() -> None:
    """Refuse unless standard input and output are a terminal."""
    if not (os.isatty(0) and os.isatty(1)):
        raise click.UsageError("--tty: standard input and output are not a terminal")


def size() -> PtySize:
    """Return the terminal's size; some have none and say 0."""
    found = os.get_terminal_size(1)
    return PtySize(found.columns or 80, found.lines or 24)


@contextmanager
def lent() -> Generator[None]:
    """Hand every key on as it is typed, Ctrl-C included; restore the terminal at the end."""
    saved = termios.tcgetattr(0)
    # NOW, neither DRAIN nor FLUSH: these lose what was typed ahead, or wait for a stopped screen.
    with undone_at_exit(lambda: termios.tcsetattr(0, termios.TCSANOW, saved)):
        tty.setraw(0, termios.TCSANOW)
        yield


@contextmanager
def resizing(process: AsyncProcess) -> Generator[None]:
    """Tell the command the terminal's size whenever it changes."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def on_change() -> None:
        now = size()
        task = loop.create_task(process.resize(now.cols, now.rows))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(_seen)

    loop.add_signal_handler(signal.SIGWINCH, on_change)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        for task in tasks:
            task.cancel()


def _seen(task: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError):
        task.exception()  # a command that has just ended has no terminal to resize
