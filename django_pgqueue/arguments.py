"""What a job may carry: arguments and results as JSON, normalised as Django's Tasks framework does it.

Mappings become dicts, sequences lists, subclasses of str and the numbers what they are made of, keys strings. Whatever
PostgreSQL would refuse, or give back changed, is refused here first, with the place it was found at.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any, Final
from uuid import UUID

from .conf import get_settings

MAX_DEPTH: Final = 100
"""Nesting that is still read back: Python's decoder gives up at about a thousand, PostgreSQL later."""
MAX_HEADERS_BYTES: Final = 4096
MAX_INTEGER_BITS: Final = 14_000
"""Python itself refuses to write or read a decimal of more than 4,300 digits."""
BLOCK: Final = 20
"""Calls that are written as JSON at once while they are small: one by one, that took 1.7 µs for each."""
SMALL: Final = 1000
"""Characters of a call in the last block, on average."""
CHUNK: Final = 2000
"""Jobs that one statement of `enqueue_many` inserts at the most."""
CHUNK_SIZE: Final = 1024 * 1024
"""Characters of arguments at which it is full. With 4 MiB the process grew by 25 MB instead of 7, and was no faster."""

_to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_from_json: Final = json.JSONDecoder().decode

INSTEAD: Final[tuple[tuple[Any, str], ...]] = (
    (datetime, "pass value.isoformat(), and datetime.fromisoformat() it in the task"),
    (date, "pass value.isoformat(), and date.fromisoformat() it in the task"),
    (time, "pass value.isoformat(), and time.fromisoformat() it in the task"),
    (timedelta, "pass value.total_seconds()"),
    (Decimal, "pass str(value), and Decimal() it in the task"),
    (UUID, "pass str(value), and UUID() it in the task"),
    (bytes | bytearray | memoryview, "pass base64.b64encode(value).decode(), or where the bytes are stored"),
    (set | frozenset, "pass sorted(value)"),
    (BaseException, "pass str(value)"),
)


def encode_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the JSON text of a call's arguments.

    Raises `TypeError` for a value that JSON has no form for, `ValueError` for one that cannot be stored (not finite,
    NUL, lone surrogate, too deep, too large); both name the argument and what to pass instead.
    """
    text = _to_json(normalise_call(args, kwargs))
    _check_size(text)
    return text


def normalise_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments as plain JSON types; raises as `encode_arguments`, but for their size."""
    return {
        "args": [_normalise(value, f"argument {place}", 1) for place, value in enumerate(args, 1)],
        "kwargs": {
            _text(name, "an argument's name"): _normalise(value, f"argument {name!r}", 1)
            for name, value in kwargs.items()
        },
    }


