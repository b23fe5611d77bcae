"""Mutants of callbacks, liveness, and the limits of what the application's code can do to the engine.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant

IN_PARTS = ("tests/worker/test_callbacks.py", "tests/worker/test_liveness.py")
IN_WORKERS = ("tests/process/test_hostile_code.py",)
STARVED = ("tests/process/test_starved_completer.py",)

LIVENESS = [
    Mutant(
        "a process that lives for less than an hour does no hourly duty",
        "time.monotonic() + random.uniform(0, duty.interval_seconds)",
        "time.monotonic() + duty.interval_seconds",
        inside="Maintenance.__init__",
        tests=("tests/worker/test_pruner.py",),
    ),
    Mutant(
        "each process that dies at a failover delays the next",
        "elif process.born_at < self._stepped_at:",
        "elif False:",
        inside="RestartBackoff.seconds_after",
        tests=("tests/worker/test_restart_backoff.py",),
    ),
    Mutant(
        "a worker that becomes ready shows it a second later",
        "else min(left_seconds, CHECK_SECONDS)",
        "else left_seconds",
        inside="HealthThread.pause_seconds",
        tests=("tests/worker/test_health_report.py",),
    ),
    Mutant(
        "health is reported only when the interval is over",
        "if has_changed or ",
        "if ",
        inside="HealthThread.report_if_due",
        tests=("tests/worker/test_health_report.py",),
    ),
    Mutant(
        "the system checks of each command import the doctor",
        "        return\n",
        "        pass\n",
        inside="_database_findings",
        tests=("tests/worker/test_startup.py",),
    ),
    Mutant(
        "a worker reads the migrations of all apps",
        "from django.db.migrations.recorder import MigrationRecorder",
        "from django.db.migrations.loader import MigrationLoader, MigrationRecorder; MigrationLoader(None)",
        inside="missing_migrations",
        tests=("tests/worker/test_startup.py",),
    ),
    Mutant(
        "a migration of another app with the same name counts as applied",
        'if app == "pgqueue"}',
        "if app}",
        inside="missing_migrations",
        tests=("tests/worker/test_startup.py",),
    ),
    Mutant(
        "a worker that starts beside its database waits for two seconds",
        "sleep(pause_seconds(checks, RETRY_SECONDS))",
        "sleep(RETRY_SECONDS)",
        inside="wait_until_ready",
        tests=("tests/worker/test_startup.py",),
    ),
    Mutant(
        "a worker keeps its sessions with a standby",
        "            server.refuse_standbys()\n",
        "",
        inside="wait_until_ready",
        tests=("tests/process/test_failover.py",),
    ),
    Mutant(
        "each process of a worker whose session has survived a promotion ends at once",
        "            self.link.close()  # a pooler",
        "            pass  # a pooler",
        inside="Supervisor._child_ended",
        tests=("tests/process/test_failover.py",),
    ),
    Mutant(
        "replacements that die are replaced at once",
        "elif process.born_at < self._stepped_at:",
        "elif self._restarts:",
        inside="RestartBackoff.seconds_after",
        tests=("tests/worker/test_restart_backoff.py",),
    ),
    *(
        mutant._replace(tests=IN_PARTS)
        for mutant in (
            Mutant(
                "a receiver's SystemExit ends the callbacks",
                "except BaseException as error:  # noqa: BLE001 -- whatever a receiver raises",
                "except Exception as error:  # noqa: BLE001 -- whatever a receiver raises",
                inside="CallbackThread._call",
            ),
            Mutant(
                "the queue of events has no end",
                "if len(self._events) >= limit:",
                "if False:",
                inside="CallbackRunner._add",
            ),
            Mutant(
                "a receiver that hangs is waited for",
                "thread.busy_seconds <= CALLBACK_SECONDS",
                "True",
                inside="CallbackRunner.watch",
            ),
            Mutant(
                "threads that hang are not bounded",
                "return hanging < ABANDONED_LIMIT",
                "return True",
                inside="CallbackRunner._may_call",
            ),
            Mutant(
                "a receiver's connection is kept",
                "            self._leave_clean()\n",
                "",
                inside="CallbackThread._call",
            ),
            Mutant(
                "a foreground receiver's SystemExit is the caller's",
                "(Exception, SystemExit, GeneratorExit, asyncio.CancelledError)",
                "(Exception,)",
                inside="CONTAINED",
            ),
            Mutant(
                "a service dies of SystemExit",
                "        except BaseException as error:  # noqa: BLE001 -- code of the application may",
                "        except Exception as error:  # noqa: BLE001 -- code of the application may",
                inside="Service._survive",
            ),
            Mutant(
                "a service dies in its sleep",
                "            except BaseException as error:  # noqa: BLE001 -- as in `_survive`",
                "            except Exception as error:  # noqa: BLE001 -- as in `_survive`",
                inside="Service.run",
            ),
            Mutant(
                "a round may last for ever", "service.busy_seconds > limit_seconds", "False", inside="Liveness.problem"
            ),
            Mutant(
                "an outage counts as stuck",
                "not is_stuck or self.process_state.lease_left_seconds < lease_seconds / 2",
                "not is_stuck",
                inside="Liveness._completions_problem",
            ),
            Mutant(
                "a flood is behind", "max(oldest_at, self._answered_at)", "oldest_at", inside="Completer.behind_since"
            ),
            Mutant(
                "it is not behind before it has connected",
                "self._failing_since: float | None = time.monotonic()",
                "self._failing_since: float | None = None",
                inside="Completer.__init__",
            ),
            Mutant(
                "an exception's report may fail",
                "    except BaseException:  # noqa: BLE001 -- the exception's own code may raise anything\n",
                "    except ZeroDivisionError:\n",
                inside="report_of",
            ),
            Mutant("a hostile text is used", "str.__str__(str(exception))", "str(exception)", inside="message"),
            Mutant(
                "a backoff may exit",
                "    except BaseException as error:  # noqa: BLE001 -- the backoff is",
                "    except Exception as error:  # noqa: BLE001 -- the backoff is",
                inside="delay_after_failure",
            ),
            Mutant(
                "a backoff may hang",
                "if in_time and calls_application:",
                "if False:",
                inside="delay_after_failure",
            ),
            Mutant(
                "calls that hang are not bounded",
                "if len(hanging) >= HANGING_LIMIT:",
                "if False:",
                inside="_check_quota",
            ),
        )
    ),
    *(
        mutant._replace(tests=("tests/worker/test_health_report.py",))
        for mutant in (
            Mutant(
                "stuck completions are no news",
                "        if _completions_are_stuck(process):\n",
                "        if False:\n",
                inside="_not_moving",
            ),
            Mutant(
                "an outage is a reason to restart a worker",
                "any(_silent_seconds(process) > LOST_SECONDS for process in processes)",
                "any(process.outage_since for process in processes)",
                inside="health_report.judge",
            ),
            Mutant(
                "busy slots count as stuck claims",
                "    if not since:\n",
                "    if False:\n",
                inside="_unclaimed_seconds",
            ),
            Mutant(
                "the watchdog is fed by a stuck worker",
                "judgement.is_alive and now",
                "now",
                inside="SystemdNotifier.lines",
            ),
        )
    ),
    *(
        mutant._replace(tests=("tests/worker/test_counts.py",))
        for mutant in (
            Mutant(
                "a lost result counts",
                "for report in (*unwritten, *lost)",
                "for report in unwritten",
                inside="Counts.completed",
            ),
            Mutant("a dead job counts as failed", '{State.DEAD: "dead", ', "{", inside="OUTCOME_OF_STATE"),
            Mutant(
                "only measured jobs count",
                "            weight = each + (number < more)\n",
                "            weight = 1\n",
                inside="Counts._count_reports",
            ),
            Mutant(
                "a new process does not find the rows of its predecessor",
                "        while self._read < rows:",
                "        while False:",
                inside="CountTable._add",
            ),
        )
    ),
    Mutant(
        "receivers run in the completer's thread",
        "Events(self.callbacks.submit)",
        "Events()",
        inside="Services._reactions",
        tests=IN_WORKERS,
    ),
    Mutant(
        "a dead service is not noticed",
        "            if not service.is_alive():",
        "            if False:",
        inside="Liveness.problem",
        tests=IN_WORKERS,
    ),
    Mutant(
        "who cannot complete claims on",
        "if not self.leases.leases_hold() or self._completer.is_behind or",
        "if not self.leases.leases_hold() or",
        inside="ClaimSize.now",
        tests=STARVED,
    ),
    Mutant(
        "stuck completions wait for ever",
        "        return self._completions_problem()\n",
        "        return None\n",
        inside="Liveness.problem",
        tests=("tests/worker/test_liveness.py",),
    ),
    Mutant(
        "silent clients of the metrics port keep their places",
        "        if len(self._unread) + len(self._in_answer) >= CONNECTION_LIMIT:\n            self._close_oldest()\n",
        "        if len(self._unread) + len(self._in_answer) >= CONNECTION_LIMIT:\n            return\n",
        inside="HttpServer._serve",
        tests=("tests/worker/test_metrics_port.py",),
    ),
    Mutant(
        "a client that waits for its answer is closed before silent ones",
        "self._unread or self._in_answer",
        "self._in_answer or self._unread",
        inside="HttpServer._close_oldest",
        tests=("tests/worker/test_metrics_port.py",),
    ),
    Mutant(
        "the health file follows a link",
        "        with suppress(FileNotFoundError):\n"
        "            os.unlink(unfinished)  # left by a process that was killed\n"
        '        with open(unfinished, "x"',
        '        with open(unfinished, "w"',
        inside="HealthFile.write",
        tests=("tests/worker/test_health_report.py",),
    ),
]
