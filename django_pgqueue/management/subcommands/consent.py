"""Ask before a command changes many jobs: how many, of which tasks, and whether to go on.

Every subcommand that changes more than one job calls it. It protects one rule: such a command changes nothing that the
operator has not seen. On a terminal it asks. Without one it needs `--yes`, so that a script says that it means it.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from django_pgqueue.display import in_line

from .output import Output, counted
from .subcommand import Options, UsageError, confirm

MOST_COUNTED: Final = 100_000
"""Jobs that a preview counts at most."""
SHOWN_TASKS: Final = 10
PROGRESS_SECONDS: Final = 0.2
"""Time between two updates of the progress on a terminal."""


@dataclass(frozen=True)
class JobPreview:
    """The jobs that a command would change.

    Attributes:
        by_task: How many, by the name of their task.
        is_exact: Whether all were counted. Otherwise there are more.
    """

    by_task: Mapping[str, int]
    is_exact: bool = True

    @classmethod
    def of_tasks(cls, task_names: Iterable[str], most: int | None = None) -> JobPreview:
        """Count the jobs with these names of tasks, one for each job. It stops at `most`, or `MOST_COUNTED`."""
        names, limit = iter(task_names), MOST_COUNTED if most is None else most
        counts = Counter(islice(names, limit))
        return cls(counts, is_exact=next(names, None) is None)

    @property
    def count(self) -> int:
        """How many jobs were counted."""
        return sum(self.by_task.values())

    def __str__(self) -> str:
        return counted(self.count) if self.is_exact else f"more than {counted(self.count)}"


def add_consent(parser: ArgumentParser) -> None:
    """Add `--dry-run` and `--yes`. `is_agreed()` obeys them."""
    parser.add_argument("--dry-run", action="store_true", help="Print how many jobs, by task. Change none.")
    parser.add_argument("--yes", action="store_true", help="Do not ask. Needed if there is no terminal.")


def is_agreed(preview: JobPreview, change: str, options: Options, out: Output, *, changes_more: bool = False) -> bool:
    """Print the jobs that a command would change, and ask. Return whether to change them.

    Args:
        preview: The jobs.
        change: What happens to them, in the infinitive, such as "cancel".
        options: Those of `add_consent()`.
        out: Where to print.
        changes_more: Whether the command changes other rows too, so that it asks even if there are no jobs.

    Returns:
        False for `--dry-run`, and if there is nothing to change.

    Raises:
        CommandError: The answer is not yes.
        UsageError: There is no terminal to ask on, and `--yes` is missing.
    """
    out.write(f"{str(preview).capitalize()} to {change}{':' if preview.count else '.'}")
    tasks = sorted(preview.by_task.items(), key=lambda item: (-item[1], item[0]))
    tasks = [(task_name, count) for task_name, count in tasks if count]
    for task_name, count in tasks[:SHOWN_TASKS]:
        out.write(f"{count:>10,}  {in_line(task_name)}")
    if len(tasks) > SHOWN_TASKS:
        out.write(f"            and {counted(len(tasks) - SHOWN_TASKS, 'more task')}")
    if not preview.is_exact:
        out.write("The numbers are those of the jobs that were counted. There are more.")
    if options["dry_run"] or not (preview.count or changes_more):
        return False
    ask(f"{change.capitalize()} {preview}?", options)
    return True


def check_pace(options: Options) -> None:
    """Raise `UsageError` for a `--limit` or a `--rate` that is not above 0, before anything is read."""
    for name in ("limit", "rate"):
        if (number := options.get(name)) is not None and not number > 0:
            raise UsageError(f"Invalid --{name} {number:g}: use a number above 0.")


def ask(question: str, options: Options) -> None:
    """Ask unless `--yes` is given. Raise the errors of `is_agreed()`."""
    if not options["yes"]:
        refusal = "Pass --yes, because there is no terminal to ask on. --dry-run shows the jobs."
        confirm(question, refusal, "Nothing was changed.")


def progress(out: Output, total: int, *, is_exact: bool = True) -> Callable[[int], None]:
    """Return a function that shows on a terminal how many jobs are done. Elsewhere it does nothing.

    A change that takes less than `PROGRESS_SECONDS` shows nothing. The next line that is printed replaces the progress.
    """
    if not out.stdout.isatty():
        return lambda done: None
    shown_at = time.monotonic()
    of_total = f"{total:,}" if is_exact else f"more than {total:,}"

    def show(done: int) -> None:
        nonlocal shown_at
        if time.monotonic() >= shown_at + PROGRESS_SECONDS:
            shown_at = time.monotonic()
            out.stdout.write(f"\r\x1b[K{done:,} of {of_total}", ending="\r")
            out.stdout.flush()

    return show
