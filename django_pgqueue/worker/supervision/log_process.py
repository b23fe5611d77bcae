"""Call the project's log handlers for the supervisor in a separate process. `HelperProcesses` creates a `LogProcess`.

The supervisor sends the heartbeats of all worker processes in its main thread. A log handler that blocks or raises
there would cost running jobs their leases. The supervisor therefore writes its records as JSON lines to a pipe, without
waiting, and the log process passes them to the project's handlers. A record that does not fit into the pipe is dropped
and counted.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
from contextlib import suppress
from typing import Any, Final, NoReturn

from django_pgqueue.worker.runtime.background_log import LOGGERS, EngineLogFilter, call_handlers, dropped_record
from django_pgqueue.worker.runtime.exit_functions import run_exit_functions
from django_pgqueue.worker.runtime.process_info import request_death_signal

from .helper_process import END_SECONDS, Fork, HelperProcess

NAME: Final = b"pgqueue-log"
ALARM_SECONDS: Final = 2
"""How long the log process may live after its supervisor has ended."""
SIZES: Final = (2000, 400, 100, 0)
"""How many characters of the message and of the traceback a line keeps. The first size that fits is used."""


class LogProcess(EngineLogFilter):
    """The supervisor's side of the log process.

    Args:
        fork: Starts the process.
    """

    def __init__(self, fork: Fork) -> None:
        super().__init__()
        self._process = HelperProcess(fork, NAME)
        self._dropped = 0

    def start(self) -> None:
        """Start the process, and send it all further records of the engine's loggers."""
        try:
            self._process.start(main)
        except OSError:
            self._dropped += 1  # `restart_if_ended()` tries again
        self.install()

    def restart_if_ended(self) -> None:
        """Start another process if this one has ended."""
        if self._process.is_missing:
            self.start()

    def reaped(self, pid: int) -> bool:
        """Record that a process has ended; return whether it was the log process."""
        return self._process.reaped(pid)

    def filter(self, record: logging.LogRecord) -> bool:
        """Send a record to the log process without waiting. Return False, so that no handler runs here."""
        with suppress(Exception):  # a record that cannot be formatted is dropped
            if self._dropped and self._send(dropped_record(self._dropped)):
                self._dropped = 0
            if self._send(record):
                return False
        self._dropped += 1
        return False

    def _send(self, record: logging.LogRecord) -> bool:
        """Write a line, and return whether the pipe took it. It takes the whole line or nothing, up to `PIPE_BUF`."""
        try:
            os.write(self._process.writer, encoded(record))
        except OSError:  # the pipe is full, or the log process has ended
            return False
        return True

    def close_pipe(self) -> None:
        """Close the pipe in a forked process. Otherwise the log process would outlive the supervisor."""
        self._process.close_pipe()

    def close(self) -> None:
        """Wait up to 1 s until the process has passed on the last lines, then kill it."""
        self._process.close_pipe()
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(self)
        self._process.close()


def encoded(record: logging.LogRecord) -> bytes:
    """Return a record as a line of JSON that is short enough for an atomic write to a pipe."""
    plain = {key: value for key, value in vars(record).items() if isinstance(value, str | int | float | None)}
    message, trace = record.getMessage(), record.exc_text or ""
    if record.exc_info and not trace:
        trace = logging.Formatter().formatException(record.exc_info)
    line = b""
    for size in SIZES:
        fields: dict[str, Any] = plain | {"msg": message[:size], "args": None, "exc_info": None}
        fields["exc_text"] = trace[-size:] if size else None
        line = json.dumps(fields).encode() + b"\n"
        if len(line) <= select.PIPE_BUF:
            break
    return line


def main(reader: int) -> NoReturn:
    """Pass the records from the pipe to the project's handlers until the pipe is closed, and exit."""
    _end_with_supervisor()
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            with suppress(ValueError):  # the line is incomplete
                call_handlers(logging.makeLogRecord(json.loads(line)))
    run_exit_functions(seconds=END_SECONDS * 0.8)
    os._exit(0)


def _end_with_supervisor() -> None:
    """End this process 2 s after its supervisor, even if a handler blocks. This works on Linux only."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, lambda *_: signal.alarm(ALARM_SECONDS) and None)
    request_death_signal(signal.SIGUSR2)
