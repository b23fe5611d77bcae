"""The admin: jobs, dead letters and workers to look at, and what an operator may do to jobs.

Everything is bounded, so that it works on millions of jobs (see `paginator`, `filters`), and everything is text:
nothing is decoded in a list, nothing imported because a row names it. Jobs change through `models` only (see `acts`).
"""

from django.contrib import admin

from django_pgqueue.models import DeadJob, Job, Worker

from .jobs import DeadJobAdmin, JobAdmin
from .workers import WorkerAdmin

__all__ = ["DeadJobAdmin", "JobAdmin", "WorkerAdmin"]

admin.site.register(Job, JobAdmin)
admin.site.register(DeadJob, DeadJobAdmin)
admin.site.register(Worker, WorkerAdmin)
