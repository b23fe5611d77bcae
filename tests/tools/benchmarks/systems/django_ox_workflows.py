"""django-ox with the app `oxpull` of the same distribution: tasks that depend on others wait until these succeed."""

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.systems import django_ox, workflows

SETTINGS = """
INSTALLED_APPS += ["oxpull"]
TASKS = {
    "default": {
        "BACKEND": "oxpull.backend.OxpullBackend",
        "OPTIONS": {
            "WORKFLOWS": True,
            "WORKER_CLASS": "oxpull.worker.OxpullWorker",
            "SCHEDULES": {
                "oxpull-workflow-reconcile": {"task": "oxpull.workflows.reconcile", "cron": "* * * * *"},
            },
        },
    }
}
"""
ADAPTER = """

from oxpull import workflows


def enqueue_workflow(task, numbers, shape):
    with transaction():
        flow = workflows.create("measured")
        for place, (number, needed) in enumerate(zip(numbers, shape)):
            flow.add(str(place), getattr(tasks, task), number, depends_on=[str(each) for each in needed])
        flow.seal()


def enqueue_chain(task, numbers):
    enqueue_workflow(task, numbers, [(), *[(place,) for place in range(len(numbers) - 1)]])
"""
OF_APP = "task_path LIKE 'app.%'"
"""Not the reconciler, which is enqueued each minute."""


def unfinished(bench: Bench) -> int:
    return bench.count(f"{django_ox.UNFINISHED} AND {OF_APP}")


SYSTEM = django_ox.SYSTEM._replace(
    name="django-ox workflows",
    files={
        **django_ox.SYSTEM.files,
        "settings.py": django_ox.SYSTEM.files["settings.py"] + SETTINGS,
        "app/tasks.py": django_ox.SYSTEM.files["app/tasks.py"] + workflows.TASK,
        "adapter.py": django_ox.SYSTEM.files["adapter.py"] + ADAPTER,
    },
    unfinished=unfinished,
    tasks=frozenset({"node"}),
    settings="as django-ox (--concurrency 1, 2, 10 were slower); flow.add(depends_on=…), each workflow in one "
    "transaction (without it, a fan and a graph took longer to enqueue)",
    drain_jobs=1_000,
    sweep=(),
    ways=frozenset({"fan", "graph", "chains"}),
    waiting=f"SELECT count(*) FROM django_ox_oxtask WHERE status = 'WAITING' AND {OF_APP}",
)
