"""One page of the lists of jobs and dead letters: which jobs, in which order, how many, and what was not searched.

Used by `jobs`. `job_search` finds the ids of at most `COUNT_LIMIT` jobs in the order of the list, and this module reads
the rows of one page. So every filter costs a bounded amount, on the last page too.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, cast

from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.admin import databases, private, readonly, search_keys
from django_pgqueue.admin.formatting import full_date, shortened, word_text
from django_pgqueue.admin.list_filters import search_of
from django_pgqueue.admin.readonly import DatabaseChangeList
from django_pgqueue.admin.search_keys import Searched
from django_pgqueue.display import number
from django_pgqueue.job_search import Filters, Found, condition_on_few, find, matching
from django_pgqueue.models import DeadJob
from django_pgqueue.states import RUNNING_WORDS, STATE_OF, State
from django_pgqueue.stats.batch_counts import nested_batches

from .columns import attach_executions


class FoundPaginator(Paginator):  # type: ignore[type-arg]  # not generic at run time
    """A paginator of jobs whose ids were found before."""

    def __init__(self, found: Found, per_page: int) -> None:
        super().__init__(found.ids, per_page)
        self.found = found
        self.count_limit = readonly.COUNT_LIMIT

    @property
    def is_bounded(self) -> bool:
        """Whether there are more jobs than were counted."""
        return self.found.has_more


class Listing(NamedTuple):
    """The jobs of a list, with the search that its URL means, and what the text in its search box means.

    `search` is None if no job can meet the filters.
    """

    search: Filters | None
    searched: Searched
    found: Found


def listing(request: HttpRequest, term: str, *, only_dead: bool) -> Listing:
    """Find the jobs of a list: those that meet the filters in the URL, and that the text in the search box means."""
    searched = search_keys.search(request, databases.chosen(request), term)
    is_by_ids = searched.job_ids is not None
    search = search_of(request, only_dead=only_dead, task_name="" if is_by_ids else term)
    if search is None or (term and not is_by_ids and search.task_names != (term,)):
        found = NOTHING  # the filter can be another task: its jobs have nothing to do with the text
    elif searched.job_ids is not None:
        found = _among(search, searched.job_ids)
    else:
        found = find(search, readonly.COUNT_LIMIT)
    return Listing(search, searched, found)


def _among(search: Filters, ids: list[int]) -> Found:
    """Return those of some jobs that meet the filters, in the given order."""
    condition = condition_on_few(search)
    if search.batch is not None:
        condition &= Q(batch_id__in=nested_batches(search.batch, search.alias))
    return Found(matching(search, condition, ids[: readonly.COUNT_LIMIT]), has_more=False, scope="")


NOTHING: Final = Found([], has_more=False, scope="")


class JobChangeList(DatabaseChangeList):
    """A page of jobs, with their latest executions."""

    found: Found
    searched: Searched
    rows: QuerySet[Any]
    hidden_note: Any = ""
    """Why the list does not show the jobs of a limit key or an error message that the user may not search for."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Find the jobs of the list. For "Select all", return all that were found, otherwise any selected job."""
        self.rows = super().get_queryset(request, exclude_parameters)
        self.found = self._find(request)
        is_across = request.method == "POST" and request.POST.get("select_across") == "1"
        return self.rows.filter(pk__in=self.found.ids) if is_across else self.rows

    def _find(self, request: HttpRequest) -> Found:
        search, self.searched, found = listing(request, self.query.strip(), only_dead=issubclass(self.model, DeadJob))
        self.is_by_ids = self.searched.job_ids is not None
        self.word = search.words[0] if search is not None and search.words else ""
        self.is_by_batch = search is not None and search.batch is not None
        self.is_by_limit = search is not None and search.limit is not None and not self.word
        if search is None:
            self.hidden_note = _hidden_note(request)
        return found

    def get_results(self, request: HttpRequest) -> None:
        """Read the rows of the chosen page, in the order in which they were found."""
        vars(self.queryset)["found"] = self.found
        super().get_results(request)
        first = (self.page_num - 1) * self.list_per_page
        page = self.found.ids[first : first + self.list_per_page]
        by_id = {job.pk: job for job in self.rows.filter(pk__in=page).order_by()}
        self.result_list = cast(Any, [by_id[job_id] for job_id in page if job_id in by_id])
        attach_executions(self.result_list)
        self.drop_columns_of_zeros()

    @property
    def order_note(self) -> str:
        """The order of the list in words."""
        if self.is_by_ids:
            return _("newest first")
        if self.is_by_batch:
            return _("failed jobs first, then unfinished ones") if not self.word else _("newest first")
        if self.word in RUNNING_WORDS:
            return _("longest run first")
        if self.word and STATE_OF[self.word] is State.READY:
            return _("in the order in which workers claim them")
        if self.word and STATE_OF[self.word] is State.WAITING:
            return _("oldest first")
        if self.word:
            return _("latest first")
        return _("running, then waiting, then finished jobs") if self.is_by_limit else _("newest first")

    @property
    def scope_note(self) -> str:
        """Which jobs were searched, if not all: "among the newest 100,000, since 2026-11-22 01:19:00"."""
        if not self.found.scope:
            return ""
        searched = {"count": number(self.found.searched)}
        if self.found.lanes:
            words = {**searched, "lanes": self.found.lanes}
            return _("among the first %(count)s jobs of each of the first %(lanes)s queues and priorities") % words
        if self.found.since is None:
            is_ready = self.word and STATE_OF[self.word] is State.READY
            first = _("among the first %(count)s jobs of each queue and priority") if is_ready else FIRST
            return first % searched
        return _("among the newest %(count)s jobs, since %(at)s") % {**searched, "at": full_date(self.found.since)}

    @property
    def older_url(self) -> str:
        """The URL of the same list for the jobs before those that were searched; "" if all were."""
        since = self.found.since if self.found.scope else None
        return "" if since is None else self.get_query_string({"until": as_parameter(since)}, ["p", "until"])

    @property
    def search_note(self) -> str:
        """A note about what the text in the search box has found, and about keys that were not searched."""
        if self.hidden_note:
            return str(self.hidden_note % {"permission": private.PERMISSION_NAME})
        return "; ".join(filter(None, [self.searched.lookup_note(self.found.ids), self.searched.note]))

    @property
    def filters_note(self) -> str:
        """The chosen filters: "state dead, queue mail"."""
        chosen = [_("dead letters only")] if issubclass(self.model, DeadJob) else []
        for each in self.filter_specs:
            values = ", ".join(shortened(word_text(value)) for value in each.used_parameters.values())
            chosen += [f"{each.title} {values}"] if values else []
        return ", ".join(chosen)

    @property
    def empty_note(self) -> Any:
        """A sentence for an empty list, which says what was not searched."""
        if self.found.scope:
            return (OTHERS_LEFT if self.found.since is None else OLDER_LEFT) % {"scope": self.scope_note}
        filters = f" ({self.filters_note})" if self.filters_note else ""
        if self.search_note:
            sentence = NOT_FOUND_AMONG if filters else NOT_FOUND
            return sentence % {"note": self.search_note, "filters": self.filters_note}
        if self.query:
            return EMPTY_SEARCHED % {"filters": filters}
        return EMPTY_FILTERED if self.has_active_filters else EMPTY


