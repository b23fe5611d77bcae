"""The queries in the documentation, run against tables with a long history.

Each SQL statement and each query of the ORM that a page shows must run, and must not read a whole table of jobs,
executions or ticks. A page may show a slow query if the text says so: an SQL comment `-- slow: …`, or `# slow: …` in
Python. What is not run is listed here by name, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import QuerySet
from django.test import override_settings

from django_pgqueue import models, testing
from django_pgqueue.job_search import search
from django_pgqueue.models import Job
from django_pgqueue.states import WORDS
from tests import helpers, test_docs_examples
from tests.documents import BLOCK, CODE, PAGES, TOP, TUTORIAL, blocks, plain, table
from tests.test_sql import nodes, rows_read

pytestmark = pytest.mark.slow

FINISHED, READY, RUNNING = 200_000, 1000, 200
MOST_ROWS = 5000
"""A plan that reads more rows than this of one table reads the history."""
HISTORY = ("pgqueue_job", "pgqueue_execution", "pgqueue_schedulerun", "pgqueue_search_key")
NOW = "statement_timestamp()"
FILL = (
    (
        "INSERT INTO pgqueue_job (task_name, queue_name, arguments, state, attempt, enqueued_at, finished_at) "
        "SELECT 'shop.tasks.old' || n % 20, 'old' || n % 5, '{\"args\":[],\"kwargs\":{}}', "
        "CASE WHEN n % 100 = 0 THEN 'dead' WHEN n % 100 = 1 THEN 'cancelled' ELSE 'succeeded' END, 1, "
        f"{NOW} - ({FINISHED} - n) * interval '3 s', {NOW} - ({FINISHED} - n) * interval '3 s' "
        f"FROM generate_series(1, {FINISHED}) AS n"
    ),
    (
        "INSERT INTO pgqueue_execution "
        "(job_id, attempt, worker_id, outcome, claimed_at, started_at, finished_at, lease_expires_at, exception_class) "
        "SELECT id, 1, 1, CASE WHEN state = 'dead' THEN 'failed' ELSE state END, "
        "finished_at, finished_at, finished_at, finished_at, "
        "CASE WHEN state = 'dead' THEN 'builtins.ValueError' ELSE '' END FROM pgqueue_job"
    ),
    (
        "INSERT INTO pgqueue_job (task_name, queue_name, arguments, run_after) "
        "SELECT 'shop.tasks.old' || n % 20, 'old' || n % 5, '{\"args\":[],\"kwargs\":{}}', "
        f"{NOW} + interval '9 h' * (n % 2) FROM generate_series(1, {READY}) AS n"
    ),
    (
        "INSERT INTO pgqueue_job (task_name, queue_name, arguments, run_after, limit_key) "
        "SELECT 'shop.tasks.old' || n % 20, 'old' || n % 7, '{\"args\":[],\"kwargs\":{}}', "
        f"{NOW} + interval '9 h' * (n % 2), 'limit:' || n % 50 FROM generate_series(1, {READY}) AS n"
    ),
    (
        "WITH job AS (INSERT INTO pgqueue_job (task_name, arguments, state, attempt) "
        f"SELECT 'shop.tasks.old', '{{\"args\":[],\"kwargs\":{{}}}}', 'running', 1 FROM generate_series(1, {RUNNING}) "
        "RETURNING id) "
        "INSERT INTO pgqueue_execution (job_id, attempt, worker_id, claimed_at, started_at, lease_expires_at) "
        f"SELECT id, 1, 1, {NOW}, {NOW}, {NOW} + (id % 2 - 0.5) * interval '9 h' FROM job"
    ),
    helpers.NAME_EXECUTIONS,
    (
        "INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, job_id) "
        f"SELECT n % 20, {NOW} - n * interval '1 h', n FROM generate_series(1, {FINISHED // 10}) AS n"
    ),
    (
        "INSERT INTO pgqueue_search_key (job_id, name, value) "
        f"SELECT id, 'customer_id', id % 1000 FROM pgqueue_job WHERE id <= {FINISHED}"
    ),
    "VACUUM ANALYZE pgqueue_job, pgqueue_execution, pgqueue_schedulerun, pgqueue_search_key",
)

AGENTS = "django_pgqueue/AGENTS.md"
TEXTS = {**PAGES, **{page: (TOP / page).read_text() for page in (AGENTS, "django_pgqueue/llms.txt")}}
shop, reports, names = test_docs_examples.shop, test_docs_examples.reports, test_docs_examples.names


@pytest.fixture(scope="module")
def history(django_db_setup: Any, django_db_blocker: Any) -> Iterator[None]:
    """Fill the tables once for all tests of this module, and empty them at the end."""
    with django_db_blocker.unblock(), helpers.closing(helpers.connect()) as engine:
        helpers.empty_tables(engine)
        for statement in FILL:
            engine.execute(statement)
        yield
        helpers.empty_tables(engine)


# ------------------------------------------------------------------ how a query is judged


class Judge:
    """Explains each query of Django's connection before it runs, and collects those that read too many rows."""

    def __init__(self) -> None:
        self.explained = 0
        self.slow: list[str] = []

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if is_about_history(sql) and not many:
            self.explained += 1
            if found := slow_node(sql, params):
                self.slow.append(f"{sql} reads {found}")
        return execute(sql, params, many, context)


