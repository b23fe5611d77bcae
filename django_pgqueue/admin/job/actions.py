"""The acts on jobs in the admin: retry, acknowledge, cancel, run, move, change attempts, erase and delete.

This module has their permissions, questions, messages and entries in the history.

Called by `jobs`, for one job or for a selection. The transitions are those of `lifecycle`. Each one changes a job only
if the job is still as the page showed it (see `shown`), so a double click or a second operator cannot run a job twice.
Retrying succeeded jobs needs a confirmation (see `confirmation`). So does retrying one job that *Edit and retry* has
made a new job of; a retry of several jobs leaves such jobs out. Moves, changes of attempts, erasures, deletions and
acknowledgements ask on pages of their own, which carry what the page before showed, so the answer applies to that state
only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy

from django_pgqueue import acts
from django_pgqueue.acts import JobAct
from django_pgqueue.acts.job_changes import ActAudit, ActRun, edited_jobs
from django_pgqueue.admin import databases, shown
from django_pgqueue.admin.act_view import log_change
from django_pgqueue.admin.buttons import back_of
from django_pgqueue.admin.formatting import seen_at, visible, word_text
from django_pgqueue.admin.forms import confirmation
from django_pgqueue.admin.forms.erase_form import ask_what, erase
from django_pgqueue.admin.forms.form_page import form_page
from django_pgqueue.admin.forms.reason_form import ask_reason, reason_of
from django_pgqueue.admin.forms.value_forms import ask_attempts, ask_where, attempts_form, move_form
from django_pgqueue.admin.navigation import page_url
from django_pgqueue.admin.row_operations import Operation
from django_pgqueue.db.fields import statement_time
from django_pgqueue.declared.steps import CompensationUnfinished
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.lifecycle.pruning import needs_of
from django_pgqueue.models import DeadJob, Job
from django_pgqueue.states import KEPT_BY_DELETE, NEED_TEXTS, TRANSITIONS, Seen, State, TransitionName

SELECTION_LIMIT: Final = 10_000
"""Jobs that one request changes at most, whatever a form contains. A page has 100, and bulk acts change more."""


@dataclass(frozen=True)
class JobOperation(Operation):
    """One transition of jobs. Its permission is always one on `Job`, even for dead letters."""

    act: JobAct
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of `JobAct.change`."""
    text: str = ""
    """The text for the history; "" means the label."""
    reason: str = ""
    """The reason of the operator. The audit stores it."""

    is_dangerous: ClassVar[bool] = False
    """Whether it cannot be undone. The page of a job offers it last, with a quiet button."""
    audited_options: ClassVar[tuple[str, ...]] = ()
    """The options that the audit stores."""

    def fits(self, job: Any, now: datetime) -> bool:
        """Return whether it would change a job, of which a few columns are enough."""
        transition = self.act.transition
        if job.state not in set(State) or transition not in TRANSITIONS.get(State(job.state), {}):
            return False
        if transition is TransitionName.RUN_NOW:
            return bool(job.run_after > now)
        if transition is TransitionName.ACKNOWLEDGE:
            return job.acknowledged_at is None
        return not (transition is TransitionName.CANCEL and job.state == State.RUNNING and job.cancel_requested_at)

    def ask(self, request: HttpRequest, job: Job, seen: Mapping[int, Seen], site: AdminSite) -> HttpResponse | None:
        """Return a page with a question about one job, or None if the form has answered it."""
        return confirmation.ask(request, self.act.transition, seen, site, self.edited(request, seen))

    def ask_many(
        self, request: HttpRequest, seen: Mapping[int, Seen], site: AdminSite, edited: Mapping[int, int | None]
    ) -> HttpResponse | None:
        """Return a page with a question about selected jobs, or None if the form has answered it."""
        return confirmation.ask(request, self.act.transition, seen, site, edited, leaves_edited=True)

    def edited(self, request: HttpRequest, job_ids: Collection[int]) -> dict[int, int | None]:
        """Return which of these jobs *Edit and retry* has made new jobs of, if the operation is a retry."""
        return edited_jobs(connections[databases.chosen(request)], self.act, [*job_ids])

    def as_chosen(self, request: HttpRequest, job: Job) -> JobOperation:
        """Return the operation with the values of the form, after `ask()` has checked them."""
        return self.with_reason(request)

    def with_reason(self, request: HttpRequest) -> JobOperation:
        """Return the operation with the reason in the form, if it has asked for one."""
        return self

    def run(
        self, request: HttpRequest, seen: Mapping[int, Seen], edited: Collection[int] = (), *, alone: bool = False
    ) -> Collection[int]:
        """Change jobs except `edited`, log it in the audit and in the history of each, and return the changed ones."""
        connection, asked = connections[databases.chosen(request)], len(seen)
        chosen = {"selected": asked, **({"edited": len(edited)} if edited else {})}
        chosen |= {name: self.options[name] for name in self.audited_options}
        notes = {"total": asked - len(edited), "reason": self.reason}
        audit = ActAudit(connection, self.act.name, chosen, done_by=request.user.get_username(), **notes)
        changes = ActRun(connection, self.act, seen, audit, self.options, edited)
        for changed in changes.batches(alone=alone):
            self.log(request, [Job(pk=job_id, task_name=name) for job_id, name in changed.items()], asked)
        audit.end()
        return changes.changed

    def log(self, request: HttpRequest, changed: Sequence[Job], asked: int) -> None:
        """Write the act into the history of each changed job."""
        form = "{}." if asked == 1 else f"{{}}, one of {asked:,} jobs selected."
        log_change(request, changed, format_lazy(form, self.text or self.label))


