"""JSON encoding of a job's headers.

`enqueue` and `schedules` encode them, and the worker decodes them. The same rules as for arguments apply (see
`serialization`), but the values are scalars, and no codec encodes them.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from django_pgqueue.ground.lazy_strings import advice_for

from .serialization import normalise, size_of

MAX_HEADERS_BYTES: Final = 4096
"""Maximum size of a job's headers as JSON."""

_to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def encode_headers(headers: Mapping[str, Any]) -> str | None:
    """Return the JSON text of a job's headers, or None without headers.

    Raises:
        TypeError: `headers` is not a mapping of strings to strings, numbers, booleans or None.
        ValueError: A value cannot be stored, or the headers are larger than 4 KiB.
    """
    if not headers:
        return None
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a mapping of names to values, not {type(headers).__name__}")
    text = _to_json({_name(name): _scalar(value, f"header {name!r}") for name, value in headers.items()})
    if (size := size_of(text)) > MAX_HEADERS_BYTES:
        raise ValueError(f"the headers are {size:,} bytes of JSON, more than 4,096: pass data as arguments")
    return text


def decode_headers(text: str | None) -> dict[str, Any]:
    """Return a job's headers from their JSON text.

    Raises:
        ValueError: `text` is not a JSON object.
    """
    if text is None:
        return {}
    try:
        headers = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the job's headers cannot be read: {error!r}") from error
    if not isinstance(headers, dict):
        raise ValueError("the job's headers cannot be read: they must be an object")
    return headers


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a header's name is of type {type(name).__name__}: names must be strings")
    return str(normalise(name, "a header's name", 1))


def _scalar(value: Any, place: str) -> Any:
    if value is None or isinstance(value, str | int | float):
        return normalise(value, place, 1)
    advice = advice_for(value, "pass a string, a number, a boolean or None")
    raise TypeError(f"{place} is of type {type(value).__name__}: {advice}")
