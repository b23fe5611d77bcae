"""Bulk acts: an operator previews and requests them, and workers execute them in batches.

The admin calls `preview()` and `request_act()`. The maintenance service of the workers calls `waiting_acts()` and
`execute_batch()`. An act is an entry of the audit with a filter, and its batches obey three rules:

* A batch is one transaction: it locks the entry, changes jobs, records them, and moves the cursor. So two workers never
  execute the same act at the same time, and if a worker dies, the next one continues exactly behind the last batch.
* A job is changed only if it was in the filter when the operator saw the preview, and has not changed since.
* An act stops at the request of an operator (`stop_audit()`), or when a retried job fails again with the same error.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from django_pgqueue import sql
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.states import STATE_OF, ActOutcome, State, TransitionName

from . import erased_callbacks
from .audit import NAME_LENGTH, end_audit
from .bulk_changes import Act, change_batch
from .bulk_filters import MOST_IDS as MOST_IDS
from .bulk_filters import Selection as Selection
from .bulk_filters import invalid_if_unreadable
from .bulk_selection import ChosenPage, read_page
from .bulk_selection import waiting_jobs as waiting_jobs
from .erased_callbacks import CallbackWalk
from .execute import execute_with_retry
from .graphs import AdvancedJob
from .history import may_erase

BATCH: Final = 1000
"""Jobs that one batch changes at most."""
PREVIEWED: Final = 10_000
"""Jobs that a preview counts at most."""
SAMPLE: Final = 10
"""Jobs that a preview shows."""
WATCHED: Final = 5000
"""The latest retried jobs of an act whose next attempts are watched."""
WAITING: Final = 20
"""Acts that one worker looks at."""
NO_GRANTS: Final = "the database role of this worker may not erase values: make it a member of queue_archivist"
WORDS: Final[dict[TransitionName, tuple[str, ...]]] = {
    TransitionName.RETRY: ("dead", "succeeded", "cancelled"),
    TransitionName.ACKNOWLEDGE: ("dead",),
    TransitionName.DELETE: ("dead", "succeeded", "cancelled"),
    TransitionName.ERASE: ("dead", "succeeded", "cancelled"),
    TransitionName.CANCEL: ("ready", "due", "scheduled", "running"),
    TransitionName.MOVE: ("ready", "due", "scheduled"),
    TransitionName.RUN_NOW: ("scheduled",),
}
"""The actions, and the states of the jobs that each can change. Of dead jobs, a filter chooses those that nobody has
acknowledged."""


class FormSentBefore(Exception):
    """An act was requested with this form before, and nothing is requested again."""


class MayNotErase(Exception):
    """The database role of this worker lacks the grants to erase values. A worker with another role can have them."""


class PreviewedJob(NamedTuple):
    """A job in the sample of a preview."""

    job_id: int
    task_name: str
    state: str


class Preview(NamedTuple):
    """The jobs that an act would change, at one instant.

    `chosen` is exact, unless `has_more`: then at least so many jobs meet the filter. `left` counts the jobs of a list
    of ids that the act leaves out because of their state. `states` has the number of jobs by state. `edited` counts
    further jobs that meet the filter: a retry leaves them, because *Edit and retry* has made new jobs of them.
    """

    at: datetime
    chosen: int
    has_more: bool
    sample: tuple[PreviewedJob, ...]
    left: int
    states: Mapping[str, int]
    edited: int


class WaitingAct(NamedTuple):
    """An act that workers execute, and in how many seconds its next batch is due. A negative number: it is overdue."""

    audit_id: int
    due_in: float


class ActBatch(NamedTuple):
    """The result of one batch.

    `advanced` are the jobs of workflows that depend on cancelled ones, and are cancelled or ready now. `due_in` is the
    time in seconds until the next batch is due; None if the act has ended, with `outcome`.
    """

    action: TransitionName
    changed: Mapping[int, State]
    task_names: Mapping[int, str]
    advanced: Sequence[AdvancedJob] = ()
    due_in: float | None = None
    outcome: ActOutcome | None = None


def check_jobs(action: str, selection: Selection) -> TransitionName:
    """Return the action. Raise `ValueError` if it can change no job of the selection."""
    names = [name.value for name in WORDS]
    if action not in names:
        raise ValueError(f"Invalid action {action!r}: use one of {', '.join(names)}.")
    checked = TransitionName(action)
    if not selection.job_ids and selection.word not in WORDS[checked]:
        raise ValueError(f"Invalid state {selection.word!r} to {action}: use one of {', '.join(WORDS[checked])}.")
    return checked


def check_act(action: str, selection: Selection, rate: float | None) -> TransitionName:
    """Return the action. Raise `ValueError` if no worker could execute such an act."""
    checked = check_jobs(action, selection)
    if rate is not None and not 0 < rate <= 1e6:
        raise ValueError(f"Invalid rate {rate}: use a number of jobs per second above 0, or None.")
    if checked is TransitionName.MOVE and not selection.has_target:
        raise ValueError("Pass a queue, a priority or both to move jobs.")
    if checked is not TransitionName.MOVE and selection.has_target:
        raise ValueError(f"Pass no queue and no priority to {action} jobs.")
    if checked is TransitionName.ERASE and not selection.erased:
        raise ValueError("Choose at least one kind of values to erase.")
    if checked is not TransitionName.ERASE and selection.erased:
        raise ValueError(f"Pass no kinds of values to {action} jobs.")
    return checked


def preview(connection: Connection, action: str, selection: Selection) -> Preview:
    """Return what an act would change now. Write nothing.

    Raises:
        ValueError: The action can change no job of the selection.
    """
    checked = check_jobs(action, selection)
    at = execute(connection, sql.bulk_acts.BULK_TIME, {})[0][0]
    page = _page(connection, checked, selection, None, at, limit=PREVIEWED + 1, shown=SAMPLE)
    states = {row.state: min(row.alike, PREVIEWED) for row in page.groups if row.is_fitting}
    chosen = min(sum(states.values()), PREVIEWED)
    fitting = [row for row in page.rows if row.is_fitting][:SAMPLE]
    sample = tuple(PreviewedJob(row.job_id, row.task_name, row.state) for row in fitting)
    edited = sum(row.alike for row in page.groups if row.is_left_as_edited)
    left = len(selection.job_ids) - chosen - edited if selection.job_ids else 0
    return Preview(at, chosen, not page.is_last, sample, left, states, edited)


def request_act(
    connection: Connection,
    action: str,
    selection: Selection,
    *,
    previewed_at: datetime,
    done_by: str = "",
    reason: str = "",
    total: int | None = None,
    rate: float | None = None,
    stops_on_repeat: bool = False,
    form_token: UUID | None = None,
) -> int:
    """Add an act for the workers, in the caller's transaction; return the id of its entry in the audit.

    Args:
        connection: A connection to the database of the jobs.
        action: "retry", "acknowledge", "cancel", "run_now", "move", "delete" or "erase".
        selection: The jobs.
        previewed_at: The time of the preview, by the database's clock (`Preview.at`). Jobs that have changed since then
            stay as they are.
        done_by: The person or program, for people to read. 150 characters are stored.
        reason: Text for people to read.
        total: The number of jobs in the preview.
        rate: Jobs per second at most. None: no limit.
        stops_on_repeat: Whether to stop when a retried job fails again with the error that it had died of.
        form_token: Identifies the form with which the act is requested. None: no form.

    Raises:
        FormSentBefore: An act was requested with the same form. Nothing is written.
        ValueError: No worker could execute such an act.
    """
    params = {
        "action": check_act(action, selection, rate).value,
        "done_by": done_by[:NAME_LENGTH],
        "reason": reason,
        "filter": json.dumps(selection.as_json()),
        "total": total,
        "rate": rate,
        "stops_on_repeat": stops_on_repeat,
        "previewed_at": previewed_at,
        "form_token": None if form_token is None else str(form_token),
    }
    rows = execute(connection, sql.bulk_acts.REQUEST_ACT, params)
    if not rows:
        raise FormSentBefore(f"The form {form_token} was sent before.")
    return int(rows[0][0])


def waiting_acts(connection: Connection, skipped_ids: Sequence[int] = ()) -> list[WaitingAct]:
    """Return the next acts that workers execute except these, the one that is due first at the beginning."""
    rows = execute_with_retry(connection, sql.bulk_acts.WAITING_ACTS, {"limit": WAITING, "skipped_ids": [*skipped_ids]})
    return [WaitingAct(*row) for row in rows]


def execute_batch(connection: EngineConnection, audit_id: int, *, passes_refused: bool = False) -> ActBatch | None:
    """Execute the next batch of an act, in one transaction; return None if another worker does, or if none is due.

    `passes_refused`: An act that has changed others passes by a page of which the database refuses all jobs.

    Raises:
        MayNotErase: The act erases values, and the role of the connection lacks the grants for it.
        psycopg.Error: The database refused all jobs of the page, or the connection failed. Nothing was changed.
        ValueError: The stored filter is invalid, or another value of the entry.
    """
    with connection.transaction():
        with invalid_if_unreadable():
            act = _locked(connection, audit_id)
        return None if act is None else _execute(connection, act, passes_refused=passes_refused and act.has_changed)


def _locked(connection: Connection, audit_id: int) -> Act | None:
    rows = execute(connection, sql.bulk_acts.LOCK_ACT, {"audit_id": audit_id})
    if not rows:
        return None
    action, chosen, cursor, previewed_at, began_at, rate, stops_on_repeat, has_changed = rows[0]
    selection = Selection.from_json(json.loads(chosen))
    checked = check_act(action, selection, rate)
    start = json.loads(cursor) if cursor else {"position": None, "cancelled_again": []}
    at, again = previewed_at or began_at, frozenset(start["cancelled_again"])
    walk = CallbackWalk(*start["callbacks"]) if start.get("callbacks") else None
    place = (start["position"], walk, again)
    return Act(audit_id, checked, selection, *place, at, began_at, rate, stops_on_repeat, has_changed)


def _execute(connection: EngineConnection, act: Act, *, passes_refused: bool) -> ActBatch:
    if act.stops_on_repeat and (repeated := _first_repeat(connection, act)):
        job_id, error = repeated
        end_audit(connection, act.audit_id, ActOutcome.REPEATED, failed_job_id=job_id, error=error)
        return ActBatch(act.action, {}, {}, outcome=ActOutcome.REPEATED)
    if act.action is TransitionName.ERASE and not may_erase(connection):
        raise MayNotErase(NO_GRANTS)
    bounds = {"limit": BATCH, "shown": BATCH, "audit_id": act.audit_id}
    with invalid_if_unreadable():
        page = _page(connection, act.action, act.selection, act.position, act.previewed_at, **bounds)
    page, walk = _without_callbacks(connection, act, page)
    if walk is not None and walk.after_id is not None:
        return ActBatch(act.action, {}, {}, due_in=_advance(connection, act, act.position, act.cancelled_again, walk))
    size = BATCH if act.rate is None else max(1, int(min(BATCH, act.rate)))
    batch = change_batch(connection, act, page, size, passes_refused=passes_refused)
    names = {row.job_id: row.task_name for row in batch.rows if row.is_fitting}
    if batch.is_last:
        end_audit(connection, act.audit_id)
        return ActBatch(act.action, batch.changed, names, batch.advanced, outcome=ActOutcome.DONE)
    seconds = batch.rate_count / act.rate if act.rate else 0.0
    due_in = _advance(connection, act, batch.rows[-1].position, batch.again, walk, seconds)
    return ActBatch(act.action, batch.changed, names, batch.advanced, due_in=due_in)


def _advance(
    connection: Connection,
    act: Act,
    position: list[Any] | None,
    again: Collection[int],
    walk: CallbackWalk | None,
    seconds: float = 0.0,
) -> float:
    """Store where the next batch begins. Return in how many seconds it is due."""
    cursor: dict[str, Any] = {"position": position, "cancelled_again": sorted(again)}
    if walk is not None:
        cursor["callbacks"] = walk
    params = {"audit_id": act.audit_id, "cursor": json.dumps(cursor), "seconds": seconds}
    return float(execute(connection, sql.bulk_acts.ADVANCE_ACT, params)[0][0])


def _without_callbacks(connection: Connection, act: Act, page: ChosenPage) -> tuple[ChosenPage, CallbackWalk | None]:
    """Erase callbacks that have added the jobs of a page. Return the jobs that come next, and how far it has looked.

    While it has not looked at all batches, no job may be erased: its arguments find its callback. At a low rate,
    several batches of the act erase the jobs of one page, and only the first ones look for callbacks.
    """
    if act.action is not TransitionName.ERASE or "arguments" not in act.selection.erased or not page.rows:
        return page, None
    places = {row.job_id: place for place, row in enumerate(page.rows, start=1)}
    walk = act.callbacks
    if walk is None or walk.last_job_id not in places:  # the batch before has erased all jobs up to it
        walk = CallbackWalk(page.rows[-1].job_id, 0)
    count = places[walk.last_job_id]
    page = ChosenPage(page.rows[:count], page.is_last and count == len(page.rows))
    if walk.after_id is not None:
        job_ids = [row.job_id for row in page.rows if row.is_fitting]
        after_id = erased_callbacks.walk(connection, job_ids, act.previewed_at, walk.after_id)
        walk = walk._replace(after_id=after_id)
    return page, walk


def _first_repeat(connection: Connection, act: Act) -> tuple[int, str] | None:
    params = {"audit_id": act.audit_id, "began_at": act.began_at, "limit": WATCHED}
    rows = execute(connection, sql.bulk_acts.FIRST_REPEAT, params)
    return (rows[0][0], rows[0][1]) if rows else None


def _page(
    connection: Connection,
    action: TransitionName,
    selection: Selection,
    cursor: Sequence[Any] | None,
    at: datetime,
    **bounds: int,
) -> ChosenPage:
    """Return the next jobs of a filter. Of listed jobs, only those in a state that the action can change are chosen."""
    states = [STATE_OF[word].value for word in WORDS[action]]
    if action in (TransitionName.CANCEL, TransitionName.MOVE):
        states.append(State.WAITING.value)  # no index has them in an order for a filter
    return read_page(
        connection,
        selection,
        cursor,
        at,
        states=states,
        is_retry=action is TransitionName.RETRY,
        acknowledges=action is TransitionName.ACKNOWLEDGE,
        **bounds,
    )