@dataclass(frozen=True)
class MoveOperation(JobOperation):
    """Moves a ready job. It asks for the queue and the priority."""

    def ask(self, request: HttpRequest, job: Job, seen: Mapping[int, Seen], site: AdminSite) -> HttpResponse | None:
        return ask_where(request, job, seen, site)

    def as_chosen(self, request: HttpRequest, job: Job) -> JobOperation:
        form = move_form(request, job)
        form.is_valid()  # `ask()` has seen that it is
        options = {name: form.cleaned_data[name] for name in ("queue_name", "priority")}
        forms = {"queue_name": _("to the queue %s"), "priority": _("to the priority %s")}
        texts = [forms[name] % value for name, value in options.items() if value is not None]
        return replace(self, text=f"{self.label} {', '.join(texts)}", options=options)


@dataclass(frozen=True)
class AttemptsOperation(JobOperation):
    """Changes how many attempts of an unfinished job may count. It asks for the number and for a reason."""

    audited_options: ClassVar[tuple[str, ...]] = ("max_attempts",)

    def ask(self, request: HttpRequest, job: Job, seen: Mapping[int, Seen], site: AdminSite) -> HttpResponse | None:
        return ask_attempts(request, job, seen, site)

    def as_chosen(self, request: HttpRequest, job: Job) -> JobOperation:
        form = attempts_form(request, job)
        form.is_valid()  # `ask()` has seen that it is
        most, reason = form.cleaned_data["max_attempts"], form.cleaned_data["reason"]
        text = _("Change the attempts to %(most)s at most: %(reason)s") % {"most": most, "reason": reason}
        return replace(self, text=text, options={"max_attempts": most}, reason=reason)


@dataclass(frozen=True)
class DeleteOperation(JobOperation):
    """Deletes a finished job with its executions. It asks for confirmation."""

    is_dangerous: ClassVar[bool] = True

    def ask(self, request: HttpRequest, job: Job, seen: Mapping[int, Seen], site: AdminSite) -> HttpResponse | None:
        if confirmation.is_given(request):
            return None
        return form_page(
            request,
            site,
            forms.Form(),
            title=_("Delete %(job)s?") % {"job": visible(str(job))},
            submit=_("Yes, delete it"),
            back=page_url(request, "job_change", job.pk),
            notes=[_("The job is deleted with its attempts, its arguments and its result. This cannot be undone.")],
            hidden=shown.hidden(seen) + shown.hidden_input(confirmation.FIELD, 1),
            is_dangerous=True,
        )


@dataclass(frozen=True)
class AskingOperation(JobOperation):
    """Asks on a page of its own, for one job and for selected ones."""

    question: ClassVar[Callable[..., HttpResponse | None]]
    title: ClassVar[Any]
    title_of_many: ClassVar[Any]

    def ask(self, request: HttpRequest, job: Job, seen: Mapping[int, Seen], site: AdminSite) -> HttpResponse | None:
        back = back_of(request) or page_url(request, "job_change", job.pk)
        more, title = shown.hidden_input("back", back), self.title % {"job": visible(str(job))}
        return type(self).question(request, seen, site, more, title=title, back=back)

    def ask_many(
        self, request: HttpRequest, seen: Mapping[int, Seen], site: AdminSite, edited: Mapping[int, int | None]
    ) -> HttpResponse | None:
        if not seen:
            return None
        title, back = self.title_of_many % {"count": len(seen)}, request.get_full_path()
        return type(self).question(request, seen, site, _same_action(request, seen), title=title, back=back)


