"""The page *Search*: what a text can mean that a user has typed into the search box above every page of the console.

The text is looked for as the number of a job or a batch, as a search key or its value, in the names of tasks, queues,
limits, workers and exception classes, in the descriptions of batches, and in the error messages of dead jobs. Each
result leads to a page or a list whose acts take exactly these jobs. The number of one job leads to its page at once.

The page does not search what the user may not see, and says so. The cost is bounded: about twelve statements, each of
which reads a bounded number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue import stats
from django_pgqueue.admin import private, readonly, search_keys
from django_pgqueue.admin.batches import search as batch_search
from django_pgqueue.admin.batches.words import STATES
from django_pgqueue.admin.formatting import shortened, visible, word_text
from django_pgqueue.admin.navigation import limit_url, page_url, redirect_to
from django_pgqueue.declared.limits import has_value, name_of
from django_pgqueue.display import number
from django_pgqueue.job_search import Filters, find
from django_pgqueue.models import Job, JobBatch
from django_pgqueue.models.batch_states import word_of
from django_pgqueue.states import State
from django_pgqueue.stats import Count
from django_pgqueue.stats.search_keys import search_values
from django_pgqueue.tasks import registry

from .page import ConsolePage

LONGEST: Final = 300
"""Characters of a text that are searched."""
SHORTEST_MESSAGE: Final = 3
"""Characters of a text that is searched in error messages. Nearly every message contains a shorter one."""
SHOWN: Final = 20
"""Names and workers that are shown."""
WEEK_SECONDS: Final = 7 * 86_400.0
BATCHES_SEARCHED: Final = 10_000
"""The newest batches whose descriptions are searched. The list of batches searches more."""
COMPLETIONS: Final = 20
"""Suggestions of the search box."""


class SearchResult(NamedTuple):
    """A row of the page: a text, the page that it leads to, and further links, each with its label."""

    text: Any
    url: str
    links: tuple[tuple[Promise | str, str], ...] = ()


class SearchSection(NamedTuple):
    """The results of one kind, and a note about what was searched or left out."""

    title: Promise | str
    results: list[SearchResult]
    note: Any = ""


def _context(request: HttpRequest, alias: str) -> dict[str, Any] | HttpResponse:
    typed = _typed(request)
    if not typed:
        return {"typed": "", "sections": []}
    found = search_keys.search(request, alias, typed)
    job = _job(alias, typed)
    if job is not None and typed.startswith("#"):
        return redirect_to(request, "job_change", job.pk)
    others = [
        _with_key(request, typed, found),
        *_names(request, alias, typed),
        _limits(request, typed),
        _workers(request, alias, typed),
        _batches(request, alias, typed),
    ]
    # A value that was not searched may be what the user means, so a note about it is shown.
    is_all = private.may_view(request) or not found.note
    if job is not None and is_all and not any(section.results for section in others):
        return redirect_to(request, "job_change", job.pk)
    jobs = SearchSection(_("Jobs"), [] if job is None else [_result_of(request, job)])
    sections = [jobs, *others, _classes(request, alias, typed), _messages(request, alias, typed)]
    return {
        "typed": typed,
        "sections": [section for section in sections if section.results],
        "notes": [section.note for section in sections if section.note],
    }


def _typed(request: HttpRequest) -> str:
    """Return the text in the search box; "" for a text that no row can contain."""
    typed = request.GET.get("q", "").strip()[:LONGEST]
    return "" if "\0" in typed else typed


def _job(alias: str, typed: str) -> Job | None:
    """Return the job with this number, if it exists."""
    number = search_keys.number_of(typed)
    jobs = Job.objects.using(alias).only("id", "state", "task_name")
    return None if number is None else jobs.filter(pk=number).first()


def _result_of(request: HttpRequest, job: Job) -> SearchResult:
    return SearchResult(
        f"#{job.pk} {visible(job.task_name)} ({word_text(job.state)})", page_url(request, "job_change", job.pk)
    )


def _with_key(request: HttpRequest, typed: str, found: search_keys.Searched) -> SearchSection:
    """Return the jobs with a search key, or with the text as the value of one."""
    count = found.values if found.names else len(found.job_ids or ()) if search_keys.number_of(typed) is None else 0
    values = {"count": number(count), "names": found.names}
    if found.names:
        text = ngettext(
            "%(count)s job with this value of %(names)s", "%(count)s jobs with this value of %(names)s", count
        )
    else:
        text = ngettext("%(count)s job with this search key", "%(count)s jobs with this search key", count)
    term = f":{typed}" if found.names else typed  # without the job that has this number
    results = [SearchResult(text % values, page_url(request, "job_changelist", q=term))] if count else []
    return SearchSection(_("Search key"), results, found.note)


def _names(request: HttpRequest, alias: str, typed: str) -> Iterator[SearchSection]:
    """Yield the tasks and the queues whose names contain the text."""
    used = stats.names(connections[alias])
    tasks = _containing(typed, {*used.tasks, *(task.name for task in registry.all_tasks())})
    queues = _containing(typed, {*used.queues, *(task.queue_name for task in registry.all_tasks())})
    page = page_url(request, "tasks")
    yield _section(_("Tasks"), tasks, lambda name: _of_name(request, name, "task", page and f"{page}#task-{name}"))
    yield _section(
        _("Queues"), queues, lambda name: _of_name(request, name, "queue", page_url(request, "queue", queue=name))
    )


def _containing(typed: str, names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if typed.casefold() in name.casefold())


def _section(title: str, found: Sequence[Any], result: Callable[[Any], SearchResult]) -> SearchSection:
    """Return the first results, and how many there are if not all are shown."""
    note = _("%(title)s: the first %(shown)s of %(count)s are shown") if len(found) > SHOWN else ""
    values = {"title": title, "shown": number(SHOWN), "count": number(len(found))}
    return SearchSection(title, [result(each) for each in found[:SHOWN]], note % values if note else "")


def _of_name(request: HttpRequest, name: str, parameter: str, url: str) -> SearchResult:
    jobs = page_url(request, "job_changelist", **{parameter: name})
    dead = page_url(request, "deadjob_changelist", **{parameter: name})
    waiting = page_url(request, "job_changelist", state=State.READY, **{parameter: name})
    links = ((_("List waiting jobs"), waiting), (_("Dead letters"), dead), (_("Details"), url))
    return SearchResult(visible(shortened(name)), jobs, links)


def _limits(request: HttpRequest, typed: str) -> SearchSection:
    """Return the limits whose names contain the text, and the limit key that the text is."""
    names = _containing(typed, registry.limits())
    results = [SearchResult(name, limit_url(request, name)) for name in names]
    if has_value(typed) and name_of(typed) in registry.limits():
        results += [SearchResult(shortened(typed), limit_url(request, typed))] if private.may_view(request) else []
    return SearchSection(_("Limits"), [result for result in results if result.url])


def _classes(request: HttpRequest, alias: str, typed: str) -> SearchSection:
    """Return the exception classes that contain the text, of attempts that failed within a week."""
    return _section(
        _("Exception classes"),
        _containing(typed, stats.failure_classes(connections[alias], WEEK_SECONDS)),
        lambda name: SearchResult(
            visible(name),
            page_url(request, "deadjob_changelist", error=name),
            ((_("Incidents"), page_url(request, "incidents", error=name)),),
        ),
    )


def _workers(request: HttpRequest, alias: str, typed: str) -> SearchSection:
    """Return the workers with this id, or whose host or release contains the text."""
    title = _("Workers")
    if not request.user.has_perm("pgqueue.view_worker"):
        return SearchSection(title, [])
    found = [
        worker
        for worker in stats.workers(alias)
        if any(typed.casefold() in text.casefold() for text in (worker.host, worker.release))
        or typed.removeprefix("#") in (str(worker.id), str(worker.pid))
    ]
    return _section(
        title,
        found,
        lambda worker: SearchResult(
            _("%(host)s, process %(pid)s") % {"host": visible(worker.host), "pid": worker.pid},
            page_url(request, "worker_change", worker.id),
        ),
    )


def _batches(request: HttpRequest, alias: str, typed: str) -> SearchSection:
    """Return the batch with this number, or the newest ones whose descriptions contain the text. Workflows are batches.

    Runs at most two queries.
    """
    title = _("Batches and workflows")
    if not request.user.has_perm("pgqueue.view_jobbatch"):
        return SearchSection(title, [])
    batches = JobBatch.objects.using(alias).defer("on_success", "on_complete", "on_failure").order_by("-pk")
    if (batch_id := batch_search.number_of(typed)) is not None:
        return _section(title, list(batches.filter(pk=batch_id)), partial(_of_batch, request))
    newest = batch_search.newest_batch(alias)
    found = list(batch_search.with_text(batches, typed, newest, BATCHES_SEARCHED)[: SHOWN + 1])
    notes = []
    if len(found) > SHOWN:
        notes.append(_("%(title)s: only the newest %(count)s are shown") % {"title": title, "count": SHOWN})
    if newest > BATCHES_SEARCHED:
        text = _("%(title)s: only the descriptions of the newest %(count)s were searched")
        notes.append(text % {"title": title, "count": number(BATCHES_SEARCHED)})
    return SearchSection(title, [_of_batch(request, batch) for batch in found[:SHOWN]], "; ".join(notes))


def _of_batch(request: HttpRequest, batch: JobBatch) -> SearchResult:
    label, jobs = STATES[word_of(batch)][0], page_url(request, "job_changelist", batch=batch.pk)
    name = f"#{batch.pk} {shortened(batch.description)}".strip()
    return SearchResult(f"{name} ({label})", page_url(request, "jobbatch_change", batch.pk), ((_("Jobs"), jobs),))


def _messages(request: HttpRequest, alias: str, typed: str) -> SearchSection:
    """Return the dead letters with the text in their error message."""
    title = _("Error messages")
    if not private.may_view(request):
        return SearchSection(title, [], MESSAGES_HIDDEN % {"permission": private.PERMISSION_NAME})
    if len(typed) < SHORTEST_MESSAGE:
        return SearchSection(
            title, [], _("Error messages: type at least %(count)s characters") % {"count": SHORTEST_MESSAGE}
        )
    found = find(Filters(alias, words=(State.DEAD.value,), message=typed), readonly.COUNT_LIMIT)
    note = _("Error messages: only the newest %(count)s dead letters were searched") if found.scope else ""
    count = Count(len(found.ids), not found.has_more and not found.scope)
    text = ngettext("%(count)s dead letter", "%(count)s dead letters", count.value if count.is_exact else 2)
    url = page_url(request, "deadjob_changelist", message=typed)
    results = [SearchResult(text % {"count": str(count)}, url)] if count.value else []
    return SearchSection(title, results, note % {"count": number(found.searched)} if note else "")


# ---------------------------------------------------------------------------- completion


def _completions(request: HttpRequest, alias: str) -> dict[str, list[str]]:
    """Return the suggestions of the search box: names, search keys and values that begin with or contain the text."""
    typed = _typed(request)
    name, colon, value = typed.partition(":")
    if colon and name in search_keys.completed_names(request):
        known = {each for task in registry.all_tasks() for each in registry.names_of(task.name)}
        values = search_values(connections[alias], name, value, COMPLETIONS, task_names=known)
        return {"completions": [f"{name}:{each}" for each in values]}
    if not typed:
        return {"completions": []}
    used = stats.names(connections[alias])
    names = {*used.tasks, *used.queues, *(task.name for task in registry.all_tasks()), *registry.limits()}
    keys = [f"{each}:" for each in search_keys.declared_names() if each.casefold().startswith(typed.casefold())]
    return {"completions": [*keys, *_containing(typed, names)][:COMPLETIONS]}


MESSAGES_HIDDEN: Final = gettext_lazy(
    "error messages were not searched, because you do not have the permission “%(permission)s”"
)
SEARCH: Final = ConsolePage("search", gettext_lazy("Search"), _context, _completions)
