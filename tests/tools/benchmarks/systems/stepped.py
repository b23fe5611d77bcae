"""This project with tasks of one and of eleven durable steps, and with tasks that sleep or wait for an event."""

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.systems import ours
from tests.tools.benchmarks.systems.system import Suspension

TASKS = """

@task(takes_context=True)
def one_step(context, number):
    context.step("step 0", int, number)
    record.ran(number)


@task(takes_context=True)
def eleven_steps(context, number):
    for place in range(11):
        context.step(f"step {place}", int, number)
    record.ran(number)


@task(takes_context=True)
def sleeps(context, number):
    record.ran(number)
    context.sleep("days", 3 * 24 * 3600)


@task(takes_context=True)
def waits(context, number):
    record.ran(number)
    context.wait_for_event("never", number)
"""
LATER = "state = 'ready' AND run_after > now() + interval '1 hour'"
UNFINISHED = """
SELECT (SELECT count(*) FROM pgqueue_job WHERE state = 'ready' AND limit_key IS NULL AND queue_name = 'default'
            AND priority = 0 AND run_after <= now())
     + (SELECT count(*) FROM pgqueue_execution WHERE finished_at IS NULL)
"""
"""Without the suspended jobs; by indexes, so that to look takes nothing from the worker."""


def unfinished(bench: Bench) -> int:
    return bench.count(UNFINISHED)


SYSTEM = ours.SYSTEM._replace(
    name="steps",
    files={**ours.SYSTEM.files, "app/tasks.py": ours.SYSTEM.files["app/tasks.py"] + TASKS},
    unfinished=unfinished,
    tasks=frozenset({"one_step", "eleven_steps"}),
    settings="@task(takes_context=True); context.step()",
    drain_jobs=2_000,
    sweep=(),
    ways=frozenset({"bulk"}),
    suspension=Suspension(
        count_query=f"SELECT count(*) FROM pgqueue_job WHERE {LATER}",
        remove=(f"DELETE FROM pgqueue_job WHERE {LATER}", "DELETE FROM pgqueue_step"),
        most=100_000,
        plain_jobs=100_000,
    ),
)
