"""Asks an advisory service about the packages that users get: what runtime and demo need, in the versions of .venv.

Exits with 1 if one of them has a known vulnerability. Where the service did not answer for all of them, that is said
loudly, and the exit code is 0: no answer is no finding, but neither is it an all-clear.
"""

import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement

PROJECT, EXTRA = "dj-pgqueue", "demo"
PATIENCE_SECONDS = 120


def normal(name: str) -> str:
    """Return a package's name as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Return name and version of everything that the project with its extra brings along, itself left out."""
    waiting, seen = [(PROJECT, EXTRA)], set()
    while waiting:
        name, extra = one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        for needed in map(Requirement, requires(name) or []):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(normal(needed.name), more) for more in ("", *needed.extras)]
    return {name: version(name) for name in sorted({name for name, _ in seen} - {PROJECT})}


def verdict(asked: set[str], answer: str) -> tuple[int, list[str]]:
    """Return the exit code for what pip-audit answered in JSON, and the lines that say why."""
    try:
        told = {normal(one["name"]): one for one in json.loads(answer)["dependencies"]}
    except (ValueError, LookupError, TypeError):
        told = {}
    vulnerable = [
        f"VULNERABLE: {name} {one['version']}: {', '.join(flaw['id'] for flaw in one['vulns'])}"
        for name, one in told.items()
        if one.get("vulns")
    ]
    unanswered = sorted(name for name in asked if "vulns" not in told.get(name, {}))
    lines = [*vulnerable, f"{len(asked) - len(unanswered)} of {len(asked)} packages audited"]
    if unanswered:
        lines.append(f"NOT AUDITED, the advisory service gave no answer: {', '.join(unanswered)}")
    return bool(vulnerable), lines


def ask(packages: dict[str, str]) -> tuple[str, str]:
    """Return what pip-audit answers of these packages, as JSON if it got that far, and what it complained of."""
    with tempfile.TemporaryDirectory() as place:
        listed, output = Path(place, "packages.txt"), Path(place, "answer.json")
        listed.write_text("".join(f"{name}=={number}\n" for name, number in packages.items()))
        options = ["--requirement", listed, "--no-deps", "--disable-pip", "--progress-spinner", "off"]
        command = [sys.executable, "-m", "pip_audit", *options, "--format", "json", "--output", output]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)  # noqa: S603 -- our own words
        except subprocess.TimeoutExpired:
            return "", f"no answer in {PATIENCE_SECONDS} s"
        return output.read_text() if output.exists() else "", done.stderr


def main() -> int:
    """Ask, say, and return the exit code."""
    packages = installed()
    answer, complaint = ask(packages)
    code, lines = verdict(set(packages), answer)
    if not answer:
        lines.append(complaint.strip()[-500:])
    print("\n".join(lines), file=sys.stderr)  # noqa: T201 -- its purpose
    return code


if __name__ == "__main__":
    sys.exit(main())
