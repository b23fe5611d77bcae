"""`manage.py import_documents PATH`: fill the library from a folder."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from example_project.library.importing import BINARIES, import_folder


class Command(BaseCommand):
    """Add a folder's files to the library."""

    help = "Add the files below a folder to the library, and enqueue their indexing: one transaction for each batch."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the folder."""
        parser.add_argument("path", type=Path, help="the folder")
        parser.add_argument("--binaries", type=int, default=BINARIES, help="binary files of each suffix taken at most")

    def handle(self, *args: Any, **options: Any) -> None:
        """Import, and say how far it is."""
        if not options["path"].is_dir():
            raise CommandError(f"{options['path']} is not a folder.")
        count = 0
        for batch in import_folder(options["path"], binaries=options["binaries"]):
            count += len(batch)
            self.stdout.write(f"{count:,} documents, each with its job")
        self.stdout.write(f"{count:,} documents in all; a worker (`runworker`) indexes them.")
