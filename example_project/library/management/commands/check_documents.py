"""`manage.py check_documents`: compare what the jobs stored with the files."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from example_project.library.demo.checking import Check

SHOWN = 10


class Command(BaseCommand):
    """Compare the library with its files."""

    help = "Compare every document with its file, and the attempts of every job with what its arguments demand."

    def handle(self, *args: Any, **options: Any) -> None:
        """Compare. Raise `CommandError` with the first differences if there are any."""
        check = Check().run()
        if check.problems:
            shown = "\n  ".join(check.problems[:SHOWN])
            raise CommandError(f"{len(check.problems):,} differences found:\n  {shown}")
        self.stdout.write(
            f"  {check.documents:,} documents: lines, words and SHA-256 match the files, counted again one by one\n"
            f"  {check.vectors:,} full-text vectors, a sample, match when computed again\n"
            f"  {check.jobs:,} jobs: attempts, failures and times match their arguments\n"
            f"Everything is correct."
        )
