"""Find the jobs of a batch and of the batches nested in it: failed ones first, then unfinished ones.

`search` calls this module. The index of batches has each state of a batch as one range without an order by time. So at
most `SEARCHED` jobs of each state are read, and within a state the newest of them come first.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import or_
from typing import Final

from django.db.models import Q

from django_pgqueue.states import FINISHED, STATE_OF, State
from django_pgqueue.stats.batch_counts import jobs_of_batch

from .filters import Filters, SearchPart, matching
from .index_ranges import condition_of, ended_between, ids_between

IN_ORDER: Final = (State.DEAD, State.CANCELLED, State.RUNNING, State.READY, State.WAITING, State.SUCCEEDED)
"""The states in the order of the list."""
SEARCHED: Final = 10_000
"""Jobs of each state that are searched with filters that the index does not have."""


def find_in_batch(filters: Filters, batch_id: int, limit: int) -> SearchPart:
    """Return at most `limit` jobs of a batch that meet the filters."""
    states = [
        state for state in IN_ORDER if not filters.words or any(STATE_OF[word] is state for word in filters.words)
    ]
    conditions = {state: _condition(filters, state) for state in states}
    is_plain = not filters.has_error and not any(conditions.values())
    found = jobs_of_batch(batch_id, states, limit if is_plain else SEARCHED + 1, filters.alias)
    ids: list[int] = []
    for state in states:
        newest_first = sorted(found[state], reverse=True)
        ids += newest_first if is_plain else matching(filters, conditions[state], newest_first[:SEARCHED])
    is_cut = not is_plain and any(len(each) > SEARCHED for each in found.values())
    label = f"among the first {SEARCHED:,} jobs of each state" if is_cut else ""
    return SearchPart(ids[:limit], SEARCHED if is_cut else 0, is_cut, label=label)


def _has_all(state: State, words: Collection[str]) -> bool:
    """Return whether words mean all jobs in a state. The word `dead` leaves out those that were acknowledged."""
    return {"dead", "acknowledged"} <= {*words} if state is State.DEAD else state.value in words


def _condition(filters: Filters, state: State) -> Q:
    """Return the conditions of the filters that the index of batches does not have."""
    words = [word for word in filters.words if STATE_OF[word] is state]
    condition = filters.names_condition
    if filters.since is not None or filters.until is not None:
        condition &= ended_between(filters) if words and state in FINISHED else ids_between(filters)
    if words and not _has_all(state, words):
        condition &= reduce(or_, (condition_of(word, filters.alias) for word in words))
    return condition
