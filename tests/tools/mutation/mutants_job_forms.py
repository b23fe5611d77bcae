"""Mutants of the admin's forms for one job: edit and retry, enqueue, move, delete.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

ADMIN = "django_pgqueue/admin"
EDIT = f"{ADMIN}/edit_and_retry.py"
FIELDS = f"{ADMIN}/argument_fields.py"
VALUES = f"{ADMIN}/call_values.py"
MOVE = f"{ADMIN}/move_and_delete.py"
COPIES = "django_pgqueue/enqueue/copies.py"

FORMS = [
    *of_tests(
        ("tests/admin/test_edit_and_retry.py",),
        Mutant(
            "a second click makes a second job",
            "%(form_token)s::uuid",
            "gen_random_uuid()",
            "BEGIN_AUDIT_ONCE",
        ),
        Mutant(
            "an edit does not compare finished_at",
            "state=seen.state, finished_at=seen.finished_at",
            "state=seen.state",
            path=EDIT,
        ),
        Mutant(
            "histories show differences to everybody",
            "shows_detail = private.may_view(request)",
            "shows_detail = True",
            path=f"{ADMIN}/console/bulk_acts.py",
        ),
        Mutant("sensitive arguments are edited", "if is_hidden:", "if False:", path=EDIT),
        Mutant("a succeeded job runs without a question", "job.state != State.SUCCEEDED", "True", path=EDIT),
        Mutant("an edit needs no permission to see arguments", ', "pgqueue.view_arguments")', ")", path=EDIT),
        Mutant(
            "differences are stored in spite of a codec",
            "is not None else {**found}",
            "is ... else {**found}",
            path=EDIT,
        ),
        Mutant("middleware changes the headers of a copy", ", **(task.headers or {})}", "}", path=COPIES),
        Mutant("a copy replaces another job", '"on_conflict": "skip"}', "}", path=COPIES, times=2),
        Mutant("a copy has no key", "if job.unique_key is None:", "if True:", path=COPIES),
    ),
    *of_tests(
        ("tests/admin/test_argument_form.py",),
        Mutant("an unchanged field is read again", "text == self.initial:", "False:", path=FIELDS),
        Mutant("line ends become those of the browser", '.replace("\\r\\n", "\\n")', "", path=FIELDS),
        Mutant("a field does not check its value", "self.check(read)", "pass", path=FIELDS),
        Mutant("arguments lose their positions", "max([values.by_position, *", "max([0, *", path=VALUES),
        Mutant("further named arguments repeat a parameter", "each.name in more):", "False):", path=VALUES),
    ),
    *of_tests(
        ("tests/admin/test_move_and_delete.py",),
        Mutant(
            "delete looks like any act",
            "is_dangerous: ClassVar[bool] = True",
            "is_dangerous: ClassVar[bool] = False",
            path=MOVE,
        ),
        Mutant("a job is deleted without a question", "if confirmation.is_given(request):", "if True:", path=MOVE),
        Mutant(
            "a mistyped queue is taken",
            'not given.get("anyway") and (message',
            "False and (message",
            path=f"{ADMIN}/place_form.py",
        ),
    ),
    *of_tests(
        ("tests/admin/test_enqueue_form.py",),
        Mutant(
            "everybody who may view jobs enqueues them",
            '("pgqueue.enqueue_job", "pgqueue.view_job")',
            '("pgqueue.view_job",)',
            path=f"{ADMIN}/enqueue_form.py",
        ),
    ),
]
