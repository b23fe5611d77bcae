"""The filters of the lists of jobs and dead letters: what a user can choose, and the search that the choices mean.

A filter of jobs does not change the queryset: `search_of()` reads the parameters of the URL, and `job_search` finds the
jobs with indexes. Django's own filters are too slow for this table: on a million rows, the choices of a column filter
come from `SELECT DISTINCT` over the whole table (60 ms), and `date_hierarchy` counts days (227 ms). The filters of
batches filter the queryset themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.contrib import admin
from django.contrib.admin import ModelAdmin
from django.contrib.admin.views.main import ChangeList
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext_lazy as _

from django_pgqueue import stats
from django_pgqueue.job_search import NO_CLASS, Filters, Moment
from django_pgqueue.models import DeadJob
from django_pgqueue.states import FINISHED_WORDS, WORDS
from django_pgqueue.tasks import registry

from . import databases, private
from .formatting import breakable, shortened, visible, word_badge

SPANS: Final = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}
SPAN_LABELS: Final = {"hour": _("Past hour"), "day": _("Past 24 hours"), "week": _("Past 7 days")}
LINKS_SHOWN: Final = 20
"""Names shown as links. For more of them, there is a field with suggestions."""
FIRST_YEAR, LAST_YEAR = 2000, 9000
"""Years that a time can have. PostgreSQL and Python cannot both calculate with times far outside."""

_names: WeakKeyDictionary[HttpRequest, stats.Names] = WeakKeyDictionary()


def moment_of(text: str | None) -> Moment | None:
    """Return the time that a parameter means: `hour`, `day`, `week`, or an ISO 8601 time. None: it means none."""
    if text in SPANS:
        return Moment(None, SPANS[text])
    at = time_of(text)
    return None if at is None else Moment(at, timedelta())


def instant_of(text: str | None, now: datetime) -> datetime | None:
    """Return the instant that a parameter means at this time. None: it means none."""
    found = moment_of(text)
    return None if found is None else found.at or now - found.ago


def time_of(text: str | None) -> datetime | None:
    """Return an aware datetime from ISO 8601 text, in the current time zone if it names none; None if it is invalid."""
    with suppress(ValueError, OverflowError):
        at = parse_datetime(text or "")
        if at is not None and FIRST_YEAR <= at.year < LAST_YEAR:
            return at if at.tzinfo else timezone.make_aware(at)
    return None


def search_of(request: HttpRequest, *, only_dead: bool, task_name: str = "") -> Filters | None:
    """Return the search that the parameters of a list's URL mean; None if no job can meet them.

    `task_name` is the name in the search box. The filter by task comes first.
    """
    chosen = request.GET
    word = "dead" if only_dead else chosen.get("state", "")
    queue_name, task, error, message, limit = (
        chosen.get("queue"), chosen.get("task") or task_name, *map(chosen.get, ("error", "message", "limit"))
    )  # fmt: skip
    batch = row_id_of(chosen.get("batch", ""))
    if (
        (word and word not in WORDS)
        or (chosen.get("batch") and batch is None)
        or any("\0" in (name or "") for name in (queue_name, task, error, message, limit))
        or not private.may_view_key(request, limit or "")
        or (message and not private.may_view(request))
    ):
        return None  # PostgreSQL text cannot contain NUL, and psycopg raises an error for it
    return Filters(
        databases.chosen(request),
        words=(word,) if word else (),
        queue_name=queue_name or None,
        task_names=(task,) if task else (),
        since=moment_of(chosen.get("since")),
        until=moment_of(chosen.get("until")),
        error=error or None,
        message=message or None,
        limit=limit or None,
        batch=batch,
    )


def as_input(at: datetime | None) -> str:
    """Return a time as the value of a field for it, in the current time zone; "" for None."""
    return timezone.localtime(at).strftime("%Y-%m-%dT%H:%M:%S") if at else ""


def row_id_of(text: str) -> int | None:
    """Return the id of a row that a parameter names; None if it names none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _names_of(request: HttpRequest) -> stats.Names:
    """Return the names to choose from. They are read once per request, for both name filters."""
    if request not in _names:
        _names[request] = stats.names(connections[databases.chosen(request)])
    return _names[request]


class JobFilter(admin.ListFilter):
    """Base class of the filters: it takes its parameters from the URL, and leaves the search to `search_of()`."""

    parameter_names: tuple[str, ...] = ()
    template = "pgqueue/admin/filters/filter.html"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: ModelAdmin[Any]) -> None:
        super().__init__(request, params, model, model_admin)
        self.is_dead_list = issubclass(model, DeadJob)
        self.hidden: list[tuple[str, str]] = []
        for name in self.parameter_names:
            if name in params:
                self.used_parameters[name] = params.pop(name)[-1]

    @property
    def name(self) -> str:
        """The parameter of the filter, or its first one."""
        return self.parameter_names[0]

    @property
    def chosen(self) -> str:
        """The value of this parameter; "" without one."""
        return str(self.used_parameters.get(self.name, ""))

    def expected_parameters(self) -> list[str | None]:
        return list(self.parameter_names)

    def has_output(self) -> bool:
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the queryset as it is."""
        return queryset

    def values(self) -> list[tuple[str, Any]]:
        """Return the values to choose from, each with what the link shows."""
        return []

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Yield the links. Keep the parameters that a form of the filter has to send again."""
        others = {
            name: str(value) for name, value in self.request.GET.items() if name not in (*self.parameter_names, "p")
        }
        self.hidden = list(others.items())
        every = changelist.get_query_string(remove=list(self.parameter_names))
        yield {"selected": not self.used_parameters, "query_string": every, "display": _("All")}
        for value, label in self.values():
            query = changelist.get_query_string({self.name: value}, self.parameter_names)
            yield {"selected": value == self.chosen, "query_string": query, "display": label}


