"""JSON encoding of a job's arguments and result.

`enqueue()` encodes arguments, and the worker decodes them and encodes results. Values are normalised as in
Django's tasks framework: mappings become dicts, sequences become lists, keys become strings, and subclasses of `str`,
`int` and `float` become these types.

Everything that this module accepts is read back equal to its normalised form. It refuses values that PostgreSQL would
refuse or return changed, with an error that names their place.

The JSON text of arguments and results passes through the project's codec, if there is one (see `codecs`). All limits
apply to the JSON text before the codec.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from django_pgqueue.exceptions import CannotDecode
from django_pgqueue.ground.envelope import CODEC, UNCHANGED, is_envelope, seal
from django_pgqueue.ground.lazy_strings import advice_for
from django_pgqueue.ground.placeholders import ResultPlaceholder
from django_pgqueue.settings.conf import get_settings

from . import codecs

RETURN_VALUE: Final = "the return value"
"""The place of a result in errors."""
MAX_DEPTH: Final = 100
"""Maximum nesting depth. Python's decoder fails at about 1,000 levels, and PostgreSQL at a greater depth."""
MAX_INTEGER_BITS: Final = 14_000
"""Maximum size of an integer (about 4,200 digits). Python refuses to convert more than 4,300 decimal digits."""
BLOCK: Final = 20
"""Number of small calls that are encoded together. Encoding them one by one took 1.7 µs for each call."""
SMALL: Final = 1000
"""Average characters per call in a block below which the calls count as small."""
CHUNK: Final = 2000
"""Maximum number of jobs that one statement of `enqueue_many()` inserts."""
CHUNK_SIZE: Final = 1024 * 1024
"""Characters of arguments at which a chunk is full. With 4 MiB the process grew by 25 MB instead of 7 MB and was not
faster."""

_to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_from_json: Final = json.JSONDecoder().decode

ADVICE: Final[tuple[tuple[Any, str], ...]] = (
    (datetime, "annotate it with datetime, or pass value.isoformat()"),
    (date, "annotate it with date, or pass value.isoformat()"),
    (time, "annotate it with time, or pass value.isoformat()"),
    (timedelta, "annotate it with timedelta, or pass value.total_seconds()"),
    (Decimal, "annotate it with Decimal, or pass str(value)"),
    (UUID, "annotate it with UUID, or pass str(value)"),
    (bytes, "annotate it with bytes, or pass base64.b64encode(value).decode() or the location of the stored bytes"),
    (bytearray | memoryview, "pass base64.b64encode(value).decode(), or the location of the stored bytes"),
    (set, "annotate it with set[…], or pass sorted(value)"),
    (frozenset, "annotate it with frozenset[…], or pass sorted(value)"),
    (PurePath, "annotate it with Path, or pass str(value)"),
    (Enum, "annotate it with its class, or pass value.value"),
    (BaseException, "pass str(value)"),
)
"""Advice for values of types that JSON cannot represent: what to pass instead."""


def encode_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the text to store for a call's arguments: their JSON text, encoded by the project's codec.

    The errors name the argument and what to pass instead.

    Raises:
        TypeError: JSON cannot represent a value.
        ValueError: A value cannot be stored: it is not finite, contains a NUL or a lone surrogate, is nested too
            deeply, or the arguments are larger than `PGQUEUE["MAX_ARGUMENTS_BYTES"]`. Or the codec has failed.
    """
    text = _to_json(normalise_call(args, kwargs))
    if 4 * len(text) > get_settings().MAX_ARGUMENTS_BYTES:  # a character has 4 bytes at most
        _check_size(text)
    return text if codecs.project_codecs().encoder is None else codecs.encode(text)


def plain_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the JSON text of a call's arguments, as the row of a schedule has them.

    Raises the errors of `encode_arguments()`, except for those of a codec.
    """
    text = _to_json(normalise_call(args, kwargs))
    _check_size(text)
    return text


def normalise_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments as plain JSON types. Raise the errors of `encode_arguments()`, except for the size."""
    return {
        "args": [normalise(value, f"argument {place}", 1) for place, value in enumerate(args, 1)],
        "kwargs": {
            _text(name, "an argument's name"): normalise(value, f"argument {name!r}", 1)
            for name, value in kwargs.items()
        }
        if kwargs
        else {},
    }


def chunks(normalised: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the arguments of many calls as JSON arrays, one array for each INSERT.

    Small calls are encoded in blocks to save time. Large calls are encoded one by one, so that a chunk stays
    close to `CHUNK_SIZE`.

    Raises:
        ValueError: The arguments of a call are larger than `PGQUEUE["MAX_ARGUMENTS_BYTES"]`, or the codec has failed.
    """
    encode_block = _encode_block if codecs.project_codecs().encoder is None else _encode_block_with_codec
    blocks: list[str] = []
    count = size = 0
    calls = iter(normalised)
    block_length = 1
    while block := list(islice(calls, min(block_length, CHUNK - count))):
        blocks.append(encode_block(block))
        block_length = BLOCK if len(blocks[-1]) < SMALL * len(block) else 1
        count += len(block)
        size += len(blocks[-1])
        if count == CHUNK or size >= CHUNK_SIZE:
            yield f"[{','.join(blocks)}]"
            blocks, count, size = [], 0, 0
    if blocks:
        yield f"[{','.join(blocks)}]"


def _encode_block(block: list[dict[str, Any]]) -> str:
    text = _to_json(block)[1:-1]
    if size_of(text) > get_settings().MAX_ARGUMENTS_BYTES:
        for call in block:
            _check_size(_to_json(call))
    return text


def _encode_block_with_codec(block: list[dict[str, Any]]) -> str:
    return ",".join(map(_encode_call, block))


