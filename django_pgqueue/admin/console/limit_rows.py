"""The rows of the tables of limits and of limit keys: figures as text, with their links and what operators changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import shown
from django_pgqueue.admin.charts.axes import seconds_text
from django_pgqueue.admin.formatting import breakable, shortened
from django_pgqueue.admin.job.blocked_keys import Blocker, blockers
from django_pgqueue.admin.limits.controls import ShownControls, controls_of
from django_pgqueue.admin.limits.words import limit_lines, next_start_text, wait_text
from django_pgqueue.admin.links import key_jobs_url, limit_url, page_url
from django_pgqueue.stats import Count, LimitFigures, LimitKeyFigures
from django_pgqueue.tasks import registry


class LimitCell(NamedTuple):
    """A number of jobs or keys, with a link to them unless it is 0."""

    label: Promise | str
    number: Count
    url: str = ""
    note: str = ""


class LimitRow(NamedTuple):
    """A limit as a table shows it."""

    name: str
    label: SafeString
    url: str
    lines: Sequence[str]
    """A description of the limit, with the values in force. Empty if no task of this process declares it."""
    cells: Sequence[LimitCell]
    oldest: str
    blocked: str
    """How many of its keys are blocked by dead jobs, here and below; "" if none is."""
    paused: str
    changed: str
    opened: str
    """How many of its keys have open circuit breakers; "" if none has."""
    controls: ShownControls


class KeyRow(NamedTuple):
    """A limit key as a table shows it."""

    label: SafeString | str
    url: str
    cells: Sequence[LimitCell]
    oldest: str
    next_start: str
    wait: str
    """A sentence about the wait of its next job; "" if no job waits."""
    wait_url: str
    """The job for which it waits; "" if it waits for none."""
    blocker: Blocker | None
    is_held: bool
    hold_shown: str
    """The end of its hold as the form sends it."""
    controls: ShownControls


def limit_rows(
    request: HttpRequest, alias: str, limits: Iterable[LimitFigures], blocked: Mapping[str, Count]
) -> list[LimitRow]:
    """Return the rows of limits. `blocked` counts the blocked keys of each limit that has any."""
    found = list(limits)
    controls = controls_of(request, alias, [each.name for each in found])
    return [_limit_row(request, each, controls[each.name], blocked.get(each.name)) for each in found]


def _limit_row(request: HttpRequest, figures: LimitFigures, controls: ShownControls, blocked: Count | None) -> LimitRow:
    name, oldest = figures.name, figures.oldest_due_seconds
    limit = registry.limits().get(name)
    return LimitRow(
        name=name,
        label=breakable(shortened(name)),
        url=limit_url(request, name),
        lines=[] if limit is None or controls.policy is None else list(limit_lines(limit, controls.policy)),
        cells=[
            _running(request, name, figures.running, figures.running_weight),
            _jobs(request, name, gettext_lazy("due"), figures.due),
            _jobs(request, name, gettext_lazy("later"), figures.later, word="ready"),
            LimitCell(gettext_lazy("keys waiting"), figures.keys),
            LimitCell(gettext_lazy("held keys"), figures.held_keys),
        ],
        oldest="" if oldest is None else seconds_text(oldest),
        blocked="" if blocked is None else str(blocked),
        paused=str(figures.paused_keys) if figures.paused_keys.value else "",
        changed=str(figures.overridden_keys) if figures.overridden_keys.value else "",
        opened=str(figures.open_breakers) if figures.open_breakers.value else "",
        controls=controls,
    )


def key_rows(request: HttpRequest, alias: str, keys: Iterable[LimitKeyFigures]) -> list[KeyRow]:
    """Return the rows of limit keys. Runs at most four statements."""
    found = list(keys)
    controls = controls_of(request, alias, [each.limit_key for each in found])
    in_way = blockers(request, alias, [each.blocking_job_id for each in found if each.blocking_job_id is not None])
    return [_key_row(request, each, controls[each.limit_key], in_way.get(each.blocking_job_id or 0)) for each in found]


def _key_row(
    request: HttpRequest, figures: LimitKeyFigures, controls: ShownControls, blocker: Blocker | None
) -> KeyRow:
    key, oldest = figures.limit_key, figures.oldest_due_seconds
    value = key.partition(":")[2]
    in_way = figures.blocking_job_id
    return KeyRow(
        label=breakable(shortened(value)) if value else _("all jobs"),
        url=limit_url(request, key),
        cells=[
            _running(request, key, figures.running, figures.running_weight),
            _jobs(request, key, gettext_lazy("due"), figures.due),
            _jobs(request, key, gettext_lazy("later"), figures.later, word="ready"),
        ],
        oldest="" if oldest is None else seconds_text(oldest),
        next_start=next_start_text(figures),
        wait=wait_text(figures, controls.policy),
        wait_url=page_url(request, "job_change", in_way) if in_way and blocker is None else "",
        blocker=blocker,
        is_held=figures.held_until is not None,
        hold_shown=str(shown.number(figures.held_until)),
        controls=controls,
    )


def _running(request: HttpRequest, limit_key: str, count: Count, weight: int) -> LimitCell:
    """Return the running jobs. Their weight is shown if it differs from their number."""
    note = "" if not weight or weight == count.value else _("weight %(weight)s") % {"weight": f"{weight:,}"}
    return _jobs(request, limit_key, gettext_lazy("running"), count, word="running")._replace(note=note)


def _jobs(request: HttpRequest, limit_key: str, label: Promise | str, count: Count, *, word: str = "due") -> LimitCell:
    return LimitCell(label, count, key_jobs_url(request, limit_key, word) if count.value else "")
