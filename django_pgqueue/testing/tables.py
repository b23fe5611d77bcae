"""Empty the tables of jobs between tests, whatever state the jobs are in."""

from __future__ import annotations

from django.db import router, transaction


def delete_all_jobs(*, database: str | None = None) -> None:
    """Delete all jobs, batches and events, also unfinished jobs, which `Job.objects.all().delete()` refuses.

    It is for tests whose rows are not rolled back. It obeys no rule: nothing is undone, and no callback is enqueued.
    Receivers are not called, and the foreign keys of your models are not applied: delete your own rows first.

    Args:
        database: Alias of the database of the jobs. By default the database routers choose it.

    Example:
        >>> delete_all_jobs()
        >>> assert not Job.objects.exists()
    """
    from django_pgqueue import models  # models can be imported only after the apps are loaded

    alias = database or router.db_for_write(models.Job)
    of_jobs = (models.Job, models.Execution, models.ExecutionLog, models.JobStep, models.JobDependency)
    others = (models.SearchKey, models.UniquenessWindow, models.JobBatch, models.BatchRemoval, models.SentEvent)
    with transaction.atomic(using=alias):
        for model in (*of_jobs, *others):
            model._base_manager.using(alias)._raw_delete(alias)
