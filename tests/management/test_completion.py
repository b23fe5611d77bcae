"""`pgqueue completion` prints a script whose completions bash itself, and zsh if it is installed, returns."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.test_docs import own_options, subcommands


@pytest.fixture
def script(pgqueue):
    return lambda shell: pgqueue("completion", shell).out


def completed(script: str, *words: str) -> list[str]:
    """Return what bash completes for these words, of which the last is the one under the cursor."""
    typed = " ".join(f"'{word}'" for word in words)
    call = f'COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _pgqueue_complete; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{call}"], capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("manage.py", "pgqueue", "jo"), ["jobs"]),
        (("./manage.py", "pgqueue", "jobs", "re"), ["retry"]),
        (("pgqueue", "jobs", "retry", "--task", "a.b", "--dry"), ["--dry-run"]),
        (("pgqueue", "workers", "st"), ["stop", "stack"]),
        (("pgqueue", "completion", ""), ["bash", "zsh", "--help"]),
        (("manage.py", "migrate", "jo"), []),
        (("manage.py", "jo"), []),
        (("pgqueue", "nothing", "x"), []),
    ],
)
def test_bash_completes_words(script, words, expected):
    assert completed(script("bash"), *words) == expected


def test_completion_knows_every_subcommand_and_option(script):
    text = script("bash")
    for words in subcommands():
        if words[0] != "worker":
            assert own_options("pgqueue", *words) <= set(completed(text, "pgqueue", *words, "--")), words


def test_zsh_reads_the_script(script):
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    subprocess.run(["zsh", "-c", script("zsh")], check=True)


def test_zsh_script_loads_the_functions_of_bash_first(script):
    assert script("zsh").startswith("autoload -U +X bashcompinit") and script("zsh").endswith(script("bash"))
