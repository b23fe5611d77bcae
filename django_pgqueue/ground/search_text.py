"""The text by which operators find a job: the value of an argument, as the table of search keys has it.

`enqueue()` stores it, and `Job.objects.with_search_key()`, the admin and the commands search for it. All of them use
`as_search_text()`, so that a search finds what was stored.
"""

from __future__ import annotations

import json
from typing import Final

Scalar = str | int | float | bool
"""The types of JSON that have a search text. None has none."""

MAX_NAMES: Final = 10
"""Search keys of a task at most. Each one is a row to insert and to remove."""
MAX_NAME_LENGTH: Final = 100
"""Characters of an argument's name at most."""
MAX_LENGTH: Final = 200
"""Characters of a value that are stored. A search cuts its text in the same way, so it finds longer values too."""


def as_search_text(value: Scalar) -> str:
    """Return a text as it is, and another scalar as JSON, such as `true`; the first `MAX_LENGTH` characters of it."""
    return (value if isinstance(value, str) else json.dumps(value))[:MAX_LENGTH]
