"""Test the line at the bottom of a terminal: what it says, when it is drawn, and that it never blocks."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
import time
from functools import partial
from types import SimpleNamespace

import pytest
from django.core.management.base import OutputWrapper

from django_pgqueue.management import standard_streams
from django_pgqueue.worker.runtime.shared_memory import HealthMemory, ProcessState
from django_pgqueue.worker.supervision import live_line as module
from django_pgqueue.worker.supervision.live_line import LiveLine, counts_of_children

MARK = b"\0"


def process(pid, finished=0, running=0):
    """Return what the supervisor knows of a worker process."""
    state, health = ProcessState(20), HealthMemory()
    for slot in range(running):
        state.started(slot, 100 + slot)
    health.finished = finished
    return SimpleNamespace(pid=pid, state=state, health_memory=health)


@pytest.fixture
def screen():
    """Return the two ends of a terminal with 24 rows of 80 columns."""
    reader, writer = os.openpty()
    resize(writer, 24, 80)
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.fixture
def line(screen):
    """Return a function that makes an open line for processes."""
    made = []

    def make(processes):
        counts = partial(counts_of_children, processes)
        made.append(LiveLine(counts, is_enabled=True, output=screen[1]))
        return made[-1]

    yield make
    for each in made:
        each.close()


def resize(terminal, rows, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def shown(screen):
    """Return what the terminal has received. The kernel passes it on a moment later, so a mark follows it."""
    os.write(screen[1], MARK)
    text = b""
    while not text.endswith(MARK):
        assert select.select([screen[0]], [], [], 20.0)[0]
        text += os.read(screen[0], 100_000)
    return text.removesuffix(MARK).decode()


def redraw(line):
    line._drawn_at = float("-inf")
    line.draw()


def test_line_shows_sums_of_all_processes(screen, line):
    live = line({1: process(1, finished=1000, running=5), 2: process(2, finished=204, running=7)})
    live.draw()
    assert "\x1b[24;1H\x1b[2K12 running, 0/s, 1,204 done\x1b8" in shown(screen)


def test_line_keeps_the_count_of_ended_processes(screen, line):
    processes = {1: process(1, finished=1000)}
    live = line(processes)
    redraw(live)
    processes.clear()
    processes[2] = process(2, finished=4)
    shown(screen)
    redraw(live)
    assert "0 running" in (text := shown(screen)) and "1,004 done" in text


def test_line_rate_is_of_the_last_seconds(screen, line, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    only = process(1)
    live = line({1: only})
    for second in range(20):
        now[0], only.health_memory.finished = 100.0 + second, 340 * max(0, second - 10)
        live.draw()
    assert "340/s, 3,060 done" in shown(screen).rpartition("running")[2]


def test_line_reserves_last_row_once_and_after_a_resize(screen, line):
    live = line({})
    redraw(live)
    redraw(live)
    assert shown(screen).count("\x1b[1;23r") == 1
    resize(screen[1], 40, 10)
    redraw(live)
    text = shown(screen)
    assert "\x1b[1;39r" in text
    assert text.endswith("\x1b[40;1H\x1b[2K0 running\x1b8")  # 9 of 10 columns


def test_line_close_frees_the_row(screen, line):
    live = line({})
    live.draw()
    shown(screen)
    live.close()
    assert shown(screen) == "\x1b7\x1b[r\x1b[24;1H\x1b[2K\x1b8"
    redraw(live)
    assert shown(screen) == ""


def test_line_stopped_terminal_never_blocks(screen, line):
    live = line({})
    termios.tcflow(screen[1], termios.TCOOFF)
    began = time.monotonic()
    for _ in range(2000):
        redraw(live)
    assert time.monotonic() - began < 20
    termios.tcflow(screen[1], termios.TCOON)


def test_line_small_or_missing_terminal_draws_nothing(screen, line):
    resize(screen[1], 3, 80)
    line({}).draw()
    LiveLine(list, is_enabled=False, output=screen[1]).draw()
    reader, writer = os.pipe()
    LiveLine(list, is_enabled=True, output=writer).draw()
    os.close(reader)
    os.close(writer)
    assert shown(screen) == ""


@pytest.mark.parametrize(
    ("variables", "arguments", "coloured"),
    [
        ({}, {}, True),
        ({"NO_COLOR": "1"}, {}, False),
        ({}, {"no_color": True}, False),
        ({"TERM": "dumb"}, {}, False),
        ({"TERM": "dumb"}, {"force_color": True}, True),
    ],
)
def test_colours_follow_terminal_variables_and_options(screen, monkeypatch, variables, arguments, coloured):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with os.fdopen(os.dup(screen[1]), "w") as stream:
        assert standard_streams.is_coloured(OutputWrapper(stream), arguments) is coloured
    with open(os.devnull, "w") as stream:
        assert standard_streams.is_coloured(OutputWrapper(stream), arguments) is ("force_color" in arguments)