def is_about_history(sql: str) -> bool:
    """Return whether a statement reads jobs or executions. The package's own statements have tests of their own."""
    is_query = re.match(r"\s*(SELECT|WITH|UPDATE|DELETE)\b", sql, re.I)
    return bool(is_query) and any(name in sql for name in HISTORY) and "/* pgqueue:" not in sql


def slow_node(sql: str, params: Any = None) -> str | None:
    """Return a description of the part of the plan that reads a whole table; None if there is none."""
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT explaining")  # the statement runs, so that the plan has the numbers of rows
        cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {sql}", params)
        [[answer]] = cursor.fetchall()
        cursor.execute("ROLLBACK TO SAVEPOINT explaining")
    for node in nodes(answer[0]["Plan"]):
        if node.get("Relation Name") in HISTORY and (node["Node Type"] == "Seq Scan" or rows_read(node) > MOST_ROWS):
            return f"{rows_read(node):.0f} rows of {node['Relation Name']} by {node['Node Type']}"
    return None


@contextmanager
def judging() -> Iterator[Judge]:
    judge = Judge()
    with connection.execute_wrapper(judge):
        yield judge
    assert judge.slow == []


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("SELECT count(*) FROM pgqueue_job WHERE state = 'dead'", "pgqueue_job by"),
        ("SELECT id FROM pgqueue_job WHERE queue_name = 'none' ORDER BY id DESC LIMIT 5", "pgqueue_job by"),
        ("SELECT id FROM pgqueue_execution WHERE outcome = 'failed'", "pgqueue_execution by"),
        ("SELECT id FROM pgqueue_job ORDER BY id DESC LIMIT 5", None),
        ("SELECT count(*) FROM pgqueue_job WHERE state = 'ready' AND limit_key IS NULL", None),
    ],
)
@pytest.mark.django_db
def test_slow_node_finds_queries_that_read_the_history(history, query, why):
    found = slow_node(query)
    assert found is None if why is None else why in found


# ------------------------------------------------------------------ the filters of Job.objects


FILTERS = {
    "ready": lambda jobs: jobs.ready(),
    "due": lambda jobs: jobs.due(),
    "due of a queue": lambda jobs: jobs.due().filter(queue_name="old1"),
    "due of a queue in which all jobs have a limit": lambda jobs: jobs.due().filter(queue_name="old6"),
    "scheduled": lambda jobs: jobs.scheduled(),
    "running": lambda jobs: jobs.running(),
    "running of a task": lambda jobs: jobs.running().filter(task_name="shop.tasks.old"),
    "dead": lambda jobs: jobs.dead(),
    "dead of a task": lambda jobs: jobs.dead().filter(task_name="shop.tasks.old0"),
    "stuck": lambda jobs: jobs.stuck(),
    "stuck or slow": lambda jobs: jobs.stuck(longer_than=3600),
    "with_search_key": lambda jobs: jobs.with_search_key("customer_id", 7),
    "with_search_key of dead jobs": lambda jobs: jobs.dead().with_search_key("customer_id", 100),
}


