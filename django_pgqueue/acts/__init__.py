"""The acts of operators: the name of each in the audit, its label, and the permissions that it needs.

The admin and `manage.py pgqueue` take the acts from here, so an act has one name and one implementation in both. The
admin shows and runs an act only for users with all of its permissions. A shell needs none: who may run `manage.py` may
write to the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from django_pgqueue.control.workers import AUDITED_AS
from django_pgqueue.ends import job_operations
from django_pgqueue.states import RequestKind, State, TransitionName

if TYPE_CHECKING:
    from collections.abc import Callable

VIEW_JOB: Final = "pgqueue.view_job"
LIMITS: Final = (VIEW_JOB, "pgqueue.change_limits")
PAUSES: Final = (VIEW_JOB, "pgqueue.pause_queue")
SCHEDULES: Final = ("pgqueue.view_schedule", "pgqueue.pause_schedule")


@dataclass(frozen=True)
class OperatorAct:
    """An act of an operator.

    Attributes:
        name: The action of its entry in the audit.
        label: Its name for people.
        permissions: The permissions that it needs in the admin. (): no page of the console runs it.
    """

    name: str
    label: Promise | str
    permissions: tuple[str, ...]

    def is_allowed(self, user: Any) -> bool:
        """Return whether a user of the admin may do it."""
        return bool(self.permissions) and user.has_perms(self.permissions)


@dataclass(frozen=True)
class JobAct(OperatorAct):
    """A transition of jobs. The function of `job_operations` with its name runs it."""

    @property
    def transition(self) -> TransitionName:
        return TransitionName(self.name)

    @property
    def change(self) -> Callable[..., dict[int, State]]:
        found: Callable[..., dict[int, State]] = getattr(job_operations, self.name)
        return found


RETRY: Final = JobAct("retry", _("Retry"), (VIEW_JOB, "pgqueue.retry_job"))
ACKNOWLEDGE: Final = JobAct("acknowledge", _("Acknowledge"), (VIEW_JOB, "pgqueue.acknowledge_job"))
CANCEL: Final = JobAct("cancel", _("Cancel"), (VIEW_JOB, "pgqueue.cancel_job"))
RUN_NOW: Final = JobAct("run_now", _("Run now"), (VIEW_JOB, "pgqueue.run_job"))
MOVE: Final = JobAct("move", _("Move"), (VIEW_JOB, "pgqueue.move_job"))
ERASE: Final = JobAct("erase", _("Erase values"), (VIEW_JOB, "pgqueue.erase_job"))
"""On the rows of a page, `history.erase()` runs it. `manage.py pgqueue erase` calls it too. It writes the audit."""
DELETE: Final = JobAct("delete", _("Delete"), (VIEW_JOB, "pgqueue.delete_job"))
JOB_ACTS: Final = {act.name: act for act in (RETRY, ACKNOWLEDGE, CANCEL, RUN_NOW, MOVE, ERASE, DELETE)}
"""The acts on chosen jobs, also on many of them (see `lifecycle.bulk_acts`)."""

EDIT_AND_RETRY: Final = OperatorAct(
    "edit_and_retry",
    _("Edit and retry"),
    (VIEW_JOB, "pgqueue.view_arguments", "pgqueue.edit_and_retry_job"),
)
ENQUEUE: Final = OperatorAct("enqueue", _("Enqueue"), (VIEW_JOB, "pgqueue.enqueue_job"))

ARCHIVE: Final = OperatorAct("archive", _("Archive"), ())
"""`history.archive()` runs it, and writes the audit. No page runs it."""

SET_MAX_ATTEMPTS: Final = JobAct("set_max_attempts", _("Change attempts"), (VIEW_JOB, "pgqueue.set_max_attempts_job"))
"""The page of one job runs it, and `manage.py pgqueue jobs set-max-attempts`. It cannot run as a bulk act."""

STOP_WORKER: Final = OperatorAct(
    AUDITED_AS[RequestKind.STOP], _("Request to stop"), ("pgqueue.view_worker", "pgqueue.stop_worker")
)
LIVE_STACK: Final = OperatorAct(
    AUDITED_AS[RequestKind.STACK], _("Request for a stack"), (VIEW_JOB, "pgqueue.view_stack")
)
OVERRIDE_LIMIT: Final = OperatorAct("override limit", _("Change of a limit"), LIMITS)
RESTORE_LIMIT: Final = OperatorAct("restore limit", _("Undo a change of a limit"), LIMITS)
END_HOLD: Final = OperatorAct("end hold", _("End a hold"), LIMITS)
PAUSE: Final = OperatorAct("pause", _("Pause"), PAUSES)
RESUME: Final = OperatorAct("resume", _("Resume"), PAUSES)

RUN_SCHEDULE: Final = OperatorAct("run_schedule", _("Run now"), ("pgqueue.view_schedule", "pgqueue.run_schedule"))
PAUSE_SCHEDULE: Final = OperatorAct("pause_schedule", _("Pause"), SCHEDULES)
RESUME_SCHEDULE: Final = OperatorAct("resume_schedule", _("Resume"), SCHEDULES)
SKIP_NEXT_RUN: Final = OperatorAct("skip_run", _("Skip the next run"), SCHEDULES)
UNDO_SKIP: Final = OperatorAct("undo_skip", _("Undo the skip"), SCHEDULES)
CLOSE_BATCH: Final = OperatorAct("close_batch", _("Close a batch"), ("pgqueue.view_jobbatch", "pgqueue.close_batch"))

RETRY_FROM: Final = OperatorAct(RETRY.name, _("Retry from here"), (*RETRY.permissions, "pgqueue.view_jobbatch"))
"""A retry of a node of a workflow with all that depends on it. The audit has it as a retry of these jobs."""

DELETE_SCHEDULE: Final = OperatorAct("delete_schedule", _("Delete a schedule"), ())
"""Django's own page runs it, and checks the permission."""

CHANGING_NO_JOBS: Final = {
    act.name: act
    for act in (
        *(STOP_WORKER, LIVE_STACK, OVERRIDE_LIMIT, RESTORE_LIMIT, END_HOLD, PAUSE, RESUME),
        *(PAUSE_SCHEDULE, RESUME_SCHEDULE, SKIP_NEXT_RUN, UNDO_SKIP, DELETE_SCHEDULE, CLOSE_BATCH),
    )
}
AUDITED: Final = {
    **JOB_ACTS,
    **{act.name: act for act in (EDIT_AND_RETRY, ENQUEUE, ARCHIVE, SET_MAX_ATTEMPTS, RUN_SCHEDULE)},
    **CHANGING_NO_JOBS,
}
"""The acts by the actions in the entries of the audit."""
