"""A bulk retry leaves the jobs that *Edit and retry* has made new jobs of, because their tasks would run twice."""

from __future__ import annotations

import pytest

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.lifecycle import audit, operator
from django_pgqueue.lifecycle.bulk_acts import Selection, preview, request_act
from tests import helpers
from tests.worker.test_bulk_acts import DEAD, audited, die, entry, finish, request, states


def edit(engine: EngineConnection, job_id: int) -> int:
    """Return the id of a new job of a dead one, which is dead too."""
    [new_id] = die(engine)
    audit.add_audit(engine, "edit_and_retry", {"jobs": [job_id], "changed": ["a"]}, [job_id, new_id])
    return new_id


@pytest.mark.promise("edited-jobs-left-out")
@pytest.mark.parametrize("kind", ["filter", "filter of an error", "list"])
def test_retry_leaves_edited_jobs_and_takes_their_new_ones(engine, kind):
    edited, other = die(engine, 2)
    new_id = edit(engine, edited)
    selection = {
        "filter": DEAD,
        "filter of an error": Selection("dead", exception_class="shop.Declined"),
        "list": Selection(job_ids=(edited, other, new_id)),
    }[kind]
    seen = preview(engine, "retry", selection)
    assert (seen.chosen, seen.edited, seen.left, seen.states) == (2, 1, 0, {"dead": 2})
    assert [job.job_id for job in seen.sample] == [other, new_id]
    audit_id = request(engine, "retry", selection)
    finish(engine)
    assert states(engine) == {edited: "dead", other: "ready", new_id: "ready"}
    row = entry(engine, audit_id)
    assert (row["job_count"], row["left_count"], audited(engine, audit_id)) == (2, 1, [other, new_id])


def test_retry_of_another_error_counts_no_edited_job(engine):
    edit(engine, *die(engine))
    assert preview(engine, "retry", Selection("dead", exception_class="shop.Other")).edited == 0


@pytest.mark.promise("edited-jobs-left-out")
def test_job_that_was_edited_after_the_preview_is_left(engine):
    edited, other = die(engine, 2)
    seen = preview(engine, "retry", DEAD)
    edit(engine, edited)
    audit_id = request_act(engine, "retry", DEAD, previewed_at=seen.at)
    finish(engine)
    assert (helpers.state_of(engine, edited), audited(engine, audit_id)) == ("dead", [other])
    assert entry(engine, audit_id)["left_count"] == 1


@pytest.mark.promise("edited-jobs-left-out")
def test_statement_leaves_edited_jobs_that_no_page_has_marked(engine):
    """The operator can have edited the job after the batch was read."""
    edited, other = die(engine, 2)
    edit(engine, edited)
    assert list(operator.retry(engine, [edited, other])) == [other]
    assert list(operator.retry(engine, [edited], alone=True)) == [edited]


def test_erased_details_and_a_removed_new_job_change_nothing(engine):
    [edited] = die(engine)
    new_id = edit(engine, edited)
    assert audit.edited_jobs(engine, [edited, new_id]) == {edited: new_id}
    engine.execute("UPDATE pgqueue_audit_job SET detail = NULL")
    assert operator.delete(engine, [new_id])
    assert audit.edited_jobs(engine, [edited]) == {edited: None}, "the audit still has the new job"
    engine.execute("DELETE FROM pgqueue_audit_job WHERE job_id = %s", [new_id])
    assert audit.edited_jobs(engine, [edited, new_id]) == {edited: None}
    assert operator.retry(engine, [edited]) == {}


def test_other_acts_on_a_job_do_not_edit_it(engine):
    [job_id] = die(engine)
    audit.add_audit(engine, "retry", {"jobs": [job_id]}, [job_id])
    audit.add_audit(engine, "edit_and_retry", {"jobs": "none"}, [job_id])
    audit.add_audit(engine, "edit_and_retry", {}, [job_id])
    assert audit.edited_jobs(engine, [job_id]) == {}
    assert preview(engine, "retry", DEAD).chosen == 1


def test_edited_twice_names_the_latest_new_job(engine):
    [edited] = die(engine)
    edit(engine, edited)
    latest = edit(engine, edited)
    assert audit.edited_jobs(engine, [edited]) == {edited: latest}


def test_acts_other_than_a_retry_take_edited_jobs(engine):
    edited, other = die(engine, 2)
    new_id = edit(engine, edited)
    for selection in (DEAD, Selection(job_ids=(edited, other, new_id))):
        seen = preview(engine, "delete", selection)
        assert (seen.chosen, seen.edited) == (3, 0)


@pytest.mark.promise("bulk-act-latest-of-key")
@pytest.mark.parametrize("kind", ["filter", "list", "statement"])
def test_edited_latest_job_of_a_key_revives_no_earlier_one(engine, kind):
    jobs = die(engine, 3)
    engine.execute("UPDATE pgqueue_job SET unique_key = 'one', finished_at = finished_at - interval '1 min'")
    edit(engine, jobs[-1])
    if kind == "statement":
        operator.retry(engine, jobs)
    else:
        request(engine, "retry", DEAD if kind == "filter" else Selection(job_ids=tuple(jobs)))
        finish(engine)
    assert [helpers.state_of(engine, job_id) for job_id in jobs] == ["dead"] * 3
