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
    version = said([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    if tuple(int(number) for number in version.split(".")) < OLDEST:
        raise SystemExit(f"{python} is Python {version}: name one of 3.12 or later with --python, for django-ox.")


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
