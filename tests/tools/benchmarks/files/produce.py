"""Enqueues, in a process and an environment of the system's own: `produce.py WAY TASK FIRST COUNT [NUMBER]`.

Copied beside the system's `adapter.py`, which has

- `start()`, called once;
- `enqueue(task, number)`: one job, committed when it returns;
- `enqueue_later(task, number, seconds)`: one job that is due later;
- `enqueue_many(task, numbers)`: all of them, by the fastest way that the system documents;
- `enqueue_payload(task, numbers, text)`: the same with that text as second argument, if the system has it;
- `transaction()`: a context in which `enqueue` is part of one transaction, if the system has it;
- `enqueue_workflow(task, numbers, shape)`: a workflow of these jobs, if the system has workflows: see shapes.py;
- `enqueue_chain(task, numbers)`: jobs that run one after another, if the system has workflows;
- `enqueue_noted(task, number)`, if it does more after its commit than to return: it calls `record.committed(number)`.

Prints one line of JSON: seconds, and by how many KiB the process has grown at the most.
"""

import base64
import json
import random
import resource
import sys
import time
from array import array
from collections.abc import Callable

import adapter  # type: ignore[import-not-found]  # it lies beside a copy of this file
import record  # type: ignore[import-not-found]  # as above
import shapes  # type: ignore[import-not-found]  # as above

STREAMED = 100
Result = dict[str, float] | None
"""What a way has measured itself."""


def bulk(task: str, numbers: range, _: float) -> None:
    adapter.enqueue_many(task, numbers)


def single(task: str, numbers: range, _: float) -> None:
    for number in numbers:
        adapter.enqueue(task, number)


def transaction(task: str, numbers: range, _: float) -> None:
    with adapter.transaction():
        single(task, numbers, 0)


def enqueue_noted(task: str, number: int) -> None:
    adapter.enqueue(task, number)
    record.committed(number)


def paced(task: str, numbers: range, per_second: float) -> None:
    """At a steady pace; what is late is made up for."""
    noted = getattr(adapter, "enqueue_noted", enqueue_noted)
    began = time.monotonic()
    for place, number in enumerate(numbers):
        time.sleep(max(0.0, began + place / per_second - time.monotonic()))
        noted(task, number)


def later(task: str, numbers: range, seconds: float) -> None:
    """Due after so many seconds, 50 ms apart."""
    for number in numbers:
        due_at = time.monotonic() + seconds
        adapter.enqueue_later(task, number, seconds)
        record.committed(number, due_at)
        time.sleep(0.05)


def timed(task: str, numbers: range, seconds: float) -> Result:
    """As fast as possible for so many seconds, from when there is a file `go`: many producers can begin together."""
    adapter.enqueue(task, numbers[0])  # connects
    (record.HERE / f"{record.READY}-{numbers[0]}").touch()
    while not (record.HERE / record.GO).exists():
        time.sleep(0.002)
    took = array("d")
    began = before = time.perf_counter()
    for number in numbers[1:]:
        adapter.enqueue(task, number)
        after = time.perf_counter()
        took.append(after - before)
        before = after
        if after - began > seconds:
            break
    else:
        raise RuntimeError("more numbers are needed for this time")
    (record.HERE / f"{record.TOOK}-{numbers[0]}").write_bytes(took.tobytes())
    return {"enqueued": 1 + len(took), "per_second": len(took) / (before - began)}


def stream(task: str, numbers: range, per_second: float) -> Result:
    """At a steady pace, in transactions of 100 jobs; tells how late the last one was."""
    began = time.monotonic()
    late = 0.0
    for place in range(0, len(numbers), STREAMED):
        early = began + place / per_second - time.monotonic()
        late = max(0.0, -early)
        time.sleep(max(0.0, early))
        chunk = numbers[place : place + STREAMED]
        adapter.enqueue_many(task, chunk)
        committed_at = time.monotonic()
        for number in chunk:
            record.committed(number, committed_at)
    return {"late_seconds": late}


def payload(task: str, numbers: range, size: float) -> None:
    """With a text of so many bytes, which the server cannot compress."""
    text = base64.b64encode(random.Random(0).randbytes(int(size))).decode()[: int(size)]
    adapter.enqueue_payload(task, numbers, text)


def fan(task: str, numbers: range, _: float) -> None:
    adapter.enqueue_workflow(task, numbers, shapes.fan(len(numbers)))


def graph(task: str, numbers: range, _: float) -> None:
    adapter.enqueue_workflow(task, numbers, shapes.graph(len(numbers)))


def chains(task: str, numbers: range, _: float) -> None:
    """Each chain on its own, as separate requests would enqueue them."""
    for first in range(numbers.start, numbers.stop, shapes.LENGTH):
        adapter.enqueue_chain(task, range(first, min(first + shapes.LENGTH, numbers.stop)))


def chain(task: str, numbers: range, _: float) -> None:
    adapter.enqueue_chain(task, numbers)


WAYS: dict[str, Callable[[str, range, float], Result]] = {
    "bulk": bulk,
    "single": single,
    "transaction": transaction,
    "paced": paced,
    "later": later,
    "timed": timed,
    "stream": stream,
    "payload": payload,
    "fan": fan,
    "graph": graph,
    "chains": chains,
    "chain": chain,
}


def resident_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    way, task, first, count, *rest = sys.argv[1:]
    adapter.start()
    before, began = resident_kib(), time.monotonic()
    more = WAYS[way](task, range(int(first), int(first) + int(count)), float(rest[0]) if rest else 0.0)
    took = time.monotonic() - began
    print(json.dumps({"seconds": took, "grown_kib": resident_kib() - before, **(more or {})}))


if __name__ == "__main__":
    main()
