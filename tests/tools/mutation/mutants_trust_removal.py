"""Mutants of the removal of jobs: what unfinished work needs stays, and `delete()` obeys the engine.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

NEEDS = ("tests/deletion/test_needs.py",)
BLOCKS = "AND (job.state <> 'dead' OR job.limit_order IS DISTINCT FROM 2)"

DELETIONS = of_tests(
    ("tests/deletion/test_jobs.py", "tests/deletion/test_batches.py"),
    Mutant("delete() of a queryset leaves unfinished jobs", "if unfinished:", "if False:", inside="delete_jobs"),
    Mutant("delete() leaves an unfinished job", "is Need.UNFINISHED", "is None", inside="delete_job"),
    Mutant(
        "the base manager deletes past the engine",
        'base_manager_name = "objects"  #',
        'ordering = ["pk"]  #',
        inside="jobs.Job",
    ),
    Mutant(
        "delete() ignores foreign keys",
        "found.none() if _is_of_the_queue(related_model) else found",
        "found.none()",
        inside="ProjectRows.related_objects",
    ),
    Mutant("an ended workflow is deleted in part", "total.total() == count or not left", "True", inside="delete_jobs"),
    Mutant("no log line says what stayed", "in KEPT_BY_DELETE", "is None", inside="_log_kept"),
    Mutant(
        "attempts are missing in the counts",
        "counts[label] += sum",
        "counts[label] += 0 * sum",
        inside="deletion._counted",
    ),
    Mutant(
        "a pending saga is taken for a locked job",
        "\n   OR (SELECT true FROM pgqueue_step WHERE job_id = asked.id AND compensation IS NOT NULL LIMIT 1)",
        "",
        statement="DELETE",
    ),
    Mutant(
        "a batch with jobs is deleted",
        "WHERE (SELECT true FROM pgqueue_job WHERE batch_id = given.id LIMIT 1) IS NULL",
        "WHERE true",
        statement="DELETE_BATCHES",
    ),
    Mutant("an incomplete batch is left", "completed_at is None", "pk is None", inside="deletion.delete_batches"),
)

REMOVALS = of_tests(
    NEEDS,
    Mutant("a job that blocks its key is removed", BLOCKS, "", "LOCK_FINISHED"),
    Mutant(
        "a dead compensation is removed",
        "          job.state = 'succeeded'\n",
        "          true\n",
        "LOCK_FINISHED",
    ),
    Mutant(
        "a needed node is removed",
        "          job.in_graph IS NULL\n",
        "          true\n",
        "LOCK_FINISHED",
    ),
    Mutant("a needed result is erased", "          NOT %(erases_results)s::boolean\n", "          true\n", "ERASE"),
    Mutant("the answer counts no needed job", "job.need is not None", "False", inside="counted"),
    Mutant("a waited event is removed", "            WHERE (\n", "            WHERE true OR (\n", "PRUNE_EVENTS"),
    Mutant(
        "an event of an ended job stays",
        "AND (SELECT finished_at IS NULL FROM pgqueue_job WHERE id = step.job_id)",
        "",
        "PRUNE_EVENTS",
    ),
    Mutant("a kept event stops the others", "last_id == last_old_id", "removed == found", inside="prune_events"),
    Mutant(
        "a tick of an unfinished job goes",
        "              fired.job_id IS NULL\n",
        "              true\n",
        "PRUNE_SCHEDULE_RUNS",
    ),
    Mutant(
        "the callback of a retried job is erased",
        "(succeeded_at IS NOT NULL OR retried.is_unfinished IS NULL)",
        "true",
        "USED_CALLBACKS",
    ),
    Mutant("nested jobs count for nothing", "WHERE parent_id = tree.id", "WHERE false", "USED_CALLBACKS"),
)

TRUST_REMOVAL = [*DELETIONS, *REMOVALS]
