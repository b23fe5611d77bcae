"""Test the roles of docs/production/security.md: each can do its own work and nothing else.

The first test is exact. PostgreSQL checks the privileges for an EXPLAIN as it does for the statement itself, so that
test explains every statement of the package as every role. The other tests run the real operations.
"""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_pgqueue import Batch, send_event
from django_pgqueue.control.limits import end_hold, override_limit, restore_limit
from django_pgqueue.db import notifications
from django_pgqueue.db import statements as statements_module
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.notifications import CHANNEL
from django_pgqueue.declared.limits import Limit
from django_pgqueue.declared.steps import Suspension
from django_pgqueue.ends.batches import settle
from django_pgqueue.lifecycle import batches, claims, completions, sagas, steps
from django_pgqueue.lifecycle import limits as lifecycle_limits
from django_pgqueue.lifecycle.types import Claimed, Lane, TransitionStatus
from django_pgqueue.metrics import collect
from django_pgqueue.models import Job
from django_pgqueue.states import StepKind
from tests import helpers, statements
from tests.admin.conftest import Browser
from tests.app import tasks
from tests.concurrency import limits
from tests.documents import plain, table
from tests.process.harness import django
from tests.security.conftest import DOCUMENT, GROUPS, granted, grants_after
from tests.test_sql import PARAMETER, call_everything

