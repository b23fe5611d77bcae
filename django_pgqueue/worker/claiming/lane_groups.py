"""Divide lanes into groups that one statement claims from. `Claimer` uses it; it keeps the order of the lanes."""

from __future__ import annotations

from collections.abc import Mapping

from django_pgqueue.lifecycle import Cursor, Lane
from django_pgqueue.worker.slots.queue_slots import QueueSlots


def by_kind(cursors: Mapping[Lane, Cursor], queue_slots: QueueSlots | None = None) -> list[dict[Lane, Cursor]]:
    """Divide lanes into groups that one statement claims from: consecutive plain lanes, or one other lane.

    With `--queue`, the lanes of one statement share the slots of their queues.
    """
    groups: list[dict[Lane, Cursor]] = []
    before = None
    for lane, cursor in cursors.items():
        shares = None if queue_slots is None else queue_slots.group_of(lane.queue_name)
        if groups and lane.is_plain and next(iter(groups[-1])).is_plain and shares == before:
            groups[-1][lane] = cursor
        else:
            groups.append({lane: cursor})
        before = shares
    return groups
