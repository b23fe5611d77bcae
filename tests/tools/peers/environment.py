"""An environment for each peer, made once and kept outside of the checkout."""

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.tools.peers.place import Peer

OLDEST = (3, 12)


def default_work() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "dj-pgqueue-peers")


def check_python(python: str) -> None:
    """Refuse, before anything is installed, a Python that one of the peers cannot use."""
    version = python_version(python)
    if version < OLDEST:
        number = ".".join(map(str, version))
        raise SystemExit(f"{python} is Python {number}: name one of 3.12 or later with --python, for django-ox.")


def python_version(python: str) -> tuple[int, ...]:
    """Return the version of a Python, or end with an advice if it cannot be run."""
    try:
        words = said([python, "-c", "import sys; print(*sys.version_info[:2])"]).split()
        return tuple(int(word) for word in words)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise SystemExit(
            f"--python {python} cannot be run as a Python ({error}): name a Python that is installed, by its path if "
            "it is not on the PATH."
        ) from None


def environment(work: Path, python: str, peer: Peer) -> Path:
    """The Python of the peer's own environment, which is made if it is not there yet."""
    packages = sorted(peer.packages)
    name = hashlib.sha256(" ".join([python, *packages]).encode()).hexdigest()[:8]
    home = work / "environments" / f"{peer.distribution or peer.name}-{name}"
    if not (home / "complete").exists():
        subprocess.run([python, "-m", "venv", "--clear", home], check=True)
        subprocess.run([home / "bin/python", "-m", "pip", "install", "-q", *packages], check=True)
        (home / "complete").touch()
    return home / "bin/python"


def version(python: Path, peer: Peer) -> str:
    """What is measured: the release installed, or the commit of the checkout."""
    if peer.path:
        return "commit " + said(["git", "-C", str(peer.path), "describe", "--always", "--dirty"])
    return said([str(python), "-c", f"from importlib.metadata import version; print(version({peer.distribution!r}))"])


def said(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
