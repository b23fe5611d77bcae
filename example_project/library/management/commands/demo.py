"""`manage.py demo`: the queue at work on the files of the packages installed here; `bin/demo` calls it."""

import shlex
import sys
import sysconfig
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError, connection

from example_project.library.demo import feeding
from example_project.library.demo.children import MANAGE, Child, free_port, start_admin, start_worker
from example_project.library.demo.interruption import Interrupted, Interruption
from example_project.library.demo.progress import Progress, standing
from example_project.library.demo.summary import summarise, words_found

POLL_SECONDS: Final = 0.1
DEADLINE_SECONDS: Final = 240.0
ADMIN_SECONDS: Final = 20.0


class Command(BaseCommand):
    """The demo."""

    help = "Import a folder, index it with a worker, show the progress, add up, and check the result file by file."
    interruption: Interruption
    worker: Child

    def add_arguments(self, parser: CommandParser) -> None:
        """Add what may be shown, and whether to stay."""
        parser.add_argument("path", nargs="?", type=Path, help="the folder (default: the packages installed here)")
        parser.add_argument("--serve", action="store_true", help="leave worker and admin running until Ctrl-C")
        parser.add_argument("--port", type=int, default=8000, help="the admin's, if it is free")
        parser.add_argument("--deadline", type=float, default=DEADLINE_SECONDS, help="seconds for all jobs at most")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run; whatever happens, stop what was started."""
        top = options["path"] or Path(sysconfig.get_path("purelib"))
        if not top.is_dir():
            raise CommandError(f"{top} is not a folder.")
        if not settings.DEBUG:
            raise CommandError("The demo makes an administrator with a known password: it runs with DEBUG only.")
        with Interruption() as self.interruption:
            try:
                self._show(top, options)
            except Exception as error:
                # A terminal's Ctrl-C may also have ended a program that starts the database server.
                if not isinstance(error, Interrupted) and not self.interruption.number:
                    raise
                self._say("\nInterrupted; all is stopped.")
                sys.exit(128 + self.interruption.number)

    def _show(self, top: Path, options: dict[str, Any]) -> None:
        began_at = time.monotonic()
        self._prepare()
        with ExitStack() as stack:
            self.worker = start_worker()
            stack.callback(self._stop, self.worker)
            self._feed(top)
            self._watch(began_at + options["deadline"])
            self._add_up()
            self._say("Checking file by file against the files themselves:")
            call_command("check_documents", stdout=self.stdout)
            self._say(f"Done in {time.monotonic() - began_at:.0f} s.")
            if options["serve"]:
                self._serve(stack, options["port"])
        if not options["serve"]:
            self._say_how_to_go_on()

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()  # whoever reads through a pipe wants to see it now

    # ---------------------------------------------------------------- the steps

    def _prepare(self) -> None:
        self._say("Preparing the database ...")
        try:
            call_command("migrate", verbosity=0)
        except (RuntimeError, ImproperlyConfigured, OperationalError) as error:
            raise CommandError(f"There is no database to work with: {error}") from error
        if not feeding.lock():
            raise CommandError("Another demo is at work on this database.")
        feeding.clear()
        feeding.log_in()
        where = connection.settings_dict["HOST"] or "the default socket"
        self._say(f"PostgreSQL {connection.cursor().connection.info.server_version // 10000} at {where}.")
        self.interruption.check()

    def _feed(self, top: Path) -> None:
        self._say(f"Importing {top}, one transaction a batch, while the worker is at work ...")
        began_at, count = time.monotonic(), 0
        for size in feeding.feed(top):
            count += size
            self.interruption.check()
        self._say(f"{count:,} documents and their jobs enqueued in {time.monotonic() - began_at:.1f} s.")
        if count == 0:
            raise CommandError(f"There are no documents in {top}.")

    def _watch(self, deadline: float) -> None:
        progress = Progress(self.stdout)
        while (now := standing()).finished < now.total:
            progress.show(now)
            self.interruption.wait(POLL_SECONDS)
            self.interruption.check()
            if self.worker.has_ended:
                raise CommandError(f"The worker has ended too early. {self.worker.last_words()}")
            if time.monotonic() > deadline:
                progress.end(now)
                raise CommandError(f"Jobs are left at the deadline. {self.worker.last_words()}")
        progress.end(now)

    def _add_up(self) -> None:
        summary = summarise()
        self._say("\n" + "\n".join(summary.lines()) + "\n")
        self._say(f"  The delayed job found these words in most documents: {words_found()}\n\n")
        if problems := list(summary.problems()):
            raise CommandError("\n".join(["The sums are wrong:", *problems]))

    def _serve(self, stack: ExitStack, wanted_port: int) -> None:
        port = free_port(wanted_port)
        admin = start_admin(port)
        stack.callback(self._stop, admin)
        url = f"http://127.0.0.1:{port}/admin/"
        self._wait_for_answer(url, admin)
        self._say(f"\nThe admin is at {url} (log in as {feeding.log_in()}); a worker is running.")
        self._say(f"Logs: {self.worker.log_path} {admin.log_path}\nCtrl-C stops both.")
        while not self.interruption.wait(1.0):
            for child in (self.worker, admin):
                if child.has_ended:
                    raise CommandError(f"The {child.name} has ended. {child.last_words()}")
        self._say("")

    def _wait_for_answer(self, url: str, admin: Child) -> None:
        deadline = time.monotonic() + ADMIN_SECONDS
        while True:
            self.interruption.check()
            try:
                with urllib.request.urlopen(url, timeout=5):  # noqa: S310 -- our own URL
                    return
            except OSError as error:
                if admin.has_ended or time.monotonic() > deadline:
                    raise CommandError(f"The admin does not answer: {error}. {admin.last_words()}") from None
            self.interruption.wait(POLL_SECONDS)

    def _stop(self, child: Child) -> None:
        stopped = child.stop()
        self._say(f"The {child.name} {'has stopped' if stopped else 'had to be killed: ' + child.last_words()}.")
        child.forget()

    def _say_how_to_go_on(self) -> None:
        python = shlex.join([sys.executable, str(MANAGE)])
        self._say(
            f"\nTo look at the jobs in the admin (log in as {feeding.log_in()}), with a worker beside it:\n"
            f"    bin/demo --serve\n"
            f"or the server alone, on what is there now:\n"
            f"    {python} runserver\n"
            f"To search the library:\n"
            f"    {python} search savepoint rollback"
        )
