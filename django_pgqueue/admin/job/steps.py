"""The durable steps on the page of a job: what each one is, what became of it, and the value that it stored.

`job_page` calls it. The values follow the rules for the result of the job (see `private`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from django.db.models import Exists, OuterRef, TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_pgqueue.admin import private
from django_pgqueue.admin.formatting import badge, duration, moment, visible, word_badge
from django_pgqueue.admin.links import page_url
from django_pgqueue.models import Job, JobStep
from django_pgqueue.states import State, StepKind, StepState

HAS_STEPS: Final = Exists(JobStep.objects.filter(job_id=OuterRef("pk")))
STEPS_SHOWN: Final = 200
"""Steps shown at most, the latest ones. A task that sleeps in a loop has one for each round."""
VALUE_LIMIT: Final = 2_000
"""Characters shown of each value and of each error. PostgreSQL cuts them."""
COLOURS: Final[dict[str, str]] = {
    StepState.FINISHED: "succeeded",
    StepState.TIMED_OUT: "dead",
    StepState.RETRYING: "dead",
}
"""The state of a job whose colour the state of a step has. Others are grey."""


def read_steps(job: Job) -> list[JobStep]:
    """Return the steps of a job in their order, with their texts cut by PostgreSQL.

    Runs one query, and another one for the states of the compensations if there are any.
    """
    texts = {"value_text": Left(Cast("result", TextField()), VALUE_LIMIT), "error_text": Left("error", VALUE_LIMIT)}
    steps = JobStep.objects.using(job._state.db).filter(job_id=job.pk)
    steps = steps.defer("result", "error", "compensation_arguments").annotate(**texts)
    found = list(reversed(steps.order_by("-position", "-name")[:STEPS_SHOWN]))
    ids = [step.compensation_id for step in found if step.compensation_id is not None]
    states = dict(Job.objects.using(job._state.db).filter(pk__in=ids).values_list("pk", "state")) if ids else {}
    for step in found:
        vars(step)["compensation_state"] = states.get(step.compensation_id or 0, "")
    return found


class CompensationNote(NamedTuple):
    """A sentence about the compensations of a job, with links to those that the operator has to look at."""

    text: str
    jobs: list[tuple[str, str]]


def compensation_note(request: HttpRequest, job: Job, steps: Sequence[JobStep]) -> CompensationNote | None:
    """Return what stops the compensations of a dead or cancelled job, or that they run. None: nothing is left to undo.

    `steps` are those of `read_steps()`.
    """
    if job.state not in (State.DEAD, State.CANCELLED):
        return None
    stopped = [step for step in steps if vars(step)["compensation_state"] in (State.DEAD, State.CANCELLED)]
    if stopped:
        text = _(
            "A compensation has failed or was cancelled. Retry it: earlier steps are undone after it has succeeded."
        )
        return CompensationNote(text, [_link_to(request, step) for step in stopped])
    is_unfinished = any(vars(step)["compensation_state"] not in ("", State.SUCCEEDED) for step in steps)
    if is_unfinished or any(step.compensation is not None for step in steps):
        return CompensationNote(_("Its steps are being undone, the last one first."), [])
    return None


def _link_to(request: HttpRequest, step: JobStep) -> tuple[str, str]:
    """Return the number of the job that undoes a step, and its URL; "" if the site has no page for it."""
    return f"#{step.compensation_id}", page_url(request, "job_change", step.compensation_id or 0)


def shown_step(request: HttpRequest, job: Job, step: JobStep) -> dict[str, Any]:
    """Return a step, formatted for the template."""
    ran = step.finished_at and step.finished_at - step.started_at
    return {
        "name": visible(step.name),
        "kind": _kind(job, step),
        "state": badge(COLOURS.get(step.state, "cancelled"), step.state),
        "note": _("The code did not call it any more.") if is_left_out(job, step) else "",
        "compensation": _compensation(request, job, step),
        "tries": step.tries if step.kind == StepKind.STEP else "",
        "started": moment(step.started_at),
        "ran": duration(ran) if ran else "",
        "until": "" if step.finished_at or step.wake_at is None else moment(step.wake_at),
        "value": private.shown_result(job, vars(step)["value_text"]),
        "error": visible(vars(step)["error_text"]) if private.is_visible(job) else "",
    }


def is_left_out(job: Job, step: JobStep) -> bool:
    """Return whether the job has succeeded without a step that had not ended: its code does not call it any more.

    Of a step that had ended, the rows do not show whether the last attempt called it. The worker logs those.
    """
    return job.state == State.SUCCEEDED and step.finished_at is None and step.kind != StepKind.SLEEP


def _compensation(request: HttpRequest, job: Job, step: JobStep) -> dict[str, str]:
    """Return the text about the compensation of a step, with the number, the URL and the state of its job, if any."""
    if step.compensation_id is not None:
        number, url = _link_to(request, step)
        state = vars(step)["compensation_state"]
        shown = word_badge(state) if state else badge("unknown", _("removed"))
        return {"text": _("Compensation:"), "number": number, "url": url, "state": shown}
    if step.compensation is None:
        return {}
    task = {"task": visible(str(step.compensation.get("task_name", "")))}
    if job.state in (State.DEAD, State.CANCELLED):
        return {"text": _("Not yet undone. The task for it: %(task)s.") % task}
    return {"text": _("If the job fails, %(task)s undoes it.") % task}


def _kind(job: Job, step: JobStep) -> str:
    """Return the kind of a step. The key of an event can contain arguments."""
    if step.kind != StepKind.EVENT:
        return visible(step.kind)
    key = visible(step.event_key or "") if private.is_visible(job) else "…"
    name = visible(step.event_name or "")
    if not key:
        return _("event %(name)s") % {"name": name}
    return _("event %(name)s, key %(key)s") % {"name": name, "key": key}