QUERIES = {
    **dict.fromkeys(FILTERS, 4),
    **dict.fromkeys(("ready", "due", "due of a queue", "scheduled"), 5),
    "due of a queue in which all jobs have a limit": 6,
}
"""How many queries the test below runs: `count()` and `exists()` ask for jobs without a limit and with one."""


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.django_db
def test_filter_reads_only_entries_of_its_index(history, name):
    with judging() as judge:
        found = FILTERS[name](Job.objects)
        assert found.count() == len(list(found.all())) > 0
        assert found.exists()
        assert found.order_by("run_after", "pk").first() is not None
    assert judge.explained == QUERIES[name]


MODELS = "docs/reference/models.md"
OLD = {"task_name": "shop.tasks.old0"}
STAY_FAST = {
    "one job": lambda: Job.objects.filter(pk=7),
    "finished jobs, the newest or the oldest": lambda: Job.objects.filter(
        state="succeeded", finished_at__isnull=False
    ).order_by("-finished_at")[:20],
    "finished jobs of a task": lambda: Job.objects.filter(finished_at__isnull=False, **OLD).order_by("-finished_at")[
        :20
    ],
    "the attempts of a job": lambda: models.Execution.objects.filter(job=7).order_by("id"),
    "the newest jobs in any state": lambda: Job.objects.order_by("-id")[:20],
}
READ_ALL = {
    "enqueued_at": lambda: Job.objects.filter(enqueued_at__gte="2000-01-01T00:00Z", **OLD),
    'state="ready"': lambda: Job.objects.filter(state="ready", queue_name="old1"),
    'state="dead"': lambda: Job.objects.filter(state="dead"),
    "first()": lambda: Job.objects.ready().order_by("pk")[:1],
}


@pytest.mark.parametrize("name", STAY_FAST)
@pytest.mark.django_db
def test_query_that_stays_fast_does_not_read_the_history(history, name):
    with judging() as judge:
        assert list(STAY_FAST[name]())
    assert judge.explained == 1


@pytest.mark.parametrize("name", READ_ALL)
@pytest.mark.django_db
def test_query_that_the_page_calls_slow_reads_the_history(history, name):
    assert f"`{name}`" in PAGES[MODELS]
    judge = Judge()
    with connection.execute_wrapper(judge):
        list(READ_ALL[name]())
    assert judge.slow


def test_page_lists_the_queries_that_stay_fast():
    assert {row[0] for row in table(MODELS, "query")} == set(STAY_FAST)
    assert {plain(row[0]).partition("(")[0] for row in table(MODELS, "filter")} == {name.split()[0] for name in FILTERS}


# ------------------------------------------------------------------ the command line