class WordFilter(JobFilter):
    """Jobs with one word for their state."""

    title = _("state")
    parameter_names = ("state",)

    def values(self) -> list[tuple[str, Any]]:
        return [(word, _("ready (all)") if word == "ready" else word_badge(word)) for word in WORDS]


class NameFilter(JobFilter):
    """Jobs with one name in one column: links for a few names, a field with suggestions for many."""

    template = "pgqueue/admin/filters/names.html"

    def names(self) -> set[str]:
        """Return the names to choose from."""
        raise NotImplementedError

    @property
    def suggestions(self) -> list[str]:
        """The names, sorted. The chosen name is among them even if no job has it any more."""
        return sorted(self.names() | ({self.chosen} if self.chosen else set()))

    def values(self) -> list[tuple[str, Any]]:
        shown = self.suggestions if not self.has_many else [self.chosen] if self.chosen else []
        return [(name, breakable(shortened(name))) for name in shown]

    @property
    def has_many(self) -> bool:
        """Whether to show a field instead of links."""
        return len(self.suggestions) > LINKS_SHOWN


class QueueFilter(NameFilter):
    """Jobs in one queue."""

    title = _("queue")
    parameter_names = ("queue",)

    def names(self) -> set[str]:
        return {*_names_of(self.request).queues, *(task.queue_name for task in registry.all_tasks())}


class TaskFilter(NameFilter):
    """Jobs of one task."""

    title = _("task")
    parameter_names = ("task",)

    def names(self) -> set[str]:
        return {*_names_of(self.request).tasks, *(task.name for task in registry.all_tasks())}


class ErrorFilter(NameFilter):
    """Dead letters whose latest attempt ended with one exception class."""

    title = _("exception class")
    parameter_names = ("error",)
    has_many = True

    def values(self) -> list[tuple[str, Any]]:
        names = {NO_CLASS: _("lost with its worker")}
        return [(self.chosen, names.get(self.chosen, breakable(shortened(self.chosen))))] if self.chosen else []

    @property
    def suggestions(self) -> list[str]:
        """The exception classes of the past week, from the statistics."""
        connection = connections[databases.chosen(self.request)]
        return sorted(stats.failure_classes(connection, SPANS["week"].total_seconds()))


class MessageFilter(NameFilter):
    """Dead letters whose latest attempt has a text in its error message, or a message of one shape."""

    title = _("error message")
    parameter_names = ("message",)
    has_many = True

    def has_output(self) -> bool:
        return private.may_view(self.request)

    def values(self) -> list[tuple[str, Any]]:
        return [(self.chosen, visible(shortened(self.chosen)))] if self.chosen else []

    def names(self) -> set[str]:
        return set()


class LimitFilter(NameFilter):
    """Jobs with one limit key, or with any key of one limit. Without a limit in the code, the filter is not shown."""

    title = _("limit")
    parameter_names = ("limit",)
    has_many = True

    def has_output(self) -> bool:
        return bool(self.chosen or registry.limits())

    @property
    def suggestions(self) -> list[str]:
        """The names of the limits in the code."""
        return sorted(registry.limits())


class BatchFilter(JobFilter):
    """Jobs of a batch and of the batches nested in it. The page of a batch links to it; otherwise it is not shown."""

    title = _("batch")
    parameter_names = ("batch",)

    def has_output(self) -> bool:
        return bool(self.chosen)

    def values(self) -> list[tuple[str, Any]]:
        return [(self.chosen, shortened(f"#{self.chosen}"))]


class SpanFilter(JobFilter):
    """Jobs of a time span. A finished job has the time of its end, and any other job that of its enqueueing."""

    title = _("time of enqueuing")
    parameter_names = ("since", "until")
    template = "pgqueue/admin/filters/span.html"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: ModelAdmin[Any]) -> None:
        super().__init__(request, params, model, model_admin)
        if self.is_dead_list:
            self.title = _("time of death")
        elif request.GET.get("state") in FINISHED_WORDS:
            self.title = _("time of the end")

    def values(self) -> list[tuple[str, Any]]:
        return list(SPAN_LABELS.items())

    @property
    def inputs(self) -> list[tuple[str, Any, str, bool]]:
        """The name, label and value of the two fields, and whether the value in the URL is invalid."""
        labels = {"since": _("From"), "until": _("Until")}
        found = []
        for name, label in labels.items():
            text = str(self.used_parameters.get(name, ""))
            found.append((name, label, as_input(time_of(text)), bool(text) and moment_of(text) is None))
        return found

    @property
    def zone(self) -> str:
        """The name of the time zone of the fields."""
        return timezone.get_current_timezone_name()
