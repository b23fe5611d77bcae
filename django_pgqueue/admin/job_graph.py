"""The dependencies and the dependents of a job on its page. `job_page` calls it for jobs of workflows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.models import Job
from django_pgqueue.states import FailurePolicy
from django_pgqueue.stats.graphs import Related, dependencies_of, dependents_of

from . import databases
from .formatting import badge, breakable, word_badge
from .links import address_for

SHOWN: Final = 20
"""Dependencies, and dependents, that the page shows."""
POLICIES: Final[dict[str, Promise | str]] = {
    FailurePolicy.CANCEL: gettext_lazy("cancels the dependent if it fails"),
    FailurePolicy.IGNORE: gettext_lazy("the dependent runs even if it fails"),
    FailurePolicy.BLOCK: gettext_lazy("blocks the dependent if it fails"),
}


class RelatedRow(NamedTuple):
    """A dependency or a dependent, as the page shows it."""

    number: str
    url: str
    task: SafeString | str
    badge: SafeString
    policy: Promise | str


def related_of(request: HttpRequest, job: Job) -> list[tuple[Promise | str, list[RelatedRow], bool]]:
    """Return two lists, each with its title and whether there are more. Empty for a job of no workflow."""
    if not job.in_graph:
        return []
    found = [
        (_("Depends on"), dependencies_of(job.pk, SHOWN + 1, job._state.db)),
        (_("Dependents: they wait for it"), dependents_of(job.pk, SHOWN + 1, job._state.db)),
    ]
    return [(title, _rows(request, jobs[:SHOWN]), len(jobs) > SHOWN) for title, jobs in found if jobs]


def _rows(request: HttpRequest, jobs: Iterable[Related]) -> list[RelatedRow]:
    return [_row(request, each) for each in jobs]


def _row(request: HttpRequest, job: Related) -> RelatedRow:
    url: Any = address_for(request, "job_change", job.job_id) if job.state is not None else ""
    return RelatedRow(
        f"#{job.job_id}",
        databases.link(request, url) if url else "",
        breakable(job.task_name) if job.task_name is not None else "",
        word_badge(job.state) if job.state is not None else badge("unknown", _("removed")),
        POLICIES.get(job.policy, job.policy),
    )
