"""An environment for each system, made once and kept outside of the checkout."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.tools.benchmarks.systems import django
from tests.tools.benchmarks.systems.system import System
from tests.tools.benchmarks.telling import say
from tests.tools.peers.environment import said

DJANGO_6_PYTHON = (3, 12)


class Ready(NamedTuple):
    """The systems that can be measured here, their Pythons, and what is measured of each."""

    systems: list[System]
    pythons: dict[str, Path]
    versions: dict[str, str]


def environments(work: Path, python: str, version: tuple[int, ...], systems: Sequence[System]) -> Ready:
    """Make what is not there yet; a system that this machine cannot have is left out, with a word."""
    ready = Ready([], {}, {})
    for system in systems:
        if why := lacks(system, version):
            say(f"{system.name} is left out: {why}")
            continue
        home = environment(work, python, system, version)
        ready.systems.append(system)
        ready.pythons[system.name] = home / "bin/python"
        ready.versions[system.name] = measured_version(home / "bin/python", system)
    return ready


def lacks(system: System, version: tuple[int, ...]) -> str:
    """What the machine does not have that the system needs; "" if nothing."""
    if version < system.oldest_python:
        wanted = ".".join(map(str, system.oldest_python))
        return f"it needs Python {wanted} or later: name one with --python"
    if system.broker == "redis" and not shutil.which("redis-server"):
        return "it needs redis-server on the PATH"
    return ""


def environment(work: Path, python: str, system: System, version: tuple[int, ...]) -> Path:
    """The directory of the system's environment; of npm's packages too, in `node_modules` there."""
    packages = packages_for(system, version)
    key = hashlib.sha256(" ".join([python, *packages, *system.npm]).encode()).hexdigest()[:8]
    home = work / "environments" / f"{system.distribution or 'django'}-{key}"
    if not (home / "complete").exists():
        say(f"installing {', '.join([*packages, *system.npm])}")
        subprocess.run([python, "-m", "venv", "--clear", home], check=True)
        subprocess.run([home / "bin/python", "-m", "pip", "install", "-q", *packages], check=True)
        if system.npm:
            subprocess.run([home / "bin/npm", "install", "--silent", "--prefix", home, *system.npm], check=True)
        (home / "complete").touch()
    return home


def packages_for(system: System, version: tuple[int, ...]) -> list[str]:
    """Return the system's packages, with the newest Django that this Python can run."""
    old = version < DJANGO_6_PYTHON
    return sorted(django.DJANGO_FOR_3_11 if old and name.startswith("django==") else name for name in system.packages)


def measured_version(python: Path, system: System) -> str:
    """The release installed, or the commit of the checkout."""
    if system.path:
        return "commit " + said(["git", "-C", str(system.path), "describe", "--always", "--dirty"])
    if system.npm:
        return system.npm[0].rpartition("@")[2]
    return said([str(python), "-c", f"from importlib.metadata import version; print(version({system.distribution!r}))"])
