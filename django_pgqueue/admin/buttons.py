"""The buttons that act on a queue, a task or a limit: pause, resume, undo an override, end a hold.

Each button posts the name of its target and what the page showed of it. If that has changed since, nothing changes and
the operator gets a message. `BUTTONS` declares them all, and `_post()` runs each. All acts go through `control`, which
writes the audit. Pauses are written into the history of the admin too.

Pages call `button_context()` for the buttons that they show. The admin's URLs are `button_urls()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.functional import Promise
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import acts, control
from django_pgqueue.acts import OperatorAct
from django_pgqueue.admin import databases, private, shown
from django_pgqueue.control import targets as control_targets
from django_pgqueue.control.queues import pause_named
from django_pgqueue.declared.limits import MAX_KEY_LENGTH, has_value
from django_pgqueue.models import LimitState, Pause
from django_pgqueue.options.validation import NAME, unknown_queue
from django_pgqueue.states import Pausable

from .act_view import act_view, log_change
from .formatting import shortened, word_text
from .forms.limit_pause import LENGTHS, ask_to_pause
from .forms.reason_form import REASON_LENGTH
from .limits.controls import overrides_in_force
from .navigation import limit_url, page_url
from .pause_admin import in_force, resume

NAME_FIELDS: Final = {Pausable.QUEUE: "queue", Pausable.TASK: "task", Pausable.LIMIT: "key"}
"""The field of the form with the name of the target."""


def text_of(request: HttpRequest, field: str) -> str:
    """Return a text of the form without NUL, which PostgreSQL cannot store."""
    return request.POST.get(field, "").replace("\0", "")


def back_of(request: HttpRequest) -> str:
    """Return the URL of the page with the form, on this site; "" if the form does not say it."""
    back = request.POST.get("back", "")
    is_here = back.startswith("/") and url_has_allowed_host_and_scheme(back, allowed_hosts=None)
    return back if is_here else ""


class Target(NamedTuple):
    """The target of a button: a queue, a task, a limit or a limit key. Its text is for messages."""

    request: HttpRequest
    alias: str
    kind: Pausable
    name: str

    def __str__(self) -> str:
        return f"{word_text(self.kind)} {shortened(self.name)}"

    @property
    def by(self) -> str:
        return self.request.user.get_username()

    def posted(self, field: str) -> str:
        return text_of(self.request, field)


@dataclass(frozen=True)
class Button:
    """One button.

    Attributes:
        act: The act, with its permissions.
        kind: The kind of its targets.
        word: The last word of its URL.
        field: The field with the time that the page showed, "" if it showed none.
        seen: Returns the row to change, which is locked where two acts could meet, and its time now.
        run: Changes the target; returns whether it did.
        done: The message after a change.
        unchanged: Returns the message if the row is another than shown.
    """

    act: OperatorAct
    kind: Pausable
    word: str
    field: str
    seen: Callable[[Target], tuple[Any, datetime | None]]
    run: Callable[[Target, Any], bool]
    done: Promise | str
    unchanged: Callable[[Any], str]

    @property
    def url_name(self) -> str:
        return f"pgqueue_{self.kind}_{self.word}"


def button_urls(site: AdminSite) -> list[URLPattern]:
    """Return the URLs of the buttons, below that of the list of jobs."""
    return [
        path(f"{each.kind}s/{each.word}/", act_view(site, each.act, partial(_post, each, site)), name=each.url_name)
        for each in BUTTONS
    ]


def button_context(request: HttpRequest) -> dict[str, Any]:
    """Return what the templates of the buttons need."""
    return {
        "may_pause": acts.PAUSE.is_allowed(request.user),
        "may_change": acts.OVERRIDE_LIMIT.is_allowed(request.user),
        "lengths": LENGTHS,
        "back": request.get_full_path(),
    }


def _post(button: Button, site: AdminSite, request: HttpRequest) -> HttpResponse:
    """Run an act on the target that the form names, and return to the page of the form. Ask before some acts."""
    name = text_of(request, NAME_FIELDS[button.kind])
    if button.kind is Pausable.LIMIT:
        private.check_key(request, name)
    target = Target(request, databases.chosen(request), button.kind, name)
    if problem := _problem(target, button.act):
        messages.error(request, capfirst(problem))
    elif question := _question(target, button, site):
        return question
    else:
        with transaction.atomic(using=target.alias):
            _run(target, button)
    return HttpResponseRedirect(back_of(request) or _page_of(target))


def _run(target: Target, button: Button) -> None:
    row, at = button.seen(target)
    words = {"what": target, "name": shortened(target.name)}
    if target.request.POST.get(button.field) == str(shown.number(at)) and button.run(target, row):
        messages.success(target.request, capfirst(button.done % words))
    else:
        row, _at = button.seen(target)  # again: another request can have added it since
        words["who"] = shortened(getattr(row, "paused_by", ""))
        messages.warning(target.request, button.unchanged(row) % words)


def _problem(target: Target, act: OperatorAct) -> str:
    """Return why the target cannot be changed as the form says, or "" if it can.

    A pause that was written by hand may have a name that nobody could pause. It can be resumed.
    """
    name = target.name
    if target.kind is Pausable.LIMIT:
        if any(control_targets.limit_key_problems(name)):
            return _("Nothing was changed: “%(key)s” is no limit key.") % {"key": shortened(name)}
    elif act is acts.PAUSE and not NAME.fullmatch(name):
        words = {"kind": word_text(target.kind), "name": shortened(name)}
        return _("%(kind)s “%(name)s” cannot be paused, because its name is invalid.") % words
    if act is acts.PAUSE and target.posted("length") not in dict(LENGTHS):
        return _("Nothing was changed: choose one of the lengths of a pause.")
    is_new_queue = act is acts.PAUSE and target.kind is Pausable.QUEUE
    return next(iter(unknown_queue("queue", name)), "") if is_new_queue else ""


def _question(target: Target, button: Button, site: AdminSite) -> HttpResponse | None:
    """Return the page that asks before a whole limit is paused; None for other acts, or if its form was answered."""
    if button.act is not acts.PAUSE or target.kind is not Pausable.LIMIT or has_value(target.name):
        return None
    back = back_of(target.request) or _page_of(target)
    hidden = shown.hidden_input("key", target.name) + shown.hidden_input("back", back)
    hidden += shown.hidden_input(button.field, target.posted(button.field))
    return ask_to_pause(target.request, site, target.name, target.alias, back=back, hidden=hidden)


def _page_of(target: Target) -> str:
    if target.kind is Pausable.LIMIT:
        return limit_url(target.request, target.name[:MAX_KEY_LENGTH])
    return page_url(target.request, f"{target.kind}s")


# ---------------------------------------------------------------------------- pauses


def _pause_of(target: Target) -> tuple[Pause | None, datetime | None]:
    """Return the pause of the target under any of its names, locked until the end of the transaction."""
    names = control_targets.names_of(target.kind, target.name)
    pauses = in_force().using(target.alias).select_for_update().filter(kind=target.kind, name__in=names)
    pause = pauses.first()
    return pause, None if pause is None else pause.paused_at


def _pause(target: Target, pause: Pause | None) -> bool:
    """Pause the target. Two requests that both saw no pause cannot lock one, so only the first may add it."""
    length, reason = target.posted("length"), target.posted("reason")[:REASON_LENGTH]
    until = datetime.now(UTC) + timedelta(seconds=int(length)) if length else None
    note = {"reason": reason, "by": target.by}
    if not pause_named(target.kind, target.name, target.alias, until=until, **note, only_new=pause is None):
        return False
    log_change(target.request, _pause_of(target)[0], f"Paused: {reason}" if reason else "Paused.")
    return True


def _resume(target: Target, pause: Pause | None) -> bool:
    return pause is not None and resume(target.request, pause)


def _other_pause(pause: Pause | None) -> str:
    if pause is None:
        return _("Nothing was changed: %(what)s is not paused any more.")
    if not pause.paused_by:
        return _("Nothing was changed: %(what)s was paused since the page was shown.")
    return _("Nothing was changed: %(who)s has paused %(what)s since the page was shown.")


def _of_pauses(kind: Pausable) -> tuple[Button, Button]:
    """Return the two buttons of the targets of one kind."""
    make = partial(Button, kind=kind, field="shown_pause", seen=_pause_of, unchanged=_other_pause)
    paused = gettext_lazy("%(what)s is paused. Running jobs continue.")
    resumed = gettext_lazy("%(what)s is resumed.")
    return (
        make(acts.PAUSE, word="pause", run=_pause, done=paused),
        make(acts.RESUME, word="resume", run=_resume, done=resumed),
    )


# ---------------------------------------------------------------------------- overrides and holds


def _override_of(target: Target) -> tuple[Any, datetime | None]:
    override = overrides_in_force(target.alias).select_for_update().filter(limit_key=target.name).first()
    return override, None if override is None else override.changed_at


def _hold_of(target: Target) -> tuple[datetime | None, datetime | None]:
    holds = LimitState.objects.using(target.alias).filter(limit_key=target.name, held_until__isnull=False)
    longest = holds.order_by("-held_until").values_list("held_until", flat=True).first()
    return longest, longest


def _change_limit(change: Callable[..., bool], target: Target, row: object) -> bool:
    return row is not None and change(target.name, by=target.by, database=target.alias)


RESTORE: Final = Button(
    acts.RESTORE_LIMIT,
    Pausable.LIMIT,
    "restore",
    field="shown_change",
    seen=_override_of,
    run=partial(_change_limit, control.restore_limit),
    done=gettext_lazy("The change of %(what)s is undone."),
    unchanged=lambda row: _("Nothing was changed: %(what)s was changed since the page was shown."),
)
END_HOLD: Final = Button(
    acts.END_HOLD,
    Pausable.LIMIT,
    "end_hold",
    field="shown_hold",
    seen=_hold_of,
    run=partial(_change_limit, control.end_hold),
    done=gettext_lazy("The hold of %(name)s has ended."),
    unchanged=lambda row: _(
        "Nothing was changed: the hold of %(name)s has ended, or has been extended since the page was shown."
    ),
)
BUTTONS: Final = (*(button for kind in Pausable for button in _of_pauses(kind)), RESTORE, END_HOLD)
