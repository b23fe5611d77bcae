"""`run_jobs()` in asynchronous tests, as the guide on testing describes them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection
from django.test import TestCase

from django_pgqueue.models import Job
from django_pgqueue.testing import assert_enqueued, run_jobs
from tests.app import tasks
from tests.documents import blocks
from tests.test_docs_examples import shop

__all__ = ["shop"]


async def enqueue_and_run() -> Any:
    job = await tasks.add.aenqueue(1, 2)
    assert await sync_to_async(run_jobs)(raising=True) == 1
    await job.arefresh_from_db()
    return job.result


class AsyncTest(TestCase):
    async def test_run_jobs_in_a_thread_runs_in_the_tests_transaction(self) -> None:
        self.assertEqual(await enqueue_and_run(), 3)
        self.assertTrue(await sync_to_async(lambda: connection.in_atomic_block)())


@pytest.mark.django_db
def test_async_to_sync_runs_in_the_transaction_of_the_test():
    assert async_to_sync(enqueue_and_run)() == 3
    assert Job.objects.count() == 1, "another connection would not have seen the job"


@pytest.mark.django_db
def test_run_jobs_in_a_coroutine_says_to_use_a_thread():
    async def called_directly() -> None:
        with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
            run_jobs()
        with pytest.raises(SynchronousOnlyOperation, match="sync_to_async"):
            assert_enqueued(tasks.add)

    asyncio.run(called_directly())


def test_example_of_an_asynchronous_test_passes(shop, db):
    [block] = [text for text in blocks("docs/guides/testing.md") if "async_to_sync" in text]
    shop_tasks = __import__("shop.tasks", fromlist=["tasks"])
    names = {**vars(shop_tasks), "run_jobs": run_jobs}
    exec(compile(block, "docs/guides/testing.md", "exec"), names)  # noqa: S102 -- our own text
    names["test_a_view_enqueues_the_receipt"](db)
    assert Job.objects.get().state == "succeeded"
