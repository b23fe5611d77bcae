"""Jobs that SQL adds, as docs/guides/sql.md describes them: its statements and tables agree with the database."""

from __future__ import annotations

import importlib
import re
from datetime import date
from typing import Any

import psycopg
import pytest
from django.core import mail
from django.db import connection, transaction
from django.db.utils import IntegrityError
from django.test import override_settings

from django_pgqueue import task
from django_pgqueue.db.notifications import CHANNEL
from django_pgqueue.models import Job
from django_pgqueue.tasks import registry
from django_pgqueue.testing import run_jobs, time_travel
from tests import helpers, test_docs_examples
from tests.app import tasks
from tests.documents import BLOCK, PAGES, plain, table
from tests.test_docs_queries import sql_of, statements

PAGE = "docs/guides/sql.md"
ADD = "INSERT INTO pgqueue_job (task_name, arguments) VALUES (%s, %s) RETURNING id"
SQL = [statement for block in sql_of(PAGE) for statement in statements(block)]
shop = test_docs_examples.shop


def statement(beginning: str) -> str:
    """Return the only statement of the page that begins so."""
    [found] = [text for text in SQL if text.startswith(beginning)]
    return found


def execute(text: str, params: Any = None) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(text, params)
        return cursor.fetchall() if cursor.description else []


def column_rows() -> dict[str, dict[str, Any]]:
    rows = execute(
        "SELECT column_name, column_default, is_nullable FROM information_schema.columns "
        "WHERE table_name = 'pgqueue_job' AND table_schema = current_schema() AND is_identity = 'NO'"
    )
    return {name: {"default": default, "nullable": nullable == "YES"} for name, default, nullable in rows}


# ------------------------------------------------------------------ columns


@pytest.mark.django_db
def test_insert_of_task_and_arguments_equals_enqueue(engine):
    """Each column has the value that `enqueue()` gives to a task without options."""
    enqueued = tasks.noop.enqueue().pk
    [[inserted]] = execute(ADD, [helpers.NOOP, helpers.NO_ARGUMENTS])
    rows = [Job.objects.filter(pk=pk).values().get() for pk in (enqueued, inserted)]
    for row in rows:
        assert row["run_after"] == row["enqueued_at"]
        assert all(row.pop(name) for name in ("id", "run_after", "enqueued_at"))
    assert rows[0] == rows[1]


@pytest.mark.django_db
def test_page_lists_writable_columns_with_their_defaults():
    columns = column_rows()
    defaults = {
        "none: required": lambda column: column["default"] is None and not column["nullable"],
        "null": lambda column: column["default"] is None and column["nullable"],
        "the time of the statement": lambda column: column["default"] == "statement_timestamp()",
        "`default`": lambda column: column["default"].startswith("'default'::"),
        "`0`": lambda column: column["default"] == "0",
        "`10`": lambda column: column["default"] == "10",
    }
    rows = table(PAGE, "column to write")
    for name, default, _ in rows:
        assert defaults[default](columns[plain(name)]), name
    required = {name for name, column in columns.items() if column["default"] is None and not column["nullable"]}
    assert required == {"task_name", "arguments"}


@pytest.mark.django_db
def test_columns_for_sql_are_those_that_enqueue_may_write():
    """The role that only enqueues may write these columns, and the time of the enqueue."""
    [granted] = re.findall(r"GRANT INSERT \((task_name[^)]+)\),\s+SELECT", PAGES["docs/production/security.md"])
    columns = {plain(row[0]) for row in table(PAGE, "column to write")}
    assert columns == set(re.findall(r"\w+", granted)) - {"enqueued_at"}


# ------------------------------------------------------------------ what is refused


@pytest.mark.django_db
def test_page_lists_every_constraint_on_jobs():
    rows = execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = 'pgqueue_job'::regclass AND contype = 'c' "
        "UNION SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
        "WHERE indrelid = 'pgqueue_job'::regclass AND indisunique AND NOT indisprimary"
    )
    assert {plain(row[0]) for row in table(PAGE, "constraint")} == {name for (name,) in rows}


def insert(table, row):
    execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})", list(row.values()))


WRONG = {
    "pgqueue_job_state": {"state": "nonsense"},
    "pgqueue_job_counters": {"max_attempts": 0},
    "pgqueue_job_run_after": {"run_after": "1999-12-31"},
    "pgqueue_job_instants": {"expires_at": "infinity"},
    "pgqueue_job_names": {"queue_name": ""},
    "pgqueue_job_limit": {"limit_weight": 2},
    "pgqueue_job_unique_ready_only": {"unique_key": "k", "unique_ready_only": False},
    "pgqueue_job_unique": {"unique_key": "taken"},
}


