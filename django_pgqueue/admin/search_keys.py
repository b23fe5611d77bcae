"""Search for jobs by the text in the search box, and show the search keys of a job.

`jobs` and `job_page` call this module. A term such as `customer_id:4711` means the jobs with this value of an argument
that the task's option `search` names, and `4711` alone means those with the value under any such name. Values of
arguments are private (see `private`), so four rules hold:

* A user without the permission to view arguments finds jobs by a whole key only: the name and the complete value. The
  tasks of this process must declare the name and have the job's task. A log line says who has searched.
* A name that the code has declared sensitive meanwhile is not searched and not shown.
* The note of a search says which keys were left out, whether or not a row has them.
* A job that the user may not find changes neither a count nor the place of another job.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple
from weakref import WeakSet

from django.db import connections
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.display import number
from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.search_text import MAX_LENGTH, as_search_text
from django_pgqueue.models import Job, SearchKey
from django_pgqueue.stats.search_keys import KEYS_SEARCHED, jobs_by_search_keys
from django_pgqueue.tasks import registry

from . import private
from .formatting import shortened, visible
from .navigation import page_url

logger = logging.getLogger("django_pgqueue.operator")

FOUND_LIMIT: Final = 1_000
"""Jobs found at most, the newest ones. With so few ids, one statement reads their rows, by id. A whole page took 30 to
57 ms of SQL beside 1,000,000 finished jobs, on a busy machine."""
NAMES_LIMIT: Final = 100
"""Search keys in which a value without a name is looked up at most, each with one index lookup."""
NAMES_SHOWN: Final = 5
MOST_DIGITS: Final = 18
"""Digits of a job's number at most."""
NOT_SEARCHED: Final = gettext_lazy(
    "search keys were not searched, because you do not have the permission “%(permission)s”: type a key in full, such "
    "as %(name)s:4711"
)
TOO_LONG: Final = gettext_lazy(
    "values of %(length)s characters and more were not searched, because you do not have the permission "
    "“%(permission)s”"
)
SENSITIVE_LEFT: Final = gettext_lazy(
    "jobs of tasks that mark %(names)s as sensitive were not searched, nor any beyond the newest %(count)s with this "
    "value"
)
UNKNOWN_LEFT: Final = gettext_lazy(
    "jobs of tasks that this process does not know were not searched, nor any beyond the newest %(count)s with this "
    "value"
)

_logged: WeakSet[HttpRequest] = WeakSet()
"""The requests whose search was logged. A list with a selected action searches twice."""


class Searched(NamedTuple):
    """The jobs that a text in the search box means, and what was searched for them.

    Attributes:
        job_ids: The job with the number first, then the others, the newest first. None: the list is to search for the
            text as the name of a task.
        note: What was not searched. "" if nothing was left out.
        number: The number of a job that the text is too, beside a value.
        names: The search keys under which a value without a name was looked up, for people to read.
        values: How many jobs have the value.
    """

    job_ids: list[int] | None = None
    note: str = ""
    number: int | None = None
    names: str = ""
    values: int = 0

    def lookup_note(self, listed: Sequence[int]) -> str:
        """Return what a value without a name has found; "" for other texts. `listed` are the jobs in the list."""
        if not self.names:
            return ""
        with_value = [job_id for job_id in self.job_ids or () if job_id != self.number]
        if self.number is not None and listed[:1] == [self.number]:
            first = _("first the job with this number, then those with this value of %(names)s")
            text = first if with_value else _("the job with this number: no other has it as a value of %(names)s")
        elif not with_value:
            is_no_number = _("neither the number of a job in this list nor a value of %(names)s")
            text = _("not a value of %(names)s") if self.number is None else is_no_number
        elif listed:
            text = _("with this value of %(names)s")
        else:
            text = _("the jobs with this value of %(names)s do not meet the filters")
        return text % {"names": self.names}


def search(request: HttpRequest, alias: str, typed: str) -> Searched:
    """Return the jobs that a text in the search box means: by number, by a search key, or by the value of any key.

    A text such as `:4711` is only a value. Runs at most two read-only statements.
    """
    is_value = typed.startswith(":") and len(typed) > 1
    typed = typed[1:] if is_value else typed
    digits = typed.removeprefix("#")
    is_number = not is_value and digits.isascii() and digits.isdigit()
    number = number_of(typed) if is_number else None
    numbered = [] if number is None else [number]
    names = declared_names()
    if is_number and (typed != digits or not names):
        return Searched(numbered)
    if not typed or "\0" in typed or registry.get(typed) is not None:
        return Searched()
    if key := term_of(request, alias, typed):
        return _with_key(request, alias, *key)
    if not names:
        return Searched(None, _("no search key was searched: no task of this process declares one"))
    if not private.may_view(request):
        note = NOT_SEARCHED % {"name": names[0], "permission": private.PERMISSION_NAME}
        return Searched(numbered if is_number else None, note)
    found, note = _with_value(alias, names, as_search_text(typed))
    job_ids = list(dict.fromkeys([*numbered, *found]))
    shown = job_ids if is_number else found or None
    return Searched(shown, note, number, _listed(names[:NAMES_LIMIT]), len(found))


def number_of(typed: str) -> int | None:
    """Return the number of a job that a text is, with or without `#`; None if no job can have it."""
    digits = typed.removeprefix("#")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS else None


