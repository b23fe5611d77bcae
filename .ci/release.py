"""Builds the release and checks it: both files, their metadata, and the README followed with the wheel.

The wheel is installed into an empty environment, and the commands and the code of the README are run there, on a
PostgreSQL server of this checkout. A step whose package index does not answer is reported as NOT RUN. Then the
exit code is 3, or 0 with `--allow-not-run`. A failed check exits with 1. `--keep DIRECTORY` keeps the two files.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
TOOLS = ("build", "twine", "hatchling")
IN_WHEEL = (
    "django_pgqueue/AGENTS.md",
    "django_pgqueue/llms.txt",
    "django_pgqueue/py.typed",
    "django_pgqueue/migrations/0001_initial.py",
    "django_pgqueue/static/pgqueue/admin.css",
)
IN_SDIST = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py", "docs/conf.py", "bin/test")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETTINGS = """
import django
INSTALLED_APPS += ["django_pgqueue", "shop"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.postgresql", **{database!r}}}}}
DEFAULT_FROM_EMAIL = "shop@example.com"
MAIL = "django.core.mail.backends.console.EmailBackend"
if django.VERSION >= (6, 1):
    MAILERS = {{"default": {{"BACKEND": MAIL}}}}
else:
    EMAIL_BACKEND = MAIL
"""
MODELS = """
from django.db import models


class Order(models.Model):
    email = models.EmailField()
"""
PLACE = "from shop.orders import place_order; place_order('ada@example.com')"
FINISHED = "from django_pgqueue.models import Job; print(*Job.objects.values_list('state', flat=True))"
WORKER_SECONDS = 60


class Failed(Exception):
    """A check has failed."""


class NotRun(Exception):
    """A check needs something that is not here."""


def require(condition: bool, problem: str) -> None:  # noqa: FBT001 -- as `assert`
    """Raise `Failed` unless the condition is true."""
    if not condition:
        raise Failed(problem)


def say(text: str) -> None:
    """Print a line now: the checks take a minute."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def version_of(package: Path) -> str:
    """Return `__version__` of the package's source: the only place where the version is written."""
    for node in ast.parse((package / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return str(ast.literal_eval(node.value))
    raise Failed(f"{package}/__init__.py has no __version__")


def contents_problems(wheel: set[str], sdist: set[str]) -> list[str]:
    """Return a sentence for each file that the wheel or the source distribution lacks, or must not have."""
    strangers = {name.split("/")[0] for name in wheel if not name.startswith("django_pgqueue")}
    strangers = {name for name in strangers if not name.endswith(".dist-info")}
    return [
        *(f"the wheel lacks {name}" for name in IN_WHEEL if name not in wheel),
        *(f"the wheel contains {name}" for name in sorted(strangers)),
        *(f"the source distribution lacks {name}" for name in IN_SDIST if name not in sdist),
        *(f"the source distribution contains {name}" for name in sorted(sdist) if "/__pycache__/" in name),
    ]


def metadata_problems(metadata: str, version: str, changelog: str) -> list[str]:
    """Return a sentence for each field of the metadata that is wrong."""
    fields = Parser().parsestr(metadata)
    released = re.findall(r"^## \[(\d[^]]*)\]", changelog, re.MULTILINE)
    return [
        *([] if fields["Version"] == version else [f"the metadata has version {fields['Version']}, not {version}"]),
        *([] if version in released[:1] else [f"CHANGELOG.md begins with {released[:1]}, not with {version}"]),
        *([] if fields["Name"] == "dj-pgqueue" else [f"the distribution is named {fields['Name']}"]),
        *([] if str(fields.get_payload()).strip() else ["the metadata has no description"]),
    ]


def run(*command: object, cwd: Path | None = None, seconds: int = 300, **environment: str) -> str:
    """Run a program and return its output. Fail with the output if it fails."""
    words = [str(word) for word in command]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DJANGO_"))}
    done = subprocess.run(  # noqa: S603 -- our own commands
        words, cwd=cwd, timeout=seconds, capture_output=True, text=True, check=False, env=inherited | environment
    )
    if done.returncode:
        raise Failed(f"{' '.join(words)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(home: Path, *requirements: object) -> Path:
    """Make an empty environment with these requirements and return its Python. Raise `NotRun` if pip cannot."""
    venv.create(home, with_pip=True)
    python = home / "bin/python"
    try:
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
    except (Failed, subprocess.TimeoutExpired) as error:
        raise NotRun(f"pip could not install {', '.join(map(str, requirements))}:\n{error}") from None
    return python


def tools(home: Path) -> Path:
    """Return a Python that has the tools: this one, or a new environment."""
    return Path(sys.executable) if all(map(find_spec, TOOLS)) else environment(home, *TOOLS)


def build(python: Path, target: Path) -> tuple[Path, Path]:
    """Build the wheel and the source distribution, and let twine check them."""
    run(python, "-m", "build", "--no-isolation", "--outdir", target, TOP)
    [wheel], [sdist] = target.glob("*.whl"), target.glob("*.tar.gz")
    run(python, "-m", "twine", "check", "--strict", wheel, sdist)
    return wheel, sdist


def check_files(wheel: Path, sdist: Path) -> list[str]:
    """Return the problems of both files."""
    version = version_of(TOP / "django_pgqueue")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
        [metadata] = [archive.read(name).decode() for name in in_wheel if name.endswith(".dist-info/METADATA")]
    with tarfile.open(sdist) as source:
        in_sdist = {name.partition("/")[2] for name in source.getnames()}
    changelog = (TOP / "CHANGELOG.md").read_text()
    return contents_problems(in_wheel, in_sdist) + metadata_problems(metadata, version, changelog)


def readme_commands(readme: str, wheel: object) -> list[list[str]]:
    """Return the commands of the README from its section on installing, with the wheel instead of the index."""
    section = readme[readme.index("\n## Install") : readme.index("\n## Comparison")]
    lines = [line for kind, text in BLOCK.findall(section) if kind == "sh" for line in text.splitlines()]
    return [[str(wheel) if word == "dj-pgqueue" else word.strip('"') for word in line.split()] for line in lines]


def follow_readme(wheel: Path, place: Path, database: dict[str, str]) -> None:
    """Do what the README says, in an empty environment: install, migrate, enqueue, and run the worker."""
    readme = (TOP / "README.md").read_text()
    install, work = readme_commands(readme, wheel)
    require(install[:2] == ["pip", "install"], f"the README installs by {install}")
    require(work == ["python", "manage.py", "runworker"], f"the README runs the worker by {work}")
    python = environment(place / "environment", *install[2:])
    project = place / "project"
    project.mkdir()
    run(python, "-m", "django", "startproject", "config", ".", cwd=project)
    (project / "shop").mkdir()
    (project / "shop/models.py").write_text(MODELS)
    for kind, text in BLOCK.findall(readme):
        if kind == "python" and (name := re.match(r"# (shop/\w+\.py)\n", text)):
            (project / name[1]).write_text(text)
    with (project / "config/settings.py").open("a") as settings:
        settings.write(SETTINGS.format(database=database))
    manage = (python, "manage.py")
    where = run(python, "-c", "import django_pgqueue; print(django_pgqueue.__file__)", cwd=project)
    require(where.startswith(str(place)), f"the package was imported from {where}")
    run(*manage, "makemigrations", "shop", cwd=project)
    run(*manage, "migrate", "--verbosity", 0, cwd=project)
    run(*manage, "check", "--fail-level", "WARNING", cwd=project)
    run(*manage, "shell", "-c", PLACE, cwd=project)
    require("ready" in run(*manage, "shell", "-c", FINISHED, cwd=project), "the order has enqueued no job")
    run_worker([python, *work[1:]], project)


def run_worker(command: list[object], project: Path) -> None:
    """Run the README's worker until the job has succeeded, and stop it as Ctrl-C does."""
    log = project / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(  # noqa: S603 -- the README's command
            list(map(str, command)), cwd=project, stdout=output, stderr=output
        )
        try:
            deadline = time.monotonic() + WORKER_SECONDS
            while "succeeded" not in run(command[0], "manage.py", "shell", "-c", FINISHED, cwd=project):
                require(time.monotonic() < deadline, f"the job has not run:\n{log.read_text()}")
                time.sleep(0.2)
        finally:
            worker.terminate()
            code = worker.wait(60)
    require(code == 0, f"the worker exited with {code}:\n{log.read_text()}")
    require("Thank you for order 1." in log.read_text(), "the mail was not sent")


@contextmanager
def database() -> Iterator[dict[str, str]]:
    """Start the server of this checkout, and yield the settings of an empty database, which is dropped at the end."""
    sys.path.insert(0, str(TOP))
    import psycopg

    from example_project.embedded.server import ensure

    where = {key: str(value) for key, value in ensure().items()} | {"NAME": f"release_{os.getpid()}"}
    options = {"host": where["HOST"], "port": where["PORT"], "user": where["USER"], "dbname": "postgres"}
    with psycopg.connect(**options, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {where['NAME']} TEMPLATE template0")
        try:
            yield where
        finally:
            connection.execute(f"DROP DATABASE {where['NAME']} WITH (FORCE)")


def main(arguments: list[str]) -> int:
    """Run all checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allow-not-run", action="store_true", help="exit with 0 if a check could not be run")
    parser.add_argument("--keep", type=Path, help="directory that receives the two files")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pgq-release-") as name:
        place = Path(name)
        try:
            wheel, sdist = build(tools(place / "tools"), place / "dist")
            say(f"built and checked by twine: {wheel.name}, {sdist.name}")
            if problems := check_files(wheel, sdist):
                raise Failed("\n".join(problems))
            say("contents and metadata are right")
            with database() as where:
                follow_readme(wheel, place, where)
            say("the README was followed with the wheel in an empty environment")
        except NotRun as reason:
            sys.stderr.write(f"NOT RUN: {reason}\nNOT RUN: the release is not checked.\n")
            return 0 if options.allow_not_run else 3
        except Failed as error:
            sys.stderr.write(f"{error}\n")
            return 1
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            for file in (wheel, sdist):
                shutil.copy(file, options.keep)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
