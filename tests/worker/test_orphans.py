"""Rows that have lost their job or their execution: a sweep of the maintenance removes each kind of them."""

import re

from django.apps import apps

from django_pgqueue.ends.deletion import GOES_WITH_JOB
from django_pgqueue.lifecycle.orphans import ORPHANS

OTHERWISE_REMOVED = {
    "pgqueue_job": "the removal of jobs: it names its own execution",
    "pgqueue_uniqueness_window": "PRUNE_WINDOWS, at its end",
    "pgqueue_archived_job": "the operator: it outlives its job",
    "pgqueue_worker_request": "PRUNE_WORKER_REQUESTS, after its retention",
    "pgqueue_schedulerun": "PRUNE_SCHEDULE_RUNS, after its retention",
}
"""Tables with the id of a job or an execution, and what removes their rows instead."""

STAYS_WITHOUT_JOB = {"AuditedJob", "ArchivedJob", "ScheduleRun", "UniquenessWindow", "WorkerRequest"}


def test_table_with_job_id_has_a_sweep():
    tables = {
        model._meta.db_table
        for model in apps.get_app_config("pgqueue").get_models()
        if not model._meta.proxy and {"job_id", "execution_id"} & {field.column for field in model._meta.fields}
    }
    swept = {re.findall(r"DELETE FROM (\w+)", orphans.statement)[0] for orphans in ORPHANS.values()}
    assert tables == swept | OTHERWISE_REMOVED.keys()


def test_table_with_job_id_goes_with_its_job_or_not():
    """`Job.delete()` counts the rows that go with a job, and `delete_all_jobs()` empties their tables."""
    models = {
        model.__name__
        for model in apps.get_app_config("pgqueue").get_models()
        if not model._meta.proxy and {"job_id", "execution_id"} & {field.column for field in model._meta.fields}
    }
    assert models == {"Job"} | GOES_WITH_JOB.keys() | STAYS_WITHOUT_JOB


def test_rows_of_orphans_are_named_for_the_log():
    named = [orphans.rows for orphans in ORPHANS.values()]
    assert len(set(named)) == len(named) == len(ORPHANS)