class AcknowledgeOperation(AskingOperation):
    """Acknowledges dead jobs. It asks for a reason."""

    question = staticmethod(ask_reason)
    title = gettext_lazy("Acknowledge %(job)s?")
    title_of_many = ngettext_lazy("Acknowledge %(count)s dead job?", "Acknowledge %(count)s dead jobs?", "count")

    def with_reason(self, request: HttpRequest) -> JobOperation:
        reason = reason_of(request)
        return replace(self, reason=reason, text=f"{self.label}: {reason}")


class EraseOperation(AskingOperation):
    """Erases values of finished jobs. It asks which ones, and for a reason."""

    is_dangerous: ClassVar[bool] = True
    question = staticmethod(ask_what)
    title = gettext_lazy("Erase values of %(job)s?")
    title_of_many = ngettext_lazy("Erase values of %(count)s job?", "Erase values of %(count)s jobs?", "count")

    def run(
        self, request: HttpRequest, seen: Mapping[int, Seen], edited: Collection[int] = (), *, alone: bool = False
    ) -> Collection[int]:
        changed = erase(request, seen) if seen else []
        self.log(request, changed, len(seen))
        return [job.pk for job in changed]


def _same_action(request: HttpRequest, seen: Mapping[int, Seen]) -> SafeString:
    """Return the hidden inputs with which the answer to a question runs the same action of the list."""
    action = shown.hidden_input("action", request.POST.get("action", ""))
    return action + shown.hidden_input(ACTION_CHECKBOX_NAME, next(iter(seen)))


RETRY: Final = JobOperation(
    "retry", acts.RETRY, ngettext_lazy("%(count)d job is ready again.", "%(count)d jobs are ready again.", "count")
)
ACKNOWLEDGE: Final = AcknowledgeOperation(
    "acknowledge",
    acts.ACKNOWLEDGE,
    ngettext_lazy("%(count)d job is acknowledged.", "%(count)d jobs are acknowledged.", "count"),
)
CANCEL: Final = JobOperation(
    "cancel",
    acts.CANCEL,
    ngettext_lazy(
        "%(count)d job is cancelled, or is asked to stop if it runs.",
        "%(count)d jobs are cancelled, or are asked to stop if they run.",
        "count",
    ),
)
RUN_NOW: Final = JobOperation(
    "run", acts.RUN_NOW, ngettext_lazy("%(count)d job is due now.", "%(count)d jobs are due now.", "count")
)
MOVE: Final = MoveOperation(
    "move", acts.MOVE, ngettext_lazy("%(count)d job is moved.", "%(count)d jobs are moved.", "count")
)
SET_MAX_ATTEMPTS: Final = AttemptsOperation(
    "attempts",
    acts.SET_MAX_ATTEMPTS,
    ngettext_lazy("The attempts of %(count)d job are changed.", "The attempts of %(count)d jobs are changed.", "count"),
)
DELETE: Final = DeleteOperation(
    "delete", acts.DELETE, ngettext_lazy("%(count)d job is deleted.", "%(count)d jobs are deleted.", "count")
)
ERASE: Final = EraseOperation(
    "erase",
    acts.ERASE,
    ngettext_lazy("Values of %(count)d job are erased.", "Values of %(count)d jobs are erased.", "count"),
)
ON_ONE_JOB: Final = (RETRY, ACKNOWLEDGE, CANCEL, RUN_NOW, MOVE, SET_MAX_ATTEMPTS, ERASE, DELETE)
"""The operations that the page of a job offers."""


def offered(request: HttpRequest, job: Job, operations: Sequence[JobOperation]) -> list[JobOperation]:
    """Return the operations that the user may run on this job in its present state."""
    return [each for each in operations if each.is_allowed(request) and each.fits(job, seen_at(job))]