ENQUEUER = {"ENQUEUE", "ENQUEUE_MANY", "ENQUEUE_EACH"}
OPERATOR = {
    *(
        "CANCEL",
        "RETRY",
        "ACKNOWLEDGE",
        "MOVE",
        "SET_MAX_ATTEMPTS",
        "PAUSE",
        "ADOPT",
        "STOP_AUDIT",
        "ADD_REQUEST",
        "LOCK_OVERRIDE",
        "OVERRIDE_LIMIT",
    ),
    "REVOKE_REMOTE_ACCESS",
}
EVERYBODY = {
    *("SYSTEM_IDENTIFIER", "SERVER_IDENTIFIER", "BULK_TIME", "LOCK_KEYS", "LIMIT_WAITS", "DRAW_JOB_IDS"),
    "PROVE_COMMIT",
    "MAY_READ_SCHEDULES",
    *("MAY_ERASE", "ROLES_OF_WORKERS"),
}
"""These need no privilege on a table."""
READING = {
    "ABANDONED", "HAS_STOPPED", "LATE_JOBS", "LIMITED_JOB",
    "LOAD_STEPS", "FIND_EVENT", "PENDING_SAGAS", "IS_COMPENSATING", "EDITED_JOBS",
    "LANES", "NEWEST_READY", "LIMITED_LANES", "KEYS", "KEY_CONTROLS", "FAILING_KEYS",
    "CANCEL_REQUESTS", "SETTLE", "STORED_RESULTS", "OPEN_EXECUTIONS", "ENDING_LEASES", "EXISTING", "NEEDS",
    "SCHEDULES", "HOLDERS", "OPEN_WINDOWS",
    "SCHEDULE_ARGUMENTS", "READY_CALLS", "READY_LIMITED_CALLS",
    "RUNNING_CALLS", "DEAD_CALLS", "CALL_SHAPES", "STORED_CALLS",
    "PENDING_CALLBACKS", "PENDING_COMPENSATIONS", "QUEUES_OF_CALLS", "USED_CALLBACKS", "CALLS_OF",
    "WAITING_ACTS", "FIRST_REPEAT", "BULK_PAGE_FINISHED", "BULK_PAGE_READY", "BULK_PAGE_RUNNING", "BULK_PAGE_LISTED",
    "BULK_PAGE_DEAD",
    "BULK_PAGE_READY_LIMITED", "SCHEDULED_CALLS", "FINISHED_JOBS", "FINISHED_JOBS_OF_TASK",
    "READ_FOR_ARCHIVE", "INSTALLATIONS", "WORKER_REQUESTS", "OPEN_REQUEST",
    "BULK_CHOSEN", "BULK_LIMIT_RANGES", "BATCHES_TO_END", "INCOMPLETE_BATCHES", "UNSETTLED_BATCHES", "COUNT_BATCH_JOBS",
    "FIND_DEPENDENTS", "FIND_MISSED", "FIND_ENDED", "NODES_OF", "RESTORABLE", "READ_RESULTS", "STILL_WAITING",
    "WAITING_CALLS", "MISSED_WAKE_UPS", "WAITING_FOR_EVENTS",
    *(statements.READING.keys() - EVERYBODY),
}  # fmt: skip
UNIQUE = {
    "ENQUEUE_UNIQUE", "ENQUEUE_OR_REPLACE", "ENQUEUE_MANY_UNIQUE", "ENQUEUE_EACH_UNIQUE", "ENQUEUE_MANY_OR_REPLACE",
    "ENQUEUE_FOR_PERIOD", "REPLACE_FOR_PERIOD", "ADD_SEARCH_KEYS",
}  # fmt: skip
"""These need the privileges to enqueue and to read, and the further grants that the page lists."""
SCHEDULER = {
    "SCHEDULES", "FIRE", "RUN_SCHEDULE", "PLAN_SCHEDULE", "ADD_SCHEDULE", "CHANGE_SCHEDULE",
    "CONFIRM_SCHEDULES", "SWITCH_SCHEDULE", "SKIP_RUN", "REMOVE_SCHEDULES", "PRUNE_SCHEDULE_RUNS", "SCHEDULE_ARGUMENTS",
    "UNDO_SKIP", "NOTE_PROBLEM", "SCHEDULED_CALLS",
}  # fmt: skip
ARCHIVIST = {"ARCHIVE", "ERASE", "ERASE_CALLBACKS", "FORGET_CALLBACKS"}
TOKENS = {"ADD_REMOTE_ACCESS"}
"""A user who creates a token gets the arguments of jobs, so only the owner and users with extra grants may."""
UNDO = {"STORE_STEP_AND_UNDO", "COMPENSATE", "FORGET_COMPENSATIONS"}
BATCHES = {"CREATE_BATCH", "CLOSE_BATCH", "ADD_NODES", "ADD_DEPENDENCIES"}
"""These need the further grants that the page lists."""
AUDIT = {"BEGIN_AUDIT", "BEGIN_AUDIT_ONCE", "RECORD_AUDIT", "END_AUDIT"}
STATEMENTS = statements.STATEMENTS | statements.READING
MAY = {
    # The enqueuer may read the columns that RETURNING needs. These statements read no others.
    "enqueuer": ENQUEUER | {"EXISTING", "FIRST_ID_SINCE", "FIRST_ID", "LAST_ID", "DATABASE_TIME"},
    "sender": {"SEND_EVENT", "DATABASE_TIME"},
    "viewer": READING,
    # The further statements of the operator write only what the operator may write.
    "operator": READING
    | OPERATOR
    | AUDIT
    | {
        "RUN_NOW",
        "TOUCH",
        "NEXT_IN_LINE",
        "NEXT_OF_KEY",
        "RESUME",
        "PRUNE_PAUSES",
        "RESTORE_LIMIT",
        "END_HOLDS",
        "PRUNE_LIMIT_OVERRIDES",
        "RECORD_INSTALLATION",
        "REQUEST_ACT",
        "LOCK_ACT",
        "ADVANCE_ACT",
        "WAKE",
        "WAKE_SUSPENDED",
        "REMOVE_STEPS",
        "LOCK_WAITING",
        "LOCK_RESTORABLE",
        "ADVANCE",
        "RESTORE",
        "POSTPONE",
    },
    "worker": set(STATEMENTS)
    - ENQUEUER
    - UNIQUE
    - OPERATOR
    - SCHEDULER
    - ARCHIVIST
    - BATCHES
    - UNDO
    - TOKENS
    - AUDIT
    - {"REQUEST_ACT", "ADVANCE_ACT", "SEND_EVENT", "RESTORE", "RUNS_OF_SCHEDULES", "FAILING_SCHEDULES"}
    | {"PAUSE"},
    # It may delete jobs and executions, so it may run what only deletes them.
    "archivist": READING
    | ARCHIVIST
    | AUDIT
    | {
        "PRUNE_AUDITED_JOBS",
        *("JOIN_BATCH", "LOCK_BATCHES"),
        "REQUEST_ACT",
        "LOCK_ACT",
        "LOCK_FINISHED",
        "REMOVE",
        "DELETE",
        "SUCCEED_AND_DISCARD",
        "REMOVE_ORPHANS",
        "REMOVE_SEARCH_KEYS",
        "REMOVE_STEPS",
        "PRUNE_STEPS",
        "PRUNE_EXECUTIONS",
        "LOCK_WAITING",
        "LOCK_RESTORABLE",
        "RESCUABLE",
        "NEXT_IN_LINE",
        "NEXT_OF_KEY",
    },
    "scheduler": SCHEDULER
    | ENQUEUER
    | {"LATE_JOBS", "DEAD_CALLS"}
    | {"EXISTING", "FIRST_ID_SINCE", "FIRST_ID", "LAST_ID", "DATABASE_TIME"}
    | {
        "HOLDERS",
        "STILL_WAITING",
        "WAITING_CALLS",
        "DEAD_BEYOND",
        "FAILING_SCHEDULES",
    }  # these read names and states of jobs
    | {"FINISHED_JOBS_OF_TASK"}
    | {"ENQUEUE_UNIQUE", "ENQUEUE_MANY_UNIQUE", "ENQUEUE_EACH_UNIQUE", "ENQUEUE_FOR_PERIOD", "OPEN_WINDOWS"}
    | {"ADD_SEARCH_KEYS", "JOBS_BY_SEARCH_KEYS", "SEARCH_VALUES"},
}


