"""The pages of the console, and a crawler that finds all that their links lead to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urljoin, urlsplit

from django.db.models import Model
from django.test import Client
from django.urls import resolve

from django_pgqueue.models import DeadJob, Job, Pause, Schedule

PAGES: Final[dict[str, str]] = {
    "index": "",
    "console": "pgqueue/",
    "overview": "pgqueue/job/overview/",
    "queues": "pgqueue/job/queues/",
    "queue": "pgqueue/job/queue/?queue=mail",
    "jobs": "pgqueue/job/",
    "running jobs": "pgqueue/job/?state=running",
    "dead letters": "pgqueue/deadjob/",
    "job, dead": "pgqueue/deadjob/{dead}/change/",
    "job, running": "pgqueue/job/{running}/change/",
    "job, waiting": "pgqueue/job/{ready}/change/",
    "job, history": "pgqueue/job/{dead}/history/",
    "dead letter, history": "pgqueue/deadjob/{dead}/history/",
    "doctor": "pgqueue/job/doctor/",
    "workers": "pgqueue/worker/",
    "schedules": "pgqueue/schedule/",
    "schedule": "pgqueue/schedule/{schedule}/change/",
    "new schedule": "pgqueue/schedule/add/",
    "schedule, history": "pgqueue/schedule/{schedule}/history/",
    "delete schedule": "pgqueue/schedule/{schedule}/delete/",
    "pauses": "pgqueue/pause/",
    "new pause": "pgqueue/pause/add/",
    "pause, history": "pgqueue/pause/{pause}/history/",
}
"""The path of each page below the admin's, with `{...}` for the id of a row of `examples()`."""
FILTERED: Final = ("jobs", "dead letters", "schedules")
"""Lists with filters."""
SHAPE_LIMIT: Final = 400


def examples() -> dict[str, int]:
    """Return the id of one row of each kind."""
    rows: dict[str, Model | None] = {
        "dead": DeadJob.objects.filter(queue_name="webhooks").first(),
        "running": Job.objects.filter(state="running", queue_name="webhooks").first(),
        "ready": Job.objects.filter(state="ready", queue_name="mail").first(),
        "schedule": Schedule.objects.first(),
        "pause": Pause.objects.first(),
    }
    return {name: row.pk for name, row in rows.items() if row}


def path_of(name: str, root: str = "/admin/") -> str:
    """Return the path of a page."""
    return root + PAGES[name].format(**examples())


def route_of(url: str) -> str:
    """Return the pattern of the URL that a path belongs to."""
    return str(resolve(urlsplit(url).path).route)


def crawl(client: Client, start: str, shape: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Follow the links of the console. Yield one URL of each shape, and its shape, unless its shape is ""."""
    seen, waiting = {shape(start)}, [start]
    while waiting:
        url = waiting.pop(0)
        response = client.get(url, follow=False)
        if response.status_code != 200 or "html" not in response.headers["Content-Type"]:
            continue
        yield url, shape(url)
        for link in re.findall(r'<a\b[^>]*?\bhref="([^"#]+)"', response.content.decode()):
            there = urljoin(url, link.replace("&amp;", "&"))
            found = shape(there) if there.startswith(start) else ""
            if found and found not in seen and len(seen) < SHAPE_LIMIT:
                seen.add(found)
                waiting.append(there)
