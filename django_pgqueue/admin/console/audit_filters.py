"""The filters of the page *Audit*: by act, by person and by time, over a bounded number of entries.

`bulk_acts` has the page. The table has no index for these filters, because an act of an operator is rare. So a page
reads at most `SEARCHED` entries, newest first, and says where it stopped. The next page continues there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from django.db.models import Min, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from django_pgqueue import acts
from django_pgqueue.acts import AUDITED
from django_pgqueue.admin import databases
from django_pgqueue.admin.list_filters import SPAN_LABELS, as_input, instant_of, row_id_of
from django_pgqueue.display import number
from django_pgqueue.models import AuditEntry

SEARCHED: Final = 50_000
"""Entries that a page with filters reads at most. It took 17 ms to read as many."""
PEOPLE_READ: Final = 1000
"""Latest entries whose names the field for a person suggests."""
OF_SCHEDULES: Final = frozenset(
    act.name
    for act in (
        *(acts.RUN_SCHEDULE, acts.PAUSE_SCHEDULE, acts.RESUME_SCHEDULE, acts.SKIP_NEXT_RUN, acts.UNDO_SKIP),
        acts.DELETE_SCHEDULE,
    )
)
GROUPS: Final[tuple[tuple[Promise | str, tuple[str, ...]], ...]] = (
    (
        gettext_lazy("Jobs"),
        tuple(name for name in AUDITED if name not in acts.CHANGING_NO_JOBS and name not in OF_SCHEDULES),
    ),
    (gettext_lazy("Schedules"), tuple(name for name in AUDITED if name in OF_SCHEDULES)),
    (
        gettext_lazy("Queues, tasks, limits, batches and workers"),
        tuple(name for name in acts.CHANGING_NO_JOBS if name not in OF_SCHEDULES),
    ),
)
"""The acts to choose from. Some labels occur in two groups, such as *Pause*."""
PARAMETERS: Final = ("act", "by", "since", "until")


class FoundEntries(NamedTuple):
    """Entries of the audit, newest first, and where the next page begins.

    Attributes:
        entries: The entries of the page.
        older: The number of the oldest entry here. The next page has the entries before it. None: there are no more.
        stopped_at: The page reads no entry before the one with this number, although there are more. None: it has read
            all of them, or is full.
    """

    entries: Sequence[AuditEntry]
    older: int | None
    stopped_at: int | None


def filtered(request: HttpRequest, entries: QuerySet[AuditEntry]) -> QuerySet[AuditEntry] | None:
    """Return the entries that meet the filters in the URL; None without a filter. A NUL meets none."""
    given = {name: request.GET[name].strip() for name in PARAMETERS if request.GET.get(name, "").strip()}
    if any("\0" in text for text in given.values()):
        return entries.none()
    if "act" in given:
        entries = entries.filter(action=given["act"])
    if "by" in given:
        entries = entries.filter(done_by__iexact=given["by"])
    now = datetime.now(UTC)
    if (since := instant_of(given.get("since"), now)) is not None:
        entries = entries.filter(began_at__gte=since)
    if (until := instant_of(given.get("until"), now)) is not None:
        entries = entries.filter(began_at__lte=until)
    return entries if given else None


def find_entries(request: HttpRequest, alias: str, shown: int) -> FoundEntries:
    """Return a page of `shown` entries: the newest, or those before the number `before`. Runs at most two queries."""
    entries = AuditEntry.objects.using(alias).order_by("-pk")
    before = row_id_of(request.GET.get("before", ""))
    if before is not None:
        entries = entries.filter(pk__lt=before)
    if (chosen := filtered(request, entries)) is None:
        found = list(entries[: shown + 1])
        return FoundEntries(found[:shown], found[shown - 1].pk if len(found) > shown else None, None)
    # The window of numbers, and the first number of the table, which says whether entries are left before it.
    first = entries.values("pk")[SEARCHED - 1 : SEARCHED]
    floor, oldest = _bounds(alias, first)
    if floor is not None:
        chosen = chosen.filter(pk__gte=floor)
    found = list(chosen[: shown + 1])
    if len(found) > shown:
        return FoundEntries(found[:shown], found[shown - 1].pk, None)
    stopped_at = floor if floor is not None and oldest is not None and oldest < floor else None
    return FoundEntries(found, stopped_at, stopped_at)


def _bounds(alias: str, first: QuerySet[Any]) -> tuple[int | None, int | None]:
    """Return the number of the last entry that a page may read, None for all, and the first number of the table."""
    floor = next((row["pk"] for row in first), None)
    if floor is None:
        return None, None
    return floor, AuditEntry.objects.using(alias).aggregate(oldest=Min("pk"))["oldest"]


def filter_context(request: HttpRequest, alias: str) -> dict[str, Any]:
    """Return what the form of the filters shows. Runs one query."""
    chosen, now = {name: request.GET.get(name, "") for name in PARAMETERS}, datetime.now(UTC)
    newest = AuditEntry.objects.using(alias).order_by("-pk").values_list("done_by", flat=True)[:PEOPLE_READ]
    return {
        "chosen": chosen,
        "is_filtered": any(text.strip() for text in chosen.values()),
        "groups": [(title, [(name, AUDITED[name].label) for name in names]) for title, names in GROUPS],
        "people": sorted({*newest} - {""}),
        "since_value": as_input(instant_of(chosen["since"], now)),
        "until_value": as_input(instant_of(chosen["until"], now)),
        "spans": _spans(request, chosen),
        "zone": timezone.get_current_timezone_name(),
        "searched": number(SEARCHED),
        "clear_url": databases.link(request, request.path),
    }


def page_link(request: HttpRequest, before: int) -> str:
    """Return the URL of the page of older entries, with the filters."""
    given = {name: request.GET[name] for name in PARAMETERS if request.GET.get(name)}
    return databases.link(request, request.path, **given, before=before)


def _spans(request: HttpRequest, chosen: dict[str, str]) -> list[dict[str, Any]]:
    """Return links to the page for usual time spans, with the other filters."""
    others = {name: chosen[name] for name in ("act", "by") if chosen[name]}
    current = "" if chosen["until"] else chosen["since"]
    return [
        {
            "label": label,
            "url": databases.link(request, request.path, **others, since=name or None),
            "is_current": name == current,
        }
        for name, label in (("", gettext_lazy("Any time")), *SPAN_LABELS.items())
    ]
