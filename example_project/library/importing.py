"""A folder's files become documents, and jobs that index them."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from django.db import transaction

from .models import Document
from .reading import BINARY, kind_of
from .tasks import index_document

BATCH_SIZE: Final = 250
BINARIES: Final = 10
"""Binary files of each suffix that become documents: enough to see what becomes of jobs that cannot succeed."""
PATH_LENGTH: Final = 1000


class Found(NamedTuple):
    """A file that the library takes."""

    path: Path
    kind: str
    size: int


def import_folder(top: Path, *, binaries: int = BINARIES) -> Iterator[list[Document]]:
    """Add all documents below a folder; yield each batch when it is committed.

    Documents that are there already are indexed again.
    """
    files = find_files(top, binaries=binaries)
    while batch := list(islice(files, BATCH_SIZE)):
        yield add_batch(batch)


def add_batch(files: Iterable[Found]) -> list[Document]:
    """Add files and the jobs that index them in one transaction: never one without the other."""
    with transaction.atomic():
        documents = Document.objects.bulk_create(
            [Document(path=str(file.path), kind=file.kind, size=file.size) for file in files],
            update_conflicts=True,
            unique_fields=["path"],
            update_fields=["kind", "size"],
        )
        index_document.enqueue_many(((document.pk,), {}) for document in documents)
    return documents


def find_files(top: Path, *, binaries: int) -> Iterator[Found]:
    """Walk a folder in order; links are left out, and binary files beyond so many of each suffix."""
    taken = Counter[str]()
    for folder, folders, names in os.walk(top.resolve()):
        folders.sort()
        for path in (Path(folder, name) for name in sorted(names)):
            kind = kind_of(path)
            if kind is None or not is_storable(path):
                continue
            if kind == BINARY:
                taken[path.suffix] += 1
                if taken[path.suffix] > binaries:
                    continue
            yield Found(path, kind, path.stat().st_size)


def is_storable(path: Path) -> bool:
    """Say whether this is a file of its own, with a name that fits the table; one that is not UTF-8 does not."""
    return path.is_file() and not path.is_symlink() and len(str(path)) <= PATH_LENGTH and str(path).isprintable()
