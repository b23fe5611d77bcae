"""The operator's console in Django's admin: jobs, dead letters, batches, workers, schedules and pauses.

Django's admin autodiscovery imports this package. Three invariants hold for every page:

* Queries are bounded, so that the pages work with millions of jobs (see `readonly` and `list_filters`).
* Rows are shown as text. A list decodes no arguments, and no page imports a module because a row names it.
* Jobs change only through `lifecycle` and the model's methods (see `job_actions`).
"""

from django.contrib import admin

from django_pgqueue.models import DeadJob, Job, JobBatch, Pause, Schedule, Worker

from .batch_admin import BatchAdmin
from .job_admin import DeadJobAdmin, JobAdmin
from .pause_admin import PauseAdmin
from .schedule_admin import ScheduleAdmin
from .worker_admin import WorkerAdmin

__all__ = ["BatchAdmin", "DeadJobAdmin", "JobAdmin", "PauseAdmin", "ScheduleAdmin", "WorkerAdmin"]

admin.site.register(Job, JobAdmin)
admin.site.register(DeadJob, DeadJobAdmin)
admin.site.register(JobBatch, BatchAdmin)
admin.site.register(Pause, PauseAdmin)
admin.site.register(Schedule, ScheduleAdmin)
admin.site.register(Worker, WorkerAdmin)
