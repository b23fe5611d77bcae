"""`manage.py import_documents PATH`: add the files of a folder to the library."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from example_project.library.importing import BINARIES, import_folder


class Command(BaseCommand):
    """Add the files of a folder to the library."""

    help = "Add the files below a folder to the library and enqueue jobs that index them, in one transaction per batch."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the folder, and the limit for binary files."""
        parser.add_argument("path", type=Path, help="the folder")
        parser.add_argument("--binaries", type=int, default=BINARIES, help="maximum number of binary files per suffix")

    def handle(self, *args: Any, **options: Any) -> None:
        """Import the files, and print the progress."""
        if not options["path"].is_dir():
            raise CommandError(f"{options['path']} is not a folder.")
        count = 0
        for batch in import_folder(options["path"], binaries=options["binaries"]):
            count += len(batch)
            self.stdout.write(f"{count:,} documents, each with its job")
        self.stdout.write(f"{count:,} documents in total. Start a worker (`runworker`) to index them.")
