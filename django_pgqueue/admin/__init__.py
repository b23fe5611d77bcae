"""The admin: jobs, dead letters, workers, schedules and pauses to look at, and what an operator may do.

Everything is bounded, so that it works on millions of jobs (see `paginator`, `filters`), and everything is text:
nothing is decoded in a list, nothing imported because a row names it. Jobs change through `models` only (see `acts`).
"""

from django.contrib import admin

from django_pgqueue.models import DeadJob, Job, Pause, Schedule, Worker

from .jobs import DeadJobAdmin, JobAdmin
from .pauses import PauseAdmin
from .schedules import ScheduleAdmin
from .workers import WorkerAdmin

__all__ = ["DeadJobAdmin", "JobAdmin", "PauseAdmin", "ScheduleAdmin", "WorkerAdmin"]

admin.site.register(Job, JobAdmin)
admin.site.register(DeadJob, DeadJobAdmin)
admin.site.register(Pause, PauseAdmin)
admin.site.register(Schedule, ScheduleAdmin)
admin.site.register(Worker, WorkerAdmin)
