"""The pages *Limits* and *Limit*: what runs and waits under each limit and each of its keys, and what to do about it.

The buttons post to `buttons` and `limit_form`. The figures come from `stats`. Keys are shown a page at a time, in
their order, and a search for a key reads its range of the index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from django.http import Http404, HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import stats
from django_pgqueue.admin import private, shown
from django_pgqueue.admin.buttons import button_context
from django_pgqueue.admin.charts import seconds_text
from django_pgqueue.admin.formatting import breakable, count_note, shortened
from django_pgqueue.admin.job.blocked_keys import DEAD_SEARCHED, blocked_keys, blockers
from django_pgqueue.admin.limits.controls import changed_keys, controls_of
from django_pgqueue.admin.limits.words import limit_lines, next_start_text, wait_text
from django_pgqueue.admin.navigation import allowed_url, key_jobs_url, limit_url, page_url
from django_pgqueue.declared.limits import MAX_KEY_LENGTH, has_value, name_of
from django_pgqueue.display import number
from django_pgqueue.stats import Count, LimitFigures, LimitKeyFigures
from django_pgqueue.stats.answers import NONE
from django_pgqueue.tasks import registry

from .page import ConsolePage

KEYS_SHOWN: Final = 50
LISTED: Final = 20
"""Blocked keys that the page of a limit lists."""


def _document(request: HttpRequest, alias: str) -> dict[str, Any]:
    return {"limits": stats.limits(alias)}


def _limits_context(request: HttpRequest, alias: str) -> dict[str, Any]:
    keys, is_complete = blocked_keys(alias)
    counts = Counter(name_of(key) for key in keys)
    blocked = {name: Count(count, is_complete) for name, count in counts.items()}
    return {"rows": limit_rows(request, alias, stats.limits(alias), blocked), **button_context(request)}


def _limit_context(request: HttpRequest, alias: str) -> dict[str, Any]:
    name, may_view = request.GET.get("limit", ""), private.may_view(request)
    typed, after = (request.GET.get(each, "").strip() if may_view else "" for each in ("key", "after"))
    value = typed.removeprefix(f"{name}:")
    figures = next((each for each in stats.limits(alias) if each.name == name), None)
    changed = [] if figures is None and "\0" in name else changed_keys(alias, name)
    if figures is None and not changed:
        raise Http404(_("No task declares the limit “%(name)s”, and no job has it.") % {"name": shortened(name)})
    figures = figures or LimitFigures(name=name, declaration="")
    page = stats.limit_keys(name, after=after, count=KEYS_SHOWN, prefix=value, database=alias)
    keys = list(page.keys)
    if keys and not (value or after or page.next_after):
        figures = _summed(figures, keys)
    if value and not after:
        keys = [_exact(f"{name}:{value}", keys, alias), *(each for each in keys if each.limit_key != f"{name}:{value}")]
    keys = [each for each in keys if may_view or not has_value(each.limit_key)]
    blocked, is_complete = blocked_keys(alias, name)
    return {
        "title": _("Limit %(name)s") % {"name": shortened(name)},
        "name": name,
        "rows": limit_rows(request, alias, [figures], {name: Count(len(blocked), is_complete)} if blocked else {}),
        "keys": key_rows(request, alias, keys),
        "typed": value,
        "is_first_page": not after,
        "next_url": allowed_url(request, "limit", limit=name, key=typed or None, after=page.next_after)
        if page.next_after and may_view
        else "",
        "note": "" if may_view else private.KEYS_NOTE,
        "blocked": _named(request, blocked[:LISTED] if may_view else []),
        "more_blocked": len(blocked) > LISTED,
        "dead_searched": "" if is_complete else number(DEAD_SEARCHED),
        "changed": _named(request, changed if may_view else []),
        "limits_url": allowed_url(request, "limits"),
        "limit_url": allowed_url(request, "limit", limit=name),
        "key_length": MAX_KEY_LENGTH,
        **button_context(request),
    }


def _summed(figures: LimitFigures, keys: Sequence[LimitKeyFigures]) -> LimitFigures:
    """Return the figures of a limit with the sums of all its keys. A later statement has read them than the others.

    Otherwise the row of a limit and that of its only key could differ.
    """
    return replace(
        figures,
        running=sum((key.running for key in keys), start=NONE),
        running_weight=sum(key.running_weight for key in keys),
        due=sum((key.due for key in keys), start=NONE),
        later=sum((key.later for key in keys), start=NONE),
    )


def _exact(limit_key: str, found: list[LimitKeyFigures], alias: str) -> LimitKeyFigures:
    """Return the figures of a key that was typed, also if it has no jobs: it can be paused before it has any."""
    return next((each for each in found if each.limit_key == limit_key), None) or stats.limit_key(limit_key, alias)


def _named(request: HttpRequest, limit_keys: list[str]) -> list[tuple[Any, str]]:
    """Return keys without the name of their limit, each with the URL of its row."""
    return [(breakable(shortened(key.partition(":")[2] or key)), limit_url(request, key)) for key in limit_keys]


# ---------------------------------------------------------------------------- rows


def limit_rows(
    request: HttpRequest, alias: str, limits: Iterable[LimitFigures], blocked: Mapping[str, Count]
) -> list[dict[str, Any]]:
    """Return the rows of limits. `blocked` counts the blocked keys of each limit that has any."""
    found = list(limits)
    controls = controls_of(request, alias, [each.name for each in found])
    return _without_zeros([_limit_row(request, each, controls[each.name], blocked.get(each.name)) for each in found])


def _limit_row(
    request: HttpRequest, figures: LimitFigures, controls: dict[str, Any], blocked: Count | None
) -> dict[str, Any]:
    name, oldest = figures.name, figures.oldest_due_seconds
    limit, policy = registry.limits().get(name), controls["policy"]
    return {
        "label": breakable(shortened(name)),
        "url": limit_url(request, name),
        # With the values in force. Empty if no task of this process declares the limit.
        "lines": [] if limit is None or policy is None else list(limit_lines(limit, policy)),
        "cells": [
            _running(request, name, figures.running, figures.running_weight),
            _jobs(request, name, gettext_lazy("due"), figures.due, word=_list_of_due(controls, figures.paused_keys)),
            _jobs(request, name, gettext_lazy("later"), figures.later, word="ready"),
            _number(gettext_lazy("keys waiting"), figures.keys),
            _number(gettext_lazy("held keys"), figures.held_keys),
        ],
        "oldest": "" if oldest is None else seconds_text(oldest),
        # How many of its keys are blocked by dead jobs, are paused, and so on; "" if none is.
        "blocked": "" if blocked is None else str(blocked),
        "paused": str(figures.paused_keys) if figures.paused_keys.value else "",
        "changed": str(figures.overridden_keys) if figures.overridden_keys.value else "",
        "opened": str(figures.open_breakers) if figures.open_breakers.value else "",
        "controls": controls,
    }


def key_rows(request: HttpRequest, alias: str, keys: Iterable[LimitKeyFigures]) -> list[dict[str, Any]]:
    """Return the rows of limit keys. Runs at most four statements."""
    found = list(keys)
    controls = controls_of(request, alias, [each.limit_key for each in found])
    in_way = blockers(request, alias, [each.blocking_job_id for each in found if each.blocking_job_id is not None])
    return _without_zeros(
        [_key_row(request, each, controls[each.limit_key], in_way.get(each.blocking_job_id or 0)) for each in found]
    )


def _without_zeros(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table without the columns that are known to be 0 in each of them, except the first two."""
    columns = list(zip(*(row["cells"] for row in rows), strict=True))
    kept = [place for place, cells in enumerate(columns) if place < 2 or any(each["number"] != NONE for each in cells)]
    return [{**row, "cells": [row["cells"][place] for place in kept]} for row in rows]


