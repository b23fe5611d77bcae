"""Tasks as an app has them that knows Django's framework, and some that use this package's options."""

import time
from pathlib import Path

from django.db import connection

from django_pgqueue import Cancel, TaskTimeout
from django_pgqueue.backend import task as our_task
from django_pgqueue.backend.compat import TaskContext, task


@task
def noop(*args, **kwargs):
    pass


@task(queue_name="mail", priority=7)
def add(a, b=0):
    return a + b


@task
async def aadd(a, b=0):
    return a + b


@our_task(sensitive={"token", "return"})
def use_token(order_id, token):
    return f"token of {order_id}: {token}"


@task
def boom(text="no"):
    raise ValueError(text)


@task
def refused_by_the_database():
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


@task
def leave():
    raise SystemExit("left")


@task
def returns(what):
    return {"bytes": b"caf\xc3\xa9", "tuple": (1, 2), "set": {1}, "nan": float("nan"), "latin": b"\xe9"}[what]


@task(takes_context=True)
def told(context, *args):
    assert isinstance(context, TaskContext)
    return [context.task_result.id, context.attempt, context.task_result.attempts, context.job.max_attempts]


@task(takes_context=True)
def own_arguments(context, *args):
    return context.task_result.args


@task(takes_context=True)
async def atold(context):
    return [context.task_result.id, context.attempt, context.task_result.attempts]


@task
def spin():
    for _ in range(2000):
        time.sleep(0.01)


@task
def too_long():
    raise TaskTimeout("as if")


@our_task(max_attempts=3, backoff=0, takes_context=True)
def third_time(context):
    if context.attempt < 3:
        raise LookupError(f"attempt {context.attempt}")
    return context.attempt


@our_task(max_attempts=2, backoff=0)
def always(text="no"):
    raise ValueError(text)


def by_task_result(exception, task_result):
    """Django's planned form of a backoff: attempts and errors come from the result."""
    if isinstance(exception, LookupError) or len(task_result.errors) > 1:
        return None
    return task_result.attempts - 1


@our_task(max_attempts=9, backoff=by_task_result)
def by_result(text):
    raise (LookupError if text == "at once" else ValueError)(text)


@our_task(atomic=True, aliases=["tests.framework.tasks.once_known_as"])
def within(text):
    return text


@our_task
def bare(number):
    return number


@task(takes_context=True)
def look_around(context, started):
    Path(started).touch()
    while not context.job.cancel_requested():
        time.sleep(0.01)
    raise Cancel("stopped half-way")


@task(takes_context=True)
def tell(context):
    context.job.progress(1, 2, "half")


def by_number(number, **kwargs):
    return f"number:{number}"


@our_task(unique_key=by_number, expires=600)
def once_each(number, text=""):
    return text
