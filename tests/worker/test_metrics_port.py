"""Test the metrics port: its pages, what a bad client can do to it, and how the supervisor runs its process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time

import pytest

from django_pgqueue.worker.monitoring import http_server
from django_pgqueue.worker.monitoring.http_server import HttpServer
from django_pgqueue.worker.monitoring.metrics_process import Pages
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.health_report import HealthReport
from django_pgqueue.worker.runtime.shared_memory import HealthMemory, lease_clock
from django_pgqueue.worker.runtime.worker_memory import WorkerMemory
from django_pgqueue.worker.supervision import helper_process, metrics_server
from django_pgqueue.worker.supervision.metrics_server import MetricsServer, open_port


@pytest.fixture
def memory(monkeypatch):
    """Return the memory of a worker with one process that works."""
    monkeypatch.setattr("django_pgqueue.worker.runtime.worker_memory.health_memory", HealthMemory())
    memory = WorkerMemory(1)
    process = memory.free_place()
    process.pid, process.started_at, process.lease_until = 11, time.monotonic(), lease_clock() + 60.0
    process.answered("claim")
    return memory


async def ask(port, request):
    """Return the status, the headers and the body of the answer to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(30):
            answer = await reader.read()
    finally:
        writer.transport.abort()
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), head, body


def serve(pages, client):
    """Run a coroutine function of a client, which gets the port, against a server with these pages."""

    async def run():
        listener = socket.create_server(("127.0.0.1", 0))
        server = await HttpServer(pages).start(listener)
        try:
            return await client(listener.getsockname()[1])
        finally:
            server.close()

    return asyncio.run(run())


def answers(pages, *requests):
    async def client(port):
        return [await ask(port, request) for request in requests]

    return serve(pages, client)


async def has_ended(reader):
    """Wait until the server has closed a connection without an answer."""
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    return True


def get(path, method="GET", *headers):
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def test_pages_of_outage_are_alive_and_not_ready(memory):
    memory.supervisor.outage_since = time.monotonic() - 3.0
    [process] = memory.living()
    process.running = 4
    pages = Pages(HealthReport(memory)).by_path()
    alive, ready, as_json, head = answers(
        pages,
        get("/livez"),
        get("/readyz"),
        get("/readyz", "GET", "accept: application/json"),
        get("/readyz?format=json", "HEAD"),
    )
    assert (alive[0], ready[0]) == (200, 503)
    assert ready[2].startswith("database away since ")
    assert ready[2].endswith("\n- statements have been failing for 3 s\n")
    about = json.loads(as_json[2])
    assert (as_json[0], about["status"], about["alive"], about["ready"]) == (503, "database away", True, False)
    assert about["processes"][0]["running"] == 4
    assert (head[0], head[2]) == (503, "")
    assert "Content-Type: application/json" in head[1]


def test_pages_of_stuck_supervisor_are_not_alive(memory):
    memory.round_finished_at -= 301.0
    [answer] = answers(Pages(HealthReport(memory)).by_path(), get("/livez"))
    assert answer[0] == 503
    assert "the supervisor has been in one round for 301 s" in answer[2]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/livez", "POST"), 405),
        (get("/other"), 404),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /livez SPDY/9\r\n\r\n", 400),
        (b"\xff\xfe \r\n\r\n", 400),
        (b"GET /" + b"a" * 40_000, 400),
    ],
)
def test_http_server_invalid_request_is_refused(memory, request_bytes, status):
    [answer] = answers(Pages(HealthReport(memory)).by_path(), request_bytes)
    assert answer[0] == status
    assert ("Allow: GET, HEAD" in answer[1]) is (status == 405)


async def broken(request):
    raise LookupError("a secret")


async def endless(request):
    await asyncio.sleep(60)


def test_http_server_broken_page_is_an_error_without_its_text(caplog, monkeypatch):
    monkeypatch.setattr(http_server.outage_log, "may_log", lambda: True)
    [answer] = answers({"/": broken}, get("/"))
    assert (answer[0], answer[2]) == (500, "Internal Server Error\n")
    assert "the page / of the metrics port failed" in caplog.text


def test_http_server_slow_page_is_given_up(monkeypatch):
    monkeypatch.setattr(http_server, "TIMEOUT_SECONDS", 0.05)
    [answer] = answers({"/": endless}, get("/"))
    assert (answer[0], answer[2]) == (503, "The page was not ready in time.\n")


