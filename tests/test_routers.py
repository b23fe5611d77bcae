"""A router with a replica: operations on jobs that were read from the replica write to the primary."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections
from django.test import Client, override_settings

from django_pgqueue.lifecycle import completions
from django_pgqueue.models import Job, Schedule
from tests import helpers
from tests.app import tasks


class ReadsFromReplica:
    """The router for a primary and a replica from Django's documentation."""

    def db_for_read(self, model: object, **hints: object) -> str:
        return "replica"

    def db_for_write(self, model: object, **hints: object) -> str:
        return "default"

    def allow_relation(self, *args: object, **hints: object) -> bool:
        return True


@pytest.fixture
def replica(committing: None) -> Iterator[None]:
    """Provide the alias `replica`: the test database again, but read-only."""
    own = dict(connections["default"].settings_dict)
    options = {**own["OPTIONS"], "options": "-c default_transaction_read_only=on"}
    connections.settings["replica"] = {**connections.settings["default"], **own, "OPTIONS": options}
    connections["replica"].connect()  # bypasses Django's guard, which does not know aliases that were added later
    with override_settings(DATABASE_ROUTERS=[ReadsFromReplica()]):
        yield
    connections["replica"].close()
    del connections["replica"]
    del connections.settings["replica"]


@pytest.mark.promise("operators-write-to-primary", "defect-operators-behind-router")
@pytest.mark.usefixtures("replica")
def test_job_operations_behind_replica_write_to_primary(engine):
    tasks.noop.using(run_after=3600).enqueue()
    job = Job.objects.get()
    assert job._state.db == "replica"
    assert job.run_now() and job.cancel()
    job = Job.objects.get()
    assert job.retry()
    assert Job.objects.filter(state="ready").cancel() == 1
    assert Job.objects.filter(state="cancelled").retry() == 1


@pytest.mark.usefixtures("replica")
def test_job_operations_on_explicit_alias_use_it(engine):
    job = tasks.noop.using(database="default").enqueue()
    with override_settings(DATABASE_ROUTERS=[]):
        job = Job.objects.using("default").get()
        assert job.cancel()
    job.refresh_from_db()
    assert job.retry(using="default")


def test_job_operations_on_enqueued_job_use_its_database(other):
    job = tasks.noop.using(database="other").enqueue()
    with override_settings(DATABASE_ROUTERS=[ReadsFromReplica()]):
        assert job.write_alias == "other"
        assert job.cancel()
    assert Job.objects.using("other").get().state == "cancelled"


@pytest.mark.usefixtures("replica")
def test_wait_behind_replica_returns_the_result(engine):
    tasks.noop.enqueue()
    job = Job.objects.get()
    claimed = helpers.claim_one(engine)
    completions.succeed(engine, helpers.succeeded(claimed.key, result="7"))
    assert job.wait(5) == 7


@pytest.mark.django_db(transaction=True)
def test_admin_behind_a_replica_acts_on_the_primary(admin_client: Client, replica, engine):
    schedule_id = helpers.make_schedule(engine, due_in=3600.0)
    for name in ("pause", "resume"):
        page = admin_client.post(f"/admin/pgqueue/schedule/{schedule_id}/{name}/", follow=True)
        assert b'class="success"' in page.content
    page = admin_client.post(f"/admin/pgqueue/schedule/{schedule_id}/delete/", {"post": "yes"}, follow=True)
    assert not Schedule.objects.using("default").exists()
    job = tasks.noop.enqueue()
    lists = ("job", "deadjob", "pause", "schedule", "worker")
    assert {admin_client.get(f"/admin/pgqueue/{name}/").status_code for name in lists} == {200}
    form = {"action": "cancel_selected", "_selected_action": job.pk, "shown": f"{job.pk}:::ready"}
    assert b"1 job is cancelled" in admin_client.post("/admin/pgqueue/job/", form, follow=True).content
