"""Measure 500 machines that wait at one ASGI process: `python -m tests.tools.remote_load [--machines N]`.

It needs uvicorn (`uv sync --group remote`). It makes a database of its own beside the one of the tests' settings,
starts uvicorn with the interface of remote workers and Django's usual middleware, lets the machines wait, and gives
them jobs. It prints what the server process spends, and removes the database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
NAME: Final = "pgqueue_remote_load"
HOST: Final = "127.0.0.1"
IDLE_SECONDS: Final = 25.0
"""Each machine asks again once in this time."""
SETTLE_SECONDS: Final = 0.5
TICKS: Final = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the table, or serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=500)
    parser.add_argument("--serve", type=int, metavar="PORT", help="for the program itself")
    options = parser.parse_args()
    django.setup()
    from django.db import connection

    if options.serve:
        connection.settings_dict["NAME"] = NAME
        serve(options.serve)
        return
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)")
        cursor.execute(f"CREATE DATABASE {NAME}")
    connection.close()
    before, connection.settings_dict["NAME"] = connection.settings_dict["NAME"], NAME
    try:
        measure(options.machines)
    finally:
        connection.close()
        connection.settings_dict["NAME"] = before
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {NAME} WITH (FORCE)")


def serve(port: int) -> None:
    """Serve the interface until the process is terminated."""
    import uvicorn
    from django.conf import settings
    from django.core.asgi import get_asgi_application

    from django_pgqueue.db.engine_connection import EngineConnection

    count = [0]
    EngineConnection.record_statement = staticmethod(lambda statement, seconds: count.__setitem__(0, count[0] + 1))
    project = get_asgi_application()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        """Answer how many statements were executed. The project answers everything else."""
        if scope["type"] != "http" or scope["path"] != "/remote/v1/statements":
            await project(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": str(count[0]).encode()})

    settings.ROOT_URLCONF, settings.ALLOWED_HOSTS = "tests.remote.urls", ["localhost"]
    uvicorn.run(application, host=HOST, port=port, log_level="warning", backlog=2048)


class Spent(NamedTuple):
    """What the server process has spent so far."""

    cpu_seconds: float
    statements: int


class Server:
    """The uvicorn process, as the table describes it."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Any, port: int) -> None:
        self.process = process
        self._connection = connection
        self._port = port

    async def spent(self) -> Spent:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        _, statements = await post(self._port, "", "statements", {})
        return Spent((int(fields[11]) + int(fields[12])) / TICKS, statements)

    def threads(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("Threads:")[2].split()[0])

    def connections(self) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgqueue:remote%'")
            [count] = cursor.fetchone()
        return int(count)


def measure(machines: int) -> None:
    """Start the server and print the table."""
    from django.core.management import call_command
    from django.db import connection

    from django_pgqueue.contrib.remote.machine_tokens import create_token

    call_command("migrate", verbosity=0)
    secret = create_token(connection, "load", requests_per_minute=1_000_000)
    with socket.create_server((HOST, 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "tests.tools.remote_load", "--serve", str(port)])
    try:
        asyncio.run(scenario(machines, port, secret, Server(process, connection, port)))
    finally:
        process.terminate()
        process.wait()


async def scenario(machines: int, port: int, secret: str, server: Server) -> None:
    """Let the machines register and wait, and give them jobs twice."""
    while True:
        try:
            await post(port, secret, "workers", {"name": "first"})
            break
        except OSError:
            await asyncio.sleep(0.1)
    limit = asyncio.Semaphore(50)

    async def register(number: int) -> str:
        async with limit:
            _, answer = await post(port, secret, "workers", {"name": f"machine {number}"})
        return str(answer["worker"])

    handles = await asyncio.gather(*map(register, range(machines)))
    row("threads of the server before the wait", server.threads())

    async def wait(handle: str) -> tuple[float, list[dict[str, Any]]]:
        while True:
            _, answer = await post(port, secret, "claim", {"worker": handle, "wait_seconds": 25})
            if answer["executions"]:
                return time.monotonic(), answer["executions"]

    polls = [asyncio.create_task(wait(handle)) for handle in handles]
    await asyncio.sleep(5)
    before = await server.spent()
    await asyncio.sleep(IDLE_SECONDS)
    after = await server.spent()
    row(f"threads while {machines} machines wait", server.threads())
    row("connections to PostgreSQL", await in_thread(server.connections))
    spent("a second of waiting", before, after, IDLE_SECONDS)
    few = machines // 100 or 1
    await give(few, polls, server)
    await give(machines - few, polls, server)
    executions = [execution for poll in polls for execution in poll.result()[1]]
    assert len({execution["job_id"] for execution in executions}) == machines, "a job was given twice"
    before, began = await server.spent(), time.monotonic()
    ended = [{"execution": execution["execution"], "result": 1} for execution in executions]
    for first in range(0, machines, 100):
        status, _ = await post(port, secret, "complete", {"executions": ended[first : first + 100]})
        assert status == 200, status
    row(f"ms to complete {machines} jobs in batches of 100", 1000 * (time.monotonic() - began))
    await asyncio.sleep(SETTLE_SECONDS)
    spent("a completed job", before, await server.spent(), machines)


async def give(jobs: int, polls: list[asyncio.Task[Any]], server: Server) -> None:
    """Enqueue jobs, wait until as many machines have one, and print what that took."""
    done_before = {poll for poll in polls if poll.done()}
    before, began = await server.spent(), time.monotonic()
    await in_thread(enqueue, jobs)
    while sum(poll.done() for poll in polls) < len(done_before) + jobs:
        await asyncio.sleep(0.005)
    got = sorted(1000 * (poll.result()[0] - began) for poll in polls if poll.done() and poll not in done_before)
    await asyncio.sleep(SETTLE_SECONDS)
    after = await server.spent()
    row(f"ms from the enqueue of {jobs} jobs to the first answer", got[0])
    row(f"ms to the last of {jobs} answers", got[-1])
    spent(f"each of {jobs} jobs", before, after, jobs)


def enqueue(jobs: int) -> None:
    """Enqueue jobs in one transaction, and notify."""
    from django.db import connection

    from tests.app import tasks

    tasks.add.enqueue_many([((number,), {}) for number in range(jobs)])
    connection.close()


def in_thread(function: Any, *args: Any) -> Any:
    return asyncio.get_running_loop().run_in_executor(None, function, *args)


async def post(port: int, secret: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Send a request on a connection of its own, and return the status and the JSON of the answer."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=64 * 1024 * 1024)
    text = json.dumps(body).encode()
    head = (
        f"POST /remote/v1/{path} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {secret}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    writer.write(head.encode() + text)
    answer = await reader.read()
    writer.close()
    head_text, _, document = answer.partition(b"\r\n\r\n")
    return int(head_text.split()[1]), json.loads(document)


def spent(what: str, before: Spent, after: Spent, count: float) -> None:
    row(f"ms of server CPU for {what}", 1000 * (after.cpu_seconds - before.cpu_seconds) / count)
    row(f"statements for {what}", (after.statements - before.statements) / count)


def row(what: str, figure: float) -> None:
    sys.stdout.write(f"| {what} | {figure:,.1f} |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
