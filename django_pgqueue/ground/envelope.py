"""The stored form of a value that a codec has encoded: a JSON object with the codec's name and the bytes in base64.

`codecs` makes and opens envelopes. The model's fields and the admin recognise them. Values with and without an envelope
can be in the same column. A JSON object is an envelope only if it has exactly the two keys of one; `serialization`
encodes a plain result that has these keys, so no result is mistaken for an envelope.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

CODEC: Final = "pgqueue_codec"
"""Key of the codec's name. A column without this key in its object contains plain JSON."""
DATA: Final = "data"
UNCHANGED: Final = ""
"""Name in the envelope of a value that no codec has changed, but that would look like an envelope without one."""
ERASED: Final = "pgqueue:erased"
"""Name in the envelope that stands for an erased value. No codec can have it."""
ENVELOPE_KEYS: Final = frozenset({CODEC, DATA})
START: Final = re.compile(rf'\s*\{{\s*"{CODEC}"\s*:\s*("(?:[^"\\]|\\.)*")')
"""Matches the beginning of an envelope whose text was cut."""
NAME_SHOWN: Final = 50
"""Characters of a codec's name that a message shows. A row can contain any name."""


@dataclass(frozen=True, slots=True)
class EncodedValue:
    """Stands for arguments or a result that this process cannot decode. It does not contain the stored bytes."""

    problem: str
    """Why the value cannot be decoded."""


def seal(codec_name: str, data: bytes) -> str:
    """Return the JSON text of an envelope."""
    return f'{{"{CODEC}":{json.dumps(codec_name)},"{DATA}":"{b64encode(data).decode()}"}}'


def is_envelope(value: Any) -> bool:
    """Return whether a decoded JSON value has the form of an envelope."""
    return type(value) is dict and CODEC in value and value.keys() == ENVELOPE_KEYS


def name_in(envelope: dict[str, Any]) -> str:
    """Return the codec's name in a form that is safe in messages: short, and without control characters."""
    name = envelope[CODEC]
    shown = repr(name if isinstance(name, str) else type(name).__name__)
    return shown if len(shown) <= NAME_SHOWN else f"{shown[:NAME_SHOWN]}…"


def data_in(envelope: dict[str, Any]) -> bytes:
    """Return the encoded bytes. Raise `ValueError` or `TypeError` if they are not valid base64."""
    return b64decode(envelope[DATA], validate=True)


def codec_of(text: str) -> str | None:
    """Return the name of the codec that has encoded a stored JSON text, which may be cut; None for plain JSON."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if not is_envelope(value):
            return None
        return value[CODEC] if isinstance(value[CODEC], str) else "?"
    with suppress(ValueError):
        if start := START.match(text):
            return str(json.loads(start[1]))
    return None
