"""`delete()` of batches: only complete ones without jobs, and the parent keeps their counts."""

from __future__ import annotations

import pytest
from django.db import models

from django_pgqueue import Batch
from django_pgqueue.exceptions import CannotDelete
from django_pgqueue.models import BatchRemoval, Job, JobBatch
from django_pgqueue.testing import run_jobs
from tests.app import tasks

pytestmark = pytest.mark.django_db
WAYS = {
    "instance": lambda batch_id: JobBatch.objects.get(pk=batch_id).delete(),
    "queryset": lambda batch_id: JobBatch.objects.filter(pk=batch_id).delete(),
    "base manager": lambda batch_id: JobBatch._base_manager.filter(pk=batch_id).delete(),
}
each_way = pytest.mark.parametrize("way", WAYS)


def batch_of(*, run: bool = True, **options: object) -> Batch:
    with Batch(**options) as batch:  # type: ignore[arg-type]
        tasks.noop.using(batch=batch).enqueue()
    if run:
        run_jobs()
    return batch


@pytest.mark.promise("delete-only-ended-jobs")
@each_way
def test_delete_incomplete_batch_raises_and_names_cancel(way):
    batch = batch_of(run=False)
    with pytest.raises(
        CannotDelete, match=rf"batch {batch.id} is not complete, .*: call Batch.get\({batch.id}\).cancel"
    ):
        WAYS[way](batch.id)
    assert JobBatch.objects.exists()


@each_way
def test_delete_batch_with_jobs_leaves_it_and_says_so(way, caplog):
    batch = batch_of()
    assert WAYS[way](batch.id) == (0, {})
    assert f"batch {batch.id} was not deleted" in caplog.text
    assert caplog.records[-1].event == "batch_kept"
    Job.objects.all().delete()
    assert WAYS[way](batch.id) == (1, {"pgqueue.JobBatch": 1})
    assert not BatchRemoval.objects.exists()


def test_delete_nested_batches_hands_their_counts_to_the_parent():
    with Batch() as outer, Batch(parent=outer) as inner:
        tasks.fail.using(batch=inner, max_attempts=1).enqueue()
    run_jobs()
    Job.objects.all().delete()
    assert JobBatch.objects.filter(pk=outer.id).delete() == (0, {}), "it has a nested one"
    assert JobBatch.objects.filter(pk=inner.id).delete() == (1, {"pgqueue.JobBatch": 1})
    assert outer.progress().dead == 1


def test_delete_all_batches_deletes_those_with_nested_ones_too():
    with Batch() as outer, Batch(parent=outer) as middle, Batch(parent=middle):
        pass
    run_jobs()
    assert JobBatch.objects.filter(completed_at__isnull=False).count() == 3
    assert JobBatch.objects.all().delete() == (3, {"pgqueue.JobBatch": 3})


def test_delete_batch_applies_the_foreign_keys_of_the_project(refer):
    cascading, protecting = refer(to=JobBatch), refer(to=JobBatch, on_delete=models.PROTECT)
    batch = batch_of()
    Job.objects.all().delete()
    cascading.objects.create(row_id=batch.id)
    protecting.objects.create(row_id=batch.id)
    with pytest.raises(models.ProtectedError):
        JobBatch.objects.all().delete()
    assert JobBatch.objects.exists()
    protecting.objects.all().delete()
    assert JobBatch.objects.get().delete() == (2, {"pgqueue.JobBatch": 1, cascading._meta.label: 1})


def test_delete_of_batches_refuses_slices():
    with pytest.raises(TypeError, match="limit"):
        JobBatch.objects.all()[:1].delete()
