"""The list and the pages of batches in the admin: states, counts, callbacks, acts and permissions."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_pgqueue import Batch, Workflow
from django_pgqueue.acts.batch_closing import close_batch
from django_pgqueue.admin.batches import past_acts
from django_pgqueue.lifecycle import audit, bulk_acts
from django_pgqueue.models import AuditEntry, Job
from django_pgqueue.stats.answers import Count
from django_pgqueue.stats.batch_counts import BatchCounts, batch_counts
from django_pgqueue.testing import run_jobs
from tests.app import tasks

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

BATCHES = "/admin/pgqueue/jobbatch/"
JOBS = "/admin/pgqueue/job/"
SEES = ("view_jobbatch", "view_job", "view_arguments")
ClientOf = Callable[..., Client]


@pytest.fixture
def viewer(client_of: ClientOf) -> Client:
    return client_of(*SEES)


def page_of(client: Client, batch: Batch) -> str:
    """Return the main content of the page of a batch."""
    response = client.get(f"{BATCHES}{batch.id}/change/")
    assert response.status_code == 200
    return str(response.content.decode().split('id="content-main"')[1].replace("<wbr>", ""))


def listed(client: Client, query: str = "") -> list[int]:
    """Return the ids of the batches in the list."""
    return [batch.pk for batch in client.get(f"{BATCHES}{query}").context["cl"].result_list]


def failed_batch(**options: Any) -> Batch:
    """Return a complete batch with one dead and two succeeded jobs."""
    with Batch(**options) as batch:
        tasks.fail.using(batch=batch, max_attempts=1).enqueue("secret error")
        tasks.add.using(batch=batch).enqueue_many([(1,), (2,)])
    run_jobs()
    return batch


# ------------------------------------------------------------------ the list


def test_list_filters_find_the_batches_of_each_state(viewer: Client) -> None:
    complete = failed_batch()
    with Batch() as succeeded:
        tasks.add.using(batch=succeeded).enqueue(1)
    run_jobs()
    with Batch() as running:
        tasks.add.using(batch=running).enqueue(1)
    opened = Batch(description="import 17").open()
    found = {state: listed(viewer, f"?state={state}") for state in ("open", "running", "failed", "succeeded")}
    assert found == {"open": [opened.id], "running": [running.id], "failed": [complete.id], "succeeded": [succeeded.id]}
    assert listed(viewer, "?state=complete") == [succeeded.id, complete.id]
    assert listed(viewer) == [opened.id, running.id, succeeded.id, complete.id]


def test_list_filter_of_failed_batches_leaves_out_repaired_ones(viewer: Client) -> None:
    batch = failed_batch()
    Job.objects.filter(batch_id=batch.id, state="dead").update(task_name=tasks.noop.name)
    Job.objects.filter(batch_id=batch.id).retry()
    run_jobs()
    assert batch.record.failed_at is not None
    assert listed(viewer, "?state=failed") == []
    assert listed(viewer, "?state=succeeded") == [batch.id]


def test_list_search_finds_number_and_description(viewer: Client) -> None:
    first, second = Batch(description="import 17").open(), Batch(description="Import 18").open()
    assert listed(viewer, f"?q={first.id}") == listed(viewer, "?q=port 17") == [first.id]
    assert listed(viewer, "?q=import") == [second.id, first.id]
    assert listed(viewer, "?q=99999999999999999999") == []


def test_list_search_of_descriptions_says_which_were_searched(viewer: Client) -> None:
    batch = Batch(description="import 17").open()
    for query, is_exact in ((f"?q={batch.id}", True), ("?q=import", False), ("?q=none", False), ("", True)):
        text = viewer.get(f"{BATCHES}{query}").content.decode()
        assert (">exact<" in text) is is_exact, query
        assert ("among the descriptions of the newest 100,000 batches" in text) is not is_exact, query
    assert "No such batch among" in viewer.get(f"{BATCHES}?q=none").content.decode()


def test_list_of_nested_batches_leaves_out_others(viewer: Client) -> None:
    parent = Batch().open()
    child = Batch(parent=parent).open()
    assert listed(viewer, f"?parent={parent.id}") == [child.id]
    assert listed(viewer, "?parent=x") == []


def test_list_runs_the_same_queries_for_many_batches(viewer: Client) -> None:
    failed_batch()
    with CaptureQueriesContext(connection) as one:
        viewer.get(BATCHES)
    parent = Batch().open()
    for _ in range(20):
        with Batch(parent=parent) as batch:
            tasks.add.using(batch=batch).enqueue(1)
    with CaptureQueriesContext(connection) as many:
        page = viewer.get(BATCHES).content.decode()
    assert len(many) == len(one) <= 8
    assert page.count(">1 ready<") == 20 and "20 ready" in page


def test_counts_stop_at_the_limit_and_include_removed_jobs() -> None:
    with Batch() as batch:
        tasks.add.using(batch=batch).enqueue_many([(number,) for number in range(5)])
        tasks.keeps_nothing.using(batch=batch, priority=5).enqueue()
    assert batch.id is not None
    run_jobs(max_jobs=1)
    assert Job.objects.filter(batch_id=batch.id).count() == 5  # one was discarded
    exact = batch_counts([batch.id], 10)[batch.id]
    assert exact == BatchCounts(ready=Count(5), succeeded=Count(1))
    cut = batch_counts([batch.id], 3)[batch.id]
    assert cut == BatchCounts(ready=Count(3, False), succeeded=Count(1))
    assert (str(cut.total), cut.unfinished.is_exact) == ("4+", False)


def test_counts_of_a_parent_include_nested_batches() -> None:
    parent = Batch().open()
    child = Batch(parent=parent).open()
    tasks.add.using(batch=Batch(parent=child).open()).enqueue(1)
    assert parent.id is not None
    assert batch_counts([parent.id], 10) == {parent.id: BatchCounts(ready=Count(1))}


# ------------------------------------------------------------------ the page


def test_page_of_open_batch_says_that_somebody_has_to_close_it(viewer: Client) -> None:
    batch = Batch().open()
    tasks.add.using(batch=batch).enqueue(1)
    assert "somebody closes it" not in page_of(viewer, batch)
    run_jobs()
    assert "it does not complete until somebody closes it" in page_of(viewer, batch)
    batch.close()
    assert "somebody closes it" not in page_of(viewer, batch)


def test_batch_is_blocked_only_if_nothing_else_can_run() -> None:
    one = Count(1)
    assert BatchCounts(waiting=one, dead=one).is_blocked
    assert BatchCounts(waiting=one, cancelled=one, succeeded=one).is_blocked
    assert not BatchCounts(waiting=one, dead=one, ready=one).is_blocked
    assert not BatchCounts(waiting=one, dead=one, running=one).is_blocked
    assert not BatchCounts(waiting=one).is_blocked and not BatchCounts(dead=one).is_blocked


def test_page_of_blocked_workflow_says_what_to_do(viewer: Client) -> None:
    workflow = Workflow(if_dependency_fails="block")
    workflow.add(tasks.noop.s(), after=[workflow.add(tasks.fail.using(max_attempts=1).s("error"))])
    workflow.enqueue()
    words = "No job is ready or running. Waiting jobs depend on failed ones"
    assert words not in page_of(viewer, workflow.batch)
    run_jobs()
    assert words in page_of(viewer, workflow.batch)
    workflow.jobs.get(state="dead").retry()
    assert words not in page_of(viewer, workflow.batch)


def test_page_of_retried_complete_batch_says_when_it_succeeds(viewer: Client) -> None:
    batch = failed_batch()
    assert "pgqueue-reason" not in page_of(viewer, batch)
    batch.jobs.get(state="dead").retry()
    assert "It succeeds when all its jobs have succeeded." in page_of(viewer, batch)


def test_page_of_closed_batch_without_unfinished_jobs_says_what_it_waits_for(viewer: Client) -> None:
    outer = Batch().open()
    Batch(parent=outer).open()
    outer.close()
    assert "The batch completes after its nested batches." in page_of(viewer, outer)


def test_page_lists_failed_jobs_with_links(viewer: Client) -> None:
    batch = failed_batch(description="Import <17>")
    page = page_of(viewer, batch)
    assert "3 of 3 jobs have ended (100 %): 2 succeeded, 1 dead" in page
    assert "Import &lt;17&gt;" in page and "secret error" in page
    assert "tests.app.tasks.fail" in page and "tests.app.tasks.add" not in page  # those have succeeded
    assert f'href="/admin/pgqueue/deadjob/?batch={batch.id}"' in page
    jobs = viewer.get(f"{JOBS}?batch={batch.id}").context["cl"]
    assert [job.state for job in jobs.result_list] == ["dead", "succeeded", "succeeded"]
    dead = viewer.get(f"/admin/pgqueue/deadjob/?batch={batch.id}").context["cl"].result_list
    assert [job.state for job in dead] == ["dead"]


def test_page_of_acknowledged_jobs_links_them_and_retries_none(client_of: ClientOf) -> None:
    client, batch = client_of(*SEES, "retry_job"), failed_batch()
    assert "Retry dead jobs" in page_of(client, batch)
    assert Job.objects.get(state="dead").acknowledge()
    page = page_of(client, batch)
    assert "Acknowledged dead jobs: 1" in page and "Retry dead jobs" not in page and "deadjob/?batch" not in page
    jobs = client.get(f"{JOBS}?state=acknowledged&batch={batch.id}").context["cl"]
    assert [job.state for job in jobs.result_list] == ["dead"]


def test_page_runs_a_constant_number_of_queries(viewer: Client) -> None:
    batch = failed_batch(on_failure=tasks.noop.s("failed"))
    page_of(viewer, batch)
    with CaptureQueriesContext(connection) as few:
        page_of(viewer, batch)
    tasks.add.using(batch=Batch(parent=(parent := Batch().open())).open()).enqueue_many([(n,) for n in range(100)])
    for _ in range(40):
        Batch(parent=parent).open()
    with CaptureQueriesContext(connection) as many:
        page = page_of(viewer, parent)
    assert len(few) <= 15 and len(many) <= len(few)
    assert "All nested batches" in page


def test_page_links_the_jobs_of_callbacks(viewer: Client) -> None:
    batch = failed_batch(on_failure=tasks.noop.s("failed"), on_complete=tasks.noop.s("over"), on_success=tasks.noop.s())
    callbacks = Job.objects.filter(task_name=tasks.noop.name).order_by("pk")
    page = page_of(viewer, batch)
    assert [f'href="{JOBS}{job.pk}/change/"' in page for job in callbacks] == [True, True]
    assert "not yet" in page  # it has not succeeded
    callbacks.delete()
    assert page_of(viewer, batch).count("removed, or one of several") == 2


def test_page_links_each_of_two_callbacks_of_one_moment(viewer: Client) -> None:
    with Batch(on_complete=tasks.noop.s("over"), on_success=tasks.noop.s("good")) as batch:
        tasks.add.using(batch=batch).enqueue(1)
    run_jobs(max_jobs=1)
    over, good = Job.objects.filter(task_name=tasks.noop.name).order_by("pk")
    assert over.enqueued_at == good.enqueued_at
    shown = viewer.get(f"{BATCHES}{batch.id}/change/").context["callbacks"]
    assert [callback["job"] for callback in shown] == [f"#{over.pk}", f"#{good.pk}"]


def test_page_links_no_callback_that_equals_another(viewer: Client) -> None:
    with Batch(on_complete=tasks.noop.s(), on_success=tasks.noop.s()) as batch:
        tasks.add.using(batch=batch).enqueue(1)
    run_jobs()
    assert page_of(viewer, batch).count("removed, or one of several") == 2


def test_page_hides_arguments_and_errors_without_permission(client_of: ClientOf) -> None:
    batch = failed_batch(on_failure=tasks.noop.s("secret argument"))
    page = page_of(client_of("view_jobbatch", "view_job"), batch)
    assert "secret" not in page and "tests.app.tasks.noop" in page


def test_page_without_permission_for_jobs_shows_no_jobs(client_of: ClientOf) -> None:
    batch = failed_batch(on_failure=tasks.noop.s("secret argument"))
    page = page_of(client_of("view_jobbatch"), batch)
    assert "tests.app.tasks.fail" not in page and JOBS not in page and "secret" not in page


def test_pages_without_permission_are_refused(client_of: ClientOf) -> None:
    batch, client = failed_batch(), client_of("view_job")
    assert client.get(BATCHES).status_code == client.get(f"{BATCHES}{batch.id}/change/").status_code == 403
    job = Job.objects.filter(batch_id=batch.id).first()
    assert job is not None
    page = client.get(f"{JOBS}{job.pk}/change/").content.decode()
    assert f"#{batch.id}</dd>" in page and BATCHES not in page


def test_page_of_a_job_links_its_batch(viewer: Client) -> None:
    batch = failed_batch()
    job = Job.objects.filter(batch_id=batch.id).first()
    assert job is not None
    assert (
        f'<a href="{BATCHES}{batch.id}/change/">#{batch.id}</a>'
        in viewer.get(f"{JOBS}{job.pk}/change/").content.decode()
    )


def test_page_of_a_missing_batch_redirects_to_the_list(viewer: Client) -> None:
    for number in ("99", "x", "9" * 30):
        response = viewer.get(f"{BATCHES}{number}/change/", follow=True)
        assert response.redirect_chain == [(BATCHES, 302)] and b"does not exist" in response.content


# ------------------------------------------------------------------ the list of jobs


def test_job_list_of_a_batch_combines_filters(viewer: Client) -> None:
    parent = Batch().open()
    with Batch(parent=parent) as batch:
        tasks.add.using(batch=batch, queue_name="mail").enqueue(1)
        later = tasks.add.using(batch=batch, run_after=timedelta(minutes=1)).enqueue(1)
    tasks.add.using(run_after=timedelta(minutes=1)).enqueue(1)

    def found(query: str) -> list[int]:
        return [job.pk for job in viewer.get(f"{JOBS}?batch={parent.id}&{query}").context["cl"].result_list]

    assert found("state=scheduled") == found("queue=default") == found(f"q={later.pk}") == [later.pk]
    assert len(found("")) == len(found("since=hour")) == 2
    assert found("state=running") == found("task=no.task") == []
    assert viewer.get(f"{JOBS}?batch=x").context["cl"].result_list == []


# ------------------------------------------------------------------ acts


def test_close_asks_first_and_closes_once(client_of: ClientOf) -> None:
    client, batch = client_of(*SEES, "close_batch"), Batch(on_complete=tasks.noop.s()).open()
    url = f"{BATCHES}{batch.id}/close/"
    assert url in page_of(client, batch)
    assert b"Yes, close it" in client.get(url).content
    assert batch.record.closed_at is None
    assert b"The batch is closed" in client.post(url, follow=True).content
    assert batch.record.completed_at is not None
    assert LogEntry.objects.get().get_change_message() == "Closed."
    assert b"is closed already" in client.post(url, follow=True).content
    assert Job.objects.filter(task_name=tasks.noop.name).count() == LogEntry.objects.count() == 1
    assert url not in page_of(client, batch)


def test_close_without_permission_is_refused(viewer: Client) -> None:
    batch = Batch().open()
    url = f"{BATCHES}{batch.id}/close/"
    assert url not in page_of(viewer, batch)
    assert viewer.get(url).status_code == viewer.post(url).status_code == 403
    assert batch.record.closed_at is None


@pytest.mark.parametrize("action", ["retry", "cancel"])
def test_acts_on_jobs_need_their_permission(client_of: ClientOf, action: str) -> None:
    batch = failed_batch()
    tasks.add.using(batch=(waiting := Batch().open())).enqueue(1)
    chosen = batch if action == "retry" else waiting
    url = f"{BATCHES}{chosen.id}/{action}/"
    client = client_of(*SEES, f"{action}_job")
    assert url in page_of(client, chosen)
    preview = client.get(url)
    assert [job.task_name for job in preview.context["preview"].sample] == [
        tasks.fail.name if action == "retry" else tasks.add.name
    ]
    assert client.post(url).status_code == 405
    other = f"{BATCHES}{chosen.id}/{'cancel' if action == 'retry' else 'retry'}/"
    assert client.get(other).status_code == 403
    assert not AuditEntry.objects.exists()  # the preview only reads


def test_retry_repairs_a_batch_with_nested_jobs(client_of: ClientOf) -> None:
    parent = Batch().open()
    nested = failed_batch(parent=parent)
    parent.close()
    client = client_of(*SEES, "retry_job")
    fields = dict(client.get(f"{BATCHES}{parent.id}/retry/").context["fields"])
    response = client.post(f"{JOBS}bulk_preview/request/", {**fields, "action": "retry", "total": "1"})
    assert response.status_code == 302 and "bulk_act" in response.headers["Location"]
    [act] = bulk_acts.waiting_acts(connection)
    dead = Job.objects.get(state="dead")
    assert dead.batch_id == nested.id and fields["ids"] == str(dead.pk) and act.audit_id
    assert b"no such job now" in client.get(f"{BATCHES}{Batch().open().id}/retry/", follow=True).content


# ------------------------------------------------------------------ the history


def history_of(client: Client, batch_id: int | None) -> str:
    return client.get(f"{BATCHES}{batch_id}/history/").content.decode()


def listed_acts(client: Client, batch_id: int | None) -> list[int]:
    return [int(each) for each in re.findall(r'bulk_act/\?id=(\d+)">', history_of(client, batch_id))]


def test_history_shows_the_retry_from_the_page_of_the_batch(client_of: ClientOf) -> None:
    parent, other = Batch().open(), failed_batch()
    failed_batch(parent=parent)
    client = client_of(*SEES, "retry_job")
    assert "Nobody has changed this batch" in history_of(client, parent.id)
    fields = dict(client.get(f"{BATCHES}{parent.id}/retry/").context["fields"])
    client.post(f"{JOBS}bulk_preview/request/", {**fields, "action": "retry", "total": "1", "reason": "fixed"})
    entry = AuditEntry.objects.get()
    assert entry.job_count == 0 and listed_acts(client, parent.id) == [entry.pk], "no worker has begun it"
    assert "fixed" in history_of(client, parent.id) and listed_acts(client, other.id) == []
    AuditEntry.objects.update(filter={})
    assert listed_acts(client, parent.id) == []
    audit.record_audit(connection, entry.pk, [Job.objects.filter(state="dead").latest("pk").pk])
    assert listed_acts(client, parent.id) == [entry.pk]


def test_history_shows_acts_that_name_the_batch(client_of: ClientOf, make_user: Callable[..., Any]) -> None:
    batch, other = Batch().open(), Batch().open()
    act = close_batch(batch, by="ada") and AuditEntry.objects.get().pk
    for broken in ({"batch_id": "x"}, {"job_ids": ["x", 10**30]}, {"note": "x" * 1000}):
        AuditEntry.objects.create(action="close_batch", filter=broken)
    client = client_of(*SEES)
    assert listed_acts(client, batch.id) == [act] and listed_acts(client, other.id) == []
    client.force_login(make_user("view_jobbatch", name="other"))
    assert listed_acts(client, batch.id) == [], "acts need the permission on jobs"


def test_history_reads_a_bounded_number_of_acts(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_acts, "READ", 2)
    batch = Batch().open()
    close_batch(batch, by="ada")
    assert "Only the latest" not in history_of(viewer, batch.id)
    audit.add_audit(connection, "retry", {}, [])
    assert "Only the latest 2 acts" in history_of(viewer, batch.id)
    audit.add_audit(connection, "retry", {}, [])
    assert listed_acts(viewer, batch.id) == []
