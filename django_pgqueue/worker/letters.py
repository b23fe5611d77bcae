"""What goes through the socket between a worker process and a cell: JSON, each message after its length.

Pickle would run code that a task put there.
"""

from __future__ import annotations

import json
import socket
import struct
from datetime import datetime
from typing import Any, Final

from django_pgqueue import registry
from django_pgqueue.lifecycle import Claimed

from .report import Ending, Report

LENGTH: Final = struct.Struct("=I")


def packed(message: dict[str, Any]) -> bytes:
    """Return a message as it is sent."""
    data = json.dumps(message).encode()
    return LENGTH.pack(len(data)) + data


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """Return the next message, or None at the end of the connection, also in the middle of a message."""
    head = _read(connection, LENGTH.size)
    data = head and _read(connection, LENGTH.unpack(head)[0])
    return json.loads(data) if data else None


def _read(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


def as_json(claimed: Claimed) -> dict[str, Any]:
    """Return a claimed job as a message has it."""
    return claimed._asdict() | {"run_after": claimed.run_after.isoformat()}


def as_claimed(told: dict[str, Any]) -> Claimed:
    """Return the claimed job of a message."""
    return Claimed(**(told | {"run_after": datetime.fromisoformat(told["run_after"])}))


def as_report(claimed: Claimed, told: dict[str, Any]) -> Report:
    """Return the report of an answer."""
    ending = Ending(told.pop("ending"))
    return Report(
        claimed, ending, told.pop("started_at"), told.pop("finished_at"), registry.get(claimed.task_name), **told
    )
