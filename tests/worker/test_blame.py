"""Test that a failure of all rows is blamed on no job, and that a job is set aside only if others can be claimed."""

from __future__ import annotations

import contextlib
import time
from types import MappingProxyType

import psycopg
import pytest

from django_pgqueue.db.statements import execute, repeat_if_stale
from django_pgqueue.declared.limits import Limit
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import claims as lifecycle_claims
from django_pgqueue.lifecycle import limits
from django_pgqueue.tasks import registry
from django_pgqueue.worker.claiming import claimer as claimer_module
from django_pgqueue.worker.claiming.claimer import Claimer
from django_pgqueue.worker.claiming.lanes import Lanes
from django_pgqueue.worker.completion import unwritten
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.maintenance.maintenance import Maintenance
from django_pgqueue.worker.runtime import refusals as refusals_module
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.refusals import Evidence, Refusals
from django_pgqueue.worker.slots.inflight import InFlight
from tests import helpers
from tests.chunks.conftest import OWN
from tests.chunks.test_claims import add as add_chunk_jobs
from tests.concurrency.limits import add as add_limited
from tests.worker.test_unwritten import report, write_all

KINDS = ("plain", "limited", "chunk")
OF_EVERYTHING = ("42P01", "42703", "42501", "0A000", "P0001")
"""SQLSTATEs of failures that usually concern all rows: a table, a column or a privilege is missing."""


@pytest.fixture(autouse=True)
def known(monkeypatch):
    limit = Limit("own", key="{key}")
    monkeypatch.setattr(registry, "_limits", MappingProxyType({limit.name: limit}))
    monkeypatch.setattr(registry, "_tasks", {**registry._tasks, **OWN})
    monkeypatch.setattr(registry, "_chunk_keys", None)


@pytest.fixture
def clock(monkeypatch):
    """The clock of the pauses. The search for jobs has the real one, so that it ends."""
    return helpers.Clock(monkeypatch, refusals_module)


@pytest.fixture
def claims(committing):
    """Claims as the fetcher makes them, in rounds."""
    link = Link("default", "fetcher")

    class Claims:
        def __init__(self):
            self.claimer = Claimer(InFlight(10), Lanes(()), 7, FOREGROUND)

        def round(self):
            """Claim what is due, from the start of the lanes. Return the ids of the claimed jobs."""
            self.claimer.lanes.forget()
            with link.use() as connection:
                cursors = self.claimer.lanes.ordered(connection, from_start=True, most=10)
                claimed = self.claimer.claim(connection, cursors, 10) if cursors else []
            return [member.job_id for job in claimed for member in job.members]

    yield Claims()
    link.close()


def add_jobs(engine, kind, count):
    if kind == "limited":
        return [job_id for number in range(count) for job_id in add_limited(engine, f"own:{number}")]
    return helpers.make_jobs(engine, count) if kind == "plain" else add_chunk_jobs(engine, count, delay=-60.0)


def states(engine):
    return {job_id: row["state"] for job_id, row in helpers.rows_of(engine, "pgqueue_job").items()}


@contextlib.contextmanager
def missing_table(engine, condition="NEW.state = 'running'"):
    """Add a trigger of a project that writes to a table which is gone."""
    engine.execute(
        "CREATE FUNCTION users_rule() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN IF {condition} THEN INSERT INTO users_audit VALUES (NEW.id); END IF; RETURN NEW; END$$"
    )
    engine.execute("CREATE TRIGGER users_rule BEFORE UPDATE ON pgqueue_job FOR EACH ROW EXECUTE FUNCTION users_rule()")
    try:
        yield
    finally:
        engine.execute("DROP FUNCTION users_rule CASCADE")


@pytest.mark.promise("failure-of-all-claims-blames-no-job")
@pytest.mark.parametrize("kind", KINDS)
def test_claim_table_of_trigger_gone_blames_no_job(engine, claims, clock, kind):
    job_ids = add_jobs(engine, kind, 8)
    with missing_table(engine):
        for _ in range(6):
            assert claims.round() == []
            clock.pass_by(60.0)
    assert set(states(engine).values()) == {"ready"}
    claimed = set()
    while claimed != set(job_ids):
        found = claims.round()
        assert found, "all jobs must run after the table is back"
        claimed |= set(found)


