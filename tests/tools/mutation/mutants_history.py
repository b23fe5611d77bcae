"""Mutants of the archive, of erasure, and of the check of a release before its deploy.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

CUT = "os.ftruncate(self._descriptor, self._end)\n"
OF_FREE = "(SELECT job_id FROM pgqueue_execution WHERE id = log.execution_id) = ANY (ARRAY (SELECT id FROM free))"
AS_SEEN = "AND ((id, finished_at) IN (SELECT id, finished_at FROM seen)) IS true"

ARCHIVES = of_tests(
    ("tests/history/test_archive.py",),
    Mutant("a job that ended again is removed", " if jobs[job_id] == finished_at]", "]", inside="lock_finished"),
    Mutant("the archive ignores locked executions", "WHERE id NOT IN (SELECT job_id FROM busy)", "", "LOCK_FINISHED"),
    Mutant("lines of an archived job stay", "logs=True", "logs=False", inside="lifecycle.history.archive"),
    Mutant("lines of a job in a file stay", "logs=True", "logs=False", inside="remove_archived"),
    Mutant("acts of an archived job stay", "acts=True", "acts=False", inside="lifecycle.history.archive"),
    Mutant(
        "lines of other jobs are removed",
        "(SELECT id FROM pgqueue_execution WHERE job_id = ANY (%(job_ids)s::bigint[]))",
        "(SELECT id FROM pgqueue_execution)",
        "REMOVE",
    ),
    Mutant("jobs of one instant are left out", "(finished_at, id) >", "(finished_at, 0) >", "FINISHED_JOBS"),
    Mutant(
        "an incomplete member stays in the file",
        f"{CUT}            os.fsync",
        "os.fsync",
        inside="ArchiveFile.__init__",
    ),
    Mutant(
        "a failed write stays in the file",
        f"{CUT}            raise",
        "pass\n            raise",
        inside="ArchiveFile.append",
    ),
    Mutant("an interrupted batch is written again", "= _resume(connection, target)", "= 0", inside="archiving.archive"),
    Mutant("a refused job is written", " if job_id in removed]", "]", inside="_move_to_file"),
    Mutant("a locked job is written again", "if finished_at == batch[pk]]", "if False]", inside="archiving._resume"),
    Mutant(
        "two processes write one file", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH", inside="ArchiveFile._lock"
    ),
)
ERASURES = of_tests(
    ("tests/history/test_erasure.py",),
    Mutant("a job that ended again is erased", AS_SEEN, "", "ERASE"),
    Mutant("headers are not erased", "THEN NULL ELSE headers END", "THEN headers ELSE headers END", "ERASE"),
    Mutant("tracebacks are not erased", "THEN '' ELSE traceback END", "THEN traceback ELSE traceback END", "ERASE"),
    Mutant(
        "limit keys are not erased",
        "|| ':[erased]' ELSE limit_key END",
        "|| limit_key ELSE limit_key END",
        "ERASE",
        times=2,
    ),
    Mutant("a blocking job loses its limit key", " OR state = 'dead' AND limit_order = 2", "", "ERASE"),
    Mutant("lines are always erased", "%(erases_logs)s::boolean AND ", "", "ERASE"),
    Mutant("lines of a locked job are erased", f"\n      AND {OF_FREE}", "", "ERASE"),
    Mutant("the audit counts no job", "job_count + (SELECT count(*) FROM audited)", "job_count", "ERASE"),
    Mutant("an erased value is of an unknown codec", "    if name == ERASED:\n", "    if False:\n", inside="decode"),
)
RELEASES = [
    *of_tests(
        ("tests/test_check_deploy.py",),
        Mutant("the context is an argument", "[int(task.takes_context) :]", "[:]", inside="call_shapes.parameters_of"),
        Mutant(
            "a missing argument is no problem", "and is_required(parameter):", "and False:", inside="binding_problems"
        ),
        Mutant("a shape is known before it is tried", "if not sample:", "if False:", inside="_Calls._check_shape"),
        Mutant("a limit reads everything", "if count + len(job_ids) > limit:", "if False:", inside="_read_all"),
        Mutant(
            "a walk begins again with each page",
            "after = dict(zip(after, rows[-1], strict=False))",
            "pass",
            inside="execute.pages",
        ),
        Mutant(
            "a walk ends with its first page", 'if len(rows) < params["limit"]:', "if True:", inside="execute.pages"
        ),
    ),
    *of_tests(
        ("tests/test_signature_lock.py",),
        Mutant(
            "a lost default is no change",
            "if new.is_required and not old.is_required",
            "if False",
            inside="_changes_of_parameter",
        ),
        Mutant(
            "another place is no change", "if new_places.get(name, place) != place:", "if False:", inside="_changes_of"
        ),
    ),
]
HISTORY = [*ARCHIVES, *ERASURES, *RELEASES]