def chunks(normalised: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Write many calls' arguments as JSON arrays, each of what one statement inserts; raises as `encode_arguments`."""
    blocks: list[str] = []
    count = size = 0
    calls = iter(normalised)
    ahead = 1
    while block := list(islice(calls, min(ahead, CHUNK - count))):
        blocks.append(_encode_block(block))
        ahead = BLOCK if len(blocks[-1]) < SMALL * len(block) else 1
        count += len(block)
        size += len(blocks[-1])
        if count == CHUNK or size >= CHUNK_SIZE:
            yield f"[{','.join(blocks)}]"
            blocks, count, size = [], 0, 0
    if blocks:
        yield f"[{','.join(blocks)}]"


def _encode_block(block: list[dict[str, Any]]) -> str:
    text = _to_json(block)[1:-1]
    if _size(text) > get_settings().MAX_ARGUMENTS_BYTES:
        for call in block:
            _check_size(_to_json(call))
    return text


def _check_size(text: str) -> None:
    limit = get_settings().MAX_ARGUMENTS_BYTES
    if (size := _size(text)) > limit:
        raise ValueError(
            f"the arguments are {size:,} bytes of JSON, more than PGQUEUE['MAX_ARGUMENTS_BYTES'] = {limit:,}: "
            "store the data and pass its id"
        )


def encode_result(value: Any) -> str:
    """Return the JSON text of a task's return value; raises as `encode_arguments`."""
    text = _to_json(_normalise(value, "the return value", 0))
    limit = get_settings().MAX_RESULT_BYTES
    if (size := _size(text)) > limit:
        raise ValueError(
            f"the return value is {size:,} bytes of JSON, more than PGQUEUE['MAX_RESULT_BYTES'] = {limit:,}: "
            "store it and return its id, or say store_result=False"
        )
    return text


def encode_headers(headers: Mapping[str, Any]) -> str | None:
    """Return the JSON text of a job's headers, None if there are none.

    Raises `TypeError` for anything but names and strings, numbers, booleans or None, `ValueError` for what cannot be
    stored, or is larger than 4 KiB in all.
    """
    if not headers:
        return None
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a mapping of names to values, not {type(headers).__name__}")
    text = _to_json({_name(name): _scalar(value, f"header {name!r}") for name, value in headers.items()})
    if (size := _size(text)) > MAX_HEADERS_BYTES:
        raise ValueError(f"the headers are {size:,} bytes of JSON, more than 4,096: pass data as arguments")
    return text


def decode_headers(text: str | None) -> dict[str, Any]:
    """Return a job's headers from their JSON text; raises `ValueError` if that is no object."""
    if text is None:
        return {}
    try:
        headers = _from_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the job's headers cannot be read: {error!r}") from error
    if not isinstance(headers, dict):
        raise ValueError("the job's headers cannot be read: they must be an object")
    return headers


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a header's name is of type {type(name).__name__}: names are strings")
    return _text(name, "a header's name")


def _scalar(value: Any, place: str) -> Any:
    if value is None or isinstance(value, str | int | float):
        return _normalise(value, place, 1)
    raise TypeError(f"{place} is of type {type(value).__name__}: a header is a string, a number, a boolean or None")


def decode_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Return (args, kwargs) from a job's JSON text; raises `ValueError` if it does not have their shape."""
    try:
        decoded = _from_json(text)
        args, kwargs = decoded["args"], decoded["kwargs"]
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise ValueError(f"the job's arguments cannot be read: {error!r}") from error
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ValueError("the job's arguments cannot be read: args must be a list and kwargs an object")
    return args, kwargs


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _normalise(value: Any, place: str, depth: int) -> Any:
    """Return `value` as plain JSON types, equal to what a task will be given."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, int):
        return _integer(value, place)
    if isinstance(value, float):
        return _number(value, place)
    if depth > MAX_DEPTH:
        raise ValueError(f"{place} is nested more than {MAX_DEPTH} deep: store the data and pass its id")
    if isinstance(value, Mapping):
        return _object(value, place, depth)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_normalise(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise TypeError(f"{place} is of type {type(value).__name__}, which JSON has no form for: {_instead(value)}")


def _text(value: str, place: str) -> str:
    text = str.__str__(value)
    if "\x00" in text:
        raise ValueError(f"{place} contains a NUL character, which PostgreSQL cannot store: remove it")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{place} contains a lone surrogate at {error.start}, which is no character: "
                "decode it with errors='replace'"
            ) from None
    return text


def _integer(value: int, place: str) -> int:
    number = int(value)
    if number.bit_length() > MAX_INTEGER_BITS:
        raise ValueError(f"{place} is an integer of more than 4,200 digits, which cannot be read back: pass hex(value)")
    return number


def _number(value: float, place: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{place} is {number}, which JSON has no form for: pass None or a string")
    return number


def _object(value: Mapping[Any, Any], place: str, depth: int) -> dict[str, Any]:
    normalised: dict[str, Any] = {}
    for key, item in value.items():
        name = _key(key, place)
        if name in normalised:
            raise ValueError(f"{place} has two keys that are {name!r} in JSON: make them differ as strings")
        normalised[name] = _normalise(item, f"{place}[{key!r}]", depth + 1)
    return normalised


def _key(key: Any, place: str) -> str:
    if isinstance(key, str):
        return _text(key, f"a key of {place}")
    if key is None or isinstance(key, bool | int | float):
        return str(json.loads(json.dumps({_plain_key(key, place): 0}), object_pairs_hook=lambda pairs: pairs[0][0]))
    raise TypeError(f"{place} has a key of type {type(key).__name__}: JSON keys are strings")


def _plain_key(key: Any, place: str) -> Any:
    if key is None or isinstance(key, bool):
        return key
    where = f"a key of {place}"
    return _integer(key, where) if isinstance(key, int) else _number(key, where)


def _instead(value: Any) -> str:
    for kind, advice in INSTEAD:
        if isinstance(value, kind):
            return advice
    if hasattr(value, "pk") and hasattr(value, "_meta"):
        return "pass value.pk, and fetch it in the task"
    return "pass plain strings, numbers, lists and dicts"
