"""A real worker serves its health and its metrics, notifies systemd, and frees the port when it is gone."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections import defaultdict
from contextlib import suppress

import pytest

from django_pgqueue.models import Worker
from tests.app import tasks

from .harness import page

ATTEMPTS = 'pgqueue_attempts_total{{outcome="{1}",queue="default",task="{0}"}}'
PORT = re.compile(r"metrics on port (\d+)")


def port_of(worker):
    worker.wait_until(lambda: PORT.search(worker.said))
    return int(PORT.search(worker.said)[1])


@pytest.mark.promise("metrics-never-go-back")
@pytest.mark.process
def test_metrics_port_follows_worker_from_start_to_end(start, tmp_path):
    started, done = tmp_path / "started", tmp_path / "done"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20.0)
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        worker = start("--metrics-port", "0", "--queue-metrics", "--processes", "2", variables=variables)
        port = port_of(worker)
        worker.wait_until(lambda: page(port, "/readyz")[0] == 200)
        assert systemd.recv(1000).splitlines()[-1].startswith(b"STATUS=")
        tasks.wait_for_file.enqueue(str(done), started=str(started))
        worker.wait_until(started.exists)
        worker.wait_until(lambda: sum(process["running"] for process in report(port)["processes"]) == 1)
        assert [process["pid"] for process in report(port)["processes"]] == worker.children
        for _ in range(20):
            tasks.add.enqueue(1)
        tasks.fail.enqueue()
        worker.wait_until(lambda: figures(port)[ATTEMPTS.format(tasks.add.name, "succeeded")] == 20.0)
        worker.wait_until(lambda: figures(port)[ATTEMPTS.format(tasks.fail.name, "failed")] == 1.0)
        before = figures(port)
        assert (before["pgqueue_slots"], before["pgqueue_slots_busy"], before["pgqueue_processes"]) == (20.0, 1.0, 2.0)
        assert (before["pgqueue_database_up"], before["pgqueue_live_workers"]) == (1.0, 2.0), "the figures of the queue"
        assert before['pgqueue_statements_total{statement="claim"}'] >= 1.0
        assert before['pgqueue_statements_total{statement="extend"}'] >= 1.0
        [idle] = (process["pid"] for process in report(port)["processes"] if not process["running"])
        os.kill(idle, signal.SIGKILL)  # the other one still runs the job when the worker stops
        worker.wait_until(lambda: figures(port)['pgqueue_process_ends_total{reason="crashed"}'] == 1.0)
        worker.wait_until(lambda: len(report(port)["processes"]) == 2)
        after = figures(port)
        assert all(after[name] >= value for name, value in before.items() if name.endswith(("_total", "_count")))
        assert after[ATTEMPTS.format(tasks.add.name, "succeeded")] == 20.0, "the dead process's counts are kept"
        drain(systemd)  # its queue has few places, and systemd would have read them
        worker.send(signal.SIGTERM)
        worker.wait_until(lambda: page(port, "/readyz")[0] == 503)
        assert page(port, "/readyz")[1].startswith("stopping since")
        assert page(port, "/livez")[0] == 200, "it is draining"
        received = b""
        while b"STOPPING=1" not in received:
            received += systemd.recv(1000)
        done.touch()
        assert worker.exit_code() == 0
        assert page(port, "/livez")[0] == 0


def drain(systemd):
    """Read all datagrams that wait."""
    systemd.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            systemd.recv(1000)
    systemd.settimeout(20.0)


def figures(port):
    """Return the samples of the page by their names with labels. A sample that does not exist is 0."""
    status, body = page(port, "/metrics")
    assert status == 200, body
    lines = [line.rpartition(" ") for line in body.splitlines() if not line.startswith("#")]
    return defaultdict(float, {name: float(value) for name, _, value in lines})


def report(port):
    return json.loads(page(port, "/readyz?format=json")[1])


@pytest.mark.process
@pytest.mark.parametrize("arguments", [(), ("--release", "v 2")])
def test_release_reaches_metrics_and_the_rows_of_processes(start, arguments):
    variables = {"PGQUEUE_RELEASE": "of the image" if arguments else "v 2"}
    worker = start("--metrics-port", "0", "--processes", "2", *arguments, variables=variables)
    port = port_of(worker)
    worker.wait_until(lambda: page(port, "/readyz")[0] == 200)
    assert re.search(r'pgqueue_worker_info{[^}]*release="v 2"', page(port, "/metrics")[1])
    worker.wait_until(lambda: list(Worker.objects.values_list("release", flat=True)) == ["v 2"] * 2)


@pytest.mark.process
def test_metrics_port_of_killed_supervisor_is_free_again(start):
    worker = start("--metrics-port", "0")
    port = port_of(worker)
    worker.wait_until(lambda: page(port, "/livez")[0] == 200)
    worker.send(signal.SIGKILL)
    worker.exit_code()
    worker.wait_until(lambda: page(port, "/livez")[0] == 0)