@pytest.fixture
def parameters(superuser: EngineConnection, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The parameters of each statement, recorded while all of them run."""
    given: dict[str, Any] = {"NAMES": {"names_limit": 9, "recent_jobs": 9}, "FIRST_ID_SINCE": {"seconds": 1.0}}
    original = statements_module.execute

    def execute(on: Any, statement: str, params: Any) -> Any:
        given[statement[statement.index("pgqueue:") + 8 : statement.index(" */")].upper()] = params
        return original(on, statement, params)

    statements.replace_execute(monkeypatch, execute)

    def running(state: str) -> Claimed:
        helpers.make_job(superuser)
        return helpers.claim_one(superuser)

    call_everything(superuser, running)
    monkeypatch.undo()
    # Without ids and names, the plans would read no table.
    given["JOBS_WITH_EXCEPTION"] = {"job_ids": [1], "pattern": ".", "message": "a"}
    dead = {"since": "2000-01-01", "until": "2100-01-01", "limit": 1}
    given["DEAD_MESSAGES"] = {**dead, "task_name": "a", "exception_class": "E"}
    given["DEAD_EDITED"] = given["DEAD_MESSAGES"]
    given["DEAD_RELEASES"] = {**given["DEAD_MESSAGES"], "releases": 1}
    given["SEARCH_VALUES"] = {"name": "a", "first": "1", "end": "2", "limit": 1, "task_names": ["a"]}
    given["RUNS_OF_SCHEDULES"] = {"schedule_ids": "{1}", "limit": 1, "with_attempts": True}
    given["JOBS_BY_SEARCH_KEYS"] = {
        "names": ["a"],
        "text": "7",
        "limit": 1,
        "searched": 1,
        "hidden": [],
        "task_names": None,
    }
    return given


@pytest.mark.parametrize("role", MAY)
def test_role_each_statement_only_its_own_are_allowed(superuser, as_role, parameters, role):
    allowed = set()
    with as_role(role), closing(helpers.connect()) as session:
        for name, statement in STATEMENTS.items():
            try:
                params = {
                    **dict.fromkeys(PARAMETER.findall(statement)),
                    **parameters.get(name, {}),
                    "time_shift": "0 s",
                }
                session.execute(f"EXPLAIN {statement}", params, prepare=False)
            except psycopg.errors.InsufficientPrivilege:
                continue
            allowed.add(name)
    assert allowed == MAY[role] | EVERYBODY


# ------------------------------------------------------------------ what each role can do


def test_owner_role_owns_the_tables_and_cannot_log_in(superuser, made_roles):
    owners = "SELECT DISTINCT tableowner FROM pg_tables WHERE tablename LIKE 'pgqueue%%'"
    assert helpers.scalar(superuser, owners) == made_roles.group("owner")
    groups = [made_roles.group(name) for name in GROUPS]
    powers = (
        "SELECT bool_or(rolcanlogin OR rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls OR rolreplication)"
        " FROM pg_roles WHERE rolname = ANY (%s)"
    )
    assert helpers.scalar(superuser, powers, [groups]) is False
    assert helpers.scalar(superuser, "SELECT count(*) FROM pg_roles WHERE rolname = ANY (%s)", [groups]) == len(groups)


@pytest.mark.parametrize("role", ["worker", "viewer"])
def test_role_reads_figures_of_queue_and_schedules_only_if_it_may(superuser, as_role, role):
    with as_role(role):
        found = {gauge.name: samples for gauge, samples in collect()}
    assert found.pop("pgqueue_database_up") == (((), 1.0),)
    assert found.pop("pgqueue_schedules_late_seconds") == (() if role == "worker" else (((), 0.0),))
    assert found["pgqueue_live_workers"] == (((), 0.0),)


def test_enqueuer_role_enqueue_succeeds(superuser, as_role):
    listener = superuser
    listener.execute(f"LISTEN {CHANNEL}")
    with as_role("enqueuer"):
        notifications._last_wake_at.clear()
        job = tasks.add.using(run_after=60).enqueue(1, b=2)
        with transaction.atomic():
            ids = tasks.add.enqueue_many([((n,), {}) for n in range(3)])
        assert tasks.add.enqueue_many([((1,), {})], returning=False) == 1
    assert list(listener.notifies(timeout=20, stop_after=1))
    rows = helpers.rows_of(superuser, "pgqueue_job")
    assert {row["state"] for row in rows.values()} == {"ready"}
    assert set(rows) > {job.pk, *ids}


def test_enqueuer_role_inserts_by_sql_and_notifies(superuser, as_role):
    """The role may write each column that docs/guides/sql.md lists, and read the id. It may always notify."""
    superuser.execute(f"LISTEN {CHANNEL}")
    columns = [plain(row[0]) for row in table("docs/guides/sql.md", "column to write")]
    values = {"arguments": "'{}'", "headers": "'{}'", "expires_at": "now()", "run_after": "now()"}
    values |= {
        "unique_ready_only": "true",
        "priority": "1",
        "max_attempts": "1",
        "limit_weight": "1",
        "limit_order": "1",
        "batch_id": "1",
    }
    row = ", ".join(values.get(name, "'x'") for name in columns)
    with as_role("enqueuer"), closing(helpers.connect()) as session:
        [[job_id]] = session.execute(
            f"INSERT INTO pgqueue_job ({', '.join(columns)}) VALUES ({row}) RETURNING id"
        ).fetchall()
        session.execute(f"NOTIFY {CHANNEL}")
    assert helpers.state_of(superuser, job_id) == "ready"
    assert list(superuser.notifies(timeout=20, stop_after=1))


def test_admin_viewer_only_reads_and_operator_acts(superuser, as_role):
    job_id = helpers.make_job(superuser, task_name="tests.app.tasks.add", delay_seconds=3600.0)
    dead_id = helpers.make_job(superuser, queue_name="other")
    [claimed] = helpers.claim_all(superuser, Lane("other", 0))
    completions.fail(superuser, helpers.failed(claimed.key, None))
    urls = [
        "job/",
        "job/?state=dead",
        f"job/{job_id}/change/",
        f"job/{dead_id}/change/",
        "deadjob/",
        "worker/",
        "schedule/",
    ]
    for role, code in (("viewer", b"permission denied"), ("operator", None)):
        with as_role(role):
            client = Browser(raise_request_exception=True)
            client.force_login(User.objects.get_or_create(username="root", is_staff=True, is_superuser=True)[0])
            for url in urls:
                assert client.get(f"/admin/pgqueue/{url}").status_code == 200, url
            for action, target_id in (("run", job_id), ("cancel", job_id), ("retry", dead_id)):
                url = f"/admin/pgqueue/job/{target_id}/{action}/"
                if code:
                    with pytest.raises(Exception, match=code.decode()):
                        client.post(url)
                else:
                    assert b'class="success"' in client.post(url, follow=True).content
    assert {state: helpers.state_of(superuser, state) for state in (job_id, dead_id)} == {
        job_id: "cancelled",
        dead_id: "ready",
    }


def test_operator_and_enqueuer_roles_all_operations_succeed(superuser, as_role, made_roles):
    superuser.execute(f"GRANT {made_roles.group('enqueuer')} TO {made_roles.user('operator')}")
    try:
        with as_role("operator"):
            job = tasks.add.enqueue(1)
            job.refresh_from_db()
            assert job.cancel()
            job.refresh_from_db()
            assert job.retry()
            assert Job.objects.filter(pk=job.pk).set_max_attempts(77) == 1
            assert Job.objects.filter(pk=job.pk).cancel() == 1
            override_limit("stripe", rate="5/m")
            override_limit("stripe", burst=2)
            superuser.execute(
                "INSERT INTO pgqueue_limit_state (limit_key, full_at, held_until) "
                "VALUES ('stripe', now(), now() + interval '1 h')"
            )
            assert end_hold("stripe")
            assert restore_limit("stripe")
    finally:
        superuser.execute(f"REVOKE {made_roles.group('enqueuer')} FROM {made_roles.user('operator')}")


def test_enqueuer_role_unique_key_works_with_extra_grants(superuser, as_role, made_roles):
    extra = re.findall(r"`(GRANT (?:UPDATE|DELETE) [^`]+)`", DOCUMENT.read_text())
    extra += grants_after("If a key has a uniqueness window") + grants_after("[search keys](../guides/tasks.md")
    with granted(superuser, [made_roles.group("viewer"), *extra], made_roles.user("enqueuer")), as_role("enqueuer"):
        for unique_while in ("ready", "ready+running", 3600):
            task = tasks.add.using(unique_key=f"{unique_while}", unique_while=unique_while, on_conflict="replace")
            task = replace(task, search=("a",))
            job = task.enqueue(1)
            assert task.enqueue(2).pk == job.pk
            assert task.enqueue_many([((3,), {}), ((4,), {})]) == [job.pk, job.pk]
            job.refresh_from_db()
            assert job.arguments["args"] == [4]
            assert job.search_keys.get().value == "4"


def test_batches_work_with_extra_grants(superuser, as_role, made_roles):
    """An application creates a batch and closes it, and a worker adds its callbacks."""
    users = {name: made_roles.user(name) for name in ("enqueuer", "worker")}
    with (
        granted(superuser, grants_after("If you use [batches]"), *users.values()),
        granted(superuser, [made_roles.group("viewer")], users["enqueuer"]),
        granted(superuser, [made_roles.group("enqueuer")], users["worker"]),
    ):
        with as_role("enqueuer"):
            task = replace(tasks.add, search=("a",))
            with Batch(on_success=task.s(1)) as batch:
                job = tasks.add.using(batch=batch).enqueue(1)
            Batch(on_complete=task.s(2)).open().close()
            assert batch.progress().ready == 1
        with as_role("worker"), closing(helpers.connect()) as session:
            claimed = claims.claim_one(session, job.pk, worker_id=1, lease_seconds=60.0)
            completions.succeed(session, helpers.succeeded(claimed.key))
            assert settle(session, [batch.id]).changed == 1
            batches.prune_batches(session, 0.0)


UNDO_ROW = {"task_name": helpers.NOOP, "queue_name": "undo", "priority": 0, "max_attempts": 3, "delay_seconds": 0}
STEP = steps.EndedStep("a", 1.0, StepKind.STEP, None, 0.1)
STEP_AND_UNDO = STEP._replace(
    compensation=json.dumps({**UNDO_ROW, "search_keys": {"a": "1"}}), compensation_arguments="{}"
)


def test_compensations_work_with_extra_grants(superuser, as_role, made_roles):
    """A worker stores a step with its compensation, and enqueues that when the job is dead."""
    extra = grants_after("If you [undo steps]") + grants_after("If you use [batches]")[:3]
    job_id = helpers.make_job(superuser)
    with (
        granted(superuser, [made_roles.group("enqueuer"), *extra], made_roles.user("worker")),
        as_role("worker"),
        closing(helpers.connect()) as session,
    ):
        claimed = claims.claim_one(session, job_id, worker_id=1, lease_seconds=60.0)
        assert steps.store_step(session, claimed.key, STEP_AND_UNDO) is TransitionStatus.DONE
        completions.fail(session, helpers.failed(claimed.key, None))
        assert len(sagas.compensate(session, [job_id]).added) == 1


def test_worker_role_stores_steps_but_no_compensation(superuser, as_role):
    """The call of a compensation becomes a job, so a role that stores one can run any task with any arguments."""
    job_id = helpers.make_job(superuser)
    with as_role("worker"), closing(helpers.connect()) as session:
        claimed = claims.claim_one(session, job_id, worker_id=1, lease_seconds=60.0)
        for _ in range(2):
            assert steps.store_step(session, claimed.key, STEP) is TransitionStatus.DONE
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            steps.store_step(session, claimed.key, STEP_AND_UNDO)
        wait = Suspension("wait", 2.0, StepKind.EVENT, 60.0, event_name="approved", event_key="7")
        suspended = steps.SuspendedExecution(claimed.key, wait, *helpers.AGES)
        assert steps.suspend(session, [suspended])[claimed.key.execution_id].status is TransitionStatus.DONE


@pytest.mark.parametrize("role", ["operator", "worker", "viewer"])
def test_remote_token_create_without_grant_names_the_right(superuser, as_role, made_roles, role):
    with as_role(role), pytest.raises(CommandError, match="'Who creates tokens'"):
        call_command("pgqueue", "remote-token", "create", "vm-7")
    assert helpers.rows_of(superuser, "pgqueue_remote_token") == {}
    with granted(superuser, grants_after("**Who creates tokens.**"), made_roles.user(role)), as_role(role):
        call_command("pgqueue", "remote-token", "create", "vm-7")
    assert len(helpers.rows_of(superuser, "pgqueue_remote_token")) == 1


def test_worker_role_claims_jobs_with_a_limit(superuser, as_role):
    """The claim also reads the sequence of the executions, and the second one replaces the state of the key."""
    limits.add(superuser, "rate", 3)
    with as_role("worker"), closing(helpers.connect()) as session:
        for burst in (1, 2):
            assert len(limits.claim(session, Limit("rate", rate="1/h", burst=burst)).claimed) == 1
        superuser.execute("UPDATE pgqueue_limit_state SET full_at = '2001-01-01'")
        assert lifecycle_limits.prune_limit_states(session).removed == 1


def test_sender_role_is_refused_once_and_notifies_workers(superuser, as_role, caplog):
    superuser.execute(f"LISTEN {CHANNEL}")
    with as_role("sender"):
        with CaptureQueriesContext(connection) as first:
            send_event("go", 1)
        with CaptureQueriesContext(connection) as second, transaction.atomic():
            send_event("go", 2)
        assert ["pgqueue:wake" in str(each.captured_queries) for each in (first, second)] == [True, False]
    heard = [notification.payload for notification in superuser.notifies(timeout=20, stop_after=2)]
    assert heard == [f"event:{event_id}" for event_id in helpers.rows_of(superuser, "pgqueue_event")]
    assert "could not be woken" not in caplog.text


@pytest.mark.process
@pytest.mark.promise("event-is-never-lost")
def test_sender_role_workers_wake_the_job_without_a_sweep(superuser, as_role, start_as):
    """The sender may not touch jobs. Both processes hear of the event, and the job runs once more."""
    job_id = helpers.make_job(
        superuser, task_name="tests.steps.tasks.waits", arguments=['{"args":["4711"],"kwargs":{}}']
    )
    worker = start_as("worker", "--processes", "2", TASK_MODULES=["tests.steps.tasks", "tests.security.without_sweep"])
    suspended = "SELECT count(*) = 1 FROM pgqueue_execution WHERE outcome = 'suspended'"
    worker.wait_until(lambda: helpers.scalar(superuser, suspended))
    with as_role("sender"):
        send_event("go", "4711", {"by": "anna"})
    worker.wait_until(lambda: helpers.state_of(superuser, job_id) == "succeeded")
    assert helpers.scalar(superuser, "SELECT count(*) FROM pgqueue_execution") == 2
    assert "permission denied" not in worker.said


JOBS = {
    "noop": "succeeded",
    "async_add": "succeeded",
    "create_group": "succeeded",
    "keeps_nothing": None,
    "fail": "dead",
    "raise_directive": "cancelled",
    "nobody_knows": "ready",
}
ARGUMENTS = {"async_add": "[1]", "create_group": '["made by the worker"]', "raise_directive": '["cancel"]'}


@pytest.mark.process
def test_worker_role_every_kind_of_job_ends_as_expected(superuser, start_as):
    """Cover every way a job can end, a lost worker's job, a job that cannot be claimed, and an old job."""
    lost_id = make_abandoned_job(superuser)
    worker = start_as("worker", "--concurrency", "2", CRASH_BUDGET=1)
    worker.wait_until_ready()
    has_heartbeat = "SELECT last_heartbeat_at > started_at FROM pgqueue_worker"
    worker.wait_until(lambda: helpers.scalar(superuser, has_heartbeat))
    ids = {
        name: helpers.make_job(
            superuser,
            task_name=f"tests.app.tasks.{name}",
            max_attempts=2,
            arguments=[f'{{"args":{ARGUMENTS.get(name, "[]")},"kwargs":{{}}}}'],
        )
        for name in JOBS
    }
    bad_id = helpers.make_job(superuser)
    superuser.execute("UPDATE pgqueue_job SET attempt = max_attempts WHERE id = %s", [bad_id])
    old_id = helpers.make_job(superuser)
    superuser.execute("UPDATE pgqueue_job SET state = 'dead', finished_at = '2001-01-01' WHERE id = %s", [old_id])
    superuser.execute(f"NOTIFY {CHANNEL}")
    wanted = {ids[name]: state for name, state in JOBS.items()} | {lost_id: "succeeded", bad_id: "dead", old_id: None}
    are_removed = f"SELECT count(*) = 0 FROM pgqueue_execution WHERE job_id = {ids['keeps_nothing']}"
    worker.wait_until(lambda: {job_id: helpers.state_of(superuser, job_id) for job_id in wanted} == wanted, 40)
    worker.wait_until(lambda: helpers.scalar(superuser, are_removed))
    # This job runs alone, because its crash also ends the other jobs of its process.
    crash_id = helpers.make_job(superuser, task_name="tests.app.tasks.exit_at_once")
    worker.wait_until(lambda: helpers.state_of(superuser, crash_id) == "dead")
    worker.send(15)
    assert worker.exit_code() == 0, worker.said
    for text in ("permission denied", "do not arrive", "startup parameter"):
        assert text not in worker.said, worker.said
    assert helpers.scalar(superuser, "SELECT bool_or(stopped_at IS NOT NULL) FROM pgqueue_worker")
    assert "fires no schedules" in worker.said


@pytest.mark.process
def test_worker_and_scheduler_roles_schedule_fires(superuser, start_as, made_roles):
    helpers.make_schedule(superuser, expression="every 1 second")
    superuser.execute(f"GRANT {made_roles.group('scheduler')} TO {made_roles.user('worker')}")
    try:
        worker = start_as("worker")
        count = "SELECT count(*) FILTER (WHERE state = 'succeeded') FROM pgqueue_job"
        worker.wait_until(lambda: helpers.scalar(superuser, count) >= 3)
        worker.send(15)
        assert worker.exit_code() == 0
        assert "permission denied" not in worker.said
    finally:
        superuser.execute(f"REVOKE {made_roles.group('scheduler')} FROM {made_roles.user('worker')}")


def make_abandoned_job(superuser) -> int:
    """Make a job that a lost worker had claimed; return its id."""
    job_id = helpers.make_job(superuser, queue_name="lost")
    [claimed] = helpers.claim_all(superuser, Lane("lost", 0), worker_id=1_000_000)
    superuser.execute("UPDATE pgqueue_execution SET started_at = NULL WHERE id = %s", [claimed.execution_id])
    helpers.end_lease(superuser, claimed.execution_id)
    return job_id


@pytest.mark.process
def test_worker_role_prune_command_succeeds(superuser, as_role):
    with as_role("worker"):
        assert "0 jobs to delete." in django("pgqueue", "prune", "--yes")
        assert "to delete" in django("pgqueue", "prune", "--dry-run")


# ------------------------------------------------------------------ what the roles cannot do

STRUCTURE = [
    "DROP TABLE pgqueue_job",
    "TRUNCATE pgqueue_job",
    "ALTER TABLE pgqueue_job ADD COLUMN x int",
    "CREATE INDEX ON pgqueue_job (state)",
    "CREATE TABLE made (x int)",
    "CREATE FUNCTION made() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE TRIGGER made AFTER INSERT ON pgqueue_job EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "SELECT setval('pgqueue_job_id_seq', 1)",
    "COPY pgqueue_worker FROM PROGRAM 'true'",
    "SELECT pg_read_file('/etc/passwd')",
    "SET session_replication_role = replica",
    "UPDATE django_migrations SET app = 'x'",
]
REWRITING = [
    "UPDATE pgqueue_job SET arguments = '{}'",
    "UPDATE pgqueue_job SET task_name = 'x'",
    "UPDATE pgqueue_execution SET job_id = 1",
    "UPDATE pgqueue_execution SET worker_id = 1",
    "UPDATE pgqueue_worker SET hostname = 'x'",
]
COMPENSATING = [
    (
        "INSERT INTO pgqueue_step (job_id, name, position, kind, attempt, started_at, compensation) "
        "VALUES (1, 'x', 1, 'step', 1, now(), '{}')"
    ),
    "UPDATE pgqueue_step SET compensation = '{}'",
    "UPDATE pgqueue_step SET compensation_arguments = '{}'",
]
ADDING = [
    "INSERT INTO pgqueue_job (task_name, arguments) VALUES ('x', '{}')",
    "INSERT INTO pgqueue_job (task_name, arguments, state) VALUES ('x', '{}', 'ready')",
]
READ = [f"SELECT {column} FROM pgqueue_job" for column in ("arguments", "result", "*")]
READ += ["SELECT error FROM pgqueue_execution", "SELECT hostname FROM pgqueue_worker"]
READ_NAMES = [f"SELECT {column} FROM pgqueue_job" for column in ("task_name", "state")]
MOVING = ["UPDATE pgqueue_job SET queue_name = 'x'", "UPDATE pgqueue_job SET priority = 1"]
OPERATING = [
    *MOVING,
    "UPDATE pgqueue_job SET max_attempts = 1000",
    "UPDATE pgqueue_job SET state = 'ready'",
    "UPDATE pgqueue_job SET cancel_requested_at = now()",
    "SELECT id FROM pgqueue_job FOR UPDATE",
]
WORKING = [
    "DELETE FROM pgqueue_job",
    "DELETE FROM pgqueue_execution",
    "DELETE FROM pgqueue_worker",
    "UPDATE pgqueue_execution SET outcome = 'succeeded', finished_at = now()",
    "INSERT INTO pgqueue_execution (job_id, attempt, worker_id, lease_expires_at) VALUES (1, 1, 1, now())",
    "INSERT INTO pgqueue_worker (hostname, pid, version, concurrency) VALUES ('x', 1, 'x', 1)",
    "SELECT nextval('pgqueue_execution_id_seq')",
    "SELECT * FROM django_migrations",
]
SCHEDULING = [
    "INSERT INTO pgqueue_schedulerun (schedule_id, tick_at) VALUES (1, now())",
    "UPDATE pgqueue_schedule SET task_name = 'x'",
    "UPDATE pgqueue_schedule SET enabled = false",
    "DELETE FROM pgqueue_schedule",
]
FORBIDDEN = {
    "sender": [
        *STRUCTURE,
        *REWRITING,
        *ADDING,
        *READ,
        *READ_NAMES,
        *OPERATING,
        *WORKING,
        *SCHEDULING,
        "UPDATE pgqueue_job SET run_after = now()",
        "SELECT payload FROM pgqueue_event",
        "SELECT job_id FROM pgqueue_step",
    ],
    "enqueuer": [
        *STRUCTURE,
        *REWRITING,
        *READ,
        *READ_NAMES,
        *OPERATING,
        *WORKING,
        *SCHEDULING,
        "SELECT name FROM pgqueue_schedule",
        "INSERT INTO pgqueue_job (task_name, arguments, state, finished_at) VALUES ('x', '{}', 'dead', now())",
        "INSERT INTO pgqueue_job (id, task_name, arguments) VALUES (1, 'x', '{}')",
        "INSERT INTO pgqueue_job (task_name, arguments) VALUES ('x', '{}') RETURNING arguments",
    ],
    "viewer": [*STRUCTURE, *REWRITING, *ADDING, *COMPENSATING, *OPERATING, *WORKING, *SCHEDULING],
    "operator": [*STRUCTURE, *REWRITING, *ADDING, *COMPENSATING, *WORKING, *SCHEDULING],
    "scheduler": [*STRUCTURE, *REWRITING, *READ, *OPERATING, *WORKING],
    "archivist": [*STRUCTURE, *ADDING, *COMPENSATING, *SCHEDULING, *OPERATING[:2], "DELETE FROM pgqueue_archived_job"],
    "worker": [
        *STRUCTURE,
        *REWRITING,
        *MOVING,
        *ADDING,
        *COMPENSATING,
        *SCHEDULING,
        "UPDATE pgqueue_job SET cancel_requested_at = now()",
    ],
}


@pytest.mark.parametrize("role", FORBIDDEN)
def test_role_forbidden_statement_is_refused(refusals, role):
    assert refusals(role, FORBIDDEN[role]) == dict.fromkeys(FORBIDDEN[role], "42501")


@pytest.mark.parametrize("role", FORBIDDEN)
def test_role_set_role_to_another_is_refused(refusals, made_roles, role):
    own = {role, {"operator": "viewer", "scheduler": "enqueuer", "archivist": "viewer"}.get(role, role)}
    others = [f"SET ROLE {made_roles.group(other)}" for other in GROUPS if other not in own]
    assert refusals(role, others) == dict.fromkeys(others, "42501")


def test_forbidden_statement_as_superuser_succeeds(superuser):
    """A superuser must be able to run each statement. Otherwise a mistake in a statement would look like a refusal."""
    for statement in set(chain.from_iterable(FORBIDDEN.values())):
        with helpers.transaction(superuser):
            superuser.execute(statement)


def test_forbidden_statements_each_role_has_at_least_ten():
    assert all(len(statements) >= 10 for statements in FORBIDDEN.values())
