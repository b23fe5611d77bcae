"""Search for jobs by the text in the search box, and show the search keys of a job.

`jobs` and `job_page` call this module. A term such as `customer_id:4711` means the jobs with this value of an argument
that the task's option `search` names, and `4711` alone means those with the value under any such name. Values of
arguments are private (see `private`), so three rules hold:

* A user without the permission to view arguments finds jobs by a whole key only: the name and the complete value.
* A name that the code has declared sensitive meanwhile is not searched and not shown.
* The note of a search says which keys were left out, whether or not a row has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from django.db import connections
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.ground.search_text import MAX_LENGTH, as_search_text
from django_pgqueue.models import Job, SearchKey
from django_pgqueue.stats.search_keys import KeyMatch, jobs_by_search_keys
from django_pgqueue.tasks import registry

from . import private
from .formatting import shortened, visible
from .navigation import page_url

FOUND_LIMIT: Final = 1_000
"""Jobs found at most, the newest ones. With so few ids, the planner reads their rows by id also where the list has
another order. With 5,000 ids it may walk over a million finished jobs. A whole page took 30 to 57 ms of SQL beside
1,000,000 finished jobs, on a busy machine."""
NAMES_LIMIT: Final = 100
"""Search keys in which a value without a name is looked up at most, each with one index lookup."""
NAMES_SHOWN: Final = 5
MOST_DIGITS: Final = 18
"""Digits of a job's number at most."""
NOT_SEARCHED: Final = gettext_lazy(
    "search keys were not searched, because you do not have the permission “Can view arguments and results of jobs”: "
    "type a key in full, such as %(name)s:4711"
)
TOO_LONG: Final = gettext_lazy(
    "values of %(length)s characters and more were not searched, because you do not have the permission “Can view "
    "arguments and results of jobs”"
)


class Searched(NamedTuple):
    """The jobs that a text in the search box means, the newest first, and what was searched for them.

    `job_ids` is None if the list is to search for the text as the name of a task. `note` is "" if the text means a job,
    a task or the value of one search key, and all jobs were searched.
    """

    job_ids: list[int] | None = None
    note: str = ""


def search(request: HttpRequest, alias: str, typed: str) -> Searched:
    """Return the jobs that a text in the search box means: by number, by a search key, or by the value of any key.

    Runs at most two read-only statements.
    """
    number = typed.removeprefix("#")
    is_number = number.isascii() and number.isdigit()
    numbered = [int(number)] if is_number and len(number) <= MOST_DIGITS else []
    names = _declared()
    if is_number and (typed != number or not names):
        return Searched(numbered)
    if not typed or "\0" in typed or registry.get(typed) is not None:
        return Searched()
    if key := term_of(alias, typed):
        return _with_key(request, alias, *key)
    if not names:
        return Searched(None, _("no search key was searched: no task of this process declares one"))
    if not private.may_view(request):
        return Searched(numbered if is_number else None, NOT_SEARCHED % {"name": names[0]})
    job_ids, note = _with_value(alias, names, as_search_text(typed))
    if is_number:
        return Searched(sorted({*numbered, *job_ids}, reverse=True), note)
    return Searched(job_ids or None, note)


def term_of(alias: str, typed: str) -> tuple[str, str] | None:
    """Return the name and the text of the search key in a term of the form `name:value`; None for another form.

    The name of a task can contain a colon too. A term is a search key only if a task or a row has its name.
    """
    name, colon, value = typed.partition(":")
    if not colon or not name.isidentifier():
        return None
    if name in _declared() or SearchKey.objects.using(alias).filter(name=name).exists():
        return name, as_search_text(value.strip())
    return None


def _declared() -> list[str]:
    """Return the names of the search keys that the tasks of this process declare."""
    return sorted({name for task in registry.all_tasks() for name in task.search})


def _with_key(request: HttpRequest, alias: str, name: str, text: str) -> Searched:
    """Return the jobs with a search key, which the user has typed in full.

    Without the permission to view arguments, a user may ask for a whole value only. The stored values are cut, so a
    text of that length can be the beginning of a longer value.
    """
    if len(text) >= MAX_LENGTH and not private.may_view(request):
        return Searched([], TOO_LONG % {"length": MAX_LENGTH})
    job_ids, notes = _look_up(alias, [name], text)
    return Searched(job_ids, "; ".join(notes))


def _with_value(alias: str, names: Sequence[str], text: str) -> tuple[list[int], str]:
    """Return the newest jobs that have a text under any of these names, and a note about what was searched."""
    job_ids, notes = _look_up(alias, names[:NAMES_LIMIT], text)
    words = _("with this value of %(names)s") if job_ids else _("not a value of %(names)s")
    notes.insert(0, words % {"names": _listed(names[:NAMES_LIMIT])})
    if len(names) > NAMES_LIMIT:
        notes.append(_("further search keys were not searched"))
    return job_ids, "; ".join(notes)


def _look_up(alias: str, names: Sequence[str], text: str) -> tuple[list[int], list[str]]:
    """Return the newest jobs with a text under any of these names, and notes about the jobs that are left out."""
    found = jobs_by_search_keys(connections[alias], names, text, FOUND_LIMIT + 1)
    notes = []
    if len(found) > FOUND_LIMIT:
        notes.append(_("among the newest %(count)s jobs with this value") % {"count": f"{FOUND_LIMIT:,}"})
    if hidden := [name for name in names if any(name in task.sensitive for task in registry.all_tasks())]:
        note = _("jobs of tasks that mark %(names)s as sensitive were not searched")
        notes.append(note % {"names": _listed(hidden)})
    return list(dict.fromkeys(each.job_id for each in found[:FOUND_LIMIT] if not _is_hidden(each))), notes


def _is_hidden(match: KeyMatch) -> bool:
    task = registry.get(match.task_name)
    return task is not None and match.name in task.sensitive


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
