"""The kit inside Django's own `TestCase`: its transaction, its counted queries, its captured callbacks."""

from __future__ import annotations

from django.db import transaction
from django.test import TestCase, override_settings

from django_pgqueue.testing import assert_enqueued, run_jobs
from tests.app import tasks
from tests.framework import tasks as framework

ANOTHER_FOR_READING = ["tests.kit.test_transactions.ReadsElsewhere"]


class ReadsElsewhere:
    """A router whose replica does not exist here: whoever asks it fails."""

    def db_for_read(self, model, **hints):
        return "a replica"


class InsideTestCase(TestCase):
    def test_an_enqueue_is_one_query(self):
        with self.assertNumQueries(1):
            tasks.noop.enqueue()
        with self.assertNumQueries(1):
            framework.add.enqueue(1, b=2)

    def test_the_wake_up_is_a_callback_of_the_commit(self):
        with self.captureOnCommitCallbacks() as callbacks:
            tasks.noop.enqueue()
        self.assertEqual(len(callbacks), 1)

    def test_which_does_no_harm_inside_the_test_s_transaction(self):
        with self.captureOnCommitCallbacks(execute=True), self.assertNumQueries(1):
            tasks.noop.enqueue()
        self.assertEqual(run_jobs(), 1)

    def test_what_a_task_leaves_to_its_commit_is_captured(self):
        tasks.add_at_commit.enqueue()
        self.assertEqual(run_jobs(raising=True, max_jobs=1), 1)
        self.assertEqual(run_jobs(), 0)
        tasks.add_at_commit.enqueue()
        with self.captureOnCommitCallbacks(execute=True):
            self.assertEqual(run_jobs(raising=True, max_jobs=1), 1)
        assert_enqueued(tasks.noop)

    def test_a_savepoint_takes_its_jobs_back(self):
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            tasks.noop.enqueue()
            1 / 0  # noqa: B018 -- what is raised matters
        self.assertEqual(run_jobs(), 0)

    @override_settings(DATABASE_ROUTERS=ANOTHER_FOR_READING)
    def test_what_is_enqueued_is_looked_for_where_it_was_written(self):
        tasks.noop.enqueue()
        assert_enqueued(tasks.noop)
