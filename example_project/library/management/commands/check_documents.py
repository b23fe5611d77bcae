"""`manage.py check_documents`: is what the jobs stored what the files say?"""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from example_project.library.demo.checking import Check

SHOWN = 10


class Command(BaseCommand):
    """Compare the library with its files."""

    help = "Compare every document with its file, and every job's attempts with what they must have been."

    def handle(self, *args: Any, **options: Any) -> None:
        """Compare; fail if anything is off."""
        check = Check().run()
        if check.problems:
            shown = "\n  ".join(check.problems[:SHOWN])
            raise CommandError(f"{len(check.problems):,} things are not as they should be:\n  {shown}")
        self.stdout.write(
            f"  {check.documents:,} documents: lines, words and SHA-256 are the files' own, counted again one by one\n"
            f"  {check.vectors:,} full-text vectors, one in so many, made again: the same\n"
            f"  {check.jobs:,} jobs: the attempts, failures and times that their arguments say\n"
            f"All is as it should be."
        )
