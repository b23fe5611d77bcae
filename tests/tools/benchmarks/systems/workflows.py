"""This project with a task for the nodes of workflows."""

from tests.tools.benchmarks.systems import ours

TASK = """

@task
def node(number):
    record.began(number)
    record.committed(number)
"""
"""The end of a job is noted as a commit. A chain passes the result of the job before."""
CHAINED = """

@task
def chained(before, number):
    record.began(number)
    record.committed(number)
"""
ADAPTER = """

from django_pgqueue import Workflow, chain


def enqueue_workflow(task, numbers, shape):
    workflow, nodes = Workflow(), []
    for number, needed in zip(numbers, shape):
        nodes.append(workflow.add(getattr(tasks, task).s(number), after=[nodes[place] for place in needed]))
    workflow.enqueue()


def enqueue_chain(task, numbers):
    first, *others = numbers
    calls = chain(tasks.chained.s(None, first))
    for number in others:
        calls = calls.then(tasks.chained, number)
    calls.enqueue()
"""
SYSTEM = ours.SYSTEM._replace(
    name="workflows",
    files={
        **ours.SYSTEM.files,
        "app/tasks.py": ours.SYSTEM.files["app/tasks.py"] + TASK + CHAINED,
        "adapter.py": ours.SYSTEM.files["adapter.py"] + ADAPTER,
    },
    tasks=frozenset({"node"}),
    settings="Workflow.add(after=…); chain().then(), which passes results; none changed",
    drain_jobs=10_000,
    sweep=(),
    ways=frozenset({"fan", "graph", "chains"}),
    waiting="SELECT count(*) FROM pgqueue_job WHERE state = 'waiting'",
)