@pytest.mark.parametrize("name", [plain(row[0]) for row in table(PAGE, "constraint")])
@pytest.mark.django_db
def test_each_constraint_of_the_page_refuses_its_row(name):
    execute("INSERT INTO pgqueue_job (task_name, arguments, unique_key) VALUES ('t', '{}', 'taken')")
    with pytest.raises(IntegrityError, match=f'"{name}"'), transaction.atomic():
        insert("pgqueue_job", {"task_name": "t", "arguments": "{}", **WRONG[name]})


AT = "2026-01-01"
WRONG_JOBS = [
    *(("pgqueue_job_state", {"state": state}) for state in ("", "unknown", "succeeded", "dead", "cancelled")),
    *(("pgqueue_job_state", {"state": state, "finished_at": AT}) for state in ("ready", "running", "waiting", "{")),
    ("pgqueue_job_limit", {"limit_key": ""}),
    ("pgqueue_job_limit", {"limit_key": "k", "limit_weight": 0}),
    ("pgqueue_job_limit", {"limit_order": 1}),
    *(
        ("pgqueue_job_instants", {"state": "dead", "finished_at": AT, column: at})
        for column in ("enqueued_at", "finished_at", "unknown_since", "expires_at")
        for at in ("infinity", "-infinity", "0001-01-02", "10000-01-01")
    ),
    *(("pgqueue_job_names", {column: ""}) for column in ("queue_name", "task_name")),
    *(("pgqueue_job_counters", {column: -1}) for column in ("attempt", "crashes", "max_attempts")),
]


@pytest.mark.parametrize(("name", "columns"), WRONG_JOBS)
@pytest.mark.django_db
def test_each_wrong_value_of_a_job_is_refused(name, columns):
    with pytest.raises(IntegrityError, match=f'"{name}"'), transaction.atomic():
        insert("pgqueue_job", {"task_name": "t", "arguments": "{}", **columns})


@pytest.mark.parametrize(
    "columns",
    [
        *({"state": state} for state in ("ready", "running", "waiting")),
        *({"state": state, "finished_at": AT} for state in ("succeeded", "dead", "cancelled")),
        {"limit_key": "k"},
        {"limit_key": "k", "limit_weight": 1, "limit_order": 2},
        {"expires_at": "9999-12-28", "unknown_since": "0001-01-03T12:00Z"},
    ],
)
@pytest.mark.django_db
def test_each_right_value_of_a_job_is_stored(columns):
    insert("pgqueue_job", {"task_name": "t", "arguments": "{}", **columns})
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("pgqueue_execution_outcome", {"outcome": "succeeded"}),
        ("pgqueue_execution_outcome", {"finished_at": AT}),
        ("pgqueue_execution_outcome", {"outcome": "unknown", "finished_at": AT}),
        *(
            ("pgqueue_execution_instants", {"outcome": "failed", "finished_at": AT, column: at})
            for column in ("claimed_at", "started_at", "finished_at", "lease_expires_at")
            for at in ("infinity", "-infinity")
        ),
    ],
)
@pytest.mark.django_db
def test_each_wrong_value_of_an_execution_is_refused(name, columns):
    row = {"job_id": 1, "attempt": 1, "worker_id": 1, "claimed_at": AT, "lease_expires_at": AT, **columns}
    with pytest.raises(IntegrityError, match=f'"{name}"'), transaction.atomic():
        insert("pgqueue_execution", row)


@pytest.mark.parametrize(
    ("task_name", "arguments", "reason"),
    [
        ("nobody.knows", helpers.NO_ARGUMENTS, "has no task named 'nobody.knows'"),
        (helpers.NOOP, '{"args": []}', "cannot be read"),
        (helpers.NOOP, "[1]", "cannot be read"),
        ("tests.app.tasks.echo", '{"args": [], "kwargs": {"unknown": 1}}', "do not fit"),
    ],
)
@pytest.mark.django_db
def test_row_that_cannot_run_waits_and_is_dead_after_an_hour(task_name, arguments, reason):
    [[job_id]] = execute(ADD, [task_name, arguments])
    run_jobs()
    job = Job.objects.get(pk=job_id)
    assert (job.state, job.attempt) == ("ready", 0)
    assert job.unknown_since and job.run_after > job.unknown_since
    with time_travel(hours=1, minutes=11):
        run_jobs()
    job.refresh_from_db()
    assert job.state == "dead"
    last = job.executions.order_by("id").last()
    assert (last.outcome, last.exception_class.rpartition(".")[2]) == ("failed", "DoesNotFit")
    assert reason in last.error


