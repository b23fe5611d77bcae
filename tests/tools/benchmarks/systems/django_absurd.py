"""django-absurd: Absurd's stored procedures, called from an event loop; its worker polls, and runs one job by default.

It is measured with durable steps, with both kinds of tasks that it documents, and with suspended jobs.
"""

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.systems import django
from tests.tools.benchmarks.systems.system import Load, Suspension, System
from tests.tools.peers.place import Command

BEST = 4
SETTINGS = """
TASKS = {"default": {"BACKEND": "django_absurd.backends.AbsurdBackend"}}
"""
ADAPTER = """

def enqueue_many(task, numbers):
    with transaction():
        for number in numbers:
            enqueue(task, number)
"""
TASKS = """
from django_absurd import {accessor}


@task
{prefix}def one_step(number):
    context = {accessor}()
    {step}context.step("step 0", {function})
    record.ran(number)


@task
{prefix}def eleven_steps(number):
    context = {accessor}()
    for place in range(11):
        {step}context.step(f"step {{place}}", {function})
    record.ran(number)


@task
{prefix}def sleeps(number):
    record.ran(number)
    {step}{accessor}().sleep_for("days", 3 * 24 * 3600)


@task
{prefix}def waits(number):
    record.ran(number)
    {step}{accessor}().await_event(f"never {{number}}")


async def zero():
    return 0
"""
SYNC = {"accessor": "get_absurd_context", "prefix": "", "step": "", "function": "int"}
ASYNC = {"accessor": "aget_absurd_context", "prefix": "async ", "step": "await ", "function": "zero"}
UNFINISHED = "SELECT count(*) FROM absurd.t_default WHERE state IN ('pending', 'running')"


def worker(load: Load) -> Command:
    return ("-m", "django", "absurd_worker", "--concurrency", str(load.concurrency or BEST))


def unfinished(bench: Bench) -> int:
    return bench.count(UNFINISHED)


PROJECT = django.project("django_absurd", "django.tasks", ADAPTER, SETTINGS)
SYSTEM = System(
    name="django-absurd",
    distribution="django-absurd",
    packages=("django-absurd==1.0.1", *django.PACKAGES),
    files={**PROJECT, "app/tasks.py": PROJECT["app/tasks.py"] + TASKS.format(**SYNC)},
    prepare=[django.MIGRATE],
    worker=worker,
    unfinished=unfinished,
    tasks=frozenset({"one_step", "eleven_steps"}),
    settings=f"get_absurd_context().step(); --concurrency {BEST} (10 was alike, 1 slower), 1 for steps, as all have",
    drain_jobs=1_000,
    oldest_python=(3, 12),
    ways=frozenset({"bulk"}),
    suspension=Suspension(
        count_query="SELECT count(*) FROM absurd.t_default WHERE state = 'sleeping'",
        remove=(
            "DELETE FROM absurd.t_default WHERE state = 'sleeping'",
            "DELETE FROM absurd.r_default WHERE state = 'sleeping'",
            "DELETE FROM absurd.c_default",
            "DELETE FROM absurd.w_default",
        ),
        most=10_000,
        plain_jobs=1_000,
    ),
)
COROUTINES = SYSTEM._replace(
    name="django-absurd async",
    files={**PROJECT, "app/tasks.py": PROJECT["app/tasks.py"] + TASKS.format(**ASYNC)},
    settings="as django-absurd, but aget_absurd_context().step() in coroutines",
)
