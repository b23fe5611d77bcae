"""Test rows that were inserted by a user who can write to the tables but cannot run code.

Such rows must not stop other jobs, break a page, or start any code. Also test that a worker listens on no socket.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from django_pgqueue import InvalidTask, stats
from django_pgqueue.db.notifications import CHANNEL
from django_pgqueue.lifecycle import rescues
from tests import helpers
from tests.admin.test_hostile import IMPORTABLE
from tests.app import tasks
from tests.process.harness import django

DROP = "'; DROP TABLE pgqueue_job; --"
FORGED = "\x1b[2J\n2001-01-01 00:00:00,000 1 MainThread INFO job 1 succeeded"
GIANT = "x" * 3_000_000
QUOTED = '"' + "x" * 1_000_000 + '"'

ARGUMENTS = [
    "null", "7", "[]", "{}", '"text"', "true",
    '{"args":{},"kwargs":[]}', '{"args":[],"kwargs":null}', '{"args":[]}', '{"kwargs":{}}',
    '{"args":[],"kwargs":{"__class__":1}}', '{"args":[],"kwargs":{"self":1,"":2}}',
    '{"args":[' + "9" * 5000 + '],"kwargs":{}}',
    '{"args":[1e999],"kwargs":{}}', '{"args":["\\u0000\\ud800"],"kwargs":{}}', '{"args":[],"args":7,"kwargs":{}}',
    "[" * 5000 + "]" * 5000, '{"args":' + "[" * 5000 + "]" * 5000 + ',"kwargs":{}}',
    '{"args":[' + QUOTED + '],"kwargs":{}}',
]  # fmt: skip
JOBS: list[dict[str, Any]] = [
    *({"arguments": arguments} for arguments in ARGUMENTS),
    *({"task_name": name} for name in (*IMPORTABLE, DROP, "", " ", FORGED, "%s{0}")),
    {"queue_name": DROP},
    {"queue_name": ""},
    {"queue_name": "\n\x1b[31m"},
    {"attempt": -32768},
    {"attempt": 32767},
    {"max_attempts": -1},
    {"max_attempts": 0},
    {"crashes": -32768},
    {"crashes": 32767},
    {"priority": -32768},
    {"priority": 32767},
    {"enqueued_at": "infinity"},
    {"enqueued_at": "-infinity"},
    {"enqueued_at": "294276-01-01"},
    {"enqueued_at": "4713-01-01 BC"},
    {"cancel_requested_at": "294276-01-01"},
    {"unknown_since": "infinity"},
    {"unknown_since": "4713-01-01 BC", "task_name": FORGED},
    {"unknown_since": "294276-01-01", "task_name": "nobody.knows"},
    {"state": "dead", "finished_at": "infinity"},
    {"state": "dead", "finished_at": "-infinity"},
    {"state": "dead", "finished_at": "4713-01-01 BC"},
    {"state": "dead", "finished_at": "294276-01-01"},
    {"state": "succeeded", "finished_at": "2001-01-01", "result": "[" * 5000 + "]" * 5000},
    {"state": "succeeded", "finished_at": "294276-01-01", "result": "9" * 5000},
    {"state": "nonsense"},
    {"state": "running"},
    {"state": "waiting"},
    {"limit_key": "x"},
]
EXECUTIONS: list[dict[str, Any]] = [
    {"claimed_at": "-infinity", "started_at": "infinity", "lease_expires_at": "infinity"},
    {"claimed_at": "294276-01-01", "started_at": "4713-01-01 BC", "lease_expires_at": "-infinity"},
    {"attempt": -32768, "worker_id": -1, "lease_expires_at": "4713-01-01 BC"},
    {"outcome": "nonsense", "finished_at": "294276-01-01", "error": GIANT, "traceback": GIANT},
    {"outcome": "failed", "finished_at": "4713-01-01 BC", "started_at": "infinity", "exception_class": DROP},
]
WORKERS: list[dict[str, Any]] = [
    {"hostname": DROP, "queue_names": GIANT, "last_heartbeat_at": "infinity", "pid": -1, "concurrency": -1},
    {
        "hostname": "\x1b[2J",
        "started_at": "4713-01-01 BC",
        "last_heartbeat_at": "294276-01-01",
        "stopped_at": "-infinity",
    },
]
REFUSED: list[dict[str, Any]] = [
    {"state": "dead"},
    {"state": "ready", "finished_at": "2001-01-01"},
    {"run_after": "infinity"},
    {"run_after": "-infinity"},
    {"run_after": "294276-01-01"},
    {"run_after": "4713-01-01 BC"},
    {"run_after": "9999-12-31"},
    {"run_after": None},
    {"arguments": "NaN"},
    {"arguments": "{"},
    {"arguments": None},
    {"task_name": "x" * 101},
    {"queue_name": "x" * 101},
    {"task_name": None},
    {"priority": 32768},
    {"attempt": 32768},
    {"attempt": -1},
    {"crashes": -1},
    {"max_attempts": 0},
    {"state": "nonsense"},
    {"limit_key": ""},
    {"limit_key": "x", "limit_weight": 0},
    {"limit_key": "x" * 201},
    {"limit_weight": 1},
    {"limit_order": 1},
    {"task_name": ""},
    {"queue_name": ""},
    {"unique_ready_only": False, "unique_key": "k"},
    {"enqueued_at": "infinity"},
    {"expires_at": "infinity"},
    {"expires_at": "4713-01-01 BC"},
    {"unknown_since": "-infinity"},
    {"state": "dead", "finished_at": "294276-01-01"},
]


def insert(on: Any, table: str, row: dict[str, Any]) -> int:
    statement = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))}) RETURNING id"
    return int(on.execute(statement, list(row.values())).fetchone()[0])


def insert_job(on: Any, **changes: Any) -> int:
    return insert(on, "pgqueue_job", {"task_name": helpers.NOOP, "arguments": helpers.NO_ARGUMENTS} | changes)


@pytest.fixture
def hostile(engine: Any) -> Iterator[list[int]]:
    """Insert and commit all these rows, as if they were older than the constraints. They are due before other jobs."""
    with helpers.without_row_checks(engine):
        yield insert_all(engine)


def insert_all(engine: Any) -> list[int]:
    ids = [insert_job(engine, **{"run_after": "2020-01-01", **changes}) for changes in JOBS]
    for changes in EXECUTIONS:
        job_id = insert_job(engine, state="running", task_name=FORGED)
        row = {"job_id": job_id, "attempt": 1, "worker_id": 1, "lease_expires_at": "2001-01-01"}
        insert(engine, "pgqueue_execution", row | changes)
        ids.append(job_id)
    engine.execute(helpers.NAME_EXECUTIONS)
    for changes in WORKERS:
        row = {"hostname": "h", "pid": 1, "version": "v", "concurrency": 1}
        insert(engine, "pgqueue_worker", row | changes)
    return ids


@pytest.mark.quick
@pytest.mark.promise("bad-row-constraints")
@pytest.mark.parametrize("changes", REFUSED, ids=str)
def test_insert_impossible_row_is_refused(engine, changes):
    with pytest.raises((psycopg.IntegrityError, psycopg.DataError)):
        insert_job(engine, **changes)


@pytest.mark.quick
@pytest.mark.promise("bad-row-constraints")
@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("pgqueue_execution", {"job_id": 1, "attempt": 1, "worker_id": 1, "lease_expires_at": "infinity"}),
        ("pgqueue_pause", {"kind": "quux", "name": "default"}),
        ("pgqueue_limit_state", {"limit_key": "x", "full_at": "infinity"}),
        ("pgqueue_limit_override", {"limit_key": "x"}),
        ("pgqueue_limit_override", {"limit_key": "x", "concurrency": 0}),
        ("pgqueue_limit_override", {"limit_key": "x", "burst": 1_000_000_001}),
        *(("pgqueue_limit_override", {"limit_key": "x", "rate": rate}) for rate in ("0/s", "1/0s", "1/w", "1", "-1/s")),
        ("pgqueue_limit_override", {"limit_key": "x", "share": 1, "valid_until": "infinity"}),
        ("pgqueue_limit_state", {"limit_key": "x", "full_at": "2030-01-01", "held_until": "4713-01-01 BC"}),
        ("pgqueue_open_breaker", {"limit_key": "x", "after_execution_id": 1, "opened_at": "infinity"}),
        ("pgqueue_breaker_count", {"limit_key": "x", "succeeded": 1, "failed": 1, "ended_at": "infinity"}),
        *(
            ("pgqueue_schedule", {"name": "s", "task_name": "t", "expression": "@daily", "arguments": "{}", **wrong})
            for wrong in ({"origin": "sql"}, {"missed": "never"}, {"if_running": "?"}, {"next_run_at": "infinity"})
        ),
    ],
)
def test_insert_impossible_row_of_other_table_is_refused(engine, table, row):
    row = {"next_run_at": "2030-01-01", **row} if table == "pgqueue_schedule" else row
    with pytest.raises(psycopg.errors.CheckViolation):
        insert(engine, table, row)


@pytest.mark.parametrize("name", [DROP, "", "a b", "x" * 101, "ä", "a\nb", 7])
def test_enqueue_invalid_queue_name_raises(committing, name):
    with pytest.raises(InvalidTask):
        tasks.noop.using(queue_name=name).enqueue()


def test_runworker_invalid_queue_name_is_refused(committing):
    with pytest.raises(AssertionError, match="Invalid queue name"):
        django("runworker", "--until-empty", "--queues", DROP)


@pytest.mark.promise("defect-far-year-in-list")
@pytest.mark.django_db
def test_admin_hostile_rows_every_page_opens():
    with connection.cursor() as cursor:
        cursor.execute(helpers.CHECKS)
        for table, name, _ in cursor.fetchall():  # the rollback of the test restores it
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        hostile = insert_all(cursor)
    client = Client()
    client.force_login(User.objects.create(username="root", is_staff=True, is_superuser=True))
    lists = ["job/", "deadjob/", "worker/", *(f"job/?state={state}" for state in ("ready", "running", "dead"))]
    lists += [f"{kind}/?since={span}" for kind in ("job", "deadjob") for span in ("hour", "week")]
    for url in [*lists, *(f"job/{job_id}/change/" for job_id in hostile)]:
        answer = client.get(f"/admin/pgqueue/{url}")
        assert answer.status_code == 200, url
        assert len(answer.content) < 9_000_000, url


def test_stats_hostile_rows_return_figures(hostile):
    assert DROP in stats.names(connection).queues
    assert stats.last_id(connection) >= hostile[-1]
    assert stats.first_id_since(connection, 3600) is not None


def test_rescue_of_hostile_rows_ends_infinite_lease(engine, hostile):
    leases = rescues.ending_leases(engine, 1.0)
    assert float("-inf") in leases.values()
    rescues.rescue(engine, lambda execution: 0.0, error="lost", leases=leases)
    assert float("-inf") not in rescues.ending_leases(engine, 1.0).values()


@pytest.mark.promise("defect-forged-log-lines")
@pytest.mark.process
def test_worker_hostile_rows_other_jobs_run(engine, hostile, start):
    """Jobs behind the hostile rows must run, also some time later. Old rows are pruned, and no module is imported."""
    always_there = {"os", "builtins", "encodings", "subprocess"}
    modules = sorted({name.split(".")[0] for name in IMPORTABLE if name[0].isalpha()} - always_there)
    ids = helpers.make_jobs(engine, 5)
    worker = start("--concurrency", "2", LEASE=6.0)
    worker.wait_until(lambda: {helpers.state_of(engine, job_id) for job_id in ids} == {"succeeded"})
    pruned = "SELECT count(*) = 0 FROM pgqueue_job WHERE state = 'succeeded' AND finished_at = '2001-01-01'"
    worker.wait_until(lambda: helpers.scalar(engine, pruned))
    due = "SELECT count(*) = 0 FROM pgqueue_job WHERE state = 'ready' AND limit_key IS NULL AND run_after < %s"
    worker.wait_until(lambda: helpers.scalar(engine, due, ["2021-01-01"]))
    for _ in range(100):
        engine.execute("SELECT pg_notify(%s, %s)", [CHANNEL, DROP])  # every role of the server can do this
    worker.wait_until(lambda: "its lease ran out" in worker.said and "is dead after" in worker.said)
    arguments = f'{{"args":[{list(map(str, modules))!r}],"kwargs":{{}}}}'.replace("'", '"')
    last_id = helpers.make_job(engine, task_name="tests.app.tasks.loaded", arguments=[arguments])
    worker.wait_until(lambda: helpers.state_of(engine, last_id) == "succeeded")
    assert helpers.scalar(engine, "SELECT result FROM pgqueue_job WHERE id = %s", [last_id]) == []
    worker.send(15)
    assert worker.exit_code() == 0, worker.said
    assert " died " not in worker.said, worker.said
    assert "\n2001-01-01" not in worker.said and "\x1b" not in worker.said, "a row must not forge a log line"


# ------------------------------------------------------------------ listening sockets


def socket_inodes(pids: list[int]) -> set[str]:
    """Return the inodes of the sockets that these processes have open."""
    links = [os.readlink(fd) for pid in pids for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()]
    return {found[1] for link in links if (found := re.fullmatch(r"socket:\[(\d+)\]", link))}


def listening_sockets(open_sockets: set[str]) -> list[str]:
    """Return the lines of /proc/net for those of these sockets that accept connections, or any sender's datagrams."""
    found = []
    for name, state, inode, wanted in (("tcp", 3, 9, "0A"), ("tcp6", 3, 9, "0A"), ("unix", 3, 6, "00010000")):
        lines = [line.split() for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
        found += [" ".join(line) for line in lines if line[inode] in open_sockets and line[state] == wanted]
    for name in ("udp", "udp6", "raw", "raw6"):
        lines = [line.split() for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
        found += [" ".join(line) for line in lines if line[9] in open_sockets]
    return found


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")
def test_worker_running_listens_on_no_socket(start):
    worker = start("--processes", "2")
    worker.wait_until(lambda: worker.said.count("is ready") == 2)
    open_sockets = socket_inodes([worker.process.pid, *worker.children])
    assert len(open_sockets) >= 8, "the sockets must include the connections to the server"
    assert listening_sockets(open_sockets) == []


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc")
@pytest.mark.parametrize("kind", ["tcp", "unix", "udp"])
def test_listening_sockets_open_listener_is_found(tmp_path, kind):
    address: Any = str(tmp_path / "s") if kind == "unix" else ("127.0.0.1", 0)
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM) as opened:
        opened.bind(address)
        if kind != "udp":
            opened.listen()
        assert listening_sockets(socket_inodes([os.getpid()]))