# ------------------------------------------------------------------ the statements of the page


def test_job_added_by_sql_runs_its_task(shop):
    order = importlib.import_module("shop.models").Order.objects.create(email="ada@example.com")
    add = statement("INSERT INTO pgqueue_job (task_name, arguments)\nVALUES").replace("42", str(order.pk))
    [[job_id]] = execute(add)
    assert run_jobs(raising=True) == 1
    read = statement("SELECT state, attempt, result").replace("42", str(job_id))
    assert execute(read) == [("succeeded", 1, Job.objects.get().result)]
    assert [message.to for message in mail.outbox] == [["ada@example.com"]]


@pytest.mark.django_db
def test_typed_argument_written_as_json_is_converted(monkeypatch):
    """The date of the page reaches the task as a date."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))

    def weekday(day):
        return day.isoweekday()

    weekday.__module__, weekday.__qualname__ = "tests.app.tasks", "weekday"
    weekday.__annotations__ = {"day": date}
    name = task(weekday).name
    [text] = re.findall(r'A date, for example, is `("[\d-]+")`', PAGES[PAGE])
    [[job_id]] = execute(ADD, [name, f'{{"args": [{text}], "kwargs": {{}}}}'])
    assert run_jobs(raising=True) == 1
    assert Job.objects.get(pk=job_id).result == date(2026, 5, 6).isoweekday()


@override_settings(PGQUEUE={"CODECS": ["tests.app.codecs.Hidden"]})
@pytest.mark.django_db
def test_plain_arguments_run_beside_encoded_ones():
    encoded = tasks.add.enqueue(1, 2)
    [[plain_id]] = execute(ADD, [tasks.add.name, '{"args": [3, 4], "kwargs": {}}'])
    assert execute("SELECT arguments::text LIKE '%%pgqueue_codec%%' FROM pgqueue_job ORDER BY id") == [
        (True,),
        (False,),
    ]
    assert run_jobs(raising=True) == 2
    assert [Job.objects.get(pk=pk).result for pk in (encoded.pk, plain_id)] == [3, 7]


def test_trigger_enqueues_a_job_for_each_inserted_row(shop):
    order = importlib.import_module("shop.models").Order
    for beginning in ("CREATE FUNCTION", "CREATE TRIGGER"):
        execute(statement(beginning))
    order.objects.bulk_create([order(email=f"{name}@example.com") for name in ("ada", "grace")])
    order.objects.create(email="mary@example.com")
    assert run_jobs(raising=True) == 3
    assert len(mail.outbox) == 3
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        order.objects.create(email="jean@example.com")
        raise ZeroDivisionError
    assert Job.objects.due().count() == 0


@pytest.mark.django_db
def test_unique_insert_excludes_jobs_of_enqueue():
    add = statement("INSERT INTO pgqueue_job (task_name, arguments, unique_key)")
    add = add.replace("shop.tasks.synchronise", helpers.NOOP)
    assert len(execute(add)) == 1
    assert execute(add) == []
    assert tasks.noop.using(unique_key="order:42").enqueue().is_duplicate


def test_notify_of_the_page_reaches_the_workers_channel(committing, engine, second):
    engine.execute(f"LISTEN {CHANNEL}")
    [notify] = [text for text in SQL if text.startswith("NOTIFY")]
    second.execute(notify)
    [found] = engine.notifies(timeout=20, stop_after=1)
    assert (found.channel, found.payload) == ("pgqueue", "")
    assert f"PERFORM pg_notify('{CHANNEL}', '');" in statement("CREATE FUNCTION")
    for language in ("go", "js"):
        [code] = [text for kind, text in BLOCK.findall(PAGES[PAGE]) if kind == language]
        assert re.findall(r"`([^`]*)`", code)[-1] == f"NOTIFY {CHANNEL}"


@pytest.mark.parametrize("language", ["go", "js"])
@pytest.mark.django_db
def test_insert_of_other_language_adds_a_job(language):
    """The statement runs with parameters of the server, which have no type, as those languages send them."""
    [code] = [text for kind, text in BLOCK.findall(PAGES[PAGE]) if kind == language]
    insert = re.findall(r"`([^`]*)`", code)[0]
    raw = psycopg.RawCursor(connection.connection)
    raw.execute(insert, [helpers.NOOP, helpers.NO_ARGUMENTS])
    assert run_jobs(raising=True) == 1
