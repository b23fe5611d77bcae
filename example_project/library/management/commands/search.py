"""`manage.py search WORDS`: what the indexing was for."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from example_project.library.models import Document


class Command(BaseCommand):
    """Search the library."""

    help = "List the documents that have all the words, best first."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the words."""
        parser.add_argument("words", nargs="+", help='as in a web search: savepoint or "nested transaction" -sqlite')
        parser.add_argument("--limit", type=int, default=10, help="documents listed")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print path and title of each."""
        found = Document.objects.search(" ".join(options["words"]))
        for document in found[: options["limit"]]:
            self.stdout.write(f"{document.path}\n    {document.title}")
        self.stdout.write(f"{found.count():,} documents found.")
