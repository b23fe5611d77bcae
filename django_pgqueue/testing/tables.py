"""Empty the tables of jobs between tests, whatever state the jobs are in."""

from __future__ import annotations

from django.apps import apps
from django.db import router, transaction

from django_pgqueue.deletion import APP, GOES_WITH_JOB


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
    app = apps.get_app_config(APP)
    alias = database or router.db_for_write(app.get_model("Job"))
    with transaction.atomic(using=alias):
        for name in (*GOES_WITH_JOB, "Job", "UniquenessWindow", "JobBatch", "BatchRemoval", "SentEvent"):
            app.get_model(name)._base_manager.using(alias)._raw_delete(alias)
