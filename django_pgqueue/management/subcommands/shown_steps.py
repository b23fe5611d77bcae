"""The durable steps of a job, for `manage.py pgqueue jobs show`: a table, or values for JSON."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import TextField
from django.db.models.functions import Cast, Left

from django_pgqueue.display import duration, shortened, shown_result
from django_pgqueue.models import Job, JobStep
from django_pgqueue.states import StepKind

from .output import Column, date_of

TEXT_LIMIT: Final = 2_000
STEPS_SHOWN: Final = 200


def read_steps(alias: str, job_id: int, task_name: str) -> list[JobStep]:
    """Return the latest steps of a job in their order, with their values as text, and their compensations' states."""
    texts = {"value_text": Left(Cast("result", TextField()), TEXT_LIMIT), "error_text": Left("error", TEXT_LIMIT)}
    steps = JobStep.objects.using(alias).filter(job_id=job_id)
    steps = steps.defer("result", "error", "compensation_arguments").annotate(**texts)
    found = list(reversed(steps.order_by("-position", "-name")[:STEPS_SHOWN]))
    ids = [step.compensation_id for step in found if step.compensation_id is not None]
    states = dict(Job.objects.using(alias).filter(pk__in=ids).values_list("pk", "state")) if ids else {}
    for step in found:
        vars(step)["compensation_state"] = states.get(step.compensation_id or 0)
        vars(step)["value"] = _value(task_name, vars(step)["value_text"])
    return found


def _kind(step: JobStep) -> str:
    event = ", key ".join(filter(None, [step.event_name, step.event_key]))
    return f"{step.kind} {event}".strip()


def _state(step: JobStep) -> str:
    undo_id, undo_state = step.compensation_id, vars(step)["compensation_state"] or "removed"
    return step.state.value if undo_id is None else f"{step.state.value}, compensation #{undo_id} {undo_state}"


COLUMNS: Final = (
    Column("step", lambda step: step.name),
    Column("kind", _kind),
    Column("state", _state),
    Column("tries", lambda step: step.tries if step.kind == StepKind.STEP else "", is_number=True),
    Column(
        "ran",
        lambda step: duration(step.finished_at - step.started_at, brief=True) if step.finished_at else "",
        is_number=True,
    ),
    Column("until", lambda step: "" if step.finished_at else date_of(step.wake_at)),
    Column("value or error", lambda step: shortened(vars(step)["error_text"] or vars(step)["value"]), is_flexible=True),
)


def as_json(step: JobStep) -> dict[str, Any]:
    """Return a step with the documented keys. A hidden value has a note instead of a text."""
    return {
        "name": step.name,
        "kind": step.kind,
        "state": step.state.value,
        "tries": step.tries,
        "started_at": step.started_at,
        "finished_at": step.finished_at,
        "wake_at": step.wake_at,
        "event": step.event_name,
        "event_key": step.event_key,
        "value": vars(step)["value"] or None,
        "error": vars(step)["error_text"],
        "compensation": step.compensation and step.compensation.get("task_name"),
        "compensation_id": step.compensation_id,
        "compensation_state": vars(step)["compensation_state"],
    }


def _value(task_name: str, text: str) -> str:
    shown = shown_result(task_name, text)
    return "" if shown is None else " ".join((shown.text or shown.note).split())
