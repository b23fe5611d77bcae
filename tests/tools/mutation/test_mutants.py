"""The mutants still fit the code, also after the code has moved to another module.

The tests are apart from the tests that run against mutants, because in a copy with a mutant they fail whatever the
mutant is.
"""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import pytest

from tests.code_names import CHECKOUT, CodeNames, code_names
from tests.rules import for_each
from tests.statements import STATEMENTS
from tests.tools.mutation import runner
from tests.tools.mutation.mutants import Mutant
from tests.tools.mutation.rendered import rendered
from tests.tools.mutation.runner import MUTANTS, QUICK, mutated, places_of


def change(mutant, names):
    """Return what the mutant does to the code that it names, without the rest of the files."""
    texts = mutated(mutant, names)
    changed = CodeNames(names.texts | texts)
    return [changed.texts[path][start:end] for path, spans in places_of(mutant, changed) for start, end in spans]


def with_moved(names, name, path):
    """Return the names of a package in which the code called `name` has moved to the end of the file at `path`."""
    place = names.place(name)
    [(start, end)] = place.spans
    text = names.texts[place.path]
    cut = {place.path: text[:start] + text[end:], path: names.texts[path] + "\n\n" + text[start:end]}
    return CodeNames(names.texts | cut)


def test_mutants_fit_the_code():
    """Otherwise a mutant that no longer fits is noticed only when all mutants are run, which happens rarely."""
    wrong = []
    for mutant in MUTANTS:
        try:
            texts = mutated(mutant, code_names())
        except LookupError as error:
            wrong.append(str(error))
        else:
            if all(code_names().texts[path] == text for path, text in texts.items()):
                wrong.append(f"{mutant.name} changes nothing")
    assert wrong == []


def test_mutants_all_belong_to_the_run():
    """Otherwise a new list is never tried."""
    modules = [import_module(f"{__package__}.{path.stem}") for path in Path(__file__).parent.glob("mutants*.py")]
    lists = [value for module in modules for value in vars(module).values() if isinstance(value, list)]
    mutants = [each for values in lists for each in values if isinstance(each, Mutant)]
    assert [mutant.name for mutant in mutants if mutant not in MUTANTS] == []


def test_mutants_name_tests_that_exist():
    """Otherwise pytest runs no test at all, and the run ends before its first mutant."""
    named = {test.partition("::")[0] for mutant in MUTANTS for test in mutant.tests or QUICK}
    assert [name for name in sorted(named) if not (CHECKOUT / name).exists()] == []


@pytest.mark.parametrize(
    ("moved", "path"),
    [
        ("Claimer", "django_pgqueue/worker/claiming/lanes.py"),
        ("report_of", "django_pgqueue/db/errors.py"),
        ("OUTCOME_OF_STATE", "django_pgqueue/db/statements.py"),
        ("CLOSE_BREAKERS", "django_pgqueue/sql/limits.py"),
    ],
)
def test_mutants_of_moved_code_still_fit(moved, path):
    """A move needs no edit of the mutants, and each makes the same change as before."""
    names = code_names()
    after = with_moved(names, moved, path)
    mutants = [mutant for mutant in MUTANTS if moved in (mutant.statement, *mutant.inside.replace(",", ".").split("."))]
    assert mutants
    for mutant in mutants:
        assert change(mutant, after) == change(mutant, names)
        assert path in mutated(mutant, after)


def test_mutant_of_renamed_code_is_refused():
    with pytest.raises(LookupError, match="no_such_function is defined nowhere"):
        mutated(Mutant("any", "a", "b", inside="no_such_function"), code_names())


def test_mutant_with_ambiguous_name_is_refused():
    """The message names the files, so that the author can choose one."""
    with pytest.raises(LookupError, match=r"in .*charts\.py, .*isolated_process\.py"):
        mutated(Mutant("any", "def _run", "b", inside="_run"), code_names())


def test_mutant_of_one_of_two_definitions_is_found_by_its_text():
    """A new function with the name of another one needs no edit of the mutants."""
    names = CodeNames({"package/one.py": "def f():\n    a\n", "package/two.py": "def f():\n    c\n"})
    assert mutated(Mutant("any", "a", "b", inside="f"), names) == {"package/one.py": "def f():\n    b\n"}


def test_mutant_of_changed_text_is_refused():
    with pytest.raises(LookupError, match="any: found 0 times instead of 1: 'no such text'"):
        mutated(Mutant("any", "no such text", "b", statement="CLAIM"), code_names())


def test_mutant_of_file_finds_it_in_any_directory():
    names = CodeNames({"package/shown/page.html": "a\n", "package/page.py": "x = 1\n"})
    assert mutated(Mutant("any", "a", "b", file="page.html"), names) == {"package/shown/page.html": "b\n"}