FIRST: Final = gettext_lazy("among the first %(count)s jobs in this order")
OLDER_LEFT: Final = gettext_lazy("No such job %(scope)s. Older jobs were not searched.")
OTHERS_LEFT: Final = gettext_lazy("No such job %(scope)s. Other jobs were not searched.")
NOT_FOUND: Final = gettext_lazy("No job was found: %(note)s.")
NOT_FOUND_AMONG: Final = gettext_lazy("No job was found with these filters (%(filters)s): %(note)s.")
EMPTY_SEARCHED: Final = gettext_lazy(
    "No job with this number, task or search key meets the filters%(filters)s. Jobs that were removed after their "
    "retention or archived are not here."
)
KEY_NOT_SEARCHED: Final = gettext_lazy(
    "the limit key was not searched, because you do not have the permission “%(permission)s”"
)
MESSAGES_NOT_SEARCHED: Final = gettext_lazy(
    "error messages were not searched, because you do not have the permission “%(permission)s”"
)
EMPTY: Final = gettext_lazy("No jobs. Finished jobs are removed after their retention, and may be in the archive.")
EMPTY_FILTERED: Final = gettext_lazy(
    "No job meets these filters. All jobs in this database were searched. Jobs that were removed after their retention "
    "or archived are not here."
)


def _hidden_note(request: HttpRequest) -> Any:
    """Return the note about what the user may not search for, or "" if the filters have nothing of this kind."""
    if not private.may_view_key(request, request.GET.get("limit", "")):
        return KEY_NOT_SEARCHED
    return MESSAGES_NOT_SEARCHED if request.GET.get("message") and not private.may_view(request) else ""


def as_parameter(at: datetime) -> str:
    """Return a time as a parameter of a URL: the next whole second, so that no job at that time is left out."""
    whole = datetime.fromtimestamp(math.floor(at.timestamp()) + 1, UTC)
    return timezone.localtime(whole).isoformat()
