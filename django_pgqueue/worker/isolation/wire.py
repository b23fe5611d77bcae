"""Encode the messages between a worker process and an isolated process: JSON, each message after its length.

Used on both sides of the socket. The format is JSON because unpickling would run code that a task put into a message.
"""

from __future__ import annotations

import json
import socket
import struct
from datetime import datetime
from typing import Any, Final

from django_pgqueue.declared.steps import Suspension
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.states import StepKind
from django_pgqueue.tasks import registry
from django_pgqueue.worker.execution.report import Report

LENGTH: Final = struct.Struct("=I")


KEPT: Final = (
    *("started_at", "finished_at", "result", "delay_seconds", "holds_key", "may_be_committed", "has_steps"),
    *("suspension", "has_compensations", "is_exhausted"),
    *("exception_class", "error", "traceback"),
)
"""Fields of a report that go through the socket unchanged."""


def packed(message: dict[str, Any]) -> bytes:
    """Return the bytes to send for a message."""
    data = json.dumps(message).encode()
    return LENGTH.pack(len(data)) + data


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """Return the next message, or None if the connection ends before it is complete."""
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
    """Return a claimed job, with the other jobs of its chunk, as the content of a message.

    The isolated process reads the results of other jobs itself.
    """
    others = None if claimed.others is None else [as_json(other) for other in claimed.others]
    return claimed._asdict() | {"run_after": claimed.run_after.isoformat(), "others": others, "results": None}


def as_claimed(message: dict[str, Any]) -> Claimed:
    """Return the claimed job that a message contains."""
    others = None if message["others"] is None else tuple(map(as_claimed, message["others"]))
    return Claimed(**(message | {"run_after": datetime.fromisoformat(message["run_after"]), "others": others}))


def from_report(report: Report) -> dict[str, Any]:
    """Return a report, with those of the other jobs of its chunk, as the content of an answer."""
    others = {"others": [from_report(other) for other in report.others]} if report.others else {}
    return {key: getattr(report, key) for key in KEPT} | {"ending": report.ending.value} | others


def as_report(claimed: Claimed, message: dict[str, Any]) -> Report:
    """Return the report that an answer contains. Removes fields from `message`."""
    ending, others = Ending(message.pop("ending")), message.pop("others", ())
    if message["suspension"] is not None:
        suspension = Suspension(*message["suspension"])
        message["suspension"] = suspension._replace(kind=StepKind(suspension.kind))
    report = Report(
        claimed,
        ending,
        message.pop("started_at"),
        message.pop("finished_at"),
        registry.get(claimed.task_name),
        **message,
    )
    if claimed.others:
        report.others = tuple(map(as_report, claimed.others, others))
    return report
