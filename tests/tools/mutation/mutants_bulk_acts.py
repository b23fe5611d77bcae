"""Mutants of bulk acts and of the audit: exact against the preview, one batch at a time, stoppable, recorded.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

BULK_ACTS = [
    *of_tests(
        ("tests/worker/test_bulk_act_dependents.py",),
        Mutant(
            "a dependent that a batch restores is not counted",
            "*(chosen - again), ",
            "",
            inside="bulk_changes._Changes._change_at_once",
        ),
        Mutant(
            "a dependent that a batch cancels is not counted",
            "*cancelled.intersection(self._act.selection.job_ids)",
            "",
            inside="bulk_changes._Changes._change_at_once",
        ),
        Mutant(
            "a node that was cancelled again and restored still counts as left",
            " - len(counted & self.recorded)",
            "",
            inside="bulk_changes._Changes.left",
        ),
        Mutant(
            "a restored dependent counts although the filter leaves it out",
            'WHERE """ + MEETS + " AND " + HAS_ERROR',
            'WHERE """ + HAS_ERROR',
            "BULK_CHOSEN",
        ),
        Mutant(
            "nobody hears of dependents that an act of workers has cancelled",
            "[*transitions, *advanced_transitions(batch.advanced)]",
            "transitions",
            inside="BulkActs._react",
        ),
    ),
    *of_tests(
        ("tests/worker/test_bulk_erasures.py",),
        Mutant(
            "jobs are erased before their callbacks",
            "    if walk is not None and walk.after_id is not None:\n        return ActBatch",
            "    if False:\n        return ActBatch",
            inside="bulk_acts._execute",
        ),
        Mutant(
            "jobs behind those whose callbacks are erased come with them",
            "count = places[walk.last_job_id]",
            "count = len(page.rows)",
            inside="bulk_acts._without_callbacks",
        ),
        Mutant(
            "a page whose last job is gone is not looked for",
            "walk is None or walk.last_job_id not in places",
            "walk is None",
            inside="bulk_acts._without_callbacks",
        ),
        Mutant(
            "a bulk act erases all kinds of values",
            "kind in kinds for kind in ERASED_KINDS",
            "True for kind in ERASED_KINDS",
            inside="history._erased",
        ),
    ),
    *of_tests(
        ("tests/security/test_erasing_roles.py",),
        Mutant(
            "a worker without the grants tries to erase",
            "act.action is TransitionName.ERASE and not may_erase(connection)",
            "False",
            inside="bulk_acts._execute",
        ),
        Mutant(
            "the pages name a role although another worker may erase",
            "[] if any(may_erase for _, may_erase in roles) else ",
            "",
            inside="fleet.roles_without_erasure",
        ),
    ),
    *of_tests(
        ("tests/admin/test_erase.py",),
        Mutant(
            "the answer about selected rows erases a whole list",
            "confirmation.is_given(request) and operation is not ERASE",
            "confirmation.is_given(request)",
            inside="JobAdmin.act_on_selected",
        ),
        Mutant(
            "many jobs are erased without a reason",
            "    if action in NEED_REASON and not reason:",
            "    if False:",
            inside="bulk_preview._request_once",
        ),
    ),
    *of_tests(
        ("tests/admin/test_incidents.py",),
        Mutant(
            "anybody sees which jobs have a message",
            " and (not message or private.may_view(request))",
            "",
            inside="may_choose",
        ),
        Mutant(
            "the list of a message has the whole group",
            "if isinstance(part, MessageGroup) else {}",
            "if False else {}",
            inside="incidents._links",
        ),
    ),
    *of_tests(
        ("tests/worker/test_bulk_acts.py",),
        Mutant(
            "a whole message is a part of one",
            ") = substr(%(message)s::text, 2)",
            ") LIKE substr(%(message)s::text, 2) || '%%'",
            "BULK_PAGE_FINISHED",
            times=2,
        ),
        Mutant(
            "a retry gives way to a job with another message",
            """HAS_ERROR_OF + "later.id" + OR_NONE""",
            '"true"',
            file="sql/bulk_acts.py",
        ),
        Mutant(
            "a move in bulk keeps the priority",
            "priority=act.selection.to_priority",
            "priority=None",
            inside="_transition",
        ),
        Mutant(
            "an act takes what died since",
            "\n      AND finished_at <= %(until_at)s::timestamptz",
            "\n      AND (true OR finished_at <= %(until_at)s::timestamptz)",
            "FROM_OLDEST",
        ),
        Mutant(
            "an act takes what was retried since",
            "for row in rows if row.is_fitting]",
            "for row in rows if row.is_chosen]",
            inside="bulk_changes._Changes.change",
        ),
        Mutant(
            "a preview counts only what it shows",
            "count(*) OVER alike_jobs",
            "least(%(shown)s::bigint, count(*) OVER alike_jobs)",
            "ALIKE",
        ),
        Mutant(
            "an act visits no job behind its first batch", "    if batch.is_last:", "    if True:", inside="_execute"
        ),
        Mutant("the next batch begins at the first job", "cursor = %(cursor)s::json", "cursor = NULL", "ADVANCE_ACT"),
        Mutant("an act has no rate", "batch.rate_count / act.rate if act.rate else 0.0", "0.0", inside="_execute"),
        Mutant(
            "a batch is no transaction",
            "with connection.transaction():\n        with",
            "if True:\n        with",
            inside="execute_batch",
        ),
        Mutant(
            "a stop is only noted", "next_batch_at = NULL\nWHERE", "next_batch_at = next_batch_at\nWHERE", "STOP_AUDIT"
        ),
        Mutant(
            "any failure is a repeat", "WHERE again.exception_class = (", "WHERE 'shop.Declined' = (", "FIRST_REPEAT"
        ),
        Mutant(
            "moved jobs are visited again",
            "WHERE job_id = job.id AND audit_id",
            "WHERE false AND audit_id",
            "IS_NEW_TO_ACT",
        ),
    ),
    *of_tests(
        ("tests/concurrency/test_edited_jobs.py",),
        Mutant("a retry misses an edit after its snapshot", "job.ctid = fit.place", "job.id = fit.id", "RETRY"),
        Mutant("an edit takes a job that has changed", " AND state = %(state)s\n", "\n", "TOUCH"),
    ),
    *of_tests(
        ("tests/worker/test_bulk_acts_of_edited_jobs.py",),
        Mutant("a retry takes edited jobs", "WHERE is_edited IS NULL\n", "WHERE true\n", "RETRY"),
        Mutant("a preview counts edited jobs", " and not self.is_edited", "", inside="ChosenJob.is_fitting"),
        Mutant(
            "a retry of one edited job does nothing", "with_edited or alone", "with_edited", inside="operator.retry"
        ),
        Mutant("any act makes a job edited", "act.action = 'edit_and_retry' AND ", "", "EDITS"),
        Mutant("the new job counts as edited", "act.filter #>> '{jobs,0}' = job.id::text", "true", "EDITS"),
        Mutant(
            "a removed new job is named",
            "      AND (SELECT true FROM pgqueue_job WHERE id = made.job_id)\n",
            "",
            "EDITED_JOBS",
        ),
        Mutant(
            "the first new job is named", "ORDER BY edited.audit_id DESC", "ORDER BY edited.audit_id", "EDITED_JOBS"
        ),
    ),
    *of_tests(
        ("tests/test_changed_jobs.py",),
        Mutant(
            "a command counts edited jobs as those to retry",
            "[job for job in fitting if job.pk not in left_out]",
            "fitting",
            inside="run_action",
        ),
        Mutant(
            "a command leaves edited jobs that are named",
            "with_edited or alone",
            "alone",
            inside="operator.retry",
        ),
        Mutant("a filter retries edited jobs", 'if not options["ids"]:', "if False:", inside="_retry_options"),
        Mutant("the audit counts no edited jobs as left", "audit.leave(len(edited))", "pass", inside="ActRun.__init__"),
    ),
    *of_tests(
        ("tests/admin/test_edited_jobs.py",),
        Mutant(
            "an edited job is retried without a question",
            "(edited and not leaves_edited)",
            "False",
            inside="confirmation.ask",
        ),
        Mutant("a total has edited jobs", '"total": asked - len(edited)', '"total": asked', inside="JobOperation.run"),
        Mutant("a question counts edited jobs", "if job_id not in left_out)", ")", inside="confirmation.ask"),
        Mutant(
            "the audit of a bulk retry counts no edited jobs",
            "if action != TransitionName.RETRY:",
            "if True:",
            inside="bulk_preview._with_edited",
        ),
        Mutant(
            "an answer is taken for another question",
            ' and request.POST.get(COPIES, "") == copies',
            "",
            inside="confirmation.ask",
        ),
        Mutant(
            "the audit of a selection counts none",
            '({"edited": len(edited)} if edited else {})',
            "{}",
            inside="JobOperation.run",
        ),
        Mutant("the numbers of jobs are a tuple", "list | tuple", "list", inside="bulk_acts._numbers"),
        Mutant("a refused edit is offered", "        editable(job)\n", "        pass\n", inside="edit_and_retry.offer"),
    ),
    *of_tests(
        ("tests/history/test_audit_entries.py",),
        Mutant("erased arguments stay in the audit", "    SET detail = NULL\n", "    SET detail = detail\n", "ERASE"),
        Mutant("rows of deletions are removed", "act.action = 'delete' OR", "", "PRUNE_AUDITED_JOBS"),
        Mutant("acts under way are removed", "WHERE next_batch_at IS NULL\n          AND", "WHERE", "PRUNE_AUDIT"),
    ),
    *of_tests(
        ("tests/admin/test_bulk_acts.py",),
        Mutant(
            "anybody may request an act",
            "return action in JOB_ACTS and",
            "return True or",
            inside="bulk_acts.is_allowed",
        ),
        Mutant(
            "a later preview is believed",
            "least(%(previewed_at)s::timestamptz, instant)",
            "%(previewed_at)s::timestamptz",
            "REQUEST_ACT",
        ),
        Mutant(
            "a form requests an act again",
            "    %(form_token)s::uuid\nFROM",
            "    gen_random_uuid()\nFROM",
            "REQUEST_ACT",
        ),
        Mutant(
            "a list links acts without permission",
            "chosen is not None and is_allowed(request, action):",
            "chosen is not None:",
            inside="links_of_list",
        ),
    ),
]
