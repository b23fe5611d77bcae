"""`manage.py pgqueue jobs retry ID --with-dependents`: retry a failed job of a workflow and all that depends on it.

`changing_actions` calls it. The act is that of *Retry from here* in the admin: one transaction, one entry in the audit,
and each job only if it is still as the preview has shown it.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from django.core.management.base import CommandError

from django_pgqueue.acts.workflow_retries import CannotRetryFromError, WorkflowRetryPlan, plan_retry, retry_from
from django_pgqueue.display import in_line
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.models import Job
from django_pgqueue.stats.graphs.downstream import RetryEffect

from .output import Output, counted
from .subcommand import NotFound, Options, UsageError, confirm, database_alias, user_name

SHOWN: Final = 20
"""Jobs that the preview prints."""
RETRIED: Final = (RetryEffect.RUNS, RetryEffect.BLOCKED)
"""The effects on the jobs that the act retries."""
EFFECTS: Final = {
    RetryEffect.RUNS: "will run",
    RetryEffect.CANCELLED: "is cancelled again, because it depends on another failed job",
    RetryEffect.BLOCKED: "waits until another failed job is retried",
    RetryEffect.WAITS: "waits for these jobs",
    RetryEffect.LEFT: "is running, and is left alone",
    RetryEffect.KEPT: "has succeeded, and is left alone, because it depends on another failed job",
}


def retry_with_dependents(options: Options, out: Output) -> None:
    """Show what the retry concerns, ask, and retry the jobs.

    Raises:
        NotFound: The job does not exist.
        UsageError: The options do not fit, or the job is not a part of a workflow.
        CommandError: The act was declined or refused.
    """
    if len(options["ids"]) != 1:
        raise UsageError("Pass the id of one job with --with-dependents.")
    [job_id], alias = options["ids"], database_alias(options)
    job = Job.objects.using(alias).filter(pk=job_id).values_list("batch_id", "in_graph").first()
    if job is None:
        raise NotFound(f"Job {job_id} does not exist in the database {alias!r}.")
    batch_id, in_graph = job
    if batch_id is None or not in_graph:
        raise UsageError(f"Job {job_id} is not a part of a workflow: retry it without --with-dependents.")
    try:
        plan = plan_retry(batch_id, job_id, alias)
        _preview(plan, out)
        if options["dry_run"]:
            return
        if not options["yes"]:
            count = counted(sum(plan.effects[each] in RETRIED for each in plan.seen))
            refusal = "Pass --yes, because there is no terminal to ask on. --dry-run shows the jobs."
            confirm(f"Retry {count}?", refusal, "Nothing was changed.")
        done = retry_from(plan, alias, by=user_name(), reason=options["reason"])
    except (CannotRetryFromError, JobLocked) as error:
        raise CommandError(f"Nothing was changed: {in_line(str(error))}") from None
    out.write(f"Retried {counted(done.retried)}.")
    if done.left:
        out.write(f"{counted(done.left)} left: changed since, edited, or dependent on another failed job.")


def _preview(plan: WorkflowRetryPlan, out: Output) -> None:
    """Print each job with what happens to it, and what the operator has to know before the act."""
    count = sum(plan.effects[job_id] in RETRIED for job_id in plan.seen)
    out.write(f"{counted(count)} of workflow {plan.batch_id} to retry, in one step or not at all:")
    for node in plan.nodes[:SHOWN]:
        task, effect = in_line(node.task_name), EFFECTS[plan.effects[node.job_id]]
        out.write(f"{node.job_id:>10}  {node.state:<10}{task}: {effect}")
    for effect, hidden in Counter(plan.effects[node.job_id] for node in plan.nodes[SHOWN:]).items():
        out.write(f"            and {counted(hidden, 'more job')}: {EFFECTS[effect]}")
    if plan.succeeded:
        verb = "has" if len(plan.succeeded) == 1 else "have"
        out.write(f"{counted(len(plan.succeeded))} among them {verb} succeeded already. The task would run again.")
    for needs_id, dependents in sorted(plan.failed_before.items())[:SHOWN]:
        some = ", ".join(f"{each}" for each in sorted(dependents)[:5]) + (", …" if len(dependents) > 5 else "")
        out.write(f"Job {needs_id} has failed too, and is not retried. These depend on it: {some}.")
