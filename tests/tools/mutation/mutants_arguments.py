"""Mutants of typed arguments: what is stored, what comes back, and the rows that are loaded.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

TYPED = of_tests(
    ("tests/arguments",),
    Mutant(
        "tasks of plain annotations have a plan",
        "checks is not None and checks.converts",
        "checks is not None",
        inside="TaskDefinition.plan",
    ),
    Mutant(
        "a positional argument of a plain type is not checked",
        "_encoded(self.positional[place], value)",
        "pass",
        inside="CallPlan.encode",
    ),
    Mutant(
        "a keyword argument of a plain type is not checked",
        "_encoded(self._named(name), kwargs[name])",
        "pass",
        inside="CallPlan.encode",
    ),
    Mutant(
        "keywords of no parameter are not checked",
        " and parameters.more.get(inspect.Parameter.VAR_KEYWORD) is None",
        "",
        inside="new_plan",
    ),
    Mutant(
        "further positional arguments are not checked",
        " or len(args) > len(self.exact)",
        "",
        inside="CallPlan.encode",
    ),
    Mutant(
        "rows that are not saved are stored",
        "key is None or instance._state.adding",
        "key is None",
        inside="RowConverter._key_of",
    ),
    Mutant("hidden rows are gone", "model._base_manager", "model._default_manager", inside="_load"),
    Mutant(
        "routers are not asked",
        "if choose is not None and (chosen := choose(model)):",
        "if False:",
        inside="database_of",
    ),
    Mutant(
        "fields of subclasses are lost",
        "return type(value) is self.record_class",
        "return isinstance(value, self.record_class)",
        inside="RecordConverter.accepts",
    ),
    Mutant(
        "members of a union that look alike are accepted",
        "if any((member.kinds & other.kinds) - NULL for other in joined[:index]):",
        "if False:",
        inside="Annotations._union",
    ),
    Mutant(
        "rows are loaded on the event loop",
        "await sync_to_async(self._convert_call)()",
        "self._convert_call()",
        inside="Attempt._load_and_call",
    ),
    Mutant(
        "stored values that do not fit fail the attempt",
        "raise DoesNotFit(f",
        "raise RuntimeError(f",
        inside="converted",
    ),
    Mutant(
        "the unique key of a schedule gets stored values",
        "decode = decode or partial(task.decoded_call, *call)",
        "decode = decode or (lambda: call)",
        inside="new_job.new_job",
    ),
)