JOINED = CodeNames(
    {
        "package/sql/below.py": 'FENCE: Final = """\n  AND open"""\n',
        "package/sql/above.py": (
            "from .below import FENCE\n"
            'LOCK: Final = FENCE + """\nFOR UPDATE"""\n'
            'FAIL: Final = """FAIL""" + LOCK\n'
            'RESCUE: Final = """RESCUE""" + LOCK + """\nLIMIT 1"""\n'
        ),
        "package/acts.py": 'FAIL = "fail"\n',
    }
)


def run_constants(texts):
    """Return the constants of the two modules, which run in one scope."""
    scope = {"Final": str}
    for path in ("package/sql/below.py", "package/sql/above.py"):
        exec(texts[path].replace("from .below import FENCE\n", ""), scope)  # noqa: S102
    return {name: scope[name] for name in ("FENCE", "LOCK", "FAIL", "RESCUE")}


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("\n  AND open", "", "FAIL\nFOR UPDATE"),
        ("FOR UPDATE", "FOR SHARE", "FAIL\n  AND open\nFOR SHARE"),
        ("FAIL\n  AND", "FAIL\n  OR", "FAIL\n  OR open\nFOR UPDATE"),
    ],
)
def test_mutant_of_statement_leaves_others_with_its_clause(old, new, changed):
    """The text can stand in a clause, in one of another module, or across the ends of clauses."""
    texts = mutated(Mutant("any", old, new, statement="FAIL"), JOINED)
    assert run_constants(JOINED.texts | texts) == {**run_constants(JOINED.texts), "FAIL": changed}


def test_mutant_of_clause_changes_all_its_statements():
    texts = mutated(Mutant("any", "FOR UPDATE", "FOR SHARE", statement="LOCK"), JOINED)
    changed = run_constants(JOINED.texts | texts)
    assert {name: "FOR SHARE" in text for name, text in changed.items()} == {
        "FENCE": False,
        "LOCK": True,
        "FAIL": True,
        "RESCUE": True,
    }


def test_mutant_of_text_in_no_clause_is_refused():
    with pytest.raises(LookupError, match="found 0 times instead of 1: 'LIMIT 1'"):
        mutated(Mutant("any", "LIMIT 1", "", statement="above.FAIL"), JOINED)


@for_each(STATEMENTS)
def test_mutants_read_statement_as_it_runs(name):
    paths = [place.path for place in code_names().places(name)]
    assert STATEMENTS[name] in [rendered(name, path, code_names().texts) for path in paths]


def test_mutant_inside_two_functions_changes_both():
    names = CodeNames({"package/one.py": "def f():\n    a\n", "package/two.py": "def g():\n    a\n\n\na\n"})
    texts = mutated(Mutant("any", "a", "b", inside="f, two.g", times=2), names)
    assert texts == {"package/one.py": "def f():\n    b\n", "package/two.py": "def g():\n    b\n\n\na\n"}


KILLED_BY_OWN = ("killed", "own::b")
SURVIVED = ("SURVIVED", "")


@pytest.mark.parametrize(
    ("answers", "wanted", "ran"),
    [
        ([("killed", "first::a")], "killed", ["first"]),
        ([SURVIVED, KILLED_BY_OWN, SURVIVED], "killed", ["first", "own", "own::b"]),
        ([("NOT RUN", "not found"), SURVIVED], "SURVIVED", ["first", "own"]),
        (
            [SURVIVED, KILLED_BY_OWN, KILLED_BY_OWN, SURVIVED],
            "SURVIVED",
            ["first", "own", "own::b", "own", "--deselect=own::b"],
        ),
    ],
    ids=["known killer", "own choice", "killer is gone", "fails without the mutant"],
)
def test_known_killer_runs_before_the_own_choice(monkeypatch, tmp_path, answers, wanted, ran):
    left, chosen = list(answers), []

    def run_tests(place, tests):
        chosen.extend(tests)
        return left.pop(0)

    monkeypatch.setattr(runner, "run_tests", run_tests)
    monkeypatch.setattr(runner, "applied", lambda place, mutant: nullcontext())
    verdict, _ = runner.tried(tmp_path, MUTANTS[0], ["own"], "first")
    assert (verdict, chosen, left) == (wanted, ran, [])


def test_recorded_killers_are_those_of_mutants_that_exist(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "KILLERS", tmp_path / "killers.json")
    assert runner.known_killers(MUTANTS) == {}
    first, second = MUTANTS[:2]
    runner.KILLERS.write_text('{"gone": "a::b"}')
    runner.record_killer(first, "a::b")
    runner.record_killer(second, "a::c")
    runner.record_killer(first, "a::d")
    assert runner.known_killers(MUTANTS) == {first.name: "a::d", second.name: "a::c"}