def term_of(request: HttpRequest, alias: str, typed: str) -> tuple[str, str] | None:
    """Return the name and the text of the search key in a term of the form `name:value`; None for another form.

    The name of a task can contain a colon too. A term is a search key only if a task declares its name. A user who may
    view arguments also finds names that only rows have.
    """
    name, colon, value = typed.partition(":")
    if not colon or not name.isidentifier():
        return None
    is_in_row = private.may_view(request) and SearchKey.objects.using(alias).filter(name=name).exists
    return (name, as_search_text(value.strip())) if name in declared_names() or (is_in_row and is_in_row()) else None


def chosen_by(request: HttpRequest, alias: str, typed: str, searched: Searched) -> str | None:
    """Return the name and the value of the search key that found jobs, for the audit, or None for another text.

    Without a name, it is the value behind a colon.
    """
    if key := term_of(request, alias, typed):
        return ":".join(key)
    return f":{typed.removeprefix(':')}" if searched.values else None


def declared_names() -> list[str]:
    """Return the names of the search keys that the tasks of this process declare."""
    return sorted({name for task in registry.all_tasks() for name in task.search})


def completed_names(request: HttpRequest) -> set[str]:
    """Return the names whose values the search box may suggest to the user: those that no task marks as sensitive."""
    sensitive = {name for task in registry.all_tasks() for name in task.sensitive}
    return {*declared_names()} - sensitive if private.may_view(request) else set()


def _with_key(request: HttpRequest, alias: str, name: str, text: str) -> Searched:
    """Return the jobs with a search key, which the user has typed in full.

    Without the permission to view arguments, a user may ask for a whole value only. The stored values are cut, so a
    text of that length can be the beginning of a longer value.
    """
    if private.may_view(request):
        job_ids, notes = _look_up(alias, [name], text)
    elif len(text) >= MAX_LENGTH:
        return Searched([], TOO_LONG % {"length": MAX_LENGTH, "permission": private.PERMISSION_NAME})
    else:
        _log(request, name)
        job_ids, notes = _look_up(alias, [name], text, is_restricted=True)
    return Searched(job_ids, "; ".join(notes))


def _log(request: HttpRequest, name: str) -> None:
    """Log who searches for a value without the permission to view it. The answer confirms a guess."""
    if request in _logged:
        return
    _logged.add(request)
    user = request.user.get_username()
    logger.info(
        "%s has searched for a value of the search key %s without the permission to view arguments",
        *(visible(user), name),
        extra=event("search_without_arguments", user=user, search_key=name),
    )


def _with_value(alias: str, names: Sequence[str], text: str) -> tuple[list[int], str]:
    """Return the newest jobs that have a text under any of these names, and a note about what was not searched."""
    job_ids, notes = _look_up(alias, names[:NAMES_LIMIT], text)
    if len(names) > NAMES_LIMIT:
        notes.append(_("further search keys were not searched"))
    return job_ids, "; ".join(notes)


def _look_up(
    alias: str, names: Sequence[str], text: str, *, is_restricted: bool = False
) -> tuple[list[int], list[str]]:
    """Return the newest jobs with a text under any of these names, and notes about the jobs that are left out.

    If `is_restricted`, leave out the jobs of tasks that this process does not know: it does not know what is sensitive.
    """
    tasks = registry.all_tasks()
    known = {each for task in tasks for each in registry.names_of(task.name)} if is_restricted else None
    sensitive = [(name, task) for name in names for task in tasks if name in task.sensitive]
    hidden = [(name, each) for name, task in sensitive for each in registry.names_of(task.name)]
    found = jobs_by_search_keys(connections[alias], names, text, FOUND_LIMIT + 1, hidden=hidden, task_names=known)
    notes, searched = [], number(KEYS_SEARCHED)
    if len(found) > FOUND_LIMIT:
        notes.append(_("among the newest %(count)s jobs with this value") % {"count": number(FOUND_LIMIT)})
    if sensitive:
        hidden_names = _listed(list(dict.fromkeys(name for name, _task in sensitive)))
        notes.append(SENSITIVE_LEFT % {"names": hidden_names, "count": searched})
    if is_restricted:
        notes.append(UNKNOWN_LEFT % {"count": searched})
    return found[:FOUND_LIMIT], notes


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    shown = ", ".join(visible(name) for name in names[:NAMES_SHOWN])
    return shown + (_(" and %(count)s more") % {"count": more} if more > 0 else "")


def search_links(request: HttpRequest, job: Job) -> SafeString | str | None:
    """Return the search keys of a job, each as a link to the jobs with the same one; None if it has none.

    The keys of a task that declares none any more are not read.
    """
    task = registry.get(job.task_name)
    if task is None or not task.search:
        return None
    keys = dict(SearchKey.objects.using(job._state.db).filter(job_id=job.pk).values_list("name", "value"))
    if not keys:
        return None
    if not private.is_visible(job):
        return str(private.NO_PERMISSION)
    links = [
        (page_url(request, "job_changelist", q=f"{name}:{text}"), visible(f"{name}:{shortened(text)}"))
        for name, text in sorted(keys.items())
        if name not in task.sensitive
    ]
    return format_html_join(", ", '<a href="{}">{}</a>', links) if links else None
