"""The documentation: its links have targets, and its tables and diagrams agree with the code.

`tests/test_docs_examples.py` runs their examples.
"""

import ast
import re
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cache

import pytest
from django.core.management import BaseCommand, load_command_class
from django.dispatch import Signal

import django_pgqueue
from django_pgqueue import signals, states
from django_pgqueue.contrib.remote.models import RemoteToken
from django_pgqueue.models import (
    BatchRemoval,
    BreakerCount,
    Execution,
    ExecutionLog,
    Installation,
    Job,
    LimitOverride,
    LimitState,
    OpenBreaker,
    Rollup,
    WorkerRequest,
)
from django_pgqueue.settings import conf
from django_pgqueue.settings.setting_kinds import DEFAULT_RETENTION
from django_pgqueue.states import GONE, TRANSITIONS, State, TransitionName
from django_pgqueue.task import Task
from django_pgqueue.worker.maintenance.rescuer import limit_seconds
from django_pgqueue.worker.supervision.stop_deadline import EXIT_AFTER_GRACE_SECONDS
from tests.documents import CODE, LINK, PAGES, TOP, TUTORIAL, blocks, commands, names, plain, prose, section, table
from tests.rules import for_each
from tests.statements import STATEMENTS
from tests.tools import signals_page, statements_page
from tests.tools.benchmarks import cli
from tests.tools.benchmarks.counts import command as counting

CLI = "docs/reference/cli.md"
OF_THE_SUITES = {
    *("--list", "--only", "--quick", "--jobs", "--json", "--markdown", "--seed", "--soak", "--keep"),
    *("--soak-hosts", "--storm", "--record"),
    *("--deep", "--stateful-examples", "--python", "--heartbeat-timeout"),
}
"""Options of `bin/faults`, of the mutants, of the model, of the tests and of the comparison with other queues."""
FORBIDDEN = re.compile(
    r"exactly[- ]once[- ]delivery|delivered exactly once|\bblazing|\bpypi\b|files\.pythonhosted", re.I
)


# ------------------------------------------------------------------ links, paths and claims


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@for_each(PAGES)
def test_page_links_have_existing_targets(page):
    for target in LINK.findall(prose(page)):
        assert "://" not in target, f"{page} has an external link: {target}"
        path, _, anchor = target.partition("#")
        leads_to = (TOP / page).parent / path if path else TOP / page
        assert leads_to.exists(), f"{page}: {target}"
        assert not anchor or anchor in anchors(leads_to.read_text()), f"{page}: {target}"


@for_each(PAGES)
def test_page_named_paths_exist(page):
    ours = {path.name for path in TOP.iterdir()}
    package = TOP / "django_pgqueue"
    for code in CODE.findall(prose(page)):
        word = code.split()[0].removeprefix("./").partition("::")[0]
        if "/" in word and word.split("/")[0] in ours:
            assert (TOP / word).exists(), f"{page}: {code}"
        elif re.fullmatch(r"\w+\.py|\w+/", word) and word != "manage.py":
            assert any(package.rglob(word.rstrip("/"))), f"{page}: {code}"


@for_each(PAGES)
def test_page_named_tests_exist(page):
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGES[page]):
        assert f"def {name}(" in (TOP / path).read_text(), f"{page}: {path}::{name}"


@for_each([*PAGES, "CHANGELOG.md"])
def test_page_makes_no_forbidden_claim(page):
    assert not FORBIDDEN.search((TOP / page).read_text())


def test_pages_name_the_limit_of_a_rescue(settings):
    settings.PGQUEUE = {}
    limit = f"{limit_seconds():.0f}"
    named = {
        page: set(re.findall(r"\[(?:within )?(\d+)\s+s\]\([^)]*#lost-work-comes-back\)", text))
        for page, text in PAGES.items()
    }
    assert {page: numbers for page, numbers in named.items() if numbers - {limit}} == {}
    assert len([page for page, numbers in named.items() if numbers]) >= 12
    for page in ("README.md", "docs/concepts/guarantees.md", "docs/production/worker.md", "docs/guides/retries.md"):
        assert f"within {limit} s" in PAGES[page], page


