"""The pages *Limits* and *Limit*: what runs and waits under each limit and each of its keys, and what to do about it.

The buttons post to `control_acts` and `limit_form`. The figures come from `stats`. Keys are shown a page at a time, in
their order, and a search for a key reads its range of the index.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from django.http import Http404, HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import stats
from django_pgqueue.admin import private
from django_pgqueue.admin.control_acts import button_context
from django_pgqueue.admin.formatting import breakable, shortened
from django_pgqueue.admin.job.blocked_keys import DEAD_SEARCHED, blocked_keys
from django_pgqueue.admin.limits.controls import changed_keys
from django_pgqueue.admin.links import allowed_url, limit_url
from django_pgqueue.declared.limits import MAX_KEY_LENGTH, has_value, name_of
from django_pgqueue.stats import Count, LimitFigures, LimitKeyFigures

from .limit_rows import key_rows, limit_rows
from .page import ConsolePage

KEYS_SHOWN: Final = 50
LISTED: Final = 20
"""Blocked keys that the page of a limit lists."""


def _document(alias: str) -> dict[str, Any]:
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
        "dead_searched": "" if is_complete else f"{DEAD_SEARCHED:,}",
        "changed": _named(request, changed if may_view else []),
        "limits_url": allowed_url(request, "limits"),
        "limit_url": allowed_url(request, "limit", limit=name),
        "key_length": MAX_KEY_LENGTH,
        **button_context(request),
    }


def _exact(limit_key: str, found: list[LimitKeyFigures], alias: str) -> LimitKeyFigures:
    """Return the figures of a key that was typed, also if it has no jobs: it can be paused before it has any."""
    return next((each for each in found if each.limit_key == limit_key), None) or stats.limit_key(limit_key, alias)


def _named(request: HttpRequest, limit_keys: list[str]) -> list[tuple[Any, str]]:
    """Return keys without the name of their limit, each with the URL of its row."""
    return [(breakable(shortened(key.partition(":")[2] or key)), limit_url(request, key)) for key in limit_keys]


LIMITS: Final = ConsolePage("limits", gettext_lazy("Limits"), _limits_context, document=_document)
LIMIT: Final = ConsolePage("limit", gettext_lazy("Limit"), _limit_context, place="limits")