def _encode_call(call: dict[str, Any]) -> str:
    """Return a call of a chunk as JSON text, encoded by the codec."""
    text = _to_json(call)
    _check_size(text)
    return codecs.encode(text)


def _check_size(text: str) -> None:
    limit = get_settings().MAX_ARGUMENTS_BYTES
    if (size := size_of(text)) > limit:
        raise ValueError(
            f"the arguments are {size:,} bytes of JSON, more than PGQUEUE['MAX_ARGUMENTS_BYTES'] = {limit:,}: "
            "store the data and pass its id"
        )


def encode_result(value: Any, place: str = RETURN_VALUE) -> str:
    """Return the text to store for a task's return value: its JSON text, encoded by the project's codec.

    `place` names another value in errors: that of a step, or the payload of an event.

    Raises:
        TypeError: JSON cannot represent a value.
        ValueError: A value cannot be stored, or the result is larger than `PGQUEUE["MAX_RESULT_BYTES"]`, or the codec
            has failed.
    """
    normalised = normalise(value, place, 0)
    text = _to_json(normalised)
    limit = get_settings().MAX_RESULT_BYTES
    if (size := size_of(text)) > limit:
        raise ValueError(
            f"{place} is {size:,} bytes of JSON, more than PGQUEUE['MAX_RESULT_BYTES'] = {limit:,}: store it and "
            + ("return its id, or set store_result=False" if place == RETURN_VALUE else "pass its id")
        )
    stored = codecs.encode(text)
    if stored is text and is_envelope(normalised):  # without an envelope of its own, it would be decoded when read
        return seal(UNCHANGED, text.encode())
    return stored


def decode_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Return (args, kwargs) from a job's stored text.

    Raises:
        ValueError: `text` is not a JSON object with a list `args` and an object `kwargs`, or cannot be decoded.
    """
    try:
        decoded = _from_json(text)
        if CODEC in decoded and is_envelope(decoded):
            decoded = codecs.decode(decoded)
        args, kwargs = decoded["args"], decoded["kwargs"]
    except CannotDecode as error:
        raise type(error)(f"the job's arguments cannot be read: {error}") from None
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise ValueError(f"the job's arguments cannot be read: {error!r}") from error
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ValueError("the job's arguments cannot be read: args must be a list and kwargs an object")
    return args, kwargs


def size_of(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def normalise(value: Any, place: str, depth: int) -> Any:
    """Return `value` as plain JSON types, equal to the value that the task will receive. Errors name its `place`."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, int):
        number = int(value)
        return number if number.bit_length() <= MAX_INTEGER_BITS else _integer(number, place)
    if isinstance(value, float):
        return _number(value, place)
    if depth > MAX_DEPTH:
        raise ValueError(f"{place} is nested more than {MAX_DEPTH} deep: store the data and pass its id")
    if isinstance(value, Mapping):
        return _object(value, place, depth)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [normalise(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise TypeError(f"{place} is of type {type(value).__name__}, which JSON cannot represent: {_advice(value, place)}")


def _text(value: str, place: str) -> str:
    text = str.__str__(value)
    if "\x00" in text:
        raise ValueError(f"{place} contains a NUL character, which PostgreSQL cannot store: remove it")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{place} contains a lone surrogate at position {error.start}, which is not a character: "
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
        raise ValueError(f"{place} is {number}, which JSON cannot represent: pass None or a string")
    return number


def _object(value: Mapping[Any, Any], place: str, depth: int) -> dict[str, Any]:
    normalised: dict[str, Any] = {}
    for key, item in value.items():
        name = _key(key, place)
        if name in normalised:
            raise ValueError(f"{place} has two keys that both become {name!r} in JSON: make them differ as strings")
        normalised[name] = normalise(item, f"{place}[{key!r}]", depth + 1)
    return normalised


def _key(key: Any, place: str) -> str:
    if isinstance(key, str):
        return _text(key, f"a key of {place}")
    if key is None or isinstance(key, bool | int | float):
        return str(json.loads(json.dumps({_plain_key(key, place): 0}), object_pairs_hook=lambda pairs: pairs[0][0]))
    raise TypeError(f"{place} has a key of type {type(key).__name__}: {advice_for(key, 'JSON keys must be strings')}")


def _plain_key(key: Any, place: str) -> Any:
    if key is None or isinstance(key, bool):
        return key
    key_place = f"a key of {place}"
    return _integer(key, key_place) if isinstance(key, int) else _number(key, key_place)


def _advice(value: Any, place: str) -> str:
    """Return what to pass instead. Only arguments and return values have annotations that convert them."""
    if hasattr(value, "pk") and hasattr(value, "_meta"):
        if place.startswith("argument "):
            return "annotate the parameter with the model, or pass value.pk and load the object in the task"
        return f"{'return' if place.startswith(RETURN_VALUE) else 'pass'} value.pk, and load the object later"
    advice = _advice_for_annotated(value)
    return advice if place.startswith(("argument ", RETURN_VALUE)) else advice.partition(", or ")[2] or advice


def _advice_for_annotated(value: Any) -> str:
    if isinstance(value, ResultPlaceholder):
        return (
            "only a node of the same workflow gets it, alone or in a list, a tuple or a dict: Workflow.add(task.s(…))"
        )
    if hasattr(type(value), "result_or_none"):
        return "pass the node's result"
    for types, advice in ADVICE:
        if isinstance(value, types):
            return advice
    if is_dataclass(value) and not callable(value):
        return "annotate it with its class, or pass dataclasses.asdict(value)"
    return advice_for(value, "pass plain strings, numbers, lists and dicts")
