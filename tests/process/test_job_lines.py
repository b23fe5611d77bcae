"""What a worker prints: its first line, and with `-v 2` a line for each attempt that has ended."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios

import pytest

from django_pgqueue import __version__
from tests.app import tasks
from tests.documents import blocks

from .harness import environment
from .test_isolation import succeeded
from .test_output import full_pipe  # noqa: F401 -- a fixture

pytestmark = pytest.mark.process

FIRST_LINE = re.compile(
    rf"django_pgqueue {re.escape(__version__)}, worker with pid \d+: database '\w+', (all queues|queues? [\w, ]+), "
    r"\d+ process(es)? x \d+ jobs?, \d+ tasks? known\. Press Ctrl-C or send SIGTERM to stop\."
)
JOB_LINE = re.compile(
    r"\d\d:\d\d:\d\d job \d+ [\w.]+ (started|succeeded|failed|is dead|cancelled|snoozed|released) "
    r"\(queue \w+, attempt \d+(, \d+\.\d ms|, \d+\.\d\d s)?\)(: .+)?"
)


def printed(*arguments, **variables):
    """Return what a worker prints on its standard output until the queues are empty, and what it logs."""
    done = subprocess.run(
        [sys.executable, "-m", "django", "runworker", "--until-empty", *arguments],
        env=environment(None) | {"PGQUEUE_TEST_LOG": "CRITICAL", **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines(), done.stderr


def outcomes(lines):
    """Return the number, the name and the outcome of each job's line. Fail if a line has another form."""
    found = []
    for line in lines:
        assert JOB_LINE.fullmatch(line), line
        number, name, rest = line.split(maxsplit=4)[2:]
        found.append((int(number), name.rpartition(".")[2], rest.partition(" (")[0]))
    return sorted(found)


@pytest.fixture
def jobs(committing):
    """Return jobs that end in different ways."""
    return [
        tasks.noop.enqueue("hunter2"),
        tasks.fail.enqueue("no such\norder\x1b[31m " + "x" * 1000),
        tasks.raise_directive.enqueue("snooze", 60),
        tasks.raise_directive.enqueue("cancel"),
        tasks.isolated_fail.enqueue("apart"),
    ]


@pytest.mark.promise("job-lines")
def test_verbosity_2_prints_one_line_per_ended_attempt(jobs):
    (first, *lines), log = printed("-v", "2", "--concurrency", "2")
    assert FIRST_LINE.fullmatch(first), first
    assert "1 process x 2 jobs" in first
    done, failing, snoozed, cancelled, apart = [job.pk for job in jobs]
    assert outcomes(lines) == [
        (done, "noop", "succeeded"),
        (failing, "fail", "failed"),
        (failing, "fail", "is dead"),
        (snoozed, "raise_directive", "snoozed"),
        (cancelled, "raise_directive", "cancelled"),
        (apart, "isolated_fail", "is dead"),
    ]
    text = "\n".join(lines)
    assert "hunter2" not in text
    assert "RuntimeError: no such order?[31m xxx" in text  # on one line, without the control character
    assert max(map(len, lines)) < 350
    assert ": due in 60 s" in text
    assert ": not wanted" in text
    assert "succeeded" not in log


def test_verbosity_3_prints_starts_too(jobs):
    lines = printed("-v", "3")[0][1:]
    started = [entry for entry in outcomes(lines) if entry[2] == "started"]
    assert len(started) == len(jobs) + 1  # one of them fails once and is retried
    assert len(lines) == 2 * len(started)


@pytest.mark.parametrize(("verbosity", "count"), [("0", 0), ("1", 1)])
def test_lower_verbosity_prints_no_job(jobs, verbosity, count):
    lines, _ = printed("-v", verbosity, "--queues", "default")
    assert len(lines) == count
    assert not lines or ("'test" not in lines[0] and ", queue default, " in lines[0])


@pytest.mark.promise("full-log-pipe")
def test_job_lines_into_full_pipe_stop_no_job(start, full_pipe):  # noqa: F811 -- the fixture
    jobs = [tasks.noop.enqueue() for _ in range(300)]
    worker = start("-v", "2", output=full_pipe)
    worker.wait_until(lambda: succeeded(*jobs), 30)
    worker.send(signal.SIGTERM)
    assert worker.exit_code(30) == 0


def test_worker_page_shows_lines_of_the_real_form():
    [example] = [text for text in blocks("docs/production/worker.md", "text") if "django_pgqueue " in text]
    first, *lines = example.strip().splitlines()
    assert FIRST_LINE.fullmatch(first)
    assert len(outcomes(lines)) == len(lines) >= 4


@pytest.mark.parametrize("verbosity", [["-v", "2"], []], ids=["-v 2", "default"])
def test_terminal_has_colours_and_a_live_line_but_a_pipe_has_not(jobs, verbosity):
    """The line and the colours are for the terminal, so nothing of them reaches the log in the other stream."""
    reader, writer = os.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [sys.executable, "-m", "django", "runworker", "--until-empty", *verbosity]
    variables = environment(None) | {"TERM": "xterm", "NO_COLOR": ""}
    with subprocess.Popen(command, env=variables, stdout=writer, stderr=subprocess.PIPE) as worker:
        assert worker.wait(60) == 0
        logged = worker.stderr.read()
    shown = ""
    while select.select([reader], [], [], 0.1)[0]:
        shown += os.read(reader, 1_000_000).decode()
    for descriptor in (reader, writer):
        os.close(descriptor)
    assert b"\x1b" not in logged.replace(b"order\x1b[31m", b"")
    assert re.search(r"\x1b\[32m\d\d:\d\d:\d\d job \d+ tests.app.tasks.noop succeeded .*\x1b\[0m", shown)
    assert re.search(r"\x1b\[24;1H\x1b\[2K\d+ running, \d+/s, \d+ done\x1b8", shown)
    assert shown.rindex("\x1b[r") > shown.rindex(" done")
