"""Faults of the soak that concern workflows, batches, durable steps and compensations, and the end of all of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.tools.faults.app_names import FIXED
from tests.tools.faults.soak_faults import injectable

if TYPE_CHECKING:
    from tests.tools.faults.run import Run
    from tests.tools.faults.soak import Crew

SOME_WORKFLOW: Final = """
SELECT batch_id FROM pgqueue_job WHERE in_graph AND state = ANY (%s) GROUP BY 1 ORDER BY random() LIMIT 1
"""
MEMBERS: Final = "SELECT id FROM pgqueue_job WHERE batch_id = %s AND state = ANY (%s) ORDER BY random()"
SUSPENDED: Final = """
SELECT job_id FROM pgqueue_step WHERE finished_at IS NULL AND kind <> 'step' ORDER BY random() LIMIT 3
"""
UNSENT: Final = """
INSERT INTO pgqueue_event (name, key, payload, sent_at)
SELECT event_name, event_key, to_json(event_key), now()
FROM pgqueue_step AS step
WHERE event_name IS NOT NULL AND finished_at IS NULL
  AND NOT EXISTS (SELECT FROM pgqueue_event WHERE name = step.event_name AND key = step.event_key)
GROUP BY event_name, event_key
"""
"""By SQL, so that only the sweep finds them."""
BLOCKING: Final = """
WITH RECURSIVE needed AS (
    SELECT edge.needs_id AS id
    FROM pgqueue_job AS job JOIN pgqueue_dependency AS edge ON edge.job_id = job.id
    WHERE job.state = 'waiting'
    UNION
    SELECT edge.needs_id
    FROM needed JOIN pgqueue_dependency AS edge ON edge.job_id = needed.id
    WHERE (SELECT state FROM pgqueue_job WHERE id = needed.id) IN ('dead', 'cancelled')
)
SELECT id FROM pgqueue_job WHERE id IN (SELECT id FROM needed) AND state IN ('dead', 'cancelled') ORDER BY id
"""
"""The failed jobs that others wait for, and the failed ones that these need."""
STUCK_UNDO: Final = """
SELECT undo.id
FROM pgqueue_step AS step
JOIN pgqueue_job AS undo ON undo.id = step.compensation_id
WHERE undo.state IN ('dead', 'cancelled')
"""
KILLS: Final = (
    *("advance.sent", "advance.done", "settle.sent", "settle.done", "settle.committed", "compensate.sent"),
    *("compensate.committed", "step.sent", "step.stored", "suspend.committed", "finish.committed"),
)
"""Between the end of a job and what follows from it, and around the store of a step."""


def kill_somewhere(crew: Crew) -> str:
    """Return failpoints for a new worker: its processes are killed when they come by for the n-th time."""
    return ",".join(f"{name}:kill:{crew.chance.choice([5, 20, 60])}" for name in crew.chance.sample(KILLS, k=4))


def arm_again(crew: Crew) -> None:
    """Let one point kill a process again. With more, no process lives long enough for a sweep: 10 s."""
    (crew.run.where / f"fired-{crew.chance.choice(KILLS)}").unlink(missing_ok=True)


def killed_at(run: Run) -> dict[str, int]:
    """Return how often a process was killed at each of these points."""
    names = [line["name"] for line in run.journal("failpoint")]
    return {name: names.count(name) for name in sorted(set(names))}


@injectable
def workflow_retried(crew: Crew) -> None:
    """Retry the dead jobs of some workflow, all at once or one of them, as an operator does."""
    members = _members(crew, ["dead"])
    if members:
        crew.run.act("retry", members if crew.chance.random() < 0.5 else members[:1])


@injectable
def workflow_cancelled(crew: Crew) -> None:
    """Cancel a job of some workflow, or all that wait."""
    members = _members(crew, ["waiting", "ready"])
    if members:
        crew.run.act("cancel", members if crew.chance.random() < 0.3 else members[:1])


@injectable
def suspended_hurried(crew: Crew) -> None:
    """Run suspended jobs now, or cancel them."""
    jobs = [row[0] for row in crew.run.sql(SUSPENDED)]
    crew.run.act(crew.chance.choice(["run_now", "run_now", "cancel"]), jobs)


def _members(crew: Crew, states: list[str]) -> list[int]:
    """Return the jobs of some workflow that are in these states."""
    batches = crew.run.sql(SOME_WORKFLOW, [states])
    return [row[0] for row in crew.run.sql(MEMBERS, [batches[0][0], states])] if batches else []


def are_over(run: Run) -> bool:
    """Send the events that nobody has sent, and retry what others wait for. Return whether nothing waits any more."""
    (run.where / FIXED).touch()
    run.sql(UNSENT)
    for query in (BLOCKING, STUCK_UNDO):
        jobs = [row[0] for row in run.sql(query)]
        if jobs:
            run.act("retry", jobs)
            run.sql("NOTIFY pgqueue")
    return not run.unfinished()
