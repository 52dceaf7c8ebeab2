"""What happens, told to whoever subscribes: logging, metrics, a progress line, an audit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sandlot.types import EMPTY

_log = logging.getLogger("sandlot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened.

    Attributes carry sizes and exit codes, never output, code or values of variables.
    """

    name: str
    """``"<operation>.started"``, ``".finished"``, ``".failed"``, or a notice such as
    ``"option.unsupported"``."""
    backend: str | None
    sandbox_id: str | None
    operation_id: int
    """The same for all events of one operation."""
    parent_id: int | None
    """The operation within which this one ran."""
    at: float
    """Seconds since the epoch."""
    duration: float | None = None
    """Seconds the operation took, once it has ended."""
    attributes: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    error: BaseException | None = None


Subscriber: TypeAlias = Callable[[Event], object]

_lock = threading.Lock()
_subscribers: tuple[Subscriber, ...] = ()


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call ``subscriber`` with every event from now on; return what ends that.

    It is called in the thread where things happen, so it must be quick. What it raises is
    logged and goes no further.
    """
    global _subscribers
    with _lock:
        _subscribers = (*_subscribers, subscriber)

    def unsubscribe() -> None:
        global _subscribers
        with _lock:
            _subscribers = tuple(other for other in _subscribers if other is not subscriber)

    return unsubscribe


def listening() -> bool:
    """Whether anybody would hear an event."""
    return bool(_subscribers)


def emit(event: Event) -> None:
    """Tell all subscribers."""
    for subscriber in _subscribers:
        try:
            subscriber(event)
        except Exception:  # noqa: BLE001  (a subscriber may raise anything)
            _log.exception("a subscriber failed on %s", event.name)
