"""Find the ids of jobs that meet filters, in a useful order.

Each search begins with a range of an index, such as the dead jobs by the time of their death, or one lane of the ready
jobs. Filters that this index does not have are applied to the first `SEARCHED` jobs of the range, so a search stays
fast with any number of jobs. Lanes share such a bound (`ready_jobs`). `Found.scope` says so if jobs were not searched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db.models import BooleanField, ExpressionWrapper, F, Q, QuerySet, Window
from django.db.models.functions import RowNumber

from django_pgqueue.db.fields import AwareField
from django_pgqueue.models import Job
from django_pgqueue.states import READY_WORDS, State

from .batch_jobs import find_in_batch
from .filters import LATEST_ERROR, Filters, SearchPart, error_pattern, matching
from .index_ranges import Range, ranges
from .ready_jobs import find_ready

SEARCHED: Final = 100_000
"""Jobs of one range that are searched with filters that its index does not have. It takes about 20 ms."""
UNFINISHED: Final = (State.RUNNING.value, State.READY.value, State.WAITING.value)
"""The words of the jobs that have not ended."""
CLASSES_SEARCHED: Final = 10_000
"""Jobs whose latest execution is read for a filter by exception class or message. It takes about 15 ms."""


class Found(NamedTuple):
    """The ids of the jobs that were found, in order, and what was not searched ("" if everything was).

    `since` is the time of the oldest job that was searched, if older ones were not: when it ended, or was enqueued.
    `searched` is how many were, if not all; of ready jobs, how many of each lane. `lanes` is how many lanes were
    searched, if not all.
    """

    ids: list[int]
    has_more: bool
    scope: str
    searched: int = 0
    since: datetime | None = None
    lanes: int = 0


def find(filters: Filters, limit: int) -> Found:
    """Return the ids of at most `limit` jobs that meet the filters. Runs read-only statements."""
    if filters.batch is not None:
        part = find_in_batch(filters, filters.batch, limit + 1)
        return Found(part.ids[:limit], len(part.ids) > limit, part.label, part.searched)
    ids: list[int] = []
    cut: list[SearchPart] = []
    for source in _sources(filters):
        wanted = limit + 1 - len(ids)
        if wanted <= 0:
            break
        if isinstance(source, Range):
            part = _first_matching(filters, source, wanted)
            part = part._replace(label=label_of(source, part.searched))
        else:
            part = _ready(filters, source, wanted)
        ids += part.ids[:wanted]
        if part.is_cut and len(ids) <= limit:
            cut.append(part)
    if not cut:
        return Found(ids[:limit], len(ids) > limit, "")
    last = cut[-1]
    scope = f"among {' and '.join(dict.fromkeys(part.label for part in cut))}"
    return Found(ids[:limit], len(ids) > limit, scope, last.searched, last.since, last.lanes)


def _sources(filters: Filters) -> Iterator[Range | str]:
    """Yield the ranges to search, in the order of the words; for ready jobs, the word.

    Without a word, the unfinished jobs of a limit come first: indexes find them, however old they are.
    """
    if filters.ids or filters.search is not None:
        yield from ranges(filters)
        return
    for word in filters.words or (UNFINISHED if filters.limit else ()):
        if word in READY_WORDS:
            yield word
        else:
            yield from ranges(replace(filters, words=(word,)))
    if not filters.words:
        yield from ranges(filters)


def _ready(filters: Filters, word: str, limit: int) -> SearchPart:
    """Return the first ready jobs with this word."""
    part = find_ready(filters, word, CLASSES_SEARCHED + 1 if filters.has_error else limit)
    if not filters.has_error:
        return part
    ids = matching(filters, Q(), part.ids[:CLASSES_SEARCHED])
    if len(part.ids) <= CLASSES_SEARCHED:
        return part._replace(ids=ids)
    return SearchPart(ids, CLASSES_SEARCHED, is_cut=True, label=f"the first {CLASSES_SEARCHED:,} ready jobs")


def _first_matching(filters: Filters, found: Range, limit: int) -> SearchPart:
    """Return the first jobs of a range that meet its further conditions, in the order of the range.

    If the newest jobs have no match, as many older jobs are searched too.
    """
    if not found.condition and not filters.has_error:
        return SearchPart(list(found.query.values_list(found.column, flat=True)[:limit]), 0)
    if found.query.model is not Job:
        return _open(filters, found)
    part = _search(filters, found, found.query, limit)
    if part.ids or not part.is_cut or not found.time:
        return part
    older = Q(pk__lte=part.last_id) if found.time == "enqueued_at" else Q(finished_at__lte=part.since)
    more = _search(filters, found, found.query.filter(older), limit)
    return more._replace(searched=part.searched + more.searched)


def _search(filters: Filters, found: Range, query: QuerySet[Any], limit: int) -> SearchPart:
    """Return the first jobs of a query that meet the conditions of the range, and where the search has ended.

    PostgreSQL stops at `limit` matches, and after `SEARCHED` jobs (the run condition of the window function). The job
    after those is returned too: it shows that the search came that far, and where an older search begins.
    """
    wanted = CLASSES_SEARCHED if filters.has_error else limit
    order: Any = query.query.order_by
    numbered = query.order_by().annotate(
        # As a plain column: `InstantField` would be read by an expression.
        at=ExpressionWrapper(F(found.time or "enqueued_at"), AwareField()),
        fits=ExpressionWrapper(found.condition or Q(pk__isnull=False), BooleanField()),
        place=Window(RowNumber(), order_by=list(order)),
    )
    fitting = numbered.filter(place__lte=SEARCHED + 1).filter(Q(fits=True) | Q(place=SEARCHED + 1))
    rows = list(fitting.values_list("pk", "at", "place")[: wanted + 1])
    beyond = rows.pop() if rows and rows[-1][2] > SEARCHED else None
    part = SearchPart([row[0] for row in rows], 0)
    if beyond is not None:
        part = SearchPart(part.ids, SEARCHED, is_cut=True, since=beyond[1], last_id=beyond[0])
    return _with_error(filters, part, rows) if filters.has_error else part


def _with_error(filters: Filters, part: SearchPart, rows: list[Any]) -> SearchPart:
    """Return those of the first `CLASSES_SEARCHED` jobs whose latest execution ended with the error."""
    read = part.ids[:CLASSES_SEARCHED]
    kept = matching(filters, Q(), read)
    if len(part.ids) <= CLASSES_SEARCHED:
        return part._replace(ids=kept)
    last_id, since, searched = rows[CLASSES_SEARCHED]
    return SearchPart(kept, searched - 1, is_cut=True, since=since, last_id=last_id)


def _open(filters: Filters, found: Range) -> SearchPart:
    """Search the jobs with an open execution."""
    # In one query, the planner may read all jobs of the time span instead of those with an open execution.
    listed = list(found.query.values_list(found.column, flat=True)[: SEARCHED + 1])
    in_order = listed[:SEARCHED]
    return SearchPart(matching(filters, found.condition, in_order), len(in_order), len(listed) > SEARCHED)


def meeting(filters: Filters, found: Range) -> QuerySet[Any]:
    """Return the jobs among the first of a range that meet its further conditions, in no order.

    `searched_by()` says how many are searched.
    """
    first: Any = found.query.values(found.column)[: searched_by(filters)]
    jobs = Job.objects.using(filters.alias).annotate(**LATEST_ERROR).filter(found.condition)
    if filters.message:
        return jobs.filter(pk__in=matching(filters, Q(), [row[found.column] for row in first]))
    has_error = Q(latest_error__regex=error_pattern(filters.error)) if filters.error else Q()
    return jobs.filter(has_error, pk__in=first)


def searched_by(filters: Filters) -> int:
    """Return how many jobs of a range `meeting()` searches."""
    return CLASSES_SEARCHED if filters.message else SEARCHED


def label_of(found: Range, searched: int | None = None) -> str:
    """Return the name of the jobs of a range that were searched."""
    return found.label.replace("{count}", f"{SEARCHED if searched is None else searched:,}")


def is_cut(found: Range, searched: int = SEARCHED) -> bool:
    """Return whether a range has more jobs than are searched."""
    return bool(found.query.values_list("pk", flat=True)[searched : searched + 1])
