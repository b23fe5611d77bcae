"""The pages of the console, and a crawler that finds all that their links lead to."""

from __future__ import annotations

from typing import Any, Final

import pytest
from django.db.models import Model
from playwright.sync_api import Page, expect

from django_pgqueue.models import AuditEntry, DeadJob, Job, Pause, Schedule, Worker

PAGES: Final[dict[str, str]] = {
    "index": "",
    "console": "pgqueue/",
    "overview": "pgqueue/job/overview/",
    "overview, day": "pgqueue/job/overview/?span=day",
    "overview, week": "pgqueue/job/overview/?span=week",
    "queues": "pgqueue/job/queues/",
    "queue": "pgqueue/job/queue/?queue=mail",
    "limits": "pgqueue/job/limits/",
    "limit": "pgqueue/job/limit/?limit=catalogue",
    "limit, breakers": "pgqueue/job/limit/?limit=carriers",
    "limit, change": "pgqueue/job/limits/change/?key=payments",
    "jobs": "pgqueue/job/",
    "running jobs": "pgqueue/job/?state=running",
    "dead letters": "pgqueue/deadjob/",
    "job, dead": "pgqueue/deadjob/{dead}/change/",
    "job, running": "pgqueue/job/{running}/change/",
    "job, waiting": "pgqueue/job/{ready}/change/",
    "job, history": "pgqueue/job/{dead}/history/",
    "dead letter, history": "pgqueue/deadjob/{dead}/history/",
    "job, edit and retry": "pgqueue/job/{dead}/edit/",
    "job, succeeded": "pgqueue/job/{succeeded}/change/",
    "job, steps": "pgqueue/job/{steps}/change/",
    "job, waiting for others": "pgqueue/job/{waiting}/change/",
    "job, cancelled with another": "pgqueue/job/{restorable}/change/",
    "jobs of a batch": "pgqueue/job/?batch=3",
    "batches": "pgqueue/jobbatch/",
    "batch": "pgqueue/jobbatch/3/change/",
    "batch, complete": "pgqueue/jobbatch/2/change/",
    "workflow": "pgqueue/jobbatch/9/change/",
    "workflow, wide": "pgqueue/jobbatch/10/change/",
    "workflow, retry from": "pgqueue/jobbatch/9/retry_from/{dead node}/",
    "batch, close": "pgqueue/jobbatch/5/close/",
    "batch, cancel": "pgqueue/jobbatch/3/cancel/",
    "batch, retry": "pgqueue/jobbatch/3/retry/",
    "batch, history": "pgqueue/jobbatch/3/history/",
    "enqueue": "pgqueue/job/enqueue/example_project.shop.tasks.report_day/",
    "incidents": "pgqueue/job/incidents/",
    "search": "pgqueue/job/search/?q=mail",
    "bulk acts": "pgqueue/job/bulk_acts/",
    "bulk act": "pgqueue/job/bulk_act/?id={act}",
    "bulk act, preview": "pgqueue/job/bulk_preview/?action=retry&state=dead&queue=webhooks",
    "doctor": "pgqueue/job/doctor/",
    "workers": "pgqueue/worker/",
    "worker": "pgqueue/worker/{worker}/change/",
    "worker, stop": "pgqueue/worker/{worker}/stop/",
    "worker, history": "pgqueue/worker/{worker}/history/",
    "tasks": "pgqueue/job/tasks/",
    "schedules": "pgqueue/schedule/",
    "schedule": "pgqueue/schedule/{schedule}/change/",
    "new schedule": "pgqueue/schedule/add/",
    "schedule, history": "pgqueue/schedule/{schedule}/history/",
    "delete schedule": "pgqueue/schedule/{schedule}/delete/",
    "schedule, skip": "pgqueue/schedule/{schedule}/skip/",
    "schedule, pause until": "pgqueue/schedule/{schedule}/pause_until/",
    "pauses": "pgqueue/pause/",
    "new pause": "pgqueue/pause/add/",
    "pause, history": "pgqueue/pause/{pause}/history/",
}
"""The path of each page below the admin's, with `{...}` for the id of a row of `examples()`."""
QUESTIONS: Final[dict[str, tuple[str, str]]] = {
    "question, move": ("job, waiting", "Move"),
    "question, cancel": ("job, running", "Cancel"),
    "question, delete": ("job, dead", "Delete"),
    "question, retry": ("job, succeeded", "Retry"),
    "question, pause": ("limits", "Pause… catalogue"),
}
"""Pages that ask before they change something: the page and the button that lead there."""
EVERY: Final = (*PAGES, *QUESTIONS)
CORE: Final = ("overview", "queues", "jobs", "job, dead", "workers", "question, move")
IN_GERMAN: Final = (
    *("overview", "queues", "limit", "jobs", "running jobs", "dead letters", "job, dead", "workers", "tasks"),
    *("schedules", "pauses", "bulk acts"),
)
"""Pages with the widest tables. German has longer words than English."""
WIDE: Final = (
    *(*CORE, "queue", "limit", "dead letters", "incidents", "search", "tasks", "schedules", "schedule", "doctor"),
    *("batches", "batch", "job, steps", "workflow"),
)
"""Pages with a layout of their own."""


def in_each_check(chosen: tuple[str, ...]) -> list[Any]:
    """Return every page as a parameter of a test. A check of a change runs the test for the chosen pages only."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.on_demand) for name in EVERY]


SOME: Final = in_each_check(CORE)
FILTERED: Final = ("jobs", "dead letters", "schedules", "batches")
"""Lists with filters."""
LISTS: Final = (
    *(*FILTERED, "running jobs", "jobs of a batch", "pauses", "queues", "limits", "limit", "incidents", "tasks"),
    *("workers", "doctor"),
)
"""The pages whose content is a list."""


def examples() -> dict[str, int]:
    """Return the id of one row of each kind."""
    rows: dict[str, Model | None] = {
        "dead": DeadJob.objects.filter(queue_name="webhooks").first(),
        "running": Job.objects.filter(state="running", queue_name="webhooks").first(),
        "succeeded": Job.objects.filter(state="succeeded").first(),
        "ready": Job.objects.filter(state="ready", queue_name="mail").first(),
        "waiting": Job.objects.filter(state="waiting", task_name__endswith="hand_over_to_the_carrier").first(),
        "restorable": Job.objects.filter(in_graph=True, state="cancelled").first(),
        "dead node": Job.objects.filter(batch_id=9, state="dead").first(),
        "steps": Job.objects.filter(steps__isnull=False).first(),
        "schedule": Schedule.objects.first(),
        "worker": Worker.objects.order_by("pk").first(),
        "pause": Pause.objects.first(),
        "act": AuditEntry.objects.first(),
    }
    return {name: row.pk for name, row in rows.items() if row}


def path_of(name: str, root: str = "/admin/") -> str:
    """Return the path of a page."""
    return root + PAGES[name].format(**examples())


def visit(page: Page, name: str, root: str = "/admin/") -> Page:
    """Open a page, or press the button that leads to a question."""
    of_job, button = QUESTIONS.get(name, (name, ""))
    response = page.goto(path_of(of_job, root))
    assert response, name
    assert response.status == 200, name
    if button:
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.locator("input[type=submit]").first).to_be_visible()
    return page
