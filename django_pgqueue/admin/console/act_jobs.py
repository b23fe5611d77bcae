"""The jobs that an act has changed, and what became of those that it has retried.

The page *Bulk act* calls it. One query reads the latest `READ` jobs of a retry, whatever the size of the act, and the
page says so if the act has changed more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from django.db.models import OuterRef, Subquery
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, ngettext_lazy

from django_pgqueue.acts import RETRY
from django_pgqueue.admin.formatting import visible, word_badge
from django_pgqueue.admin.navigation import allowed_url
from django_pgqueue.display import number
from django_pgqueue.models import AuditEntry, Job
from django_pgqueue.states import FINISHED, State

READ: Final = 1000
"""Latest jobs of a retry whose states are read."""
SHOWN: Final = 20
"""Jobs that the page shows: of a retry, those that are dead again come first, then the unfinished ones."""
UNFINISHED: Final = "unfinished"
REMOVED: Final = "removed"
PARTS: Final[dict[str, Any]] = {
    State.SUCCEEDED: ngettext_lazy("%(count)s succeeded", "%(count)s succeeded", "number"),
    State.DEAD: ngettext_lazy("%(count)s dead again", "%(count)s dead again", "number"),
    State.CANCELLED: ngettext_lazy("%(count)s cancelled", "%(count)s cancelled", "number"),
    UNFINISHED: ngettext_lazy("%(count)s not finished", "%(count)s not finished", "number"),
    REMOVED: ngettext_lazy("%(count)s no longer exists", "%(count)s no longer exist", "number"),
}
"""The texts for what a retried job can have become, in the order of the page."""
ORDER: Final = (State.DEAD, UNFINISHED, State.CANCELLED, State.SUCCEEDED, REMOVED)


class ChangedJob(NamedTuple):
    """A job of an act as it is now. `state` is None if the job no longer exists."""

    job_id: int
    state: str | None
    task_name: str | None

    @property
    def became(self) -> str:
        """The key of `PARTS` for what became of it."""
        if self.state is None:
            return REMOVED
        return self.state if self.state in FINISHED else UNFINISHED


def act_jobs(request: HttpRequest, entry: AuditEntry, alias: str) -> dict[str, Any]:
    """Return what the page shows of the jobs of an act. Runs one query."""
    is_retry = entry.action == RETRY.name
    found = _read(entry, alias, READ if is_retry else SHOWN)
    shown = sorted(found, key=lambda job: ORDER.index(job.became)) if is_retry else found
    return {
        "jobs": [
            (
                job.job_id,
                visible(job.task_name or ""),
                word_badge(job.state) if is_retry and job.state else "",
                job.state,
            )
            for job in shown[:SHOWN]
        ],
        "has_more_jobs": entry.job_count > min(len(found), SHOWN),
        "outcome_title": _outcome_title(entry, len(found)) if is_retry and found else "",
        "outcome": (outcome := list(_outcome(request, entry, found)) if is_retry else []),
        "outcome_has_links": any(url for _text, url in outcome),
        "has_unfinished": is_retry and any(job.became == UNFINISHED for job in found),
    }


def _read(entry: AuditEntry, alias: str, limit: int) -> list[ChangedJob]:
    """Return the latest jobs of an act, latest first. The primary key finds each job."""
    job = Job.objects.using(alias).filter(pk=OuterRef("job_id"))
    columns = {name: Subquery(job.values(name)) for name in ("state", "task_name")}
    rows = entry.jobs.using(alias).order_by("-pk").annotate(**columns)
    return [ChangedJob(*row) for row in rows.values_list("job_id", *columns)[:limit]]


def _outcome_title(entry: AuditEntry, count: int) -> str:
    words = {"count": number(count)}
    if entry.job_count > count:
        return _("Of the newest %(count)s retried jobs:") % words
    return ngettext("Of %(count)s retried job:", "Of %(count)s retried jobs:", count) % words


def _outcome(request: HttpRequest, entry: AuditEntry, jobs: Collection[ChangedJob]) -> Iterator[tuple[str, str]]:
    """Yield how many jobs have become what, each with the URL of a list; "" if no list has them."""
    counts = Counter(job.became for job in jobs)
    for became, text in PARTS.items():
        if count := counts[became]:
            shown = text % {"number": count, "count": number(count)}
            yield shown, _list_url(request, entry, became) if became in FINISHED else ""


def _list_url(request: HttpRequest, entry: AuditEntry, state: str) -> str:
    """Return the URL of the jobs of the act's queue and task that ended so since it began; "" if it names neither."""
    chosen = entry.filter if isinstance(entry.filter, dict) else {}
    names = {"queue": chosen.get("queue_name"), "task": chosen.get("task_name")}
    named = {name: value for name, value in names.items() if value and isinstance(value, str)}
    if not named:
        return ""
    page, word = ("deadjob_changelist", None) if state == State.DEAD else ("job_changelist", state)
    return allowed_url(request, page, state=word, since=entry.began_at.isoformat(), **named)