def _key_row(
    request: HttpRequest, figures: LimitKeyFigures, controls: dict[str, Any], blocker: dict[str, Any] | None
) -> dict[str, Any]:
    key, oldest = figures.limit_key, figures.oldest_due_seconds
    value = key.partition(":")[2]
    in_way = figures.blocking_job_id
    return {
        "label": breakable(shortened(value)) if value else _("all jobs"),
        "url": limit_url(request, key),
        "cells": [
            _running(request, key, figures.running, figures.running_weight),
            _jobs(request, key, gettext_lazy("due"), figures.due, word=_list_of_due(controls)),
            _jobs(request, key, gettext_lazy("later"), figures.later, word="ready"),
        ],
        "oldest": "" if oldest is None else seconds_text(oldest),
        "next_start": next_start_text(figures),
        "wait": wait_text(figures, controls["policy"]),
        "wait_url": page_url(request, "job_change", in_way) if in_way and blocker is None else "",
        "blocker": blocker,
        "is_held": figures.held_until is not None,
        "hold_shown": str(shown.number(figures.held_until)),
        "controls": controls,
    }


def _running(request: HttpRequest, limit_key: str, count: Count, weight: int) -> dict[str, Any]:
    """Return the running jobs. Their weight is shown if it differs from their number."""
    note = "" if not weight or weight == count.value else _("weight %(weight)s") % {"weight": number(weight)}
    return {**_jobs(request, limit_key, gettext_lazy("running"), count, word="running"), "note": note}


def _list_of_due(controls: Mapping[str, Any], paused_keys: Count | None = None) -> str:
    """Return the word of the list with the due jobs: paused ones are in a list of their own.

    If only some keys of a limit are paused, one list with all of them is that of the ready jobs.
    """
    if controls["is_paused"]:
        return "paused"
    return "ready" if paused_keys is not None and paused_keys.value else "due"


def _jobs(
    request: HttpRequest, limit_key: str, label: Promise | str, count: Count, *, word: str = "due"
) -> dict[str, Any]:
    """Return a number of jobs, with a link to them unless it is 0."""
    return {**_number(label, count), "url": key_jobs_url(request, limit_key, word) if count.value else ""}


def _number(label: Promise | str, count: Count) -> dict[str, Any]:
    return {"label": label, "number": count, "title": count_note(count)}


LIMITS: Final = ConsolePage("limits", gettext_lazy("Limits"), _limits_context, document=_document)
LIMIT: Final = ConsolePage("limit", gettext_lazy("Limit"), _limit_context, place="limits")
