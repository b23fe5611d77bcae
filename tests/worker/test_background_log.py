"""Test that logging to a thread or to another process never blocks the caller, and counts the dropped records."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading

import pytest

from django_pgqueue.worker.runtime import background_log as module
from django_pgqueue.worker.runtime.background_log import LOGGERS, BackgroundLog
from django_pgqueue.worker.supervision.log_process import LogProcess, encoded
from tests.helpers import wait_until

logger = logging.getLogger("django_pgqueue.worker")


class Handler(logging.Handler):
    """A handler that keeps messages. It blocks until `may_go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []
        self.may_go_on = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.may_go_on.wait(20)
        self.messages.append(record.getMessage())
        if record.getMessage() == "exit":
            raise SystemExit


@pytest.fixture
def handler():
    handler = Handler()
    logger.addHandler(handler)
    yield handler
    handler.may_go_on.set()
    logger.removeHandler(handler)
    for name in LOGGERS:
        for installed in list(logging.getLogger(name).filters):
            logging.getLogger(name).removeFilter(installed)


def test_background_log_blocked_handler_drops_and_counts(handler, monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 5)
    log = BackgroundLog()
    log.start()
    logger.error("first")
    wait_until(lambda: not log._records.qsize())  # the record has reached the handler, which blocks
    for number in range(20):
        logger.error("line %d", number)
    assert not log.flush(0.05)
    dropped = log.dropped
    assert dropped >= 14
    handler.may_go_on.set()
    wait_until(lambda: log.flush(1.0))
    assert f"the log handlers did not keep up: dropped {dropped} log records" in handler.messages


def test_background_log_handler_exits_thread_continues(handler):
    handler.may_go_on.set()
    log = BackgroundLog()
    log.start()
    logger.error("exit")
    logger.error("after")
    assert log.flush(10)
    assert handler.messages == ["exit", "after"]


def test_record_too_long_for_pipe_is_cut():
    try:
        raise ValueError("x" * 10_000)
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "p", 1, "%s", ("\N{SNOWMAN}" * 10_000,), sys.exc_info())
    line = encoded(record)
    assert len(line) <= select.PIPE_BUF
    assert json.loads(line)["msg"].startswith("\N{SNOWMAN}")


def test_log_process_full_pipe_drops_lines_and_logs_count(handler):
    readers: list[int] = []

    def fork(main, name):
        [reader] = [cell.cell_contents for cell in main.__closure__ if isinstance(cell.cell_contents, int)]
        readers.append(os.dup(reader))
        return 0

    process = LogProcess(fork)
    process.start()
    for number in range(5000):
        logger.error("line %d", number)
    assert process._dropped > 0
    os.read(readers[0], 1 << 20)
    logger.error("after")
    assert process._dropped == 0
    lines = os.read(readers[0], 1 << 20).decode()
    assert "the log handlers did not keep up: dropped" in lines
    assert "after" in lines
    process.close()
    os.close(readers[0])
