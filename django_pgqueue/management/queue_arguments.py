"""Read `--queues`, `--queue` and `--concurrency` of a worker's command line. Called by `runworker`."""

from __future__ import annotations

from collections.abc import Sequence

from django_pgqueue.ground.served_queues import OTHERS, ServedQueues
from django_pgqueue.management.subcommands.subcommand import UsageError
from django_pgqueue.options.validation import NAME, unknown_queue
from django_pgqueue.settings.conf import get_settings


def served_queues(queues: str | None, values: Sequence[str] | None) -> ServedQueues:
    """Return the queues to serve, by `--queues` or by the values of `--queue`.

    Raise `UsageError` for an invalid or unlisted name, an invalid number, and if both options are given.
    """
    if not values:
        return ServedQueues(queue_names(queues))
    if queues is not None:
        raise UsageError(
            "--queues and --queue cannot be combined: pass --queues for a strict order of the queues, or --queue for "
            "each queue to limit its jobs."
        )
    numbers: dict[str, int | None] = {}
    for value in values:
        name, number = _name_and_number(value)
        if name in numbers:
            raise UsageError(f"--queue names the queue {name!r} twice: pass it once, with one number.")
        numbers[name] = number
    return ServedQueues.of_queue_options(numbers)


def queue_names(text: str | None) -> tuple[str, ...]:
    """Return the queues in `--queues`, each once. Raise `UsageError` for an invalid or unlisted name."""
    if text is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if "=" in name:
            raise UsageError(f"Invalid queue name {name!r} in --queues: to limit its jobs, pass --queue {name}.")
        _check_name("--queues", name)
    return names


def concurrency(served: ServedQueues, given: int | None) -> int:
    """Return how many jobs each process runs at a time. `given` is the value of `--concurrency`, or None.

    Raise `UsageError` if a queue has more slots than the process, or the process has slots that no queue may use.
    """
    numbers = list(served.concurrency.values())
    limited = sum(number for number in numbers if number is not None)
    all_limited = bool(numbers) and None not in numbers
    if given is None and all_limited:
        return limited
    total = given or get_settings().CONCURRENCY
    option = "--concurrency" if given else "PGQUEUE['CONCURRENCY']"
    for name, number in served.concurrency.items():
        if number is not None and number > total:
            raise UsageError(
                f"--queue {name}={number} exceeds {option}, which is {total}: pass --concurrency {number} or more."
            )
    if all_limited and total > limited:
        raise UsageError(
            f"--concurrency {total} has slots that no queue may use, because the numbers in --queue add up to "
            f"{limited}: omit --concurrency, or pass --queue '{OTHERS}' to serve all other queues too."
        )
    return total


def _name_and_number(value: str) -> tuple[str, int | None]:
    """Return the parts of `NAME` or `NAME=N`."""
    name, sign, text = (part.strip() for part in value.partition("="))
    if name != OTHERS:
        _check_name("--queue", name)
    if not sign:
        return name, None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise UsageError(f"Invalid number {text!r} in --queue {value}: pass a whole number of at least 1.")
    return name, int(text)


def _check_name(option: str, name: str) -> None:
    """Raise `UsageError` for a name that no queue can have, or that `PGQUEUE["QUEUES"]` lacks."""
    if not NAME.fullmatch(name):
        advice = "Omit --queues for all queues." if option == "--queues" else "Pass --queue once for each queue."
        raise UsageError(f"Invalid queue name {name!r} in {option}. {advice}")
    for problem in unknown_queue(option, name):
        raise UsageError(problem)
