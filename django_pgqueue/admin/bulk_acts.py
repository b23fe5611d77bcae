"""The parts that the pages of bulk acts share: the filter in a URL, the words for an act, and who may request it.

The lists of jobs, the incidents and other pages link to the preview of a bulk act. The pages are `console.bulk_preview`
and `console.bulk_acts`; workers execute the acts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, QueryDict
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext

from django_pgqueue.acts import AUDITED, JOB_ACTS
from django_pgqueue.declared.limits import without_value
from django_pgqueue.display import number
from django_pgqueue.job_search import NO_CLASS
from django_pgqueue.lifecycle.bulk_acts import MOST_IDS, WORDS, Selection
from django_pgqueue.lifecycle.bulk_filters import ERASED_KINDS
from django_pgqueue.models import AuditEntry
from django_pgqueue.states import STATE_OF, TRANSITIONS, ActOutcome, State, TransitionName
from django_pgqueue.stats import fleet

from . import databases, private
from .formatting import full_date, shortened, visible, word_text
from .list_filters import instant_of
from .navigation import address

NAMES: Final = {
    "state": "word", "queue": "queue_name", "task": "task_name", "error": "exception_class", "message": "message",
    "limit": "limit_key",
}  # fmt: skip
"""The field of `Selection` for each parameter of a URL that is a text."""
SEARCH: Final = "q"
"""The parameter with the text in the search box of a list."""
SEARCH_LENGTH: Final = 150
"""Characters of a search key that the audit keeps."""
LISTED: Final = (*NAMES, "since", "until", "batch", SEARCH)
"""The parameters of a list that choose its jobs."""
NUMBERS_SHOWN: Final = 10
"""Numbers of jobs that the description of a filter shows."""
TIMES: Final = frozenset({"since", "until", "before", "held_until", "tick_at"})
"""The values of a filter that are times."""
VALUES: Final = {
    "concurrency": gettext_lazy("concurrency"), "rate": gettext_lazy("rate"), "burst": gettext_lazy("burst"),
    "share": gettext_lazy("share"), "until": gettext_lazy("until"), "since": gettext_lazy("since"),
    "by": gettext_lazy("by"),
}  # fmt: skip
"""The words for the values of an override, and for those of a pause that another act has ended or replaced."""
ERASABLE: Final = {
    "arguments": gettext_lazy("arguments"), "results": gettext_lazy("results"), "errors": gettext_lazy("errors"),
    "logs": gettext_lazy("logs"),
}  # fmt: skip
"""The words for what an act can erase."""


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, str) else ",".join(map(str, value))


def selection_of(given: QueryDict) -> Selection:
    """Return the filter in the parameters of a request. Raise `ValueError` for invalid ones."""
    found: dict[str, Any] = {field: given[name] for name, field in NAMES.items() if name in given}
    found["message"] = found.get("message") or None
    for name in ("since", "until"):
        if name in given:
            found[name] = datetime.fromisoformat(str(given[name]))
    ids = tuple(int(each) for each in given.get("ids", "").split(",") if each)
    to_queue, to_priority = (given.get(name, "").strip() or None for name in ("to_queue", "to_priority"))
    erased = tuple(kind for kind in ERASED_KINDS if f"erase_{kind}" in given)
    found["search"] = given.get("search", "")[:SEARCH_LENGTH] or None if ids else None
    return Selection(**found, job_ids=ids, to_queue=to_queue, to_priority=_number(to_priority), erased=erased)


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        raise ValueError(_("Invalid priority “%(text)s”: use a whole number.") % {"text": text}) from None


def parameters(selection: Selection) -> dict[str, str]:
    """Return the parameters that `selection_of()` reads."""
    values = {name: getattr(selection, field) for name, field in NAMES.items() if getattr(selection, field) is not None}
    found = values | {"since": selection.since, "until": selection.until, "ids": selection.job_ids}
    found["search"] = selection.search
    return {name: _text(value) for name, value in found.items() if value or (name == "error" and value is not None)}


def is_allowed(request: HttpRequest, action: str) -> bool:
    """Return whether the user may request this act, or stop one."""
    return action in JOB_ACTS and JOB_ACTS[action].is_allowed(request.user)


def may_choose(request: HttpRequest, limit_key: str | None, message: str | None) -> bool:
    """Return whether the user may filter jobs by these values. An answer would say whether a job has them."""
    return private.may_view_key(request, limit_key or "") and (not message or private.may_view(request))


def check_filter(request: HttpRequest, selection: Selection) -> None:
    """Raise `PermissionDenied` if the user may not filter jobs by the values of a filter."""
    if not may_choose(request, selection.limit_key, selection.message):
        raise PermissionDenied(str(private.NO_PERMISSION))


def of_list(action: str, chosen: QueryDict, now: datetime, *, is_dead_only: bool) -> Selection | None:
    """Return the filter that a list of jobs shows; None if a bulk act has no such filter.

    `chosen` are the parameters of the list's URL.
    """
    word = "dead" if is_dead_only else chosen.get("state", "")
    if (action, word) == (TransitionName.RUN_NOW, "ready"):
        word = "scheduled"  # the other ready jobs are due already
    if any("\0" in str(value) for value in chosen.values()):
        return None  # such a list is empty
    if chosen.get("q", "").strip() or word not in WORDS.get(TransitionName(action), ()):
        return None
    error = chosen.get("error")
    if error and error != NO_CLASS and "." not in error:
        return None  # the list also finds classes whose path ends with this name
    if set(chosen) - {*NAMES, "since", "until", "q", "p", databases.PARAMETER}:
        return None
    since, until = (instant_of(chosen.get(name), now) for name in ("since", "until"))
    exception_class = None if not error else "" if error == NO_CLASS else error
    queue_name, task_name, limit, message = (chosen.get(name) or None for name in ("queue", "task", "limit", "message"))
    return Selection(word, queue_name, task_name, exception_class, since, until, limit_key=limit, message=message)


def links_of_list(request: HttpRequest, site: AdminSite, *, is_dead_only: bool) -> list[tuple[Promise | str, str]]:
    """Return the acts on all jobs that a list shows: the name of each, and the URL of its preview."""
    found = []
    url = address("bulk_preview", site_name=site.name)
    if not url or not may_choose(request, request.GET.get("limit"), request.GET.get("message")):
        return []
    with suppress(ValueError):  # the filter is invalid
        for action in JOB_ACTS:
            chosen = _of_preview(request.GET, action, is_dead_only=is_dead_only)
            if chosen is not None and is_allowed(request, action):
                found.append((label(action), databases.link(request, url, action=action, **chosen)))
    return found


def _of_preview(chosen: QueryDict, action: str, *, is_dead_only: bool) -> dict[str, str] | None:
    """Return the parameters of the preview for a list; None if the list has no job that the act changes.

    The preview searches again for the text in the search box: see `console.bulk_preview`.
    """
    if not chosen.get(SEARCH, "").strip():
        selection = of_list(action, chosen, datetime.now(UTC), is_dead_only=is_dead_only)
        return None if selection is None else parameters(selection)
    found = {name: str(chosen[name]) for name in LISTED if chosen.get(name)}
    if is_dead_only:
        found["state"] = State.DEAD.value
    word = found.get("state", "")
    fits = not word or (word in STATE_OF and TransitionName(action) in TRANSITIONS.get(STATE_OF[word], {}))
    return found if fits else None


def say_most(request: HttpRequest) -> None:
    """Say that an act cannot choose all jobs of a list by their numbers."""
    text = _("At most the first %(limit)s jobs of the list are chosen. Filter by a state to choose all.")
    messages.warning(request, text % {"limit": number(MOST_IDS)})


# ---------------------------------------------------------------------------- words


def label(action: str) -> Promise | str:
    """Return the name of an act for people to read."""
    return AUDITED[action].label if action in AUDITED else visible(action)


def described(request: HttpRequest, chosen: Any) -> list[tuple[Promise | str, str]]:
    """Return what the filter of an act says, as names and values. Any JSON can be described."""
    if not isinstance(chosen, Mapping):
        return []
    if "limit_key" in chosen:
        chosen = {**chosen, "limit_key": private.shown_key(request, str(chosen["limit_key"] or ""))}
    if chosen.get("message") and not private.may_view(request):
        chosen = {**chosen, "message": str(private.NO_PERMISSION)}
    if isinstance(search := chosen.get("search"), str) and not private.may_view(request):
        chosen = {**chosen, "search": without_value(search)}
    return list(_described(chosen))


def _described(chosen: Mapping[str, Any]) -> Iterator[tuple[Promise | str, str]]:
    names = {
        "word": _("State"), "states": _("State"), "queue_name": _("Queue"), "queue": _("Queue"), "queues": _("Queue"),
        "task_name": _("Task"), "tasks": _("Task"), "exception_class": _("Error"), "error": _("Error"),
        "message": _("Error message"),
        "since": _("Since"), "until": _("Until"), "before": _("Before"), "to_queue": _("To queue"),
        "to_priority": _("To priority"), "max_attempts": _("Attempts at most"), "erased": _("Erased"),
        "selected": _("Selected jobs"),
        "worker": _("Worker"), "limit_key": _("Limit"), "after": _("After"), "held_until": _("Held until"),
        "paused": _("Paused"), "schedule": _("Schedule"), "tick_at": _("Run"), "batch_id": _("Batch"),
        "from_job": _("From job"), "search": _("Search key"),
    }  # fmt: skip
    for name, title in names.items():
        if (value := chosen.get(name)) not in (None, [], "") or (name == "exception_class" and value == ""):
            yield title, _shown(value, is_time=name in TIMES) if value != "" else pgettext("exception class", "none")
    if ids := chosen.get("job_ids") or chosen.get("jobs"):
        yield _("Jobs by number"), _numbers(ids)
    if isinstance(count := chosen.get("edited"), int) and count:
        text = ngettext(
            "%(count)s job that was edited and retried as a new job",
            "%(count)s jobs that were edited and retried as new jobs",
            count,
        )
        yield _("Left out"), text % {"count": number(count)}


def _numbers(ids: Any) -> str:
    """Return the numbers of some jobs, or of the first ones with the count."""
    if not isinstance(ids, list | tuple):
        return visible(str(ids))  # the entry was written by hand
    some = ", ".join(f"#{shortened(str(each), 20)}" for each in ids[:NUMBERS_SHOWN])
    words = {"some": some, "count": number(len(ids))}
    return some if len(ids) <= NUMBERS_SHOWN else _("%(some)s, … (%(count)s jobs)") % words


def _shown(value: Any, *, is_time: bool) -> str:
    if isinstance(value, Mapping):  # the values of an override or of a pause
        pairs = ((name, _value_text(each, is_time=name in TIMES)) for name, each in list(value.items())[:20])
        return ", ".join(f"{VALUES.get(name) or visible(name)} {text}" for name, text in pairs)
    if isinstance(value, list):
        return ", ".join(map(word_of_value, value[:20]))
    return _value_text(value, is_time=is_time)


def word_of_value(value: Any) -> str:
    """Return a word of a filter in the language of the reader: a state, or what was erased."""
    return str(ERASABLE[value]) if isinstance(value, str) and value in ERASABLE else word_text(value)


def _value_text(value: Any, *, is_time: bool) -> str:
    if is_time:
        with suppress(TypeError, ValueError, OverflowError):  # the entry was written by hand
            return full_date(datetime.fromisoformat(value))
    return word_text(value)


def ending(entry: AuditEntry) -> str:
    """Return how an act ended, or that it has not."""
    if entry.outcome == ActOutcome.STOPPED:
        return _("stopped by %(who)s") % {"who": visible(entry.stop_asked_by)} if entry.stop_asked_by else _("stopped")
    if entry.outcome == ActOutcome.REPEATED:
        values = {"job": entry.failed_job_id, "error": visible(entry.error) or _("a crash")}
        return _("stopped, because job #%(job)s failed again with %(error)s") % values
    if entry.outcome == ActOutcome.FAILED:
        return _("failed: %(error)s") % {"error": visible(entry.error)}
    if entry.ended_at is not None:
        return _("done")
    if entry.next_batch_at is not None:
        return _("running") if entry.cursor is not None else _("waiting for a worker")
    return _("under way elsewhere, or interrupted")


def no_grants_text(action: str, alias: str) -> str:
    """Return that no worker may execute an act, and what to do; "" if one may, or if no worker is connected."""
    roles = fleet.roles_without_erasure(alias) if action == TransitionName.ERASE else []
    if not roles:
        return ""
    text = _(
        "No worker may erase values, and an act waits until one may. Make a database role of the workers (%(roles)s) a "
        "member of queue_archivist, or use “manage.py pgqueue erase” instead."
    )
    return text % {"roles": ", ".join(map(visible, roles))}


def count_text(total: int | None, *, has_more: bool) -> str:
    """Return a number of jobs, with a plus sign if there may be more."""
    return "?" if total is None else f"{number(total)}{'+' if has_more else ''}"
