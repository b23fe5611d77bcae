"""Checks tests/typing with pyright, strictly: what users who have it are told of our types. mypy sees it with the rest.

Exits with 1 if a call is refused that is meant, or accepted that is not. pyright's own code comes from npm's registry
at its first run; where that does not answer, that is said, and the exit code is 0.
"""

import subprocess
import sys

PATIENCE_SECONDS = 120
PYRIGHT = (sys.executable, "-m", "pyright")


def run(*arguments: str) -> tuple[int, str]:
    """Return the exit code of pyright and what it said; a code of 1 if it took too long."""
    try:
        done = subprocess.run(  # noqa: S603 -- our own words
            [*PYRIGHT, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, f"no answer in {PATIENCE_SECONDS} s"
    return done.returncode, (done.stdout + done.stderr).strip()


def main() -> int:
    """Fetch it, check, say, and return the exit code."""
    code, words = run("--version")
    if code:
        words = f"NOT CHECKED, pyright could not be fetched: {words[-300:]}"
        code = 0
    else:
        code, words = run("-p", "tests/typing")
    print(words, file=sys.stderr)  # noqa: T201 -- its purpose
    return code


if __name__ == "__main__":
    sys.exit(main())
