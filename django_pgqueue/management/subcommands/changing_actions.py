"""`manage.py pgqueue jobs retry|acknowledge|cancel|move|delete`: change jobs with some ids, or that meet some filters.

`_run()` finds the jobs, reads them, shows how many it would change, and asks. `paced_changes.change_all()` then changes
each job only if the job is still as it was read.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import connections

from django_pgqueue import acts
from django_pgqueue.acts import JobAct
from django_pgqueue.acts.job_changes import ActAudit, ActRun, edited_jobs
from django_pgqueue.display import in_line
from django_pgqueue.job_search import Filters, find
from django_pgqueue.options.task_options import OPTIONS
from django_pgqueue.options.validation import unknown_queue
from django_pgqueue.states import FINISHED_WORDS, READY_WORDS, RUNNING_WORDS, STATE_OF, WAITING_WORDS, Seen, State

from .consent import add_consent, ask, check_pace
from .filter_options import add_filters, described, filters_of
from .filter_options import given_filters as given
from .job_rows import SeenJob, read_seen
from .known_names import check_filters, check_target_queue
from .output import Output, counted
from .paced_changes import EDITED, AfterBatch, change_all
from .parsers import row_id
from .retry_with_dependents import retry_with_dependents
from .subcommand import (
    NotFound,
    Options,
    Subcommand,
    UsageError,
    add_database,
    database_alias,
    has_terminal,
    user_name,
)

MOST_JOBS: Final = 100_000
"""Jobs that one command changes at most without `--limit`. It keeps about 500 bytes of each in memory."""
TARGETS: Final = ("to_queue", "to_priority", "max_attempts")
"""The options of acts that the audit stores."""
SHOWN_GROUPS: Final = 10
SHOWN_IDS: Final = 5


@dataclass(frozen=True)
class JobAction:
    """A change of jobs.

    Attributes:
        act: The act. Its name, with hyphens, is the word to type.
        done: What has happened to a changed job, such as "retried".
        words: The values of `--state`.
        default_words: Returns the states of the jobs to change without `--state`.
        options: Returns the options of `JobAct.change`. Raises `UsageError` for invalid ones.
        note: What does not change. The preview says it.
        why_left: Returns why a job in a fitting state is left out, or "".
    """

    act: JobAct
    done: str
    words: tuple[str, ...]
    default_words: Callable[[Options], tuple[str, ...]]
    options: Callable[[Options], dict[str, Any]] = lambda options: {}
    note: str = ""
    why_left: Callable[[SeenJob, Mapping[str, Any]], str] = lambda job, options: ""

    @property
    def name(self) -> str:
        """The word to type."""
        return self.act.name.replace("_", "-")


def add_change_options(parser: ArgumentParser) -> None:
    """Add the options of every action: how many jobs, how fast, and whether to ask."""
    most = f"{MOST_JOBS:,}"
    parser.add_argument(
        "--limit", type=int, default=MOST_JOBS, metavar="N", help=f"Jobs to change at most. Default: {most}."
    )
    parser.add_argument("--rate", type=float, metavar="N", help="Jobs per second at most. Default: no limit.")
    parser.add_argument("--reason", default="", metavar="TEXT", help="Text for the audit.")
    add_consent(parser)
    add_database(parser)


def add_arguments(words: Sequence[str], parser: ArgumentParser) -> None:
    """Add the ids, the filters with these words for states, and the options of every action."""
    parser.add_argument("ids", nargs="*", type=row_id, metavar="ID", help="Ids of jobs, instead of filters.")
    add_filters(parser, words)
    add_change_options(parser)


def _run(action: JobAction, options: Options, out: Output) -> None:
    if not options["ids"] and not given(options):
        raise UsageError("Pass the ids of jobs, or at least one filter such as --state, --queue or --task.")
    run_action(action, filters_of(options, ids=options["ids"], words=action.default_words(options)), options, out)


def run_action(
    action: JobAction,
    filters: Filters,
    options: Options,
    out: Output,
    after_batch: AfterBatch | None = None,
) -> None:
    """Find the jobs, show them, ask, and change them. `after_batch` is called after each batch.

    Raises:
        NotFound: A job with one of the given ids does not exist, or nothing uses a name in the filters.
        UsageError: An option is invalid, or `--yes` is missing without a terminal.
        CommandError: The action was declined, interrupted or stopped, or none of the jobs with the given ids fits.
    """
    change_options = action.options(options)
    check_pace(options)
    found = find(filters, max(options["limit"], len(filters.ids)))
    jobs = _read(filters, found.ids)
    states = {STATE_OF[word] for word in filters.words}
    fitting = [job for job in jobs if job.state in states and not action.why_left(job, change_options)]
    connection = connections[filters.alias]
    edited = edited_jobs(connection, action.act, [job.pk for job in fitting])
    left_out = {} if change_options.get("with_edited") else edited
    changing = [job for job in fitting if job.pk not in left_out]
    _preview(action, change_options, changing, [job for job in jobs if job.pk not in left_out], out)
    _preview_edited(edited, out, is_left_out=bool(left_out), with_ids=bool(filters.ids))
    if found.has_more:
        out.write(f"More jobs meet the filters. Repeat the command after the first {counted(options['limit'])}.")
    if found.scope:
        out.write(f"The search was limited: {found.scope}.")
    if not changing and filters.ids:
        raise CommandError("Nothing was changed.")
    if options["dry_run"] or not changing:
        return
    if not (filters.ids and not has_terminal()):
        ask(f"{action.name.capitalize()} {counted(len(changing))}?", options)
    chosen = {**described(filters), **_details(options, len(left_out))}
    notes = {"total": len(changing), "reason": options["reason"], "rate": options["rate"]}
    stops = after_batch is not None
    audit = ActAudit(connection, action.act.name, chosen, done_by=user_name(), stops_on_repeat=stops, **notes)
    seen = {job.pk: Seen(job.state, job.finished_at, job.run_after, job.acknowledged_at is not None) for job in fitting}
    changes = ActRun(connection, action.act, seen, audit, change_options, left_out)
    change_all(action.done, changes, audit, out, options["rate"], after_batch or (lambda job_ids: None))


def _read(filters: Filters, job_ids: Sequence[int]) -> list[SeenJob]:
    """Return the jobs that were found. Raise `NotFound` for an id without a job, and for a name that nothing uses."""
    jobs = read_seen(filters.alias, job_ids)
    if missing := sorted(set(filters.ids) - {job.pk for job in jobs}):
        raise NotFound(f"Job {missing[0]} does not exist in the database {filters.alias!r}.")
    if not jobs:
        check_filters(filters)
    return jobs


def _details(options: Options, edited_count: int) -> dict[str, Any]:
    """Return what the audit stores besides the filters: the target, and how many jobs are left out as edited."""
    found = {name: value for name in TARGETS if (value := options.get(name)) is not None}
    return {**found, "edited": edited_count} if edited_count else found


def _preview(
    action: JobAction,
    change_options: Mapping[str, Any],
    fitting: Sequence[SeenJob],
    jobs: Sequence[SeenJob],
    out: Output,
) -> None:
    """Print how many jobs would change, by task and state, some of their ids, and how many of `jobs` are left out."""
    out.write(f"{counted(len(fitting))} to {action.name}{':' if fitting else '.'}")
    groups = Counter((job.task_name, job.state) for job in fitting).most_common()
    for (task_name, state), count in groups[:SHOWN_GROUPS]:
        ids = [str(job.pk) for job in fitting if (job.task_name, job.state) == (task_name, state)][: SHOWN_IDS + 1]
        shown = ", ".join(ids[:SHOWN_IDS]) + (", …" if len(ids) > SHOWN_IDS else "")
        out.write(f"{count:>10,}  {state:<10}{in_line(task_name)} (id {shown})")
    if len(groups) > SHOWN_GROUPS:
        out.write(f"            and {counted(len(groups) - SHOWN_GROUPS, 'more task')}")
    chosen = {job.pk for job in fitting}
    left = [job for job in jobs if job.pk not in chosen]
    for why, count in Counter(_why_left_out(action, change_options, job) for job in left).items():
        out.write(f"{counted(count)} left out: {why}.")
    if fitting and action.note:
        out.write(action.note)


def _preview_edited(edited: Mapping[int, int | None], out: Output, *, is_left_out: bool, with_ids: bool) -> None:
    """Print which jobs *Edit and retry* has made new jobs of, and whether a retry leaves them out."""
    if not edited:
        return
    pairs = [f"{job_id} as {new_id or 'a job that was removed'}" for job_id, new_id in edited.items()]
    shown = ", ".join(pairs[:SHOWN_IDS]) + (", …" if len(pairs) > SHOWN_IDS else "")
    if not is_left_out:
        out.write(f"{counted(len(edited))} among them: {EDITED} ({shown}). Their old arguments run once more.")
        return
    hint = " Pass --with-edited to retry such jobs too." if with_ids else ""
    out.write(f"{counted(len(edited))} left out: {EDITED} ({shown}).{hint}")


def _why_left_out(action: JobAction, change_options: Mapping[str, Any], job: SeenJob) -> str:
    states = dict.fromkeys(STATE_OF[word] for word in action.words)
    if job.state in states and (why := action.why_left(job, change_options)):
        return why
    if action is RETRY_ACTION:
        option = " without --finished" if job.state in FINISHED_WORDS else ""
        return f"{job.state}, and only dead jobs are retried{option}"
    return f"{job.state}, and {action.name} needs {' or '.join(states)}"


# ---------------------------------------------------------------------------- the five actions


def _words_to_retry(options: Options) -> tuple[str, ...]:
    if options["finished"]:
        return FINISHED_WORDS
    if options["state"] not in (None, "dead", "acknowledged"):
        raise UsageError(f"Pass --finished to retry {options['state']} jobs: otherwise only dead jobs are retried.")
    return (State.DEAD,)


def _retry_options(options: Options) -> dict[str, Any]:
    """Return whether edited jobs are retried too. Raise `UsageError` if they are not named by their ids."""
    if not options.get("with_edited"):
        return {}
    if not options["ids"]:
        raise UsageError("Pass the ids of the jobs with --with-edited.")
    return {"with_edited": True}


def _acknowledge_options(options: Options) -> dict[str, Any]:
    """Raise `UsageError` if the reason is missing: the job's page shows it to those who find the job later."""
    if not options["reason"].strip():
        raise UsageError("Pass --reason: the audit and the page of each job show why nobody has to deal with it.")
    return {}


