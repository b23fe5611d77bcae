"""The options that choose jobs in `pgqueue jobs` and `pgqueue dead`: `--state`, `--queue`, `--since` and so on.

`filters_of()` checks their values, and `django_pgqueue.job_search` finds the jobs.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django_pgqueue.control.targets import limit_key_problems
from django_pgqueue.ground.search_text import as_search_text
from django_pgqueue.job_search import Filters, Moment
from django_pgqueue.states import STATE_OF, WORDS
from django_pgqueue.tasks import registry

from .subcommand import Options, UsageError, database_alias
from .times import time_of

FILTERS: Final = ("state", "queue", "task", "limit_key", "search", "since", "until", "error", "message")
"""The options that `add_filters()` adds."""


def add_filters(parser: ArgumentParser, words: Sequence[str] = WORDS) -> None:
    """Add the options that filter jobs. Without `words`, leave out `--state`."""
    if words:
        parser.add_argument("--state", choices=words, metavar="STATE", help=f"One of {', '.join(words)}.")
    parser.add_argument("--queue", metavar="NAME", help="Jobs in this queue.")
    parser.add_argument("--task", metavar="NAME", help="Jobs of this task, also under its former names.")
    parser.add_argument("--limit-key", metavar="KEY", help="Jobs with this limit key, or of a limit with this name.")
    parser.add_argument(
        "--search", metavar="NAME=VALUE", help="Jobs with this value of an argument that their task's search names."
    )
    times = "30m, 2h, 1d (ago), or an ISO 8601 time. Finished jobs: when they ended. Others: when they were enqueued."
    parser.add_argument("--since", metavar="TIME", help=f"Jobs of this time or later: {times}")
    parser.add_argument("--until", metavar="TIME", help="Jobs of an earlier time: as --since.")
    parser.add_argument("--error", metavar="CLASS", help="Jobs whose latest attempt raised this exception class.")
    text = "Jobs with this text in the error message of the latest attempt. After =, the whole message, # for numbers."
    parser.add_argument("--message", metavar="TEXT", help=text)


def filters_of(options: Options, *, ids: Sequence[int] = (), words: Sequence[str] = ()) -> Filters:
    """Return the filters in a command's options. `words` are the states without `--state`.

    Raise `UsageError` for an invalid value.
    """
    task, state = options["task"], options.get("state")
    for name in FILTERS:
        if options.get(name) == "":  # for example a variable of a script that is not set: it must not choose all jobs
            raise UsageError(f"The value of --{name.replace('_', '-')} is empty: pass one, or omit the option.")
    if ids and (given := given_filters(options)):
        raise UsageError(f"Pass either ids of jobs, or filters such as --{given[0]}.")
    since, until = _moment("--since", options["since"]), _moment("--until", options["until"])
    if since and until and since.seconds_ago <= until.seconds_ago:
        raise UsageError(f"--since {options['since']} is not before --until {options['until']}: no job can fit.")
    return Filters(
        database_alias(options),
        tuple([state] if state else words),
        options["queue"],
        registry.names_of(task) if task else (),
        since,
        until,
        options["error"],
        options["message"],
        search_key(options["search"], [*filter(None, [state]), *words]),
        tuple(dict.fromkeys(ids)),
        _limit_key(options["limit_key"]),
    )


def given_filters(options: Options) -> list[str]:
    """Return the names of the filters that were typed."""
    return [name for name in FILTERS if options.get(name)]


def described(filters: Filters) -> dict[str, Any]:
    """Return the filters as the audit stores them. The value of a search key is an argument, so it is left out."""
    if filters.ids:
        return {"jobs": list(filters.ids)}
    moments = {"since": filters.since, "until": filters.until}
    now = datetime.now(UTC)
    found = {
        "states": list(filters.words),
        "queue": filters.queue_name,
        "tasks": list(filters.task_names),
        "error": filters.error,
        "message": filters.message,
        "search": filters.search and filters.search[0],
        "limit_key": filters.limit,
        **{name: (moment.at or now - moment.ago).isoformat() for name, moment in moments.items() if moment},
    }
    return {name: value for name, value in found.items() if value}


def search_key(typed: str | None, words: Sequence[str] = ()) -> tuple[str, str] | None:
    """Return the name and the value of a search key as they were typed. None: the option was not passed."""
    if typed is None:
        return None
    name, sign, value = typed.partition("=")
    if not sign or not name:
        raise UsageError(f"Invalid --search {typed!r}: write NAME=VALUE, such as customer_id=4711.")
    for word in {"due", "paused", "lost"} & set(words):
        raise UsageError(f"--search cannot be combined with --state {word}: use --state {STATE_OF[word]}.")
    return name, as_search_text(value)


def _limit_key(typed: str | None) -> str | None:
    for problem in () if typed is None else limit_key_problems(typed):
        raise UsageError(f"Invalid --limit-key {typed!r}: {problem}.")
    return typed


def _moment(option: str, text: str | None) -> Moment | None:
    if text is None:
        return None
    try:
        at = time_of(option, text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return Moment(None, at) if isinstance(at, timedelta) else Moment(at, timedelta())