@pytest.mark.promise("failure-of-all-claims-blames-no-job")
@pytest.mark.parametrize("sqlstate", OF_EVERYTHING)
@pytest.mark.parametrize("kind", KINDS)
def test_claim_only_row_refused_stays_ready(engine, claims, clock, caplog, kind, sqlstate):
    [lone] = add_jobs(engine, kind, 1)
    with helpers.users_trigger(engine, f"NEW.id = {lone} AND NEW.state = 'running'", sqlstate):
        for _ in range(5):
            assert claims.round() == []
            clock.pass_by(61.0)
        assert states(engine) == {lone: "ready"}
        assert f"the claim of job {lone} was refused by the database" in caplog.text
    clock.pass_by(61.0)
    assert claims.round() == [lone]


@pytest.mark.promise("bad-row-claims")
@pytest.mark.parametrize("sqlstate", OF_EVERYTHING)
@pytest.mark.parametrize("kind", KINDS)
def test_claim_one_row_refused_only_it_is_dead(engine, claims, clock, kind, sqlstate):
    [bad] = add_jobs(engine, kind, 1)
    with helpers.users_trigger(engine, f"NEW.id = {bad} AND NEW.state = 'running'", sqlstate):
        claims.round()
        assert states(engine)[bad] == "ready"
        others = add_jobs(engine, kind, 4)
        claimed = []
        for _ in range(20):
            claimed += claims.round()
        assert sorted(claimed) == others
    assert states(engine) == {bad: "dead", **dict.fromkeys(others, "running")}


@pytest.mark.promise("bad-row-no-attempt-left")
@pytest.mark.parametrize("kind", KINDS)
def test_claim_job_without_attempt_left_sets_it_aside(engine, claims, kind):
    """A role that may write `attempt` can make a job ready without an attempt left. It must not run as 11 of 10."""
    [spent] = add_jobs(engine, kind, 1)
    engine.execute("UPDATE pgqueue_job SET attempt = max_attempts WHERE id = %s", [spent])
    others = add_jobs(engine, kind, 4)
    claimed = []
    for _ in range(20):
        claimed += claims.round()
    assert sorted(claimed) == others
    row = helpers.job_row(engine, spent)
    assert (row["state"], row["attempt"]) == ("dead", row["max_attempts"])


@pytest.mark.parametrize("kind", KINDS)
def test_claim_other_statement_succeeds_blames_no_row(engine, claims, clock, kind):
    """A trigger for jobs of one kind of lane: the claims of the other lanes say nothing about it."""
    [lone] = add_jobs(engine, kind, 1)
    others = [job_id for other in KINDS if other != kind for job_id in add_jobs(engine, other, 2)]
    with helpers.users_trigger(engine, f"NEW.id = {lone} AND NEW.state = 'running'"):
        claimed = []
        for _ in range(5):
            claimed += claims.round()
            clock.pass_by(61.0)
    assert sorted(claimed) == sorted(others)
    assert states(engine)[lone] == "ready"


@contextlib.contextmanager
def missing_table_of_statements(engine, table):
    """Add a trigger that fails for each INSERT or UPDATE, also for one that finds no row."""
    engine.execute(
        "CREATE FUNCTION users_rule() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN INSERT INTO users_audit VALUES (1); RETURN NULL; END$$"
    )
    engine.execute(
        f"CREATE TRIGGER users_rule AFTER INSERT OR UPDATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION users_rule()"
    )
    try:
        yield
    finally:
        engine.execute("DROP FUNCTION users_rule CASCADE")


@pytest.mark.promise("failure-of-all-claims-blames-no-job")
@pytest.mark.parametrize("table", ["pgqueue_execution", "pgqueue_job"])
@pytest.mark.parametrize("kind", KINDS)
def test_claim_failure_without_any_row_is_raised(engine, claims, monkeypatch, kind, table):
    """The service reports the error and backs off. Without that, the worker would look healthy, and not pause."""
    [lone] = add_jobs(engine, kind, 1)
    monkeypatch.setattr(lifecycle_claims, "next_in_line", lambda *given, **options: None)
    monkeypatch.setattr(limits, "next_of_key", lambda *given, **options: None)
    with missing_table_of_statements(engine, table), pytest.raises(psycopg.errors.UndefinedTable, match="users_audit"):
        claims.round()
    assert claims.round() == [lone]