NAMES = {"--queue": "old1", "--task": "shop.tasks.old0", "--error": "ValueError", "--since": "1d", "--until": "1h"}
COMMANDS = [
    *(["jobs", "list", *(["--state", word] if word else [])] for word in ("", *WORDS)),
    *(["jobs", "list", option, value] for option, value in NAMES.items()),
    *(["jobs", "list", "--state", "dead", option, value] for option, value in NAMES.items()),
    *(["jobs", "list", "--state", "succeeded", option, value] for option, value in NAMES.items()),
    *(["jobs", "list", "--state", "due", option, value] for option, value in NAMES.items()),
    *(["jobs", "list", "--state", "running", option, value] for option, value in NAMES.items()),
    ["jobs", "list", "--search", "customer_id=7"],
    ["jobs", "list", "--search", "customer_id=100", "--state", "dead", "--since", "1d"],
    ["jobs", "list", "--id", "7"],
    ["jobs", "show", "100"],
    ["jobs", "retry", "--state", "dead", "--queue", "old1", "--limit", "500", "--yes"],
    ["jobs", "cancel", "--state", "due", "--task", "shop.tasks.old0", "--limit", "500", "--yes"],
    ["jobs", "move", "--state", "due", "--to-queue", "old2", "--limit", "500", "--yes"],
    ["jobs", "delete", "--state", "succeeded", "--since", "1d", "--limit", "500", "--yes"],
    ["dead", "list"],
    ["dead", "list", "--error", "ValueError", "--since", "1d"],
    ["dead", "retry", "--error", "ValueError", "--limit", "20", "--rate", "1000", "--stop-on-failure", "--yes"],
    ["queues"],
    ["schedules", "list"],
    ["workers"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.django_db
def test_command_does_not_read_the_history(history, arguments, monkeypatch):
    """A search without an index reads a bounded number of jobs: 1,000 here, so that `MOST_ROWS` would find more."""
    monkeypatch.setattr(search, "SEARCHED", 1000)
    with judging():
        call_command("pgqueue", *arguments, stdout=StringIO(), stderr=StringIO())


# ------------------------------------------------------------------ SQL


def sql_of(page: str) -> list[str]:
    """Return the blocks of SQL. Those with functions are marked as `postgresql`, which knows dollar quotes."""
    return [*blocks(page, "sql"), *blocks(page, "postgresql")]


def statements(block: str) -> list[str]:
    """Return the statements of a block of SQL. A semicolon between dollar quotes ends none."""
    parts = re.split(r"(\$\$.*?\$\$)", block, flags=re.DOTALL)
    text = "".join(part.replace(";", "\0") if number % 2 == 0 else part for number, part in enumerate(parts))
    return [statement.strip() for statement in text.split("\0") if statement.strip()]


ROLES = "docs/production/security.md"
"""`tests/security/test_roles.py` runs the SQL of this page, which creates roles."""
OF_EXTENSIONS = {"docs/internals/how_to_profile.md": "pg_stat_statements is not loaded on the tests' server"}
WITH_SQL = [page for page in PAGES if sql_of(page) and page not in (ROLES, *OF_EXTENSIONS)]


@pytest.mark.parametrize("page", WITH_SQL)
def test_sql_of_page_runs_and_does_not_read_the_history(history, shop, page):
    for block in sql_of(page):
        with connection.cursor() as cursor:
            for statement in statements(block):
                query = re.sub(r"^(\s*--.*\n)+", "", statement)
                if is_about_history(query) and "-- slow:" not in block:
                    assert slow_node(query.replace("%", "%%")) is None, statement
                cursor.execute(statement)


def test_pages_with_sql_are_the_expected_ones():
    """The lists above must not become empty because a page was renamed."""
    assert {ROLES, *OF_EXTENSIONS} <= {page for page in PAGES if blocks(page, "sql")}
    assert {"docs/guides/sql.md", "docs/production/monitoring.md"} <= set(WITH_SQL)


# ------------------------------------------------------------------ the ORM


@pytest.mark.parametrize("page", test_docs_examples.IN_TRANSACTION)
def test_examples_of_page_do_not_read_the_history(history, names, page, monkeypatch):
    """No job runs: the hundreds of due jobs of the history would run too."""
    monkeypatch.setattr(testing, "run_jobs", lambda *args, **options: 0)
    for block in test_docs_examples.loose_blocks(page):
        code = compile(block, page, "exec")
        if "# slow:" in block:
            exec(code, names)  # noqa: S102 -- our own text
        else:
            with judging():
                exec(code, names)  # noqa: S102 -- our own text


@pytest.mark.parametrize("page", ["docs/guides/results.md", "docs/guides/retries.md"])
def test_examples_that_wait_or_fail_do_not_read_the_history(history, names, page):
    with override_settings(PGQUEUE={"IMMEDIATE": True}), judging() as judge:
        test_docs_examples.run_page(page, names)
    assert judge.explained


def test_examples_on_monitoring_do_not_read_the_history(history, shop):
    monitoring = test_docs_examples.importlib.import_module("shop.monitoring")
    with judging() as judge:
        assert len(monitoring.problems()) == 7 + 2, "no worker serves the queues, none runs, and jobs are lost"
    assert judge.explained == 0, "it reads by `stats` only: tests/stats/test_stats_plans.py"


def test_example_coming_from_celery_does_not_read_the_history(history, shop):
    receivers = test_docs_examples.importlib.import_module("shop.receivers")
    job = receivers.capture_payment.enqueue(7)
    with judging() as judge:
        receivers.undo_uncaptured_order(sender=None, job_id=job.pk, database=job.enqueued_on)
    assert judge.explained == 1


QUERY = re.compile(r"\b(?!Order\b)\w+\.objects\.|\bjob\.executions\b")
SHELL = re.compile(r"manage\.py shell [^\n]*-c \"(.*)\"")
OF_FEW_JOBS = {"values_list('task_name', 'state', 'result')", "filter(job__state='dead')"}
"""Queries of the tutorial that read whole tables, as its text says: its project has three jobs."""


def shell_queries() -> list[str]:
    """Return each query of the ORM that a page gives to `manage.py shell -c`."""
    commands = [command for page in PAGES for text in blocks(page, "sh") for command in SHELL.findall(text)]
    return sorted({command for command in commands if re.search(QUERY, command)})


@pytest.mark.parametrize("command", shell_queries())
@pytest.mark.django_db
def test_query_of_a_shell_command_reads_the_history_only_if_the_page_says_so(history, command):
    judge = Judge()
    with connection.execute_wrapper(judge):
        exec(command, {"print": lambda *values, **options: None})  # noqa: S102 -- our own text
    assert bool(judge.slow) is any(part in command for part in OF_FEW_JOBS)
    assert "reads the whole table" in PAGES[TUTORIAL]


def inline_queries() -> dict[str, list[str]]:
    """Return each query of the ORM that stands in a sentence or a table, with its pages."""
    found: dict[str, list[str]] = {}
    for page, text in TEXTS.items():
        for code in CODE.findall(BLOCK.sub("", text)):
            if QUERY.match(code):
                found.setdefault(code, []).append(page)
    return found


COMPLETED = {
    "Job.objects.filter(…)": "Job.objects.filter(pk=7)",
    "ScheduleRun.objects.filter(job_id=…)": "ScheduleRun.objects.filter(job_id=7)",
    "job.executions": "job.executions.order_by('id')",
}
"""Queries that a page shows in part, and what runs in place of them."""
NO_QUERIES = {
    'Job.objects.using("…")': "the choice of a database, before any query",
    'Job.objects.using("reports")': "the choice of a database, before any query",
    "Model.objects.using(…)": "the model is the application's",
    "Job.objects.all().delete()": "no read: it deletes what a query has selected",
    "OrmQ.objects.exists()": "a table of Django Q2",
    'DBTaskResult.objects.filter(status__in=["READY", "RUNNING"])': "a table of django-tasks-db",
    'ProcrastinateJob.objects.filter(status__in=["todo", "doing"])': "a table of Procrastinate",
}
"""Code in sentences that looks like a query of this package's tables, and what it is."""


@pytest.mark.parametrize("query", sorted(inline_queries().keys() - NO_QUERIES))
@pytest.mark.django_db
def test_query_in_a_sentence_does_not_read_the_history(history, query):
    with judging() as judge:
        names = {**vars(models), "job": Job(pk=7)}
        answer = eval(COMPLETED.get(query, query), names)  # noqa: S307 -- our own text
        if isinstance(answer, QuerySet):
            answer.exists()
    assert judge.explained


def test_lists_of_queries_in_sentences_contain_only_such_queries():
    assert {*NO_QUERIES, *COMPLETED} <= set(inline_queries())
    assert all(query in {*COMPLETED, *NO_QUERIES} for query in inline_queries() if "…" in query)


JUDGED = {
    *test_docs_examples.IN_TRANSACTION,
    *("docs/guides/results.md", "docs/guides/retries.md", "docs/coming_from/celery.md", AGENTS),
}
"""Pages whose blocks the tests above run."""
NOT_JUDGED = {
    "docs/guides/testing.md": "tests of an application, whose tables contain only their own jobs",
    "docs/start/tutorial.md": "tests of an application, whose tables contain only their own jobs",
    "docs/coming_from/django_tasks_db.md": "a query of django-tasks-db's own table",
    "docs/coming_from/procrastinate.md": "a query of Procrastinate's own table",
}
"""Other pages with queries of the ORM in blocks, and why no test explains these."""


def test_example_of_the_summary_does_not_read_the_history(history, shop):
    [line] = [line for text in python_of(AGENTS) for line in text.splitlines() if line.startswith("Job.objects")]
    tasks = test_docs_examples.importlib.import_module("shop.tasks")
    with judging() as judge:
        exec(line, {"Job": Job, "send_receipt": tasks.send_receipt})  # noqa: S102 -- our own text
    assert judge.explained


def python_of(page: str) -> list[str]:
    return [text for language, text in BLOCK.findall(TEXTS[page]) if language == "python"]


def test_each_page_with_queries_in_blocks_is_judged_or_listed():
    with_queries = {page for page in TEXTS if any(QUERY.search(text) for text in python_of(page))}
    assert with_queries - JUDGED == set(NOT_JUDGED)
