"""The operations on jobs: which jobs each fits, what it asks, its entries in the audit and in the history.

`actions` has the list of them, and runs them. Retrying succeeded jobs needs a confirmation (see `confirmation`). So
does retrying one job that *Edit and retry* has made a new job of; a retry of several jobs leaves such jobs out. Cancels
of running jobs, moves, changes of attempts, erasures, deletions and acknowledgements ask on pages of their own, which
carry what the page before showed, so the answer applies to that state only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar

from django import forms
from django.contrib.admin import AdminSite
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from django_pgqueue import stats
from django_pgqueue.acts import RETRY, JobAct
from django_pgqueue.acts.job_changes import ActAudit, ActRun, edited_jobs
from django_pgqueue.admin import databases, shown
from django_pgqueue.admin.act_view import log_change
from django_pgqueue.admin.buttons import back_of
from django_pgqueue.admin.formatting import full_date, visible
from django_pgqueue.admin.forms import confirmation
from django_pgqueue.admin.forms.erase_form import ask_what, erase
from django_pgqueue.admin.forms.form_page import form_page
from django_pgqueue.admin.forms.reason_form import OptionalReasonForm, ask_reason, reason_of
from django_pgqueue.admin.forms.value_forms import ask_attempts, ask_where, attempts_form, move_form
from django_pgqueue.admin.navigation import page_url
from django_pgqueue.admin.row_operations import Operation
from django_pgqueue.models import Job
from django_pgqueue.states import TRANSITIONS, Seen, State, TransitionName


@dataclass(frozen=True)
class JobOperation(Operation):
    """One transition of jobs. Its permission is always one on `Job`, even for dead letters."""

    act: JobAct
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of `JobAct.change`."""
    text: Promise | str = ""
    """The text for the history; "" means the label."""
    reason: str = ""
    """The reason of the operator. The audit stores it."""

    is_dangerous: ClassVar[bool] = False
    """Whether it cannot be undone. The page of a job offers it last, with a quiet button."""

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
        asked = confirmation.ask(request, self.act.transition, seen, site, self.edited(request, seen))
        return asked or self._ask_of_failed_dependency(request, job, seen, site)

    def _ask_of_failed_dependency(
        self, request: HttpRequest, job: Job, seen: Mapping[int, Seen], site: AdminSite
    ) -> HttpResponse | None:
        """Return a page with a question if a failed dependency has cancelled the job, which a retry would run alone."""
        is_cancelled = self.act is RETRY and seen[job.pk].state == State.CANCELLED
        if confirmation.is_given(request) or not is_cancelled:
            return None
        why = stats.why(job.pk, databases.chosen(request), time_text=full_date)
        if why.reason is not stats.Reason.DEPENDENCY_FAILED:
            return None
        title = _("Run %(job)s although a job that it depends on has failed?") % {"job": visible(str(job))}
        advice = _("If it needs the result of that job, it fails. To run both, retry the job that has failed first.")
        return _question(request, job, seen, site, title, _("Yes, run it"), [why.sentence, advice])

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
        which = {"jobs": [*seen]} if asked == 1 else {"selected": asked}
        chosen = {**which, **({"edited": len(edited)} if edited else {}), **self.target}
        notes = {"total": asked - len(edited), "reason": self.reason}
        audit = ActAudit(connection, self.act.name, chosen, done_by=request.user.get_username(), **notes)
        changes = ActRun(connection, self.act, seen, audit, self.options, edited)
        for changed in changes.batches(alone=alone):
            self.log(request, [Job(pk=job_id, task_name=name) for job_id, name in changed.items()], asked)
        audit.end()
        return changes.changed

    @property
    def target(self) -> dict[str, Any]:
        """The values that the act gives to the jobs, as the audit stores them."""
        names = {"queue_name": "to_queue", "priority": "to_priority", "max_attempts": "max_attempts"}
        return {names[name]: value for name, value in self.options.items() if name in names and value is not None}

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

    def ask(self, request: HttpRequest, job: Job, seen: Mapping[int, Seen], site: AdminSite) -> HttpResponse | None:
        return ask_attempts(request, job, seen, site)

    def as_chosen(self, request: HttpRequest, job: Job) -> JobOperation:
        form = attempts_form(request, job)
        form.is_valid()  # `ask()` has seen that it is
        most, reason = form.cleaned_data["max_attempts"], form.cleaned_data["reason"]
        text = _("Change the attempts to %(most)s at most: %(reason)s") % {"most": most, "reason": reason}
        return replace(self, text=text, options={"max_attempts": most}, reason=reason)


class CancelOperation(JobOperation):
    """Cancels a job. It asks before it stops one that runs, and takes a reason."""

    def ask(self, request: HttpRequest, job: Job, seen: Mapping[int, Seen], site: AdminSite) -> HttpResponse | None:
        form = OptionalReasonForm(request.POST if confirmation.is_given(request) else None)
        if seen[job.pk].state != State.RUNNING or (form.is_bound and form.is_valid()):
            return None
        notes = [
            _("Its task is stopped in the middle. Its effects outside the database stay."),
            _("The job is then cancelled, and is not tried again. You can retry it afterwards."),
        ]
        title = _("Stop %(job)s, which is running?") % {"job": visible(str(job))}
        return _question(request, job, seen, site, title, _("Yes, stop it"), notes, form)

    def with_reason(self, request: HttpRequest) -> JobOperation:
        form = OptionalReasonForm(request.POST)
        reason = form.cleaned_data["reason"] if form.is_valid() else ""
        return replace(self, reason=reason, text=format_lazy("{}: {}", self.label, reason)) if reason else self


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


def _question(
    request: HttpRequest,
    job: Job,
    seen: Mapping[int, Seen],
    site: AdminSite,
    title: str,
    submit: str,
    notes: list[str],
    form: forms.Form | None = None,
) -> HttpResponse:
    """Return the page that asks about one job. Its answer leads back to the page on which the button was."""
    back = back_of(request) or page_url(request, "job_change", job.pk)
    hidden = shown.hidden(seen) + shown.hidden_input(confirmation.FIELD, 1) + shown.hidden_input("back", back)
    form = form or forms.Form()
    return form_page(
        request, site, form, title=title, submit=submit, back=back, notes=notes, hidden=hidden, is_dangerous=True
    )


def _same_action(request: HttpRequest, seen: Mapping[int, Seen]) -> SafeString:
    """Return the hidden inputs with which the answer to a question runs the same action of the list."""
    action = shown.hidden_input("action", request.POST.get("action", ""))
    return action + shown.hidden_input(ACTION_CHECKBOX_NAME, next(iter(seen)))
