"""A retry of many jobs against an edit of one of them that commits while the retry is under way."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.lifecycle import audit, operator
from django_pgqueue.states import Seen, State
from tests import helpers
from tests.concurrency.conftest import Gates
from tests.worker.test_bulk_acts import die

pytestmark = pytest.mark.usefixtures("committing")


def seen_in(engine: EngineConnection, job_id: int) -> Seen:
    row = helpers.job_row(engine, job_id)
    return Seen(row["state"], row["finished_at"])


def edit(session: Any, job_id: int, seen: Seen) -> None:
    """Do what *Edit and retry* does, in one transaction."""
    with helpers.transaction(session):
        assert operator.touch(session, job_id, seen)
        new_id = helpers.make_job(session)
        audit.add_audit(session, "edit_and_retry", {"jobs": [job_id]}, [job_id, new_id])
        session.execute("COMMIT")


@pytest.mark.promise("edited-jobs-left-out")
def test_retry_of_many_leaves_a_job_edited_after_its_snapshot(
    engine: EngineConnection, second: EngineConnection, gates: Gates
) -> None:
    edited, other = die(engine, 2)
    before = helpers.job_row(engine, edited)
    with gates("RETRY", second, lambda: operator.retry(second, [edited, other])) as retrying:
        edit(engine, edited, seen_in(engine, edited))
    assert retrying.result() == {other: State.READY}
    assert helpers.job_row(engine, edited) == before


@pytest.mark.promise("edited-jobs-left-out")
def test_edited_latest_job_of_a_key_revives_no_earlier_one_in_a_race(
    engine: EngineConnection, second: EngineConnection, gates: Gates
) -> None:
    jobs = die(engine, 2)
    engine.execute("UPDATE pgqueue_job SET unique_key = 'one'")
    with gates("RETRY", second, lambda: operator.retry(second, jobs)) as retrying:
        edit(engine, jobs[-1], seen_in(engine, jobs[-1]))
    assert retrying.result() == {}
    assert [helpers.state_of(engine, job_id) for job_id in jobs] == ["dead", "dead"]


def test_retry_of_one_job_during_its_edit_takes_it(
    engine: EngineConnection, second: EngineConnection, gates: Gates
) -> None:
    [job_id] = die(engine)
    with gates("RETRY", second, lambda: operator.retry(second, [job_id], alone=True)) as retrying:
        edit(engine, job_id, seen_in(engine, job_id))
    assert retrying.result() == {job_id: State.READY}


def test_touch_finds_no_job_that_was_retried_before_its_lock(
    engine: EngineConnection, second: EngineConnection
) -> None:
    [job_id] = die(engine)
    seen = seen_in(engine, job_id)
    with helpers.transaction(second):
        operator.retry(second, [job_id])
        assert not operator.touch(engine, job_id, seen), "the row is locked"
        second.execute("COMMIT")
    assert not operator.touch(engine, job_id, seen)
    for other in (Seen(State.READY, seen.finished_at), Seen(State.DEAD, None)):
        assert not operator.touch(connection, job_id, other)
    assert operator.touch(connection, job_id, seen_in(engine, job_id))
