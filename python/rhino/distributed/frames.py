"""Messages between the processes of a job: JSON with bytes behind it, over TCP connections that notice a lost host.

Owns the form of a frame and the options of a socket. Knows nothing of what is said.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

_HEAD = struct.Struct("!QQ")  # bytes of the JSON text, and of what follows it
_MOST = 1 << 34


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: plain data, and bytes that are too many for JSON."""

    data: dict[str, Any]
    payload: bytes = b""


class BadFrame(Exception):
    """What came is no frame: another program spoke."""


def watch_host(connection: socket.socket, lost_after_s: int, *, to_hub: bool) -> None:
    """Let the kernel close the connection when the other host has not answered it for this long.

    A process that ends closes its connections by itself; only one whose host is gone, or unreachable, does not. The
    kernel answers for a process that computes, so how busy a process is does not matter.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    every = max(1, lost_after_s // 4)
    options = [("TCP_KEEPIDLE", every), ("TCP_KEEPINTVL", every), ("TCP_KEEPCNT", 3)]
    if to_hub:
        # Also while something is on its way. The hub always reads; a process that does not, because a C extension keeps
        # the interpreter, would look like a lost one to it.
        options.append(("TCP_USER_TIMEOUT", 1000 * lost_after_s))
    # These have no portable names; where the kernel has none, the coordination service's heartbeats remain.
    for name, value in options:
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


def encode(frame: Frame) -> bytes:
    """The bytes of a frame."""
    text = json.dumps(frame.data).encode()
    return _HEAD.pack(len(text), len(frame.payload)) + text + frame.payload


class Reader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, received: bytes) -> list[Frame]:
        """The frames that are complete with these bytes.

        Raises:
          BadFrame: the stream is of another program.
        """
        self._bytes += received
        found = []
        while len(self._bytes) >= _HEAD.size:
            text, payload = _HEAD.unpack_from(self._bytes)
            if text > _MOST or payload > _MOST:
                raise BadFrame
            end = _HEAD.size + text + payload
            if len(self._bytes) < end:
                break
            try:
                data = json.loads(self._bytes[_HEAD.size : _HEAD.size + text])
            except ValueError:
                raise BadFrame from None
            if not isinstance(data, dict):
                raise BadFrame
            found.append(Frame(data, bytes(self._bytes[_HEAD.size + text : end])))
            del self._bytes[:end]
        return found
