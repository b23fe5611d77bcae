"""Tests of the testing tools in Django's `TestCase`: its transaction, its query counts and its captured callbacks."""

from __future__ import annotations

from django.db import transaction
from django.test import TestCase, override_settings

from django_pgqueue.testing import assert_enqueued, run_jobs
from tests.app import tasks
from tests.framework import tasks as framework

ANOTHER_FOR_READING = ["tests.kit.test_transactions.ReadsElsewhere"]


class ReadsElsewhere:
    """Route reads to a replica that does not exist, so that every read through this router fails."""

    def db_for_read(self, model, **hints):
        return "a replica"


class InsideTestCase(TestCase):
    def test_enqueue_sends_one_query(self):
        with self.assertNumQueries(1):
            tasks.noop.enqueue()
        with self.assertNumQueries(1):
            framework.add.enqueue(1, b=2)

    def test_enqueue_registers_one_on_commit_callback(self):
        with self.captureOnCommitCallbacks() as callbacks:
            tasks.noop.enqueue()
        self.assertEqual(len(callbacks), 1)

    def test_on_commit_callback_in_test_leaves_job_runnable(self):
        with self.captureOnCommitCallbacks(execute=True), self.assertNumQueries(1):
            tasks.noop.enqueue()
        self.assertEqual(run_jobs(), 1)

    def test_run_jobs_on_commit_callback_of_task_is_captured(self):
        tasks.add_at_commit.enqueue()
        self.assertEqual(run_jobs(raising=True, max_jobs=1), 1)
        self.assertEqual(run_jobs(), 0)
        tasks.add_at_commit.enqueue()
        with self.captureOnCommitCallbacks(execute=True):
            self.assertEqual(run_jobs(raising=True, max_jobs=1), 1)
        assert_enqueued(tasks.noop)

    def test_savepoint_rolled_back_removes_its_jobs(self):
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            tasks.noop.enqueue()
            1 / 0  # noqa: B018 -- the test needs the exception
        self.assertEqual(run_jobs(), 0)

    @override_settings(DATABASE_ROUTERS=ANOTHER_FOR_READING)
    def test_assert_enqueued_read_replica_reads_primary(self):
        tasks.noop.enqueue()
        assert_enqueued(tasks.noop)
