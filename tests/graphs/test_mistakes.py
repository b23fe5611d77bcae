"""What the short forms of workflows say about calls that other queues accept."""

from typing import Any

import pytest

import django_pgqueue
from django_pgqueue import InvalidTask

from . import tasks as typed_tasks

api: Any = django_pgqueue  # the mistakes are those of callers without a type checker
tasks: Any = typed_tasks
ONE: Any = typed_tasks.number.s(1)

MISTAKES: list[tuple[Any, type[Exception], str]] = [
    (lambda: api.group([ONE]), TypeError, r"not list: write group\(\*calls\)"),
    (lambda: api.group(ONE for _ in range(2)), TypeError, r"not generator: write group\(\*calls\)"),
    (lambda: api.group(api.group(ONE)), TypeError, "not Group: write a Workflow"),
    (lambda: api.chord(api.group(ONE), tasks.double), TypeError, r"continued by its then\(task\)"),
    (lambda: api.chord(ONE, tasks.double), TypeError, r"takes a list of calls, not TaskCall: write \[…\]"),
    (lambda: api.chord([ONE], tasks.double.s()), TypeError, r"takes a task .* not TaskCall$"),
    (lambda: api.chain(ONE).then(tasks.double.s(2)), TypeError, r"then\(\) takes a task .* not TaskCall$"),
    (lambda: api.chain(ONE).then(len), TypeError, r"then\(\) takes a task .* not builtin_function"),
    (lambda: api.chain(ONE).then(api.group(ONE)), TypeError, r"write fan_out\(\[task, …\]\)"),
    (lambda: api.chain(ONE).fan_out(tasks.double), TypeError, r"fan_out\(\) takes a list of tasks, not Task"),
    (lambda: api.chain(ONE).fan_out([tasks.double.s()]), TypeError, r"fan_out\(\) takes a task .* TaskCall$"),
    (lambda: api.Workflow(parent=7), TypeError, r"parent must be a Batch, not int: pass Batch.get\(id\)"),
    (lambda: api.Workflow(parent=api.Workflow()), TypeError, "parent must be a Batch, not Workflow"),
    (lambda: api.Workflow(parent=api.Batch()), InvalidTask, "the parent of a batch is not stored yet"),
    (lambda: ONE | tasks.double.s(2), TypeError, r"write chain\(first.s\(…\)\).then\(second\)"),
    (lambda: ONE.enqueue(), AttributeError, r"call task.enqueue\(…\), or pass the call to chain"),
    (lambda: ONE.set(queue="x"), AttributeError, r"make the call by task.using\(…\).s\(…\)"),
    (lambda: ONE.other, AttributeError, "'TaskCall' object has no attribute 'other'$"),
    (lambda: tasks.number.si(1), AttributeError, r"call s\(…\). To pass no result on"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "error", "message"), MISTAKES)
def test_mistake_says_what_to_write_instead(write, error, message):
    with pytest.raises(error, match=message):
        write()