@pytest.mark.promise("metrics-port-bounded")
def test_http_server_silent_clients_do_not_block_others(memory, monkeypatch):
    """However many clients connect and send nothing, or a part of a request, each probe is answered."""
    monkeypatch.setattr(http_server, "TIMEOUT_SECONDS", 60.0)

    async def client(port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * http_server.CONNECTION_LIMIT)]
        for _, writer in silent:
            writer.write(b"GET /livez HT")
        statuses = [(await ask(port, get("/livez")))[0] for _ in range(5)]
        kept = silent[-http_server.CONNECTION_LIMIT + 1 :]
        ends = [await has_ended(reader) for reader, writer in silent if (reader, writer) not in kept]
        for _, writer in silent:
            writer.transport.abort()
        return statuses, ends

    statuses, ends = serve(Pages(HealthReport(memory)).by_path(), client)
    assert statuses == [200] * 5
    assert len(ends) == 2 * http_server.CONNECTION_LIMIT + 1, "the oldest silent clients are closed"


@pytest.mark.promise("metrics-port-bounded")
@pytest.mark.parametrize("requests", [3, 1])
def test_http_server_slow_answers_do_not_block_a_probe(memory, monkeypatch, requests):
    """A silent client is closed first. If each place has a request that is being answered, the oldest one is."""
    monkeypatch.setattr(http_server, "CONNECTION_LIMIT", 3)
    asked = 0

    async def slow(request):
        nonlocal asked
        asked += 1
        await endless(request)

    async def client(port):
        waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in waiting[:requests]:
            writer.write(get("/slow"))
        while asked < requests:
            await asyncio.sleep(0.001)
        status, _, _ = await ask(port, get("/livez"))
        first = waiting[requests % 3]
        others = [each for each in waiting if each is not first]
        ended = await has_ended(first[0]), [reader.at_eof() for reader, _ in others]
        for _, writer in waiting:
            writer.transport.abort()
        return status, ended

    pages = {**Pages(HealthReport(memory)).by_path(), "/slow": slow}
    assert serve(pages, client) == (200, (True, [False, False]))


def test_http_server_silent_client_is_closed_in_time(memory, monkeypatch):
    monkeypatch.setattr(http_server, "TIMEOUT_SECONDS", 0.05)

    async def client(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        end = await reader.read()
        writer.transport.abort()
        return end

    assert serve(Pages(HealthReport(memory)).by_path(), client) == b""


# ------------------------------------------------------------------------------- the supervisor's side


class Forked:
    """Instead of a fork: it notes the process that would run, and returns a pid that does not exist."""

    def __init__(self) -> None:
        self.count = 0
        self.fails = False

    def __call__(self, main, name):
        if self.fails:
            raise OSError("no process can be started")
        self.count += 1
        return 2**22 + self.count


@pytest.fixture
def forked():
    return Forked()


@pytest.fixture
def server(memory, forked):
    server = MetricsServer(forked, open_port(Options(database="default", metrics_port=0)), HealthReport(memory))
    yield server
    server._process.pid = 0
    server.close()


def test_metrics_server_without_port_starts_nothing(memory, forked):
    server = MetricsServer(forked, open_port(Options(database="default")), HealthReport(memory))
    server.start()
    server.keep_running()
    server.close()
    assert forked.count == 0


def test_metrics_server_ended_process_is_started_again(server, forked):
    server.start()
    assert not server.reaped(1)
    assert server.reaped(server._process.pid)
    server.keep_running()
    assert forked.count == 1, "not within 5 s"
    server._process._started_at -= helper_process.RESPAWN_SECONDS
    server.keep_running()
    assert forked.count == 2


def test_metrics_server_failed_fork_is_tried_again(server, forked, caplog):
    forked.fails = True
    server.start()
    assert "could not be started: no process can be started" in caplog.text
    forked.fails = False
    server._process._started_at -= helper_process.RESPAWN_SECONDS
    server.keep_running()
    assert forked.count == 1


@pytest.mark.promise("metrics-port-bounded")
def test_metrics_server_hanging_process_is_killed(server, memory, monkeypatch, caplog):
    killed = []
    monkeypatch.setattr(metrics_server, "kill", killed.append)
    server.start()
    memory.metrics_answered_at -= 29.0
    server.keep_running()
    assert killed == []
    memory.metrics_answered_at -= 2.0
    server.keep_running()
    server.keep_running()
    assert killed == [server._process.pid]
    assert "no sign of life for 30 s" in caplog.text


def test_open_port_of_ipv6_address_listens_there():
    try:
        listener = open_port(Options(database="default", metrics_port=0, metrics_address="::1"))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert listener.getsockname()[0] == "::1"


def test_metrics_server_forked_process_keeps_no_port(server):
    """A worker process that kept the port would keep it after the end of its supervisor."""
    server.start()
    descriptors = server._socket.fileno(), server._process.writer
    server.close_inherited()
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
