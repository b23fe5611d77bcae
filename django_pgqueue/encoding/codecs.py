"""Codecs: application code that encodes stored arguments and results, for example to encrypt or compress them.

`PGQUEUE["CODECS"]` lists the classes. The first one encodes new values, and each one decodes the values that have its
name. None as the first entry stores new values as plain JSON, so that a codec can be removed. A codec class takes no
arguments and has these members:

* `name` is stored with each value and finds the codec again. Never change it.
* `encode(self, data)` returns the bytes to store, or None to store this value as plain JSON.
* `decode(self, data)` returns the bytes that `encode()` was given. It raises an exception if it cannot.

`serialization` calls `encode()` and `decode()`, and `CodecJSONField` calls `readable()`. The module protects two rules.
Without codecs, values are stored and read as plain JSON. No message contains the bytes or the message of a codec's
exception, because both can contain the plain value.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Protocol

from django.core.exceptions import ImproperlyConfigured

from django_pgqueue.exceptions import CannotDecode, LeaseLost, TaskCancelled, TaskTimeout
from django_pgqueue.ground.envelope import CODEC, ERASED, UNCHANGED, EncodedValue, data_in, is_envelope, name_in, seal
from django_pgqueue.settings.conf import clear_at_change, get_settings
from django_pgqueue.tasks import registry

NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,40}")
"""Valid names of codecs."""
PASSED: Final = (KeyboardInterrupt, LeaseLost, TaskTimeout, TaskCancelled)
"""Exceptions that another thread or a signal raises while a codec runs. All others are the codec's own."""


class Codec(Protocol):
    """A codec, as `PGQUEUE["CODECS"]` names it.

    The methods run in the thread or the event loop that enqueues a job, runs it or reads its result. They should be
    fast and do no I/O.

    Example::

        class Compressed:
            name = "zlib"

            def encode(self, data: bytes) -> bytes | None:
                return zlib.compress(data) if len(data) > 1000 else None

            def decode(self, data: bytes) -> bytes:
                return zlib.decompress(data)
    """

    name: str
    """1 to 40 of the characters A-Z a-z 0-9 _ . : -"""

    def encode(self, data: bytes) -> bytes | None:
        """Return the bytes to store for a JSON text in UTF-8, or None to store the text itself."""

    def decode(self, data: bytes) -> bytes:
        """Return the JSON text for stored bytes. Raise any exception if that is not possible."""


@dataclass(frozen=True, slots=True)
class ProjectCodecs:
    """The project's codecs."""

    encoder: Codec | None = None
    """Encodes new values. None: they are stored as plain JSON."""
    by_name: Mapping[str, Codec] = field(default_factory=dict)


@cache
def project_codecs() -> ProjectCodecs:
    """Return the project's codecs. The first call in each process creates the instances.

    Raises:
        ImproperlyConfigured: A path cannot be imported, its object is not a valid codec class, or two have one name.
    """
    paths = get_settings().CODECS
    given = [path for path in paths if path is not None]
    # The message of a codec's error can contain a key.
    codecs = [registry.instantiated("CODECS", path, _class_problems, shows_error=False) for path in given]
    by_name = {codec.name: codec for codec in codecs}
    if len(by_name) < len(codecs):
        raise ImproperlyConfigured(
            f"PGQUEUE['CODECS'] has two codecs with one name: {[codec.name for codec in codecs]}. "
            "Each codec needs a name of its own"
        )
    return ProjectCodecs(None if not codecs or paths[0] is None else codecs[0], by_name)


clear_at_change(project_codecs)


def _class_problems(codec_class: Any) -> Iterator[str]:
    if not isinstance(codec_class, type):
        yield "it must be a class"
        return
    name = getattr(codec_class, "name", None)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        yield f"its name is {name!r}, but must be 1 to 40 of the characters A-Z a-z 0-9 _ . : -"
    elif name == ERASED:
        yield f"its name is {name!r}, which stands for erased values: choose another name"
    for method in ("encode", "decode"):
        function = getattr(codec_class, method, None)
        if not callable(function):
            yield f"it has no method {method}()"
        elif inspect.iscoroutinefunction(function):
            yield f"its {method}() must not be a coroutine function"


def encode(text: str) -> str:
    """Return what to store for a JSON text: an envelope, or the text itself if no codec encodes it.

    Raises:
        ValueError: The codec has failed, or its envelope is larger than a worker reads.
    """
    codec = project_codecs().encoder
    if codec is None:
        return text
    try:
        data = codec.encode(text.encode())
        stored = text if data is None else seal(codec.name, data)
    except PASSED:
        raise
    except BaseException as error:  # noqa: BLE001 -- codecs in Rust panic; "from None": its text can be the plain value
        raise ValueError(f"the codec {codec.name!r} cannot encode the value: it raised {_kind(error)}") from None
    if len(stored) > (limit := get_settings().most_stored_bytes):
        raise ValueError(
            f"the codec {codec.name!r} makes {len(stored):,} bytes of {len(text):,} characters, more than the "
            f"{limit:,} that a worker reads: store the data and pass its id"
        )
    return stored


class ValueErased(CannotDecode):
    """The value was erased, so no process can read it."""


def decode(envelope: dict[str, Any]) -> Any:
    """Return the JSON value in an envelope.

    Raises:
        CannotDecode: This process does not have the codec, its codecs are invalid, the codec has failed, or the value
            was erased.
    """
    name = envelope[CODEC]
    if name == ERASED:
        raise ValueErased("the value was erased")
    codec = _known_codecs(envelope).get(name) if isinstance(name, str) and name != UNCHANGED else None
    if codec is None and name != UNCHANGED:
        raise CannotDecode(
            f"encoded by {name_in(envelope)}, a codec that this process does not have: add it to PGQUEUE['CODECS']"
        )
    try:
        data = data_in(envelope)
        text = (data if codec is None else codec.decode(data)).decode()
    except PASSED:
        raise
    except BaseException as error:  # noqa: BLE001 -- as above
        raise CannotDecode(f"the codec {name_in(envelope)} cannot decode the value: it raised {_kind(error)}") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise CannotDecode(f"the codec {name_in(envelope)} has returned text that is not valid JSON") from None


def _known_codecs(envelope: dict[str, Any]) -> Mapping[str, Codec]:
    try:
        return project_codecs().by_name
    except ImproperlyConfigured as error:  # a web server runs no checks, and one row must not break a query
        raise CannotDecode(f"encoded by {name_in(envelope)}, but {error}") from None


def readable(value: Any) -> Any:
    """Return a stored JSON value as an application sees it: decoded, or an `EncodedValue` if that is not possible."""
    if type(value) is not dict or CODEC not in value or not is_envelope(value):
        return value
    try:
        return decode(value)
    except CannotDecode as error:
        return EncodedValue(str(error))


def _kind(error: BaseException) -> str:
    return type(error).__name__
