"""Codecs of the tests: one that changes each byte, one that compresses, and several that cannot work."""

from __future__ import annotations

import os
import zlib

SMALL = 200


class Hidden:
    """Changes each byte, so that the plain value is not in the row."""

    name = "hidden"
    key = 0x5A

    def encode(self, data: bytes) -> bytes:
        return bytes(byte ^ self.key for byte in data)

    def decode(self, data: bytes) -> bytes:
        return self.encode(data)


class Other(Hidden):
    """The codec that comes after `Hidden`."""

    name = "other"
    key = 0x3C


class Salted(Hidden):
    """Encodes one value as another text each time, as encryption does."""

    name = "salted"

    def encode(self, data: bytes) -> bytes:
        return os.urandom(8) + super().encode(data)

    def decode(self, data: bytes) -> bytes:
        return super().encode(data[8:])


class WrongKey(Hidden):
    """Has the name of `Hidden`, but not its key."""

    key = 0x11


class Compressed:
    """Compresses what is not small."""

    name = "zlib"

    def encode(self, data: bytes) -> bytes | None:
        return None if len(data) < SMALL else zlib.compress(data)

    def decode(self, data: bytes) -> bytes:
        return zlib.decompress(data)


class Broken:
    """Raises an error that contains the value."""

    name = "broken"

    def encode(self, data: bytes) -> bytes:
        raise RuntimeError(data.decode())

    def decode(self, data: bytes) -> bytes:
        raise RuntimeError(data.decode())


class OneWay(Hidden):
    """Cannot decode what it has encoded."""

    name = "one-way"

    def decode(self, data: bytes) -> bytes:
        raise ValueError("no way back")


class Panics(Hidden):
    """Raises what is not an `Exception`, with the value in it, as codecs that are written in Rust can."""

    name = "panics"

    def encode(self, data: bytes) -> bytes:
        raise Panic(data.decode())

    def decode(self, data: bytes) -> bytes:
        raise Panic(data.decode())


class Panic(BaseException):
    """What `Panics` raises."""


class NotText:
    """Returns something that is not bytes."""

    name = "not-text"

    def encode(self, data: bytes) -> str:
        return data.decode()

    def decode(self, data: bytes) -> bytes:
        return b"{"


class Nameless:
    """Lacks a name."""

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


class Coroutines:
    """Has coroutine functions as methods."""

    name = "coroutines"

    async def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


class NoDecode:
    """Lacks a method."""

    name = "no-decode"

    def encode(self, data: bytes) -> bytes:
        return data


class Raises(Hidden):
    """Cannot be instantiated, with a message that contains a key."""

    def __init__(self) -> None:
        raise ValueError("the key is hunter2")


not_a_class = Hidden()


class NoKey(Hidden):
    """Cannot be created, because a key is missing."""

    def __init__(self) -> None:
        raise KeyError("KEY")
