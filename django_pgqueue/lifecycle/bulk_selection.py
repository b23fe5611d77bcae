"""The pages of jobs that the filter of a bulk act chooses.

`bulk_acts` reads them. Each page is a range of an index, behind the position where the last one ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.fields import FIRST_INSTANT, LAST_INSTANT
from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.states import FINISHED, State

from .bulk_filters import Selection
from .limits import key_ranges, keys_of_limit, scan_limited_lanes

HIGHEST_PRIORITY: Final = 32_767
LOWEST_PRIORITY: Final = -HIGHEST_PRIORITY
AFTER: Final = ("after_queue", "after_priority", "after_at", "after_id")
"""Parameters of a position among the ready jobs without a limit."""
AFTER_LIMITED: Final = ("after_queue", "after_priority", "after_key", "after_at", "after_id")
"""The same among those with a limit."""
FIRST_IN_QUEUE: Final = (HIGHEST_PRIORITY, FIRST_INSTANT, 0)
FIRST_IN_LIMITED_QUEUE: Final = (HIGHEST_PRIORITY, "", FIRST_INSTANT, 0)
LAST_NAME: Final = "\U0010ffff"
"""A name behind all names of queues, and behind all limit keys."""


class ChosenJob(NamedTuple):
    """A job on a page. `position` is where the next page begins, as JSON can store it.

    `alike` counts the jobs of the page in the same state that the act changes too, or leaves too.
    """

    job_id: int
    task_name: str
    state: str
    finished_at: datetime | None
    run_after: datetime
    is_chosen: bool
    is_unchanged: bool
    is_edited: bool
    alike: int
    position: list[Any]

    @property
    def is_fitting(self) -> bool:
        """Whether the act changes the job."""
        return self.is_chosen and self.is_unchanged and not self.is_edited

    @property
    def is_left_as_edited(self) -> bool:
        """Whether the act leaves the job only because *Edit and retry* has made a new job of it."""
        return self.is_chosen and self.is_unchanged and self.is_edited

    @property
    def kind(self) -> tuple[str, bool, bool]:
        """The state, whether the filter chooses the job and it has not changed, and whether a retry leaves it."""
        return self.state, self.is_chosen and self.is_unchanged, self.is_edited


class ChosenPage(NamedTuple):
    """The jobs of a page, chosen or not. `is_last`: no jobs come behind them."""

    rows: list[ChosenJob]
    is_last: bool

    @property
    def groups(self) -> list[ChosenJob]:
        """One job of each kind, whose `alike` counts the jobs of its kind."""
        return list({row.kind: row for row in self.rows}.values())

    def up_to(self, size: int) -> ChosenPage:
        """Return the part of the page that ends with the chosen job number `size`."""
        count = 0
        for index, row in enumerate(self.rows, start=1):
            count += row.is_fitting
            if count == size and index < len(self.rows):
                return ChosenPage(self.rows[:index], is_last=False)
        return self


def read_page(
    connection: Connection,
    selection: Selection,
    cursor: Sequence[Any] | None,
    at: datetime,
    *,
    states: Sequence[str],
    limit: int,
    shown: int,
    audit_id: int = 0,
    is_retry: bool = False,
    acknowledges: bool = False,
) -> ChosenPage:
    """Return the next `limit` jobs that the filter may choose, as they were at the time `at` of the preview.

    Only `shown` jobs of each kind are among the rows, and `ChosenJob.alike` counts all.

    `is_retry`: of several chosen jobs with one unique key, only the latest is not left, and jobs that *Edit and retry*
    has made new jobs of are left.
    Of a list of ids, only jobs in one of `states` are chosen. The jobs of the audit entry `audit_id` are left out,
    because the act has changed them already. If it `acknowledges`, so are jobs that were acknowledged.
    """
    if selection.job_ids:
        statement = sql.bulk_acts.BULK_PAGE_LISTED
        params = {"job_ids": list(selection.job_ids), "after_id": cursor[0] if cursor else 0, "states": list(states)}
        params |= {"previewed_at": at, "audit_id": audit_id, "acknowledges": acknowledges}
    elif selection.word == State.DEAD:
        statement, params = sql.bulk_acts.BULK_PAGE_DEAD, _finished(selection, cursor, at)
        del params["state"]
    elif selection.word in FINISHED:
        statement, params = sql.bulk_acts.BULK_PAGE_FINISHED, _finished(selection, cursor, at)
    elif selection.word == State.RUNNING:
        statement, params = sql.bulk_acts.BULK_PAGE_RUNNING, _running(selection, cursor, at)
    else:
        params = {**_ready(selection, at), "audit_id": audit_id, "shown": shown}
        if selection.limit_key is not None:
            return _page_of_limit(connection, selection, cursor, params, limit)
        return _ready_page(connection, selection.queue_name or "", cursor, params, limit)
    if statement is not sql.bulk_acts.BULK_PAGE_RUNNING:
        params["is_retry"] = is_retry
    return _page(_rows(connection, statement, {**params, "limit": limit, "shown": shown}), limit)


def chosen_of(connection: Connection, selection: Selection, at: datetime, ends: Mapping[int, datetime]) -> set[int]:
    """Return which of these jobs the filter chose at the time `at`. `ends` says when each was cancelled."""
    first, last = selection.since or FIRST_INSTANT, min(at, selection.until or at)
    job_ids = {job_id for job_id, end in ends.items() if first <= end <= last}
    if selection.job_ids:
        return job_ids.intersection(selection.job_ids)
    if not job_ids or selection.word != State.CANCELLED:
        return set()
    params = {"job_ids": sorted(job_ids), **_of_finished(selection)}
    return {row[0] for row in execute(connection, sql.bulk_acts.BULK_CHOSEN, params)}


def waiting_jobs(
    connection: Connection,
    *,
    queue_name: str | None = None,
    task_name: str | None = None,
    limit_key: str | None = None,
    limit: int,
) -> Iterator[dict[int, str]]:
    """Yield the tasks of the ready jobs of a queue, a task or a limit by job id, `limit` jobs at a time.

    In the order of ids, PostgreSQL reads every finished job before the first ready one: with 400,000 finished jobs, the
    first 1,000 ready ones took 161 ms instead of 13 ms.
    """
    selection = Selection(State.READY.value, queue_name, task_name, limit_key=limit_key)
    cursor, is_last = None, False
    while not is_last:
        rows, is_last = read_page(
            connection, selection, cursor, LAST_INSTANT, states=(), audit_id=0, limit=limit, shown=limit
        )
        if rows:
            cursor = rows[-1].position
            yield {row.job_id: row.task_name for row in rows}


def _ready_page(
    connection: Connection, first_queue: str, cursor: Sequence[Any] | None, params: dict[str, Any], limit: int
) -> ChosenPage:
    """Return the next ready jobs: those without a limit, then those with one, whose positions also have the key."""
    plain = ChosenPage([], is_last=True)
    if cursor is None or len(cursor) == len(AFTER):
        after = dict(zip(AFTER, cursor or (first_queue, *FIRST_IN_QUEUE), strict=True))
        plain = _page(_rows(connection, sql.bulk_acts.BULK_PAGE_READY, {**params, **after, "limit": limit}), limit)
        cursor = (first_queue, *FIRST_IN_LIMITED_QUEUE)
    if not plain.is_last:
        return plain
    after = dict(zip(AFTER_LIMITED, cursor, strict=True))
    left = limit - _count(plain)
    bounds = {"end_key": LAST_NAME, "limit": left}
    limited = _rows(connection, sql.bulk_acts.BULK_PAGE_READY_LIMITED, {**params, **after, **bounds})
    return _together(plain, _page(limited, left), params["shown"])


def _page_of_limit(
    connection: Connection, selection: Selection, cursor: Sequence[Any] | None, params: dict[str, Any], limit: int
) -> ChosenPage:
    """Return the next ready jobs of a limit or a key: one range of limit keys in one lane after the other."""
    page = ChosenPage([], is_last=True)
    for queue_name, priority, first_key, end_key in _ranges_of_limit(connection, selection):
        start: Sequence[Any] = (queue_name, priority, first_key, FIRST_INSTANT, 0)
        if cursor is not None:
            after_queue, after_priority, after_key = cursor[:3]
            if (queue_name, -priority, end_key) <= (after_queue, -after_priority, after_key):
                continue
            if (queue_name, -priority, first_key) <= (after_queue, -after_priority, after_key):
                start = cursor
        left = limit - _count(page)
        bounds = {"last_queue": queue_name, "last_priority": priority, "end_key": end_key, "limit": left}
        after = dict(zip(AFTER_LIMITED, start, strict=True))
        rows = _rows(connection, sql.bulk_acts.BULK_PAGE_READY_LIMITED, {**params, **bounds, **after})
        page = _together(page, _page(rows, left), params["shown"])
        if not page.is_last:
            return page
    return page


def _ranges_of_limit(connection: Connection, selection: Selection) -> list[tuple[str, int, str, str]]:
    """Return the ranges of limit keys with ready jobs of a limit or a key, in the order of the index."""
    ranges = [
        (lane.queue_name, lane.priority, *keys)
        for lane in scan_limited_lanes(connection)
        for keys in key_ranges(selection.limit_key or "")
        if selection.queue_name in (None, lane.queue_name)
    ]
    names = ("queue_names", "priorities", "first_keys", "end_keys")
    params = dict(zip(names, ([*column] for column in zip(*ranges, strict=True)), strict=False))
    return [tuple(row) for row in execute(connection, sql.bulk_acts.BULK_LIMIT_RANGES, params)] if ranges else []


def _together(first: ChosenPage, second: ChosenPage, shown: int) -> ChosenPage:
    """Return one page with the rows of both, at most `shown` of each kind."""
    counts: Counter[tuple[str, bool, bool]] = Counter()
    for page in (first, second):
        counts.update({row.kind: row.alike for row in page.groups})
    places: Counter[tuple[str, bool, bool]] = Counter()
    rows = []
    for row in (*first.rows, *second.rows):
        places[row.kind] += 1
        if places[row.kind] <= shown:
            rows.append(row._replace(alike=counts[row.kind]))
    return ChosenPage(rows, second.is_last)


def _rows(connection: Connection, statement: str, params: dict[str, Any]) -> list[ChosenJob]:
    found = execute(connection, statement, params)
    return [ChosenJob._make((*row[:9], [_plain(value) for value in row[9:]])) for row in found]


def _page(rows: list[ChosenJob], limit: int) -> ChosenPage:
    page = ChosenPage(rows, is_last=False)
    return page._replace(is_last=_count(page) < limit)


def _count(page: ChosenPage) -> int:
    return sum(row.alike for row in page.groups)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _finished(selection: Selection, cursor: Sequence[Any] | None, at: datetime) -> dict[str, Any]:
    after_at, after_id = cursor or (selection.since or FIRST_INSTANT, 0)
    position = {"after_at": after_at, "after_id": after_id}
    return {"state": selection.word, **position, **_of_finished(selection), **_seen(selection, at)}


def _ready(selection: Selection, at: datetime) -> dict[str, Any]:
    return {
        "last_queue": selection.queue_name or LAST_NAME,
        "last_priority": LOWEST_PRIORITY,
        "due_from": at if selection.word == "scheduled" else FIRST_INSTANT,
        "due_until": at if selection.word == "due" else LAST_INSTANT,
        "task_name": selection.task_name,
        **_seen(selection, at),
    }


def _running(selection: Selection, cursor: Sequence[Any] | None, at: datetime) -> dict[str, Any]:
    after_worker_id, after_id = cursor or (-1, 0)
    position = {"after_worker_id": after_worker_id, "after_id": after_id}
    return {**position, **_named(selection), **_seen(selection, at)}


def _seen(selection: Selection, at: datetime) -> dict[str, Any]:
    """Return the parameters of the time span and of the preview."""
    until = min(at, selection.until or at)
    return {"since_at": selection.since or FIRST_INSTANT, "until_at": until, "previewed_at": at}


def _of_finished(selection: Selection) -> dict[str, str | None]:
    return {"exception_class": selection.exception_class, "message": selection.message, **_named(selection)}


def _named(selection: Selection) -> dict[str, str | None]:
    """Return the parameters of the queue, the task, and the limit key or the keys of the limit with this name."""
    limit_key = selection.limit_key
    first_key, end_key = ("", "") if limit_key is None else keys_of_limit(limit_key)
    limit = {"limit_key": limit_key, "first_key": first_key, "end_key": end_key}
    return {"queue_name": selection.queue_name, "task_name": selection.task_name, **limit}
