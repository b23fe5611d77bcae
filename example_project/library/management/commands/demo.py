"""`manage.py demo`: import and index the files of the installed packages with a real worker. `bin/demo` calls it."""

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
from example_project.library.demo.progress import Progress, read_counts
from example_project.library.demo.summary import summarise, words_found

POLL_SECONDS: Final = 0.1
DEADLINE_SECONDS: Final = 240.0
ADMIN_SECONDS: Final = 20.0


class Command(BaseCommand):
    """Run the demo."""

    help = "Import a folder, index it with a worker, show progress and totals, and check the result file by file."
    interruption: Interruption
    worker: Child

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the folder, and whether to keep the worker and the admin running."""
        parser.add_argument("path", nargs="?", type=Path, help="the folder (default: the packages installed here)")
        parser.add_argument("--serve", action="store_true", help="keep the worker and the admin running until Ctrl-C")
        parser.add_argument(
            "--port", type=int, default=8000, help="port of the admin (default: 8000, or another one if it is in use)"
        )
        parser.add_argument(
            "--deadline", type=float, default=DEADLINE_SECONDS, help="maximum time for all jobs, in seconds"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the demo. Stop all started processes at the end, even after an error."""
        top = options["path"] or Path(sysconfig.get_path("purelib"))
        if not top.is_dir():
            raise CommandError(f"{top} is not a folder.")
        if not settings.DEBUG:
            raise CommandError("The demo creates an administrator with a known password. Set DEBUG=true to allow it.")
        with Interruption() as self.interruption:
            try:
                self._show(top, options)
            except Exception as error:
                # Ctrl-C can also end a program that starts the database server, which raises another error.
                if not isinstance(error, Interrupted) and not self.interruption.number:
                    raise
                self._say("\nInterrupted. All processes are stopped.")
                sys.exit(128 + self.interruption.number)

    def _show(self, top: Path, options: dict[str, Any]) -> None:
        began_at = time.monotonic()
        self._prepare()
        with ExitStack() as stack:
            self.worker = start_worker()
            stack.callback(self._stop, self.worker)
            self._feed(top)
            self._watch(began_at + options["deadline"])
            self._show_totals()
            self._say("Checking file by file against the files themselves:")
            call_command("check_documents", stdout=self.stdout)
            self._say(f"Done in {time.monotonic() - began_at:.0f} s.")
            if options["serve"]:
                self._serve(stack, options["port"])
        if not options["serve"]:
            self._say_next_steps()

    def _say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()  # a reader at the end of a pipe sees the line at once

    # ---------------------------------------------------------------- the steps

    def _prepare(self) -> None:
        self._say("Preparing the database ...")
        try:
            call_command("migrate", verbosity=0)
        except (RuntimeError, ImproperlyConfigured, OperationalError) as error:
            raise CommandError(f"The database cannot be used: {error}") from error
        if not feeding.lock():
            raise CommandError("Another demo is running on this database. Stop it first.")
        feeding.clear()
        feeding.log_in()
        where = connection.settings_dict["HOST"] or "the default socket"
        self._say(f"PostgreSQL {connection.cursor().connection.info.server_version // 10000} at {where}.")
        self.interruption.check()

    def _feed(self, top: Path) -> None:
        self._say(f"Importing {top}, one transaction per batch, while the worker is running ...")
        began_at, count = time.monotonic(), 0
        for size in feeding.feed(top):
            count += size
            self.interruption.check()
        self._say(f"{count:,} documents and their jobs enqueued in {time.monotonic() - began_at:.1f} s.")
        if count == 0:
            raise CommandError(f"There are no documents in {top}. Pass another folder.")

    def _watch(self, deadline: float) -> None:
        progress = Progress(self.stdout)
        while (now := read_counts()).finished < now.total:
            progress.show(now)
            self.interruption.wait(POLL_SECONDS)
            self.interruption.check()
            if self.worker.has_ended:
                raise CommandError(f"The worker has exited too early. The end of its log, {self.worker.log_tail()}")
            if time.monotonic() > deadline:
                progress.end(now)
                raise CommandError(
                    f"Jobs are left at the deadline. The end of the worker's log, {self.worker.log_tail()}"
                )
        progress.end(now)

    def _show_totals(self) -> None:
        summary = summarise()
        self._say("\n" + "\n".join(summary.lines()) + "\n")
        self._say(f"  The delayed job found that these words occur in most documents: {words_found()}\n\n")
        if problems := list(summary.problems()):
            raise CommandError("\n".join(["The totals are wrong:", *problems]))

    def _serve(self, stack: ExitStack, wanted_port: int) -> None:
        port = free_port(wanted_port)
        admin = start_admin(port)
        stack.callback(self._stop, admin)
        url = f"http://127.0.0.1:{port}/admin/"
        self._wait_for_answer(url, admin)
        self._say(f"\nThe admin is at {url} (log in as {feeding.log_in()}); a worker is running.")
        self._say(f"Logs: {self.worker.log_path} {admin.log_path}\nPress Ctrl-C to stop both.")
        while not self.interruption.wait(1.0):
            for child in (self.worker, admin):
                if child.has_ended:
                    raise CommandError(f"The {child.name} has exited. The end of its log, {child.log_tail()}")
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
                    raise CommandError(
                        f"The admin does not answer: {error}. The end of its log, {admin.log_tail()}"
                    ) from None
            self.interruption.wait(POLL_SECONDS)

    def _stop(self, child: Child) -> None:
        if child.stop():
            self._say(f"The {child.name} has stopped.")
        else:
            self._say(f"The {child.name} had to be killed. The end of its log, {child.log_tail()}")
        child.forget()

    def _say_next_steps(self) -> None:
        python = shlex.join([sys.executable, str(MANAGE)])
        self._say(
            f"\nTo see the jobs in the admin (log in as {feeding.log_in()}), with a running worker:\n"
            f"    bin/demo --serve\n"
            f"To start the admin alone, with the jobs of this run:\n"
            f"    {python} runserver\n"
            f"To search the library:\n"
            f"    {python} search savepoint rollback"
        )