@pytest.mark.parametrize("kind", KINDS)
def test_claim_failure_of_one_kind_stops_no_other(engine, claims, monkeypatch, kind):
    kinds = {"plain": claims.claimer._plain, "limited": claims.claimer._limited, "chunk": claims.claimer._chunks}
    job_ids = {other: add_jobs(engine, other, 2) for other in KINDS}

    def fail(*given, **options):
        raise psycopg.errors.UndefinedTable("no")

    for name in ("claim", "claim_part"):
        monkeypatch.setattr(kinds[kind], name, fail)
    monkeypatch.setattr(kinds[kind], "next_of", lambda *given, **options: None)  # so that no job can be to blame
    others, found = {job_id for other in KINDS if other != kind for job_id in job_ids[other]}, set()
    while found != others:
        claimed = claims.round()
        assert claimed, "a failure is raised only if nothing else can be claimed"
        found |= set(claimed)
    with pytest.raises(psycopg.errors.UndefinedTable):
        claims.round()


@pytest.mark.promise("bad-row-claims")
@pytest.mark.parametrize("kind", KINDS)
def test_claim_many_rows_refused_reaches_the_one_behind(engine, claims, clock, monkeypatch, kind):
    monkeypatch.setattr(claimer_module, "SEARCH_SECONDS", 60.0)
    job_ids = add_jobs(engine, kind, 60)
    with helpers.users_trigger(engine, f"NEW.id <> {job_ids[-1]} AND NEW.state = 'running'"):
        claimed = []
        for _ in range(3):
            claimed += claims.round()
    assert claimed == [job_ids[-1]]


@contextlib.contextmanager
def longer_names(engine):
    """Change the type of a column that claims return, and restore it at the end."""
    engine.execute('ALTER TABLE pgqueue_job ALTER queue_name TYPE varchar(120) COLLATE "C"')
    try:
        yield
    finally:
        engine.execute('ALTER TABLE pgqueue_job ALTER queue_name TYPE varchar(100) COLLATE "C"')


@pytest.mark.promise("failure-of-all-claims-blames-no-job")
@pytest.mark.parametrize("kind", KINDS)
def test_claim_column_type_changed_claims_at_once(engine, claims, caplog, kind):
    for _ in range(4):  # prepares the statements
        add_jobs(engine, kind, 2)
        assert len(claims.round()) == 2
    engine.execute("UPDATE pgqueue_execution SET finished_at = claimed_at, outcome = 'succeeded'")
    job_ids = add_jobs(engine, kind, 2)
    with longer_names(engine):
        assert sorted(claims.round()) == job_ids
    assert not caplog.records


def test_execute_outdated_statement_is_repeated_once(engine, caplog):
    engine.execute("CREATE TEMPORARY TABLE numbers AS SELECT 7 AS number")
    read, params = "SELECT number FROM numbers WHERE %(time_shift)s = '0 s'", {}
    for change in ("ALTER TABLE numbers ALTER number TYPE bigint", "DEALLOCATE ALL"):
        engine.prepare_threshold, engine.is_worn = 1, False
        assert [execute(engine, read, params) for _ in range(4)] == [[(7,)]] * 4
        engine.pgconn.exec_(change.encode())  # psycopg does not notice this
        assert execute(engine, read, params) == [(7,)]
        assert engine.is_worn, "a service replaces the connection, so that its statements are prepared again"


def test_repeat_if_stale_outdated_statement_repeats_transaction(engine):
    engine.execute("CREATE TEMPORARY TABLE numbers AS SELECT 7 AS number")
    calls = []

    def read():
        calls.append(1)
        with engine.transaction():
            return execute(engine, "SELECT number FROM numbers WHERE %(time_shift)s = '0 s'", {})

    assert [repeat_if_stale(read) for _ in range(3)] == [[(7,)]] * 3
    engine.pgconn.exec_(b"ALTER TABLE numbers ALTER number TYPE bigint")  # psycopg does not notice this
    assert (repeat_if_stale(read), len(calls)) == ([(7,)], 5)


def test_refusals_pauses_grow_and_end_with_a_written_row(monkeypatch):
    clock = helpers.Clock(monkeypatch, refusals_module)
    refusals = Refusals("the claim of job", first_seconds=1.0, longest_seconds=60.0)
    pauses = []
    for _ in range(8):
        assert not refusals.note(1, Exception("no"), "claim")
        [(seconds, _)] = refusals._backoffs.values()
        pauses.append(seconds)
        assert refusals.skipped_ids() == [1]
        clock.pass_by(seconds)
        assert refusals.skipped_ids() == []
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    refusals.note(1, Exception("no"), "claim")
    refusals.wrote([2], "claim_keys")
    assert refusals.skipped_ids() == [1]
    refusals.wrote([2], "claim")
    assert refusals.skipped_ids() == []
    assert refusals.note(1, Exception("no"), "claim")


