"""Mutants of the admin's forms for one job: edit and retry, enqueue, move, delete.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

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
            "\n      AND finished_at IS NOT DISTINCT FROM nullif(%(instant)s, '')::timestamptz",
            "",
            "TOUCH",
        ),
        Mutant(
            "histories show differences to everybody",
            "shows_detail = private.may_view(request)",
            "shows_detail = True",
            inside="acts_on_job",
        ),
        Mutant("sensitive arguments are edited", "if is_hidden:", "if False:", inside="editable"),
        Mutant(
            "a succeeded job runs without a question",
            "job.state != State.SUCCEEDED",
            "True",
            inside="EditForm.__init__",
        ),
        Mutant(
            "an edit needs no permission to see arguments",
            '"pgqueue.view_arguments", ',
            "",
            inside="acts.EDIT_AND_RETRY",
        ),
        Mutant(
            "differences are stored in spite of a codec",
            "is not None else {**found}",
            "is ... else {**found}",
            inside="edit_and_retry._changes",
        ),
        Mutant("middleware changes the headers of a copy", ", **(task.headers or {})}", "}", inside="insert_copy"),
        Mutant("a copy replaces another job", '"on_conflict": "skip"}', "}", inside="_uniqueness", times=2),
        Mutant("a copy has no key", "if job.unique_key is None:", "if True:", inside="_uniqueness"),
    ),
    *of_tests(
        ("tests/test_ways_to_enqueue.py",),
        Mutant(
            "a copy has no search keys",
            "inserting.insert(connection, new)",
            "inserting.insert(connection, new._replace(search_keys=None))",
            inside="insert_copy",
        ),
    ),
    *of_tests(
        ("tests/admin/test_argument_form.py",),
        Mutant("an unchanged field is read again", "text == self.initial:", "False:", inside="ArgumentField.clean"),
        Mutant("line ends become those of the browser", '.replace("\\r\\n", "\\n")', "", inside="ArgumentField.clean"),
        Mutant("a field does not check its value", "self.check(read)", "pass", inside="ArgumentField._checked"),
        Mutant("arguments lose their positions", "max([values.by_position, *", "max([0, *", inside="call_of"),
        Mutant("further named arguments repeat a parameter", "each.name in more):", "False):", inside="_more_kwargs"),
    ),
    *of_tests(
        ("tests/admin/test_move_and_delete.py",),
        Mutant(
            "delete looks like any act",
            "is_dangerous: ClassVar[bool] = True",
            "is_dangerous: ClassVar[bool] = False",
            inside="DeleteOperation.is_dangerous",
        ),
        Mutant(
            "a job is deleted without a question",
            "if confirmation.is_given(request):",
            "if True:",
            inside="DeleteOperation.ask",
        ),
        Mutant(
            "a mistyped queue is taken",
            'not given.get("anyway") and (message',
            "False and (message",
            inside="PlaceForm.clean",
        ),
    ),
    *of_tests(
        ("tests/admin/test_enqueue_form.py",),
        Mutant(
            "everybody who may view jobs enqueues them",
            '(VIEW_JOB, "pgqueue.enqueue_job")',
            "(VIEW_JOB,)",
            inside="acts.ENQUEUE",
        ),
        Mutant(
            "the form is silent about a pause",
            "[*notes, *pause_notes(pauses)]",
            "notes",
            inside="enqueue_form._notes",
        ),
        Mutant(
            "the message is silent about a pause",
            "if pauses := pauses_of(request, job):",
            "if False:",
            inside="say_paused",
        ),
        Mutant(
            "the form sees only pauses of the task's queue",
            "queue_name or task.queue_name",
            "task.queue_name",
            inside="enqueue_form._notes",
        ),
    ),
    *of_tests(
        ("tests/admin/test_schedules.py",),
        Mutant(
            "run now drops unsaved changes",
            "if not self._has_changes(request, schedule):",
            "if True:",
            inside="ScheduleAdmin.changeform_view",
        ),
        Mutant(
            "run now saves unsaved changes",
            "if OPERATION_FIELD in self.data:",
            "if False:",
            inside="ScheduleForm.clean",
        ),
        Mutant(
            "a form with errors forgets what it showed",
            "if posted is None else",
            "if True else",
            inside="same_schedule_field",
        ),
        Mutant(
            "anybody runs a schedule by its form",
            "check(request, operation.act)",
            "pass",
            inside="ScheduleAdmin._pressed",
        ),
    ),
]