def _move_options(options: Options) -> dict[str, Any]:
    """Return the target of a move. Raise `UsageError` if it is missing or invalid."""
    queue_name, priority = options["to_queue"], options["to_priority"]
    if queue_name is None and priority is None:
        raise UsageError("Pass --to-queue, --to-priority, or both.")
    for option, value in (("queue_name", queue_name), ("priority", priority)):
        check = OPTIONS[option].check
        for problem in check(f"--to-{option.partition('_')[0]}", value) if check and value is not None else ():
            raise UsageError(f"{problem}.")
    if queue_name is not None:
        for problem in unknown_queue("--to-queue", queue_name):
            raise UsageError(f"{problem}.")
        if not options["force"]:
            check_target_queue(queue_name, database_alias(options))
    return {"queue_name": queue_name, "priority": priority}


RETRY_ACTION: Final = JobAction(acts.RETRY, "Retried", FINISHED_WORDS, _words_to_retry, _retry_options)
ACKNOWLEDGE_ACTION: Final = JobAction(
    acts.ACKNOWLEDGE,
    "Acknowledged",
    ("dead",),
    lambda options: ("dead",),
    _acknowledge_options,
    "They stay dead. Their batches still count them as failed, and jobs that depend on them stay as they are.",
    lambda job, options: "acknowledged already" if job.acknowledged_at is not None else "",
)
CANCEL_ACTION: Final = JobAction(
    acts.CANCEL,
    "Cancelled, or asked to stop,",
    (*READY_WORDS, *WAITING_WORDS, *RUNNING_WORDS),
    lambda options: (State.READY, State.WAITING, State.RUNNING),
    why_left=lambda job, options: "a worker is stopping it already" if job.cancel_requested_at is not None else "",
)
MOVE_ACTION: Final = JobAction(
    acts.MOVE,
    "Moved",
    (*READY_WORDS, *WAITING_WORDS),
    lambda options: (State.READY, State.WAITING),
    _move_options,
)
DELETE_ACTION: Final = JobAction(acts.DELETE, "Deleted", FINISHED_WORDS, lambda options: FINISHED_WORDS)


