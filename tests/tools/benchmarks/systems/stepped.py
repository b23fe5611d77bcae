"""This project with tasks of one and of eleven durable steps."""

from tests.tools.benchmarks.systems import ours

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
"""

SYSTEM = ours.SYSTEM._replace(
    name="steps",
    files={**ours.SYSTEM.files, "app/tasks.py": ours.SYSTEM.files["app/tasks.py"] + TASKS},
    tasks=frozenset({"one_step", "eleven_steps"}),
    settings="@task(takes_context=True); context.step()",
    drain_jobs=2_000,
    sweep=(),
    ways=frozenset({"bulk"}),
)
