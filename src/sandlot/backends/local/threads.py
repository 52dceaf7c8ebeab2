"""The few threads on which local sandboxes touch the disk, shared by all of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_executor: ThreadPoolExecutor | None = None


async def in_thread(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work off the event loop. Once begun it runs to its end."""
    global _executor
    if _executor is None:
        _executor = ThreadPoolExecutor(4, thread_name_prefix="sandlot-local")
    call = partial(work, *args, **kwargs)
    try:
        future = _executor.submit(call)
    except RuntimeError:  # the interpreter is shutting down, and threads take no more work
        return call()
    return await asyncio.wrap_future(future)


def _forget() -> None:
    global _executor
    _executor = None  # its threads did not come along into the forked child


os.register_at_fork(after_in_child=_forget)
