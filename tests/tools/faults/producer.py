"""A process that enqueues, and writes down what `enqueue()` returned: `python -m tests.tools.faults.producer`.

Each job is enqueued beside a row of the application's own (`fault_order`), in one transaction, so that the checker can
see that both are there or neither.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import uuid
from typing import Any

import django

django.setup()

from django.db import Error, InterfaceError, OperationalError, connection, transaction  # noqa: E402 -- after set-up

from django_pgqueue import send_event  # noqa: E402 -- as above
from tests.tools.faults import flows, journal  # noqa: E402 -- as above
from tests.tools.faults.app import tasks  # noqa: E402 -- as above
from tests.tools.faults.app.tasks import chunked, keyed, limited  # noqa: E402 -- as above

TASKS: dict[str, Any] = {
    **{name: getattr(tasks, name) for name in ("plain", "atomic", "coroutine", "failing", "atomic_failing", "once")},
    **{name: getattr(tasks, name) for name in ("alone", "atomic_alone")},
    "keyed": keyed.keyed,
    "debounced": keyed.debounced,
    "periodic": keyed.periodic,
    **{name: getattr(limited, name) for name in ("slotted", "rated", "in_order", "blocking", "throttled", "sheltered")},
    "separate": chunked.separate,
    "together": chunked.together,
    "at_times": tasks.plain.using(queue_name="at-times"),
    "expiring": tasks.plain.using(queue_name="at-times", expires=3),
}
KEYS = 5
MIX: dict[str, int] = {
    "plain": 6,
    "atomic": 6,
    "coroutine": 4,
    "failing": 2,
    "atomic_failing": 1,
    "once": 2,
    "alone": 1,
    "atomic_alone": 1,
    "keyed": 2,
    "debounced": 2,
    "periodic": 2,
    "slotted": 3,
    "rated": 3,
    "in_order": 2,
    "blocking": 1,
    "throttled": 1,
    "sheltered": 3,
    "separate": 4,
    "together": 4,
    "at_times": 1,
    "expiring": 1,
    "chain": 1,
    "graph": 2,
    "batch": 1,
    "sleeper": 2,
    "waiter": 3,
    "saga": 3,
}
_late: list[tuple[float, str]] = []
"""Events to send: when, and with which key."""


def main() -> int:
    """Enqueue until the number or the time is over; exit with 0 however many enqueues failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=10**9)
    parser.add_argument("--per-second", type=float, default=1000.0)
    parser.add_argument("--task", choices=sorted(MIX), help="only this one; else a mix")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    began = time.monotonic()
    for number in range(options.jobs):
        pause = began + number / options.per_second - time.monotonic()
        time.sleep(max(0.0, pause))
        if time.monotonic() - began > options.seconds:
            break
        name = options.task or chance.choices(list(MIX), list(MIX.values()))[0]
        if name in flows.PLANS:
            enqueue_flow(flows.PLANS[name](chance))
        else:
            enqueue(name, chance)
        send_late_events()
    return 0


def arguments_of(name: str, chance: random.Random) -> dict[str, Any]:
    """Return what a job is to be called with, besides its tag."""
    arguments: dict[str, Any] = {}
    if name not in ("failing", "atomic_failing", "throttled") and chance.random() < 0.05:
        arguments["seconds"] = chance.choice([0.05, 0.3, 3.0])
    if name == "failing":
        arguments["before"] = chance.choice([2, 3, 99])
    if name in ("keyed", "debounced", "periodic"):
        arguments |= {"key": f"key {chance.randrange(KEYS)}", "seconds": chance.choice([0.0, 0.1, 0.5])}
    if name in ("keyed", "periodic", "separate", "together"):
        arguments["before"] = chance.choice([1, 1, 2])
    return arguments | (limited_arguments(name, chance) if hasattr(limited, name) else {})


def limited_arguments(name: str, chance: random.Random) -> dict[str, Any]:
    """Return the key of a job with a limit, and what its task or its limit needs besides."""
    arguments: dict[str, Any] = {"key": f"customer {chance.randrange(KEYS)}"}
    if name == "throttled":
        return arguments | {"odds": 0.2, "after": chance.choice([0.2, 1.0, 3.0])}
    if name == "sheltered":
        return arguments
    arguments |= {"before": chance.choice([1, 1, 1, 2]), "seconds": chance.choice([0.0, 0.0, 0.1, 0.5])}
    return arguments | ({"weight": chance.choice([1, 1, 2, 3])} if name in ("slotted", "rated") else {})


def enqueue(name: str, chance: random.Random) -> None:
    """Enqueue one job, and say whether it was committed, rolled back, or nobody knows."""
    tag = uuid.uuid4().hex
    arguments = {"tag": tag, **arguments_of(name, chance)}
    journal.write("enqueue-sent", tag=tag, ordered=True)
    reached_commit = False
    try:
        with transaction.atomic():
            job = TASKS[name].enqueue(arguments) if hasattr(chunked, name) else TASKS[name].enqueue(**arguments)
            if not job.is_duplicate:
                order(tag)
            reached_commit = True
    except (OperationalError, InterfaceError) as error:
        answer = "unknown" if reached_commit else "rolled back"
        journal.write("enqueue-returned", tag=tag, answer=answer, error=str(error)[:200])
        connection.close()
        time.sleep(0.1)
    except Error as error:
        journal.write("enqueue-returned", tag=tag, answer="rolled back", error=str(error)[:200])
    else:
        about = {"job": job.pk, "task": job.task_name, "key": arguments.get("key")}
        journal.write("enqueue-returned", tag=tag, answer="duplicate" if job.is_duplicate else "committed", **about)


def enqueue_flow(flow: flows.Flow) -> None:
    """Do as `enqueue()` for a workflow, a batch or a job with steps."""
    journal.write_each("enqueue-sent", [{"tag": tag, "ordered": True} for tag in flow.tags])
    answer, error, reached_commit = "committed", None, False
    try:
        with transaction.atomic():
            flow.enqueue()
            for tag in flow.tags:
                order(tag)
            reached_commit = True
    except Error as caught:
        is_lost = isinstance(caught, (OperationalError, InterfaceError))
        answer, error = "unknown" if reached_commit and is_lost else "rolled back", str(caught)[:200]
        if is_lost:
            connection.close()
            time.sleep(0.1)
    journal.write_each("enqueue-returned", [{"tag": tag, "answer": answer, "error": error} for tag in flow.tags])
    if flow.late is not None:
        _late.append((time.monotonic() + flow.late[0], flow.late[1]))


def send_late_events() -> None:
    """Send the events whose time has come. One that fails is sent again: a job receives the first one."""
    for due, key in [one for one in _late if one[0] <= time.monotonic()]:
        try:
            send_event("go", key, key)
        except Error:
            connection.close()
            return
        _late.remove((due, key))


def order(tag: str) -> None:
    """Write the application's own row."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO public.fault_order (tag) VALUES (%s)", [tag])


if __name__ == "__main__":
    sys.exit(main())
