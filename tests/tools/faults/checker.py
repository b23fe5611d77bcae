"""What must hold of any run, whatever fault was in it: a pure function over its history.

Each invariant has a number, the same as in docs/internals/reliability.md, and is checked by one function. A violation
names the invariant, the job, and what was seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

from django_pgqueue.declared.breakers import PAUSED_BY
from tests.tools.faults import invariants_asked as asked
from tests.tools.faults import invariants_blame as blame
from tests.tools.faults import invariants_breakers as breakers
from tests.tools.faults import invariants_chunks as chunks
from tests.tools.faults import invariants_limits as limits
from tests.tools.faults import invariants_rows as rows
from tests.tools.faults import invariants_seen as seen
from tests.tools.faults import invariants_steps as steps
from tests.tools.faults import invariants_workflows as workflows
from tests.tools.faults.history import History
from tests.tools.faults.invariants_turns import no_key_starves
from tests.tools.faults.lives import Life, Rules, Violation, lives_of

Check = Callable[[History, dict[int, Life], Rules], Iterator[Violation]]
CHECKS: Final[tuple[Check, ...]] = (
    rows.one_open_execution,
    rows.only_known_edges,
    rows.an_outcome_is_final,
    rows.counters,
    rows.nothing_early,
    rows.removed_in_time,
    rows.nothing_stuck,
    seen.acknowledgements,
    seen.claims,
    seen.enqueues,
    seen.exits,
    seen.effects,
    seen.bodies,
    seen.no_spinning,
    asked.one_for_each_key,
    asked.one_for_each_period,
    asked.each_tick_once,
    asked.nothing_paused,
    asked.nothing_cancelled,
    asked.nothing_expired,
    limits.never_more_open,
    limits.never_more_in_a_period,
    limits.in_order,
    limits.nothing_held,
    no_key_starves,
    breakers.nothing_while_open,
    breakers.one_probe,
    breakers.with_reason,
    chunks.jobs_of_a_call,
    chunks.all_or_nothing,
    chunks.claimed_together,
    workflows.advanced_as_asked,
    workflows.results_passed_on,
    workflows.kept_while_needed,
    workflows.callbacks_once,
    workflows.ended_when_over,
    steps.stored_steps_stay,
    steps.effects_of_steps,
    steps.nothing_wakes_early,
    steps.no_event_is_lost,
    steps.undone_in_order,
    steps.undone_once,
    blame.no_death_without_failure,
    blame.no_crash_of_the_living,
)


def check(history: History, rules: Rules = Rules()) -> list[Violation]:  # noqa: B008 -- immutable
    """Return every violation in a history; none is what a run has to show."""
    lives = lives_of(history)
    return [violation for one in CHECKS for violation in one(history, lives, rules)]


def summary(history: History) -> dict[str, Any]:
    """Figures of a run, for people."""
    ends = Counter(
        event.new["outcome"]
        for event in history.events
        if event.place == "execution" and event.new and event.new["outcome"]
    )
    return {
        "jobs": len({event.job for event in history.events}),
        "executions": dict(ends),
        "overlaps": len(seen.overlaps(history)),
        "ticks": len(history.ticks),
        "pauses": sum(pause.paused and pause.kind != "limit" for pause in history.pauses),
        "pauses_of_keys": sum(
            pause.paused and pause.kind == "limit" and pause.by != PAUSED_BY for pause in history.pauses
        ),
        "expired": sum(asked.is_expiry(event) for event in history.events if event.place == "job"),
        "limited": {key: len(starts) for key, starts in sorted(limits.starts_by_name(history).items())},
        "holds": sum(stop.begins for stop in history.stops),
        "overrides": len(history.overrides),
        "breakers": dict(Counter("opened" if breaking.is_open else "closed" for breaking in history.breakings)),
        "chunks": dict(sorted(Counter(len(records) for records in chunks.calls(history).values()).items())),
        "duplicates": sum(record["answer"] == "duplicate" for record in history.said("enqueue-returned")),
        **workflows.figures(history),
        **steps.figures(history),
        "states": dict(Counter(row["state"] for row in history.jobs.values())),
    }
