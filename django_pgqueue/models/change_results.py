"""The result of `Job.retry()`, `cancel()` and the like: whether the job changed, and why not.

A result is true if the job changed, so code that uses it as a truth value needs nothing else. It protects one rule: a
change that does nothing says so. The reason costs a query, which runs only if the job did not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from django.db.models import QuerySet

from django_pgqueue.states import FINISHED, Seen, State

from .operations_link import database_now

STOPPING: Final = "it is running: its worker was asked to stop it"
COLUMNS: Final = (
    *("state", "finished_at", "run_after", "acknowledged_at", "cancel_requested_at"),
    *("unique_key", "in_graph", "task_name", "max_attempts"),
)
AS_ENDED: Final[dict[str, str]] = {
    State.SUCCEEDED: "it has already succeeded",
    State.DEAD: "it is already dead",
    State.CANCELLED: "it was already cancelled",
}
Row = Mapping[str, Any]
ActOnJob = Literal["retry", "acknowledge", "cancel", "run_now", "set_max_attempts"]
"""The name of the method, which is that of the operation too."""


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """Whether a job was changed, and the reason in words.

    It is true if the job changed: `if job.cancel(): …`. Convert it with `bool()` where a real boolean is needed, such
    as for JSON.

    Attributes:
        is_changed: Whether the job changed.
        reason: Why the job did not change, such as "it has already succeeded". If it changed: "", or for a running job
            that was asked to stop, a text that says so.
    """

    is_changed: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.is_changed

    def __repr__(self) -> str:
        return f"<{'changed' if self.is_changed else 'not changed'}{self.reason and f': {self.reason}'}>"


def changed(act: ActOnJob, state: State) -> ChangeResult:
    """Return the result of an act that has changed a job, which is in this state now."""
    return ChangeResult(is_changed=True, reason=STOPPING if act == "cancel" and state is State.RUNNING else "")


def unchanged(act: ActOnJob, jobs: QuerySet[Any], job_id: int, seen: Seen | None) -> ChangeResult:
    """Return the result of an act that has not changed a job, with the reason. Runs at most two queries."""
    row = jobs.filter(pk=job_id).values(*COLUMNS, now=database_now()).first()
    if row is None:
        reason = "it does not exist: it was removed, or the transaction that enqueued it was rolled back"
    else:
        reason = REASONS[act](row, seen) or _key_or_graph(row, jobs, job_id)
    return ChangeResult(is_changed=False, reason=reason)


def _has_changed(row: Row, seen: Seen | None, *, instant: str) -> str:
    """Return that the row differs from what the caller had read; "" if it does not."""
    if seen is not None and (seen.state, getattr(seen, instant)) != (row["state"], row[instant]):
        return f"it has changed since it was read, and is {row['state']} now: refresh it"
    return ""


def _not_cancelled(row: Row, seen: Seen | None) -> str:
    if row["state"] in FINISHED:
        return AS_ENDED[row["state"]]
    if differs := _has_changed(row, seen, instant="finished_at"):
        return differs
    return "it is running, and was asked to stop before" if row["cancel_requested_at"] else CHANGED_MEANWHILE


def _not_retried(row: Row, seen: Seen | None) -> str:
    if row["state"] not in FINISHED:
        return f"it is {row['state']}, and only a job that has ended can be retried"
    return _has_changed(row, seen, instant="finished_at")


def _not_acknowledged(row: Row, seen: Seen | None) -> str:
    if row["state"] != State.DEAD:
        return f"it is {row['state']}, and only a dead job can be acknowledged"
    if row["acknowledged_at"]:
        return "it is acknowledged already"
    return _has_changed(row, seen, instant="finished_at") or CHANGED_MEANWHILE


def _not_run_now(row: Row, seen: Seen | None) -> str:
    if row["state"] in FINISHED:
        return f"{AS_ENDED[row['state']]}: retry() makes it ready again"
    if row["state"] == State.RUNNING:
        return "it is running"
    if row["run_after"] <= row["now"]:
        return "it is due already"
    return _has_changed(row, seen, instant="run_after") or CHANGED_MEANWHILE


def _not_set(row: Row, seen: Seen | None) -> str:
    if row["state"] in FINISHED:
        return AS_ENDED[row["state"]]
    return _has_changed(row, seen, instant="run_after") or f"it has {row['max_attempts']} as its number already"


CHANGED_MEANWHILE: Final = "it was changed at the same moment: refresh it, and try again"
REASONS: Final[dict[ActOnJob, Callable[[Row, Seen | None], str]]] = {
    "cancel": _not_cancelled,
    "retry": _not_retried,
    "acknowledge": _not_acknowledged,
    "run_now": _not_run_now,
    "set_max_attempts": _not_set,
}
"""Returns why an act has left a job as it is. "": the row itself does not say it, which only a retry can return."""


def _key_or_graph(row: Row, jobs: QuerySet[Any], job_id: int) -> str:
    """Return why a finished job that nobody has changed cannot be retried."""
    key = row["unique_key"]
    others = jobs.filter(task_name=row["task_name"], unique_key=key).exclude(pk=job_id).exclude(state__in=FINISHED)
    if key is not None and (other := others.values_list("pk", flat=True).first()) is not None:
        return f"job {other} has its unique key"
    if row["in_graph"]:
        return "a job of its workflow that it depends on has failed: retry that job"
    return CHANGED_MEANWHILE
