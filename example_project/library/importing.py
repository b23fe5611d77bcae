"""Import the files of a folder as documents, and enqueue a job to index each one.

Called by the commands `import_documents` and `demo`. Invariant: a document and its job are committed together.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from django.db import transaction

from django_pgqueue import Batch

from .models import Document
from .reading import BINARY, kind_of
from .tasks import index_document

PART_SIZE: Final = 250
BINARIES: Final = 10
"""Binary files per suffix that become documents: enough to show what happens to jobs that cannot succeed."""
PATH_LENGTH: Final = 1000


class Found(NamedTuple):
    """A file that becomes a document."""

    path: Path
    kind: str
    size: int


def import_folder(top: Path, *, binaries: int = BINARIES) -> Iterator[list[Document]]:
    """Add all documents below a folder. Yield each part of them after it is committed.

    Existing documents are indexed again. The jobs of all parts are one batch: its page in the admin shows the progress.
    """
    files = find_files(top, binaries=binaries)
    batch = Batch(description=f"Import of {top}").open()
    while part := list(islice(files, PART_SIZE)):
        yield add_part(part, batch)
    batch.close()


def add_part(files: Iterable[Found], batch: Batch) -> list[Document]:
    """Add files and the jobs that index them in one transaction, so that neither exists without the other."""
    with transaction.atomic():
        documents = Document.objects.bulk_create(
            [Document(path=str(file.path), kind=file.kind, size=file.size) for file in files],
            update_conflicts=True,
            unique_fields=["path"],
            update_fields=["kind", "size"],
        )
        index_document.using(batch=batch).enqueue_many((document.pk,) for document in documents)
    return documents


def find_files(top: Path, *, binaries: int) -> Iterator[Found]:
    """Yield the files below a folder in order, without links, and at most `binaries` binary files per suffix."""
    binary_counts = Counter[str]()
    for folder, folders, names in os.walk(top.resolve()):
        folders.sort()
        for path in (Path(folder, name) for name in sorted(names)):
            kind = kind_of(path)
            if kind is None or not is_storable(path):
                continue
            if kind == BINARY:
                binary_counts[path.suffix] += 1
                if binary_counts[path.suffix] > binaries:
                    continue
            yield Found(path, kind, path.stat().st_size)


def is_storable(path: Path) -> bool:
    """Return whether this is a file, not a link, whose path the table can store. Paths must be UTF-8."""
    return path.is_file() and not path.is_symlink() and len(str(path)) <= PATH_LENGTH and str(path).isprintable()
