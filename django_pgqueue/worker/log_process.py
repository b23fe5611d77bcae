"""The process that calls log handlers for the supervisor.

The supervisor sends the heartbeats of all worker processes in its only thread. A handler that blocks or raises there
would cost running jobs their leases. So the supervisor writes its records as JSON lines into a pipe, without waiting,
and this process hands them to the project's handlers. A record that the pipe cannot take is dropped and counted.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn

from .background_log import LOGGERS, EngineLogFilter, dropped_record, hand_over
from .exit_functions import run_exit_functions

RESPAWN_SECONDS: Final = 5.0
"""After one was started, another is started no sooner than this."""
END_SECONDS: Final = 1.0
"""How long the worker's end waits for the last lines."""
NAME: Final = b"pgqueue-log"
ALARM_SECONDS: Final = 2
PR_SET_PDEATHSIG: Final = 1
SIZES: Final = (2000, 400, 100, 0)
"""Characters of the message and of the traceback that a line keeps: the most that fits is taken."""


class LogProcess(EngineLogFilter):
    """The supervisor's side. `fork` runs a function in a new process of a given name and returns its pid."""

    def __init__(self, fork: Callable[[Callable[[], NoReturn], bytes], int]) -> None:
        super().__init__()
        self._fork = fork
        self._pid = 0
        self._writer = -1
        self._started_at = float("-inf")
        self._dropped = 0

    def start(self) -> None:
        """Start the process, and send it the records of the engine's loggers from now on."""
        self._started_at = time.monotonic()
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self.close_pipe()
        self._writer = writer
        try:
            self._pid = self._fork(lambda: main(reader), NAME)  # which closes the writer, as every fork does
        except OSError:
            self._dropped += 1  # no process can be started: tried again by `look_after()`
        finally:
            os.close(reader)
        self.install()

    def look_after(self) -> None:
        """Start another process if this one has ended, and not again at once."""
        if not self._pid and time.monotonic() - self._started_at > RESPAWN_SECONDS:
            self.start()

    def reaped(self, pid: int) -> bool:
        """Take note that a process has ended; return whether it was this one."""
        is_this = pid == self._pid
        if is_this:
            self._pid = 0
        return is_this

    def filter(self, record: logging.LogRecord) -> bool:
        """Send a record on its way and return False; never wait."""
        with suppress(Exception):  # what cannot even be formatted is dropped
            if self._dropped and self._send(dropped_record(self._dropped)):
                self._dropped = 0
            if self._send(record):
                return False
        self._dropped += 1
        return False

    def _send(self, record: logging.LogRecord) -> bool:
        """Write a line, whole or not at all, because it is not longer than `PIPE_BUF`."""
        try:
            os.write(self._writer, encoded(record))
        except OSError:  # full, or its reader has ended
            return False
        return True

    def close_pipe(self) -> None:
        """Close the pipe, whose end ends the process. Every fork calls this, so that the supervisor's is the last."""
        writer, self._writer = self._writer, -1
        if writer >= 0:
            os.close(writer)

    def close(self) -> None:
        """Give the process a moment for the last lines, then kill it."""
        self.close_pipe()
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(self)
        stop_at = time.monotonic() + END_SECONDS
        with suppress(ChildProcessError):
            while self._pid and time.monotonic() < stop_at:
                if os.waitpid(self._pid, os.WNOHANG)[0]:
                    self._pid = 0
                time.sleep(0.005)
            if self._pid:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)


def encoded(record: logging.LogRecord) -> bytes:
    """Return a record as a line of JSON that a pipe takes in one piece."""
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
    """Hand over the records that come through the pipe, until it ends."""
    _end_with_supervisor()
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            with suppress(ValueError):  # not whole
                hand_over(logging.makeLogRecord(json.loads(line)))
    run_exit_functions(None, "", END_SECONDS * 0.8)
    os._exit(0)


def _end_with_supervisor() -> None:
    """Have this process end soon after its supervisor, also while a handler blocks; only Linux can."""
    if sys.platform == "linux":
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR2, lambda *_: signal.alarm(ALARM_SECONDS) and None)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGUSR2)
