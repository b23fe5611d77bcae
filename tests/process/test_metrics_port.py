"""A real worker serves its health and its metrics, notifies systemd, and frees the port when it is gone."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.error
import urllib.request

import pytest

from tests.app import tasks

PORT = re.compile(r"metrics on port (\d+)")


def port_of(worker):
    worker.wait_until(lambda: PORT.search(worker.said))
    return int(PORT.search(worker.said)[1])


def scrape(port, path):
    """Return the status and the body, or (0, "") while nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return 0, ""


@pytest.mark.process
def test_metrics_port_follows_worker_from_start_to_end(start, tmp_path):
    started, done = tmp_path / "started", tmp_path / "done"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20.0)
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        worker = start("--metrics-port", "0", "--processes", "2", variables=variables)
        port = port_of(worker)
        worker.wait_until(lambda: scrape(port, "/readyz")[0] == 200)
        assert systemd.recv(1000).splitlines()[-1].startswith(b"STATUS=")
        tasks.wait_for_file.enqueue(str(done), started=str(started))
        worker.wait_until(started.exists)
        worker.wait_until(lambda: sum(process["running"] for process in report(port)["processes"]) == 1)
        assert [process["pid"] for process in report(port)["processes"]] == worker.children
        worker.send(signal.SIGTERM)
        worker.wait_until(lambda: scrape(port, "/readyz")[0] == 503)
        assert scrape(port, "/readyz")[1].startswith("stopping since")
        assert scrape(port, "/livez")[0] == 200, "it is draining"
        received = b""
        while b"STOPPING=1" not in received:
            received += systemd.recv(1000)
        done.touch()
        assert worker.exit_code() == 0
        assert scrape(port, "/livez")[0] == 0


def report(port):
    return json.loads(scrape(port, "/readyz?format=json")[1])


@pytest.mark.process
def test_metrics_port_of_killed_supervisor_is_free_again(start):
    worker = start("--metrics-port", "0")
    port = port_of(worker)
    worker.wait_until(lambda: scrape(port, "/livez")[0] == 200)
    worker.send(signal.SIGKILL)
    worker.exit_code()
    worker.wait_until(lambda: scrape(port, "/livez")[0] == 0)
