"""Calls that the type checker must accept, and some that it must refuse: an `ignore` that is not needed is an error."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import cast
from uuid import UUID

from django.contrib.auth.models import Group

from django_pgqueue import (
    Breaker,
    Chunk,
    ChunkJob,
    JobIds,
    Limit,
    Retry,
    TaskCall,
    TaskContext,
    Throttled,
    aenqueue_many,
    cron,
    enqueue_many,
    every,
    exponential,
    task,
)
from django_pgqueue.models import ChangeResult, Job
from django_pgqueue.tokens import job_from_token, job_token


@task
def plain(number: int, *, name: str = "") -> str:
    """An ordinary task."""
    return name * number


@task(
    queue_name="mail",
    priority=10,
    max_attempts=5,
    backoff=timedelta(seconds=1),
    retry_for=(OSError,),
    sensitive={"number"},
)
def with_options(number: int) -> int:
    """A task with options."""
    return number


def by_attempt(attempt: int, exception: BaseException | None) -> float | None:
    """The backoff of this package."""
    return attempt


def by_result(exception: BaseException, task_result: Job) -> timedelta | None:
    """The backoff that Django plans."""
    return timedelta(seconds=task_result.attempts)


@task(backoff=by_attempt)
def with_backoff() -> None:
    """Raise each form of `Retry`."""
    raise Retry(60, "busy")


@task(backoff=by_result)
def with_backoff_of_result() -> None:
    """The same."""
    raise Retry("busy", after=timedelta(minutes=1))


@task(backoff=lambda attempt, exception: 5 * attempt)
def with_backoff_of_lambda() -> None:
    """The same."""
    raise Retry(timedelta(minutes=1))


@task(backoff=exponential(10, jitter="full"))
def with_full_jitter() -> None:
    """The same."""
    raise Retry(reason="busy", after=60)


def shard_of(number: int) -> str | None:
    """Return the alias of an odd number."""
    return "odd" if number % 2 else None


@task(database=shard_of)
def with_shards(number: int) -> int:
    """A task whose argument chooses the database."""
    return number


task(database=1)  # type: ignore[call-overload]  # an alias is a string
with_shards.using(database=shard_of).enqueue(2)


@task(takes_context=True)
def with_context(context: TaskContext, number: int) -> int:
    """A task that is given its context: callers do not pass it."""
    return number + context.attempt


@task(takes_context=True, schedule=[cron("0 9 * * 1-5", tz="Europe/Paris", args=[1]), every(minutes=5, args=[2])])
def by_the_clock(context: TaskContext, number: int) -> int:
    """A task that workers enqueue by themselves."""
    return number


def of_customer(customer_id: int, prompt: str) -> int | None:
    """The key of a limit."""
    return customer_id or None


def tokens_of(customer_id: int, prompt: str) -> int:
    """The weight of a job."""
    return len(prompt) + customer_id


@task(limit=Limit("model", key=of_customer, rate="90000/m", burst=5000, weight=tokens_of))
def limited(customer_id: int, prompt: str) -> str:
    """A task with a limit."""
    if not prompt:
        raise Throttled(after=timedelta(minutes=1), reason="429")
    return prompt


BREAKER = Breaker(failures=0.5, attempts=20, seconds=60, pause=30.0, exceptions=(OSError, TimeoutError))


@task(limit=Limit("import", key="{number}", concurrency=1, ordered=True, on_dead="block", share=2, breaker=BREAKER))
def in_order(number: int) -> int:
    """A task whose jobs run one after the other."""
    return number


@dataclass
class Reading:
    """The argument of a job that runs in a chunk."""

    sensor: int


@task(chunk=100, chunk_wait=timedelta(seconds=1), atomic=True)
def in_chunks(chunk: Chunk[Reading]) -> None:
    """A task that takes many jobs in one call."""
    sensors: list[int] = [job.item.sensor for job in chunk]
    items: list[Reading] = chunk.items
    first: ChunkJob[Reading] = chunk[0]
    chunk.fail(first, ValueError(f"{sensors} {items} {first.is_last_attempt} {first.cancel_requested()}"))


@task(chunk=10, chunk_wait=0.5, name="lengths", schedule=every(minutes=5, args=["x"]))
def lengths(chunk: Chunk[str]) -> list[int]:
    """The same with results."""
    return [len(item) for item in chunk.items]


@task(chunk=10)
async def lengths_on_loop(chunk: Chunk[str]) -> list[int]:
    """The same as a coroutine."""
    return [len(item) for item in chunk.items]


@task
async def coroutine(number: int) -> int:
    """An async task."""
    return number


@dataclass
class Line:
    """A dataclass as an argument."""

    price: Decimal


@task(on_missing="cancel")
def typed(order_id: UUID, lines: list[Line], group: Group, others: list[Group] | None = None) -> Line:
    """A task whose arguments are converted."""
    return lines[0]


def accepted() -> None:
    """Calls as they are meant."""
    job: Job = plain.enqueue(1, name="x")
    copy = with_options.using(run_after=3, priority=1, queue_name="x", database="default")
    copy.using(run_after=timedelta(minutes=5)).enqueue(1)
    copy.using(run_after=datetime.now(UTC)).enqueue(number=1)
    copy.using(expires=None, unique_key=None, headers=None, max_attempts=None, database=None).enqueue(1)
    with_context.enqueue(1)
    limited.using(limit=None).enqueue(1, "x")
    in_order.using(limit=Limit("model", concurrency=3)).enqueue(1)
    limit: Limit | None = limited.limit
    interval: float | None = None if limit is None else limit.interval_seconds
    print(interval)  # noqa: T201 -- uses what was bound
    coroutine.enqueue(1)
    text: str = plain(1, name="x")
    number: int = with_context(1)
    later: Job | None = plain.enqueue_on_commit(1, name="x")
    found: Job = plain.get_result(str(job.id))
    values: tuple[str, bool, int, list[object]] = (found.status, found.is_finished, found.attempts, found.args)
    print(later, values, [error.exception_class_path for error in found.errors])  # noqa: T201 -- uses what was bound
    ids: list[int] = plain.enqueue_many([((1,), {"name": "x"}), (2,), [3], {"number": 4}, plain.s(5, name="x")])
    call: TaskCall[str] = plain.using(priority=5).s(1, name="x")
    any_call: TaskCall[object] = call
    with_ids: JobIds = enqueue_many([call, with_context.s(1), coroutine.s(number=1), any_call])
    generated: JobIds = enqueue_many(with_options.s(number) for number in range(3))
    number_of_calls: int = enqueue_many([call], returning=False)
    count: int = plain.enqueue_many([((1,), {})], returning=False)
    changed: int = Job.objects.filter(state="dead", queue_name="mail").retry()
    changed += Job.objects.dead().filter(queue_name="mail").retry()
    changed += Job.objects.filter(queue_name="mail").stuck(longer_than=timedelta(hours=1)).cancel()
    result: ChangeResult = job.cancel()
    why: str = "" if result else result.reason
    late: list[Job] = [*Job.objects.due(), *Job.objects.stuck()]
    changed += len(late)
    token: str = job_token(job, with_result=True)
    same: Job = job_from_token(token, max_age=timedelta(hours=1))
    print(generated, number_of_calls, with_ids.duplicates)  # noqa: T201 -- uses what was bound
    print(same, token, job, text, number, ids, count, changed, why)  # noqa: T201 -- uses what was bound


def accepted_chunks() -> None:
    """Callers pass the argument of one job."""
    in_chunks.enqueue(Reading(1))
    in_chunks.using(priority=3).enqueue_many([(Reading(1),), in_chunks.s(Reading(2))])
    call: TaskCall[int] = lengths.s("x")
    length: int = lengths("x")
    print(call, length)  # noqa: T201 -- uses what was bound


def accepted_typed_arguments(order_id: UUID, group: Group, group_id: int) -> None:
    """Typed arguments: callers and the task see the same types."""
    job = typed.enqueue(order_id, [Line(Decimal(1))], group, others=[group])
    typed.enqueue(order_id, [], cast(Group, group_id))
    line: Line = typed(order_id, [], group)
    print(job.return_value, line)  # noqa: T201 -- as above


async def accepted_in_async_code() -> None:
    """The same from a coroutine."""
    job: Job = await plain.aenqueue(1)
    later: Job | None = await plain.aenqueue_on_commit(1)
    await job.arefresh()
    print(later, await plain.aget_result(1))  # noqa: T201 -- as above
    number: int = await coroutine(1) + await lengths_on_loop("x")
    ids: JobIds = await plain.aenqueue_many([(1,), {"number": 2}])
    count: int = await plain.aenqueue_many([(1,)], returning=False) + await aenqueue_many([], returning=False)
    more: JobIds = await aenqueue_many([plain.s(1)])
    print(ids, count, more)  # noqa: T201 -- as above
    print(job, number)  # noqa: T201 -- as above


def refused() -> None:
    """Mistakes."""
    Retry([60])  # type: ignore[call-overload]  # neither a delay nor a reason
    Retry("busy", 60)  # type: ignore[call-overload]  # the delay comes first
    exponential(jitter="half")  # type: ignore[arg-type]  # no such jitter
    plain.delay(1)  # type: ignore[attr-defined]  # another queue's method
    plain.enqueue_on_commit("1")  # type: ignore[arg-type]  # not an int
    plain.enqueue()  # type: ignore[call-arg]  # number is missing
    plain.enqueue("1")  # type: ignore[arg-type]  # not an int
    plain.enqueue(1, title="x")  # type: ignore[call-arg]  # no such argument
    with_context.enqueue(TaskContext(), 1)  # type: ignore[call-arg, arg-type]  # the worker passes the context
    with_options.using(priority="high")  # type: ignore[arg-type]  # not a number
    plain.enqueue_many([1, 2])  # type: ignore[list-item]  # not calls
    plain.enqueue_many(["ab"])  # type: ignore[list-item]  # not a call
    plain.s()  # type: ignore[call-arg]  # number is missing
    plain.s("1")  # type: ignore[arg-type]  # not an int
    enqueue_many([(1,)])  # type: ignore[list-item]  # it does not name its task
    wrong: TaskCall[int] = plain.s(1)  # type: ignore[assignment]  # its result is a str
    typed.enqueue("x", [], Group())  # type: ignore[arg-type]  # not a UUID
    typed.enqueue(UUID(int=1), [Decimal(1)], Group())  # type: ignore[list-item]  # not a Line
    typed.enqueue(UUID(int=1), [], 7)  # type: ignore[arg-type]  # a key: cast() says that it is meant
    Throttled()  # type: ignore[call-arg]  # after is missing
    Limit("x", "{number}")  # type: ignore[call-arg]  # all but the name are keywords
    Limit("x", rate=5)  # type: ignore[arg-type]  # it is to be "5/s"
    Limit("x", breaker=0.5)  # type: ignore[arg-type]  # not a Breaker
    Breaker(exceptions=OSError)  # type: ignore[arg-type]  # it is to be a tuple
    Limit("x", ordered=True, on_dead="stop")  # type: ignore[arg-type]  # no such way
    plain.using(limit="5/s")  # type: ignore[arg-type]  # not a Limit
    in_chunks.enqueue(1)  # type: ignore[arg-type]  # not a Reading
    in_chunks.enqueue(Reading(1), Reading(2))  # type: ignore[call-arg]  # one job has one argument
    lengths("x").upper()  # type: ignore[attr-defined]  # its result is an int
    task(chunk=10)(context_missing)  # type: ignore[arg-type]  # it takes no chunk
    task(chunk_wait=1)  # type: ignore[call-overload]  # chunk is missing
    task(chunk=10, takes_context=True)  # type: ignore[call-overload]  # each job has what a context has
    task(on_missing="ignore")  # type: ignore[call-overload]  # no such way
    task(schedule="@daily")(context_missing)  # type: ignore[arg-type]  # it is to be cron("@daily")
    every(minutes=5, if_running="wait")  # type: ignore[arg-type]  # no such way
    print(wrong)  # noqa: T201 -- uses what was bound
    task(takes_context=True)(context_missing)  # type: ignore[arg-type]  # its first argument is no TaskContext


def context_missing(number: int) -> None:
    """Not a task that takes a context."""