def test_evidence_needs_another_row_after_the_failure():
    evidence = Evidence()
    assert evidence.wrote([2], "claim") == set()
    assert not evidence.failed(1, "claim")
    assert not evidence.failed(1, "claim")
    assert evidence.wrote([1], "claim") == set(), "the row itself is no evidence, and is forgotten"
    assert evidence.wrote([2], "claim") == set()
    assert not evidence.failed(1, "claim")
    assert evidence.wrote([], "claim") == set()
    assert evidence.wrote([2], "claim") == {1}
    assert evidence.failed(1, "claim")
    assert not evidence.failed(1, "claim_keys"), "another statement has not written another row"


@pytest.fixture
def completer(committing):
    link = Link("default", "completer")
    yield Completer(link)
    link.close()


@pytest.mark.promise("failure-of-all-completions-blames-no-job")
@pytest.mark.parametrize("ending", [Ending.SUCCEEDED, Ending.RELEASED, Ending.SNOOZED, Ending.CANCELLED])
def test_completer_table_of_trigger_gone_changes_no_outcome(engine, completer, monkeypatch, ending):
    """A trigger that fails for successes would turn all of them into dead jobs, because FAIL still works."""
    monkeypatch.setattr(unwritten, "LONGEST_PAUSE_SECONDS", 0.01)
    helpers.make_jobs(engine, 5)
    claimed = helpers.claim_all(engine)
    fine = {Ending.SUCCEEDED: "succeeded", Ending.CANCELLED: "cancelled"}.get(ending, "ready")
    failed = "true" if fine == "ready" else f"NEW.state = '{fine}'"
    with missing_table(engine, f"{failed} AND OLD.state = 'running' AND NEW.attempt <= 1 AND NEW.state <> 'dead'"):
        for execution in claimed:
            completer.hand_over(report(execution, ending, delay_seconds=0.0 if ending is Ending.SNOOZED else None))
        for _ in range(5):
            completer.tick()
            time.sleep(0.01)
        assert set(states(engine).values()) == {"running"}
        assert completer.ids() == {execution.execution_id for execution in claimed}
    helpers.wait_until(lambda: completer.tick() and not completer.ids())
    assert set(states(engine).values()) == {fine}
    counted = 0 if ending in (Ending.RELEASED, Ending.SNOOZED) else 1
    assert {row["attempt"] for row in helpers.rows_of(engine, "pgqueue_job").values()} == {counted}


@pytest.mark.promise("bad-row-completions")
def test_completer_refused_success_is_dead_after_another(engine, completer, monkeypatch):
    monkeypatch.setattr(unwritten, "LONGEST_PAUSE_SECONDS", 0.01)
    bad, good = helpers.make_jobs(engine, 2)
    first, second = helpers.claim_all(engine)
    with helpers.users_trigger(engine, f"NEW.id = {bad} AND NEW.state = 'succeeded'"):
        completer.hand_over(report(first))
        write_all(completer)
        assert states(engine)[bad] == "running"
        completer.hand_over(report(second))
        helpers.wait_until(lambda: completer.tick() and not completer.ids())
    assert states(engine) == {bad: "dead", good: "succeeded"}


@pytest.mark.promise("failure-of-all-rescues-blames-no-job")
def test_rescue_table_of_trigger_gone_makes_no_job_dead(engine, committing):
    link = Link("default", "maintenance")
    maintenance = Maintenance(link)
    helpers.make_jobs(engine, 3)
    helpers.claim_all(engine)
    helpers.end_lease(engine)

    def rescue():
        maintenance.rescuer._unrescued._backoffs.clear()
        helpers.rescue_by(maintenance)

    try:
        with missing_table(engine, "NEW.state = 'ready'"):
            for _ in range(3):
                rescue()
            assert set(states(engine).values()) == {"running"}
        rescue()
        assert set(states(engine).values()) == {"ready"}
    finally:
        link.close()


@pytest.mark.promise("bad-row-releases")
def test_rescue_one_next_attempt_refused_is_dead(engine, committing):
    link = Link("default", "maintenance")
    maintenance = Maintenance(link)
    bad, *others = helpers.make_jobs(engine, 3)
    helpers.claim_all(engine)
    helpers.end_lease(engine)
    try:
        with helpers.users_trigger(engine, f"NEW.id = {bad} AND NEW.state = 'ready'"):
            for _ in range(2):
                helpers.rescue_by(maintenance)
        assert states(engine) == {bad: "dead", **dict.fromkeys(others, "ready")}
    finally:
        link.close()
