"""Find the jobs of a batch and of the batches nested in it: failed ones first, then unfinished ones.

`search` calls this module. The index of batches has each state of a batch as one range without an order by time. So at
most `SEARCHED` jobs of each state are read, and within a state the newest of them come first.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from django.db import connections
from django.db.models import Q

from django_pgqueue import stats
from django_pgqueue.models import Job
from django_pgqueue.models.operations import BATCH_SIZE
from django_pgqueue.states import FINISHED, State
from django_pgqueue.stats.batch_counts import jobs_of_batch

from .errors import error_pattern
from .filters import Filters
from .index_ranges import condition_of, ended_between, ids_between, names_condition
from .words import STATE_OF

IN_ORDER: Final = (State.DEAD, State.CANCELLED, State.RUNNING, State.READY, State.WAITING, State.SUCCEEDED)
"""The states in the order of the list."""
SEARCHED: Final = 10_000
"""Jobs of each state that are searched with filters that the index does not have."""


class InBatch(NamedTuple):
    """The ids of the jobs that were found, in order, and whether some jobs of a state were not searched."""

    ids: list[int]
    is_cut: bool


def find_in_batch(filters: Filters, batch_id: int, limit: int) -> InBatch:
    """Return at most `limit` jobs of a batch that meet the filters."""
    states = [
        state for state in IN_ORDER if not filters.words or any(STATE_OF[word] is state for word in filters.words)
    ]
    conditions = {state: _condition(filters, state) for state in states}
    is_plain = not filters.error and not any(conditions.values())
    found = jobs_of_batch(batch_id, states, limit if is_plain else SEARCHED + 1, filters.alias)
    ids: list[int] = []
    for state in states:
        newest_first = sorted(found[state], reverse=True)
        ids += newest_first if is_plain else _matching(filters, conditions[state], newest_first[:SEARCHED])
    is_cut = not is_plain and any(len(each) > SEARCHED for each in found.values())
    return InBatch(ids[:limit], is_cut)


def _condition(filters: Filters, state: State) -> Q:
    """Return the conditions of the filters that the index of batches does not have."""
    words = [word for word in filters.words if STATE_OF[word] is state]
    condition = names_condition(filters)
    if filters.since is not None or filters.until is not None:
        condition &= ended_between(filters) if words and state in FINISHED else ids_between(filters)
    if words and state.value not in words:
        condition &= reduce(or_, (condition_of(word, filters.alias) for word in words))
    return condition


def _matching(filters: Filters, condition: Q, ids: list[int]) -> list[int]:
    """Return those of some jobs that meet a condition and the filter by exception class."""
    found: list[int] = []
    for start in range(0, len(ids), BATCH_SIZE):
        part = ids[start : start + BATCH_SIZE]
        jobs = Job.objects.using(filters.alias).filter(condition, pk__in=part)
        matching = set(jobs.values_list("pk", flat=True))
        if filters.error:
            pattern = error_pattern(filters.error)
            matching &= set(stats.jobs_with_exception(connections[filters.alias], sorted(matching), pattern))
        found += [job_id for job_id in part if job_id in matching]
    return found