def test_index_links_to_every_page():
    linked = set(LINK.findall(PAGES["docs/index.md"]))
    assert linked >= {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")} - {"index.md"}


def test_security_policy_names_private_reporting():
    policy = PAGES[".github/SECURITY.md"]
    assert "private vulnerability reporting" in policy
    assert "@" not in policy, "reports to an email address can stay unread"
    assert {".github/SECURITY.md", "docs/production/security.md"} <= set(LINK.findall(PAGES["README.md"]))


def test_security_page_each_threat_names_its_measures():
    rows = table("docs/production/security.md", "threat")
    assert len(rows) >= 10
    assert all(done and CODE.search(evidence) for _, done, evidence in rows)


def test_readme_has_at_most_180_lines():
    assert len(PAGES["README.md"].splitlines()) <= 180


# ------------------------------------------------------------------ agreement with the code


def test_statements_page_is_up_to_date_and_complete():
    page = PAGES["docs/internals/statements.md"]
    assert page == statements_page.page(), "run python -m tests.tools.statements_page --write"
    assert set(re.findall(r"^- \*\*(\w+)\*\* \S", page, re.MULTILINE)) == set(STATEMENTS)


def test_life_cycle_diagram_has_exactly_the_transitions():
    [drawing] = blocks("docs/concepts/life_cycle.md", "mermaid")
    edges = re.findall(r"^ +(\S+) --> (\S+) : (.+)$", drawing, re.MULTILINE)
    assert len(edges) == len(drawing.strip().splitlines()) - 1, "the diagram has a line that is not an edge"
    drawn = {
        (state_of(before), TransitionName(act), state_of(after))
        for before, after, acts in edges
        for act in acts.split(", ")
    }
    coded = {(before, act, after) for before, acts in TRANSITIONS.items() for act in acts for after in acts[act]}
    assert drawn == coded


def state_of(label: str) -> State | None:
    return GONE if label == "[*]" else State(label)


def test_life_cycle_page_has_every_transition_and_outcome():
    assert [plain(row[0]) for row in table("docs/concepts/life_cycle.md", "transition")] == list(TransitionName)
    assert {plain(row[0]) for row in table("docs/concepts/life_cycle.md", "outcome")} == set(states.Outcome)


def test_settings_page_has_every_setting_and_default():
    rows = table("docs/reference/settings.md", "key")
    documented = {plain(key): ast.literal_eval(plain(default)) for key, _, default, _ in rows}
    assert len(documented) == len(rows)
    assert documented == {name: option.default for name, option in conf.OPTIONS.items()}
    assert all(unit and meaning for _, unit, _, meaning in rows)
    kept = {plain(row[0]): float(row[2].split("`")[1]) for row in table("docs/reference/settings.md", "state")}
    assert kept == DEFAULT_RETENTION


@for_each(PAGES)
def test_page_named_settings_exist(page):
    assert set(re.findall(r'PGQUEUE\["(\w+)"\]', PAGES[page])) <= set(conf.OPTIONS)


def test_tasks_page_has_every_task_option():
    documented = {plain(row[0]) for row in table("docs/guides/tasks.md", "option")}
    made_elsewhere = {
        "func",
        "func_signature",
        "is_async",
        "run_after",
        "own_timeout_seconds",
        "adapter",
        "entry",
        "known_plan",
        "known_checks",
        "fitting_shapes",
        "known_columns",
        "has_limit_key",
        "has_keys",
        "headers",
        "batch",
    }  # only using() has run_after, headers and batch
    assert documented == set(Task.__dataclass_fields__) - made_elsewhere | {"schedule"}  # only the decorator has it


@pytest.mark.parametrize(
    "model",
    [
        Job,
        Execution,
        ExecutionLog,
        Installation,
        LimitOverride,
        RemoteToken,
    ],
)
def test_models_page_has_every_column(model):
    listed = names("docs/reference/models.md", f"column of `{model.__name__}`")
    assert sorted(listed) == sorted(field.name for field in model._meta.concrete_fields)


@pytest.mark.parametrize("model", [BatchRemoval, LimitState, OpenBreaker, BreakerCount, Rollup, WorkerRequest])
def test_models_page_has_every_column_of_the_engine(model):
    [listed] = [
        row[1] for row in table("docs/reference/models.md", "table of the engine") if plain(row[0]) == model.__name__
    ]
    assert sorted(CODE.findall(listed)) == sorted(field.attname for field in model._meta.concrete_fields)


def test_signals_page_has_every_signal_with_its_description():
    page = PAGES["docs/reference/signals.md"]
    assert signals_page.written(page) == page, "run python -m tests.tools.signals_page --write"
    sent = {name: value for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert [plain(row[0]) for row in table("docs/reference/signals.md", "signal")] == list(sent)
    assert all(signal.moment and signal.where and signal.arguments for signal in sent.values())


def test_api_page_has_every_public_name():
    reference = PAGES["docs/reference/api.md"]
    assert {name for name in django_pgqueue.__all__ if not re.search(rf":: {name}\b", reference)} == set()


def test_cli_page_has_every_command():
    [choices] = [a.choices for a in parser_of("pgqueue")._actions if isinstance(a.choices, dict)]
    linked = {name for row in table(CLI, "for") for name in CODE.findall(row[1])}
    assert linked == {"runworker", *choices}
    titles = re.findall(r"^## `pgqueue (.+)`$", PAGES[CLI], re.MULTILINE)
    assert sorted(titles) == sorted(" ".join(words) for words in set(subcommands()) - {("worker",)})


def test_cli_page_has_every_argument():
    shared, explained = set(names(CLI, "shared option")), set(names(CLI, "filter"))
    own = {words: names(CLI, f"argument of `pgqueue {' '.join(words)}`") for words in subcommands()}
    explained |= shared.union(*own.values())
    for words in set(subcommands()) - {("worker",)}:
        *_, parser = parsers_of("pgqueue", *words)
        positional = {action.dest for action in parser._actions if not action.option_strings}
        arguments = own_options("pgqueue", *words) | positional
        named = set(CODE.findall(section(CLI, f"`pgqueue {' '.join(words)}`")))
        declared = declared_for_several(" ".join(words))
        assert arguments <= named | declared, words
        assert {*own[words], *declared, *(named & shared)} <= arguments, words
        assert arguments - positional <= explained, words


def declared_for_several(command: str) -> set[str]:
    """Return the options of a command that the page states for several commands at once."""
    [exempt] = re.findall(r"^Every command except (.*?) takes", section(CLI, "Shared options"), re.MULTILINE)
    declared = set() if command in CODE.findall(exempt) else {"--database"}
    filtered, _, also = section(CLI, "Filters").partition("|")[0].partition("All but the two lists also take")
    if command in CODE.findall(filtered):
        declared |= set(names(CLI, "filter"))
        declared |= set() if command.endswith(" list") else set(CODE.findall(also))
    return declared


@for_each(PAGES)
def test_page_command_lines_are_valid(page):
    for command, *words in commands(page):
        if command in ("runworker", "pgqueue"):
            parser_of(command).parse_args(words)


def test_checks_page_has_every_system_check():
    source = "".join(path.read_text() for path in (TOP / "django_pgqueue").glob("**/*.py"))
    listed = [plain(row[0]) for row in table("docs/reference/checks.md", "id")]
    assert listed == sorted(set(re.findall(r'"(pgqueue\.[EW]\d+)"', source)))


@cache
def parser_of(command: str) -> ArgumentParser:
    """Return the parser of a management command. It is made once, because each page asks for all of them."""
    return load_command_class("django_pgqueue", command).create_parser("manage.py", command)


@cache
def own_options(command: str, *subcommand: str) -> set[str]:
    """Return the long options of a management command, without those that every command has."""
    *_, parser = parsers_of(command, *subcommand)
    return long_options(parser) - long_options(BaseCommand().create_parser("manage.py", "any"))


def parsers_of(command: str, *subcommand: str) -> Iterator[ArgumentParser]:
    """Yield the parsers of a command, of its subcommand, and of that one's action."""
    parser = parser_of(command)
    yield parser
    for name in subcommand:
        parser = choices_of(parser)[name]
        yield parser


def choices_of(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    """Return the parsers of the words that can follow; none if the words of a subcommand are complete."""
    found = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
    return found[0] if found else {}


def subcommands() -> list[tuple[str, ...]]:
    """Return the words of each subcommand of `pgqueue`, such as ("jobs", "list")."""
    found: list[tuple[str, ...]] = []
    for name, parser in choices_of(parser_of("pgqueue")).items():
        found += [(name, action) for action in choices_of(parser)] or [(name,)]
    return found


def long_options(parser: ArgumentParser) -> set[str]:
    return {text for action in parser._actions for text in action.option_strings if text.startswith("--")}


def test_worker_page_has_every_option():
    assert {plain(row[0]) for row in table("docs/production/worker.md", "option")} == own_options("runworker")


@for_each(PAGES)
def test_page_named_options_exist(page):
    known = own_options("runworker").union(*(own_options("pgqueue", *words) for words in subcommands()))
    known |= {"--verbosity", "--settings", "--no-color", "--deploy", "--fail-level"}  # Django's options
    of_others = {
        "docs/production/checklist.md": {"--check"},
        "docs/coming_from/django_tasks_db.md": {"--batch", "--interval", "--max-tasks"},  # options of its worker
        "docs/production/clone_guard.md": {"--clean", "--dbname", "--exclude-table-data", "--if-exists"}  # of pg_dump
        | {"--output", "--exclude", "--format"},  # of dumpdata
        "docs/production/runbooks.md": {"--check", "--pid"},  # of migrate and of py-spy
        "docs/production/remote_workers.md": {"--skip-checks"},  # of Django
        "docs/production/systemd.md": {"--now", "--unit", "--follow", "--quiet"},
        "docs/internals/how_to_add_a_fault.md": OF_THE_SUITES | {"--write"},
        "docs/internals/how_to_add_a_statement.md": {"--write"},
        "docs/internals/statements.md": {"--write"},
        "docs/internals/counts.md": long_options(counting.make_parser()) | {"--counts", "--environment"},
        "docs/internals/how_to_profile.md": long_options(cli.make_parser()) | {"--pid", "--output", "--functions"},
        "README.md": {"--serve", "--matrix", "--quick"},
        "CONTRIBUTING.md": {"--fix", "--quick", "--list", "--matrix", "--write", "--keep", "--unfold", "--storm"}
        | {"--counts", "--record"},
        "docs/project/stability.md": {"--matrix"},
        "docs/production/upgrading.md": {"--exit-code"},  # of git
        "docs/guides/testing.md": {"--no-migrations"},  # of pytest-django
        TUTORIAL: {"--rm", "--detach", "--publish", "--env", "--createdb"},  # options of Docker and createuser
        "docs/internals/reliability.md": OF_THE_SUITES,
        "docs/internals/fault_results.md": {"--jobs", "--list", "--markdown"},
        "docs/internals/bugs_missed_by_tests.md": {"--write"},
        "docs/internals/scale.md": OF_THE_SUITES | {"--measure", "--soak-seconds", "--soak-every"},  # of long_history
        "docs/internals/performance.md": long_options(cli.make_parser()),
        "docs/project/choosing.md": long_options(cli.make_parser()),
    }
    known |= of_others.get(page, set())
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGES[page])) <= known


@pytest.mark.parametrize(
    ("page", "times"),
    [
        *((f"docs/production/{name}.md", 1) for name in ("docker", "kubernetes")),
        ("docs/production/systemd.md", 2),
    ],
)
def test_deployment_page_stop_timeout_exceeds_grace(page, times):
    keys = "TimeoutStopSec=|stop_grace_period: |terminationGracePeriodSeconds: "
    waits = re.findall(rf"(?:{keys})(\d+)s?$", PAGES[page], re.MULTILINE)
    assert len(waits) == times
    assert all(int(seconds) > conf.Settings().GRACE + EXIT_AFTER_GRACE_SECONDS for seconds in waits)


def test_pages_of_the_packages_are_short():
    """A newcomer reads the architecture in ten minutes, and the page of a package in six."""
    names = re.findall(r"\]\(internals/(\w+)\.md\)", PAGES["docs/index.md"].partition("| [Reliability]")[0])
    words = {name: len(PAGES[f"docs/internals/{name}.md"].split()) for name in names}
    assert len(words) == 19
    assert {name for name, count in words.items() if count > (2400 if name == "architecture" else 1500)} == set()