def act_on_one(request: HttpRequest, operation: JobOperation, job: Job, site: AdminSite) -> HttpResponse | None:
    """Run an operation on one job as the page showed it, log it in the history, and show the user a message.

    Return the confirmation page if the operation needs a confirmation.
    """
    seen = {job_id: each for job_id, each in shown.read(request).items() if job_id == job.pk}
    if not seen:
        messages.warning(
            request, _("Nothing was changed: the form did not say which state the page showed. Try again from here.")
        )
        return None
    if question := operation.ask(request, job, seen, site):
        return question
    operation = operation.as_chosen(request, job)
    try:
        changed = operation.run(request, seen, alone=True)
    except CompensationUnfinished:
        text = _(
            "Nothing was changed: the steps of this job are being undone. Retry it when the last compensation is done."
        )
        messages.error(request, text)
        return None
    except JobLocked:
        messages.error(request, _("Nothing was changed: another session has locked this job. Try again."))
        return None
    if changed:
        messages.success(request, operation.done % {"count": 1})
    elif reason := _why_kept(request, operation, job):
        messages.warning(request, _("Nothing was deleted: unfinished work needs this job, because %s.") % reason)
    else:
        messages.warning(
            request,
            _("Nothing was changed: the job has changed since the page showed it, or its state does not allow this."),
        )
    return None


def _why_kept(request: HttpRequest, operation: JobOperation, job: Job) -> str | None:
    """Return why a job was not deleted, if unfinished work needs it."""
    if operation.act.transition is not TransitionName.DELETE:
        return None
    left = needs_of(connections[databases.chosen(request)], [job.pk]).get(job.pk)
    return word_text(NEED_TEXTS[left.need]) if left and left.need in KEPT_BY_DELETE else None


def act_on_many(
    request: HttpRequest, operation: JobOperation, queryset: QuerySet[Any], site: AdminSite
) -> HttpResponse | None:
    """Run an operation on the selected jobs of a page as the page showed them, and show how many changed.

    Return the confirmation page if the operation needs a confirmation.
    """
    if confirmation.is_given(request):
        fitting = _still_listed(queryset, shown.read(request))
        asked = len(fitting)
        edited = operation.edited(request, fitting)
    else:
        rows = _selected(queryset)
        asked = len(rows)
        fitting = _fitting(request, operation, rows)
        edited = operation.edited(request, fitting)
    if question := operation.ask_many(request, fitting, site, edited):
        confirmation.say_left_out(request, asked - len(fitting))
        return question
    if fitting:
        operation = operation.with_reason(request)
    changed = len(operation.run(request, fitting, edited))
    _show_counts(request, operation, changed, asked - changed - len(edited), len(edited))
    return None


def _still_listed(queryset: QuerySet[Any], seen: dict[int, Seen]) -> dict[int, Seen]:
    """Return the confirmed jobs that this list can show: the list of dead letters shows only dead jobs."""
    is_all = queryset.model is not DeadJob
    kept = {job_id: each for job_id, each in seen.items() if is_all or each.state == State.DEAD}
    return dict(list(kept.items())[:SELECTION_LIMIT])


def _selected(queryset: QuerySet[Any]) -> list[Any]:
    plain = queryset.prefetch_related(None).annotate(seen_at=statement_time())
    columns = ("pk", "state", "finished_at", "run_after", "cancel_requested_at", "enqueued_at", "acknowledged_at")
    return list(plain.values_list(*columns, "seen_at", named=True)[:SELECTION_LIMIT])


def _fitting(request: HttpRequest, operation: JobOperation, rows: Sequence[Any]) -> dict[int, Seen]:
    """Return the jobs that the operation would change, each with the state to compare it with.

    That is the state that the page showed.
    """
    on_page = shown.read(request)
    return {row.pk: on_page[row.pk] for row in rows if row.pk in on_page and operation.fits(row, row.seen_at)}


def _show_counts(request: HttpRequest, operation: JobOperation, changed: int, unchanged: int, edited: int) -> None:
    if changed:
        messages.success(request, operation.done % {"count": changed})
    if edited:
        text = ngettext(
            "%(count)d job was left out: it was edited and retried as a new job. To run it too, retry it on its page.",
            "%(count)d jobs were left out: they were edited and retried as new jobs. To run one of them too, retry it "
            "on its page.",
            edited,
        )
        messages.warning(request, text % {"count": edited})
    if unchanged:
        text = ngettext(
            "%(count)d job was left as it is: it has changed since the page showed it, its state does not allow this, "
            "it is locked, it was edited and retried meanwhile, another job has its key, or unfinished work needs it.",
            "%(count)d jobs were left as they are: they have changed since the page showed them, their state does not "
            "allow this, they are locked, they were edited and retried meanwhile, another job has their key, or "
            "unfinished work needs them.",
            unchanged,
        )
        messages.warning(request, text % {"count": unchanged})
