"""The argument `--release` of a worker: the name of the project's release that it runs, and the variable behind it.

`runworker` and `pgqueue run` call it before they connect to anything. A name that nobody can read, or that the record
of a worker cannot store, is an error of the command: otherwise each start of a process would fail later.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

from django_pgqueue.ground.visible_text import in_line
from django_pgqueue.management.subcommands.subcommand import UsageError

VARIABLE: Final = "PGQUEUE_RELEASE"
"""The environment variable with the name, if `--release` is not given."""
MOST_CHARACTERS: Final = 100
"""Characters that the record of a worker stores."""


def add_release(parser: argparse.ArgumentParser) -> None:
    """Add the argument `--release`."""
    parser.add_argument(
        "--release",
        metavar="NAME",
        help="Name of the project's release, such as a tag or a commit, shown in the admin. Default: the environment "
        f"variable {VARIABLE}, or none.",
    )


def release_name(arguments: dict[str, Any]) -> str:
    """Return the name of the release, or "" without one. Raise `UsageError` if it is invalid.

    An empty argument counts as not given, because a script passes `--release "$TAG"` also where TAG is not set.
    """
    given = arguments.get("release") or ""
    name, source = (given, "--release") if given else (os.environ.get(VARIABLE, ""), VARIABLE)
    if name != in_line(name) or name != name.strip():
        raise UsageError(
            f"Invalid release {name!r} in {source}: pass a name without control characters and without spaces around."
        )
    if len(name) > MOST_CHARACTERS:
        raise UsageError(
            f"The release in {source} has {len(name)} characters: pass a name of at most {MOST_CHARACTERS}."
        )
    return name
