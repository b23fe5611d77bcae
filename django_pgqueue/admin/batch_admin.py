"""The list of batches, with the progress of each, and the URLs of the pages and acts of one batch.

Registered in `__init__`. The page of a batch is `batch_page`, and its acts are in `batch_acts`.
"""

from __future__ import annotations

from typing import Any, Final, cast

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from django_pgqueue.acts import VIEW_JOB
from django_pgqueue.db.fields import statement_time
from django_pgqueue.display import number
from django_pgqueue.models import JobBatch
from django_pgqueue.models.batch_states import COMPLETE, CONDITIONS, FAILED, OPEN, RUNNING, SUCCEEDED
from django_pgqueue.stats.batch_counts import batch_counts

from . import databases
from .batches.acts import act_urls, not_found
from .batches.page import batch_page
from .batches.past_acts import acts_on_batch
from .batches.search import newest_batch, number_of, with_text
from .batches.words import STATES, badges, with_words
from .formatting import moment_ago, visible
from .list_filters import BatchFilter, JobFilter, row_id_of
from .navigation import address
from .readonly import DatabaseChangeList, ReadOnlyAdmin, column
from .workflows.retry_from import act_url as retry_from_url

COUNTED: Final = 10_000
"""Jobs of each batch and state that the list counts at most."""
SEARCHED: Final = 100_000
"""The newest batches whose descriptions a search reads."""
SHOWN: Final = 200
"""Characters shown of a description."""
NEWEST: Final = gettext_lazy("among the descriptions of the newest %(count)s batches")
NOT_AMONG: Final = gettext_lazy("No such batch %(scope)s. Other batches were not searched.")
NO_BATCH: Final = gettext_lazy("No batch. Complete batches are removed after their retention.")
CALLBACKS: Final = ("on_success", "on_complete", "on_failure")


class StageFilter(JobFilter):
    """Batches in one state. A failed batch is also open, running or complete."""

    title = gettext_lazy("state")
    parameter_names = ("state",)

    def values(self) -> list[tuple[str, Any]]:
        complete = gettext_lazy("complete (failed or succeeded)")
        return [*((word, STATES[word][0]) for word in (OPEN, RUNNING, FAILED, SUCCEEDED)), (COMPLETE, complete)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the batches of the state."""
        return queryset.filter(**CONDITIONS.get(self.chosen, {}))


class ParentFilter(BatchFilter):
    """The batches that are nested in one batch. The page of that batch links to it; otherwise it is not shown."""

    title = gettext_lazy("part of")
    parameter_names = ("parent",)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not self.chosen:
            return queryset
        parent_id = row_id_of(self.chosen)
        return queryset.none() if parent_id is None else queryset.filter(parent_id=parent_id)


class BatchChangeList(DatabaseChangeList):
    """A page of batches with the counts of their jobs, which one statement reads."""

    @property
    def scope_note(self) -> str:
        """Which batches were searched, if not all: only the descriptions of the newest ones are."""
        term = self.query.strip()
        return NEWEST % {"count": number(SEARCHED)} if term and number_of(term) is None else ""

    @property
    def empty_note(self) -> Any:
        """A sentence for an empty list, which says what was not searched."""
        return NOT_AMONG % {"scope": self.scope_note} if self.scope_note else NO_BATCH

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(cast(Any, self.result_list))
        counts = batch_counts([row.pk for row in rows], COUNTED, databases.chosen(request)) if rows else {}
        for row in rows:
            vars(row)["counts"] = counts[row.pk]
        self.result_list = cast(Any, rows)


class BatchAdmin(ReadOnlyAdmin):
    """All batches, newest first."""

    list_display = ["number", "title", "state_badge", "progress", "created", "ended", "part_of"]
    list_display_links = ["number", "title"]
    list_filter = [ParentFilter, StageFilter]
    object_history_template = "pgqueue/admin/batch_history.html"
    list_per_page = 50
    list_max_show_all = 0  # a page is never longer
    ordering = ["-id"]
    search_fields = ["id"]  # makes Django show the search box
    search_help_text = gettext_lazy("The number of a batch, or a part of the description of one of the newest 100,000.")
    actions = None

    number = column(gettext_lazy("batch"), lambda batch: f"#{batch.pk}")
    title = column(gettext_lazy("description"), lambda batch: visible(vars(batch)["short_description"]))
    state_badge = column(gettext_lazy("state"), badges)
    progress = column(gettext_lazy("jobs"), lambda batch: with_words(batch.pk, vars(batch)["counts"]))
    created = column(gettext_lazy("created"), lambda batch: moment_ago(batch.created_at, batch))
    ended = column(gettext_lazy("ended"), lambda batch: moment_ago(batch.succeeded_at or batch.completed_at, batch))

    @admin.display(description=gettext_lazy("part of"))
    def part_of(self, batch: JobBatch) -> SafeString | str:
        """Return a link to the batch in which this one is nested."""
        url = address("jobbatch_change", batch.parent_id or 0, site_name=self.admin_site.name)
        to_parent = databases.link_to(batch._state.db, url)
        return "" if batch.parent_id is None else format_html('<a href="{}">#{}</a>', to_parent, batch.parent_id)

    def get_urls(self) -> list[URLPattern]:
        """Add the URLs of the acts on one batch."""
        return [*act_urls(self.admin_site), retry_from_url(self.admin_site), *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the batches without their callbacks and with the beginning of their descriptions."""
        rows = super().get_queryset(request).defer("description", *CALLBACKS)
        found: QuerySet[Any] = rows.annotate(seen_at=statement_time(), short_description=Left("description", SHOWN))
        return found

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return BatchChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find a batch by its number, or the newest ones by their descriptions, which have no index."""
        term = search_term.strip()
        if not term or "\0" in term:
            return (queryset.none() if term else queryset), False
        if (number := number_of(term)) is not None:
            return queryset.filter(pk=number), False
        return with_text(queryset, term, newest_batch(databases.chosen(request)), SEARCHED), False

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the acts of the audit on a batch and its jobs, beside Django's log. They need the permission on jobs."""
        request.current_app = self.admin_site.name
        acts = acts_on_batch(request, object_id) if request.user.has_perm(VIEW_JOB) else {}
        return super().history_view(request, object_id, {**acts, **(extra_context or {})})

    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the page of one batch. It is read-only, so POST is refused."""
        request.current_app = self.admin_site.name
        return batch_page(self, request, object_id, extra_context or {}) or not_found(request, object_id)
