"""A job that another program inserts by SQL starts when that program notifies the workers."""

from __future__ import annotations

import pytest

from django_pgqueue.models import Job
from tests import helpers
from tests.documents import blocks

pytestmark = pytest.mark.process
PAGE = "docs/guides/sql.md"
SLEEPS = (
    "SELECT count(*) > 0 AND bool_and(state = 'idle' AND state_change < clock_timestamp() - interval '2 s') "
    "FROM pg_stat_activity WHERE application_name LIKE 'pgqueue:fetcher%' AND datname = current_database()"
)
"""Whether no fetcher has sent a statement for two seconds. A new worker polls several times first."""


def test_notify_of_the_page_starts_an_inserted_job(start, engine):
    """The worker polls once in 60 s, so only the notification starts the job within 10 s."""
    insert, notify, *_ = blocks(PAGE, "sql")
    worker = start(POLL_INTERVAL=60.0)
    worker.wait_until_ready()
    worker.wait_until(lambda: helpers.scalar(engine, SLEEPS))
    insert = insert.replace("shop.tasks.send_receipt", helpers.NOOP)
    job_id = helpers.scalar(engine, insert)
    engine.execute(notify)
    worker.wait_until(lambda: Job.objects.get(pk=job_id).state == "succeeded", 10)