def _add_retry(parser: ArgumentParser) -> None:
    add_arguments(RETRY_ACTION.words, parser)
    parser.add_argument("--finished", action="store_true", help="Also retry jobs that succeeded or were cancelled.")
    text = "Also retry jobs with these ids that were edited and retried as new jobs."
    parser.add_argument("--with-edited", action="store_true", help=text)
    text = "Retry one dead or cancelled job of a workflow, with all jobs that depend on it."
    parser.add_argument("--with-dependents", action="store_true", help=text)


def _add_move(parser: ArgumentParser) -> None:
    add_arguments(MOVE_ACTION.words, parser)
    parser.add_argument("--to-queue", metavar="NAME", help="The queue to move the jobs to.")
    parser.add_argument("--to-priority", type=int, metavar="N", help="The priority to give to the jobs.")
    parser.add_argument("--force", action="store_true", help="Accept a name for --to-queue that looks misspelled.")


def _run_retry(options: Options, out: Output) -> None:
    """Retry jobs, or one job of a workflow with all that depends on it."""
    if not options["with_dependents"]:
        return _run(RETRY_ACTION, options, out)
    chosen = given({name: value for name, value in options.items() if name != "ids"})
    if chosen or options["finished"] or options["with_edited"] or options["rate"] or options["limit"] != MOST_JOBS:
        raise UsageError("Pass only --reason, --dry-run, --yes and --database with --with-dependents.")
    return retry_with_dependents(options, out)


def subcommand(action: JobAction, text: str, add_options: Callable[[ArgumentParser], Any] | None = None) -> Subcommand:
    """Return the subcommand of an action. `add_options` adds its arguments, if it has some of its own."""
    return Subcommand(action.name, text, add_options or partial(add_arguments, action.words), partial(_run, action))


RETRY: Final = Subcommand("retry", "Make dead jobs ready again, with all their attempts.", _add_retry, _run_retry)
ACKNOWLEDGE: Final = subcommand(ACKNOWLEDGE_ACTION, "Take dead jobs out of the lists, without a retry.")
CANCEL: Final = subcommand(CANCEL_ACTION, "Cancel waiting jobs, and ask running ones to stop.")
MOVE: Final = subcommand(MOVE_ACTION, "Move waiting jobs to another queue or priority.", _add_move)
DELETE: Final = subcommand(DELETE_ACTION, "Delete finished jobs and their attempts.")
