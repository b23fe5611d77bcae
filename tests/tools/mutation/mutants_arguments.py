"""Mutants of typed arguments: what is stored, what comes back, and the rows that are loaded.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import EXECUTOR, Mutant, of_tests

PLAN = "django_pgqueue/arguments/plan.py"
ROWS = "django_pgqueue/arguments/rows.py"
RECORDS = "django_pgqueue/arguments/records.py"
ANNOTATIONS = "django_pgqueue/arguments/annotations.py"

TYPED = of_tests(
    ("tests/arguments",),
    Mutant("tasks of plain annotations have a plan", "plan if plan.converts else None", "plan", path=PLAN),
    Mutant(
        "plain annotations are checked",
        "        if not self.converts_arguments:\n            return args, kwargs\n",
        "",
        path=PLAN,
    ),
    Mutant("rows that are not saved are stored", "key is None or instance._state.adding", "key is None", path=ROWS),
    Mutant("hidden rows are gone", "model._base_manager", "model._default_manager", path=ROWS),
    Mutant("routers are not asked", "if choose is not None and (chosen := choose(model)):", "if False:", path=ROWS),
    Mutant(
        "fields of subclasses are lost",
        "return type(value) is self.record_class",
        "return isinstance(value, self.record_class)",
        path=RECORDS,
    ),
    Mutant(
        "members of a union that look alike are accepted",
        "if any((member.kinds & other.kinds) - NULL for other in joined[:index]):",
        "if False:",
        path=ANNOTATIONS,
    ),
    Mutant(
        "rows are loaded on the event loop",
        "await sync_to_async(self._convert_call)(plan)",
        "self._convert_call(plan)",
        path=EXECUTOR,
    ),
    Mutant(
        "stored values that do not fit fail the attempt",
        "raise DoesNotFit(f",
        "raise RuntimeError(f",
        path="django_pgqueue/worker/execution/typed_call.py",
    ),
    Mutant(
        "the unique key of a schedule gets stored values",
        'self._task.decoded_call(*decode_arguments(self._arguments or ""))',
        'decode_arguments(self._arguments or "")',
        path="django_pgqueue/schedules/job_options.py",
    ),
)
