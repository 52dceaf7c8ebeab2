"""Frames over a non-blocking socket in an asyncio loop, with the descriptors they carry."""

from __future__ import annotations

import array
import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence

from sandlot.helper.protocol import HEADER, LENGTH_OVERHEAD, MAX_FRAME, pack_frame

_READ_SIZE = 65536


class FrameSocket:
    """Sends frames whole and in order, and hands on each frame that arrives.

    Args:
        on_frame: Called with a frame's type, request id and body. If it raises
            `struct.error`, `KeyError` or `ValueError`, the frame was nonsense.
        on_end: Called once when the peer has ended or talks nonsense; should call `close`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_frame: Callable[[int, int, bytes], None],
        on_end: Callable[[ConnectionResetError], None],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._on_frame = on_frame
        self._on_end = on_end
        self._in = bytearray()
        self._out: deque[_Unsent] = deque()
        sock.setblocking(False)
        loop.add_reader(self._fd, self._on_readable)

    def close(self) -> None:
        """Close the socket; idempotent. What has not been sent yet won't be."""
        if self._sock.fileno() < 0:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
        self.abandon()

    def abandon(self) -> None:
        """Close descriptors and leave the loop alone: in a forked child it is the parent's."""
        self._sock.close()
        while self._out:
            self._out.popleft().close_fds()

    # --------------------------------------------------------------------- sending
    def send(self, kind: int, request_id: int, body: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Send a frame, now or when there is room. ``fds`` may be closed on return.

        Raises:
            ConnectionResetError: If the connection has ended.
        """
        if self._sock.fileno() < 0:
            raise ConnectionResetError("the connection to the helper has ended")
        frame = pack_frame(kind, request_id, body)
        if not self._out:
            sent = self._try_send(frame, fds)
            if sent == len(frame):
                return
            if sent:
                frame, fds = frame[sent:], ()
            self._loop.add_writer(self._fd, self._on_writable)
        self._out.append(_Unsent(memoryview(frame), [os.dup(fd) for fd in fds]))

    def _try_send(self, data: bytes | memoryview, fds: Sequence[int]) -> int:
        """Send what goes without waiting. A broken connection shows when it is read."""
        try:
            if fds:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
                return self._sock.sendmsg([data], [rights])
            return self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except (BrokenPipeError, ConnectionResetError):
            return len(data)

    def _on_writable(self) -> None:
        while self._out:
            unsent = self._out[0]
            sent = self._try_send(unsent.data, unsent.fds)
            if not sent:
                return
            unsent.close_fds()
            unsent.data = unsent.data[sent:]
            if unsent.data:
                return
            self._out.popleft()
        self._loop.remove_writer(self._fd)

    # ------------------------------------------------------------------- receiving
    def _on_readable(self) -> None:
        try:
            data = self._sock.recv(_READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as exc:
            self._on_end(ConnectionResetError(f"the connection to the helper broke: {exc}"))
            return
        if not data:
            self._on_end(ConnectionResetError("the helper has ended"))
            return
        try:
            self._take(data)
        except (struct.error, KeyError, ValueError) as exc:
            self._on_end(ConnectionResetError(f"the helper sent nonsense: {exc!r}"))

    def _take(self, data: bytes) -> None:
        if self._in:
            self._in += data
            if not _holds_frame(self._in):
                return
            data = bytes(self._in)
            self._in.clear()
        offset, end = 0, len(data)
        while end - offset >= HEADER.size:
            length, kind, request_id = HEADER.unpack_from(data, offset)
            if not LENGTH_OVERHEAD <= length <= MAX_FRAME:
                raise ValueError(f"a frame of {length} bytes")
            after = offset + 4 + length
            if after > end:
                break
            self._on_frame(kind, request_id, data[offset + HEADER.size : after])
            offset = after
        self._in += data[offset:]


class _Unsent:
    """A frame, or the rest of one, that waits for the socket to take it."""

    __slots__ = ("data", "fds")

    def __init__(self, data: memoryview, fds: list[int]) -> None:
        self.data = data
        self.fds = fds

    def close_fds(self) -> None:
        """Close its copies of the descriptors that go with it."""
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def _holds_frame(data: bytearray) -> bool:
    """Whether a whole frame has arrived, or a length that none can have."""
    if len(data) < HEADER.size:
        return False
    length: int = HEADER.unpack_from(data)[0]
    return length > MAX_FRAME or len(data) >= 4 + length
