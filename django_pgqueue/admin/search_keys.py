"""Search for jobs by their search keys, and show the keys of a job.

`jobs` and `job_page` call this module. A term such as `customer_id:4711` means the jobs with this value of an argument
that the task's option `search` names. Values of arguments are private: see `private`. A name that the code has declared
sensitive meanwhile is not searched and not shown.
"""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_pgqueue.ground.search_text import as_search_text
from django_pgqueue.models import Job, SearchKey
from django_pgqueue.tasks import registry

from . import private
from .formatting import shortened, visible
from .navigation import page_url

FOUND_LIMIT: Final = 1_000
"""Jobs found at most, the newest ones. With so few ids, the planner reads their rows by id also where the list has
another order. With 5,000 ids it may walk over a million finished jobs. A whole page took 30 to 57 ms of SQL beside
1,000,000 finished jobs, on a busy machine."""


def term_of(queryset: QuerySet[Any], typed: str) -> tuple[str, str] | None:
    """Return the name and the text of the search key in a term of the form `name:value`; None for another form.

    The name of a task can contain a colon too. A term is a search key only if a task or a row has its name.
    """
    name, colon, value = typed.partition(":")
    if not colon or not name.isidentifier() or "\0" in typed or registry.get(typed) is not None:
        return None
    is_declared = any(name in task.search for task in registry.all_tasks())
    if is_declared or SearchKey.objects.using(queryset.db).filter(name=name).exists():
        return name, as_search_text(value.strip())
    return None


def find(request: HttpRequest, queryset: QuerySet[Any], name: str, text: str) -> QuerySet[Any]:
    """Return the newest jobs with a search key. Without the permission to view arguments, return none and say so."""
    if not private.may_view(request):
        refusal = _("You cannot search for values of “%(name)s”.") % {"name": name}
        messages.warning(request, f"{refusal} {private.NO_PERMISSION}")
        return queryset.none()
    keys = SearchKey.objects.using(queryset.db).filter(name=name, value=text).order_by("-job_id")
    job_ids = list(keys.values_list("job_id", flat=True)[: FOUND_LIMIT + 1])
    if len(job_ids) > FOUND_LIMIT:
        note = _("Only the newest %(count)s jobs with this value are searched.") % {"count": f"{FOUND_LIMIT:,}"}
        messages.info(request, note)
    hiding = [task for task in registry.all_tasks() if name in task.sensitive]
    hidden = [each for task in hiding for each in (task.name, *task.aliases)]
    found: QuerySet[Any] = queryset.filter(pk__in=job_ids[:FOUND_LIMIT])
    return found.exclude(task_name__in=hidden) if hidden else found


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
