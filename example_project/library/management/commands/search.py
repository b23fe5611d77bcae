"""`manage.py search WORDS`: search the documents that the jobs have indexed."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from example_project.library.models import Document


class Command(BaseCommand):
    """Search the library."""

    help = "List the documents that contain all the words, best match first."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the words to search for, and a limit."""
        parser.add_argument(
            "words", nargs="+", help='syntax of a web search, such as: savepoint or "nested transaction" -sqlite'
        )
        parser.add_argument("--limit", type=int, default=10, help="maximum number of documents to list")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the path and the title of each document."""
        found = Document.objects.search(" ".join(options["words"]))
        for document in found[: options["limit"]]:
            self.stdout.write(f"{document.path}\n    {document.title}")
        self.stdout.write(f"{found.count():,} documents found.")
