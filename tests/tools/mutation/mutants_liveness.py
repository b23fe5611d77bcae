"""Mutants of callbacks, liveness, and the limits of what the application's code can do to the engine.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant

CALLBACKS = "django_pgqueue/worker/completion/callbacks.py"
EVENTS = "django_pgqueue/worker/execution/events.py"
SERVICE = "django_pgqueue/worker/runtime/service.py"
LIVE = "django_pgqueue/worker/liveness.py"
COMPLETER = "django_pgqueue/worker/completion/completer.py"
FETCHER = "django_pgqueue/worker/claiming/fetcher.py"
CHILD = "django_pgqueue/worker/worker_process.py"
POLICY = "django_pgqueue/worker/execution/retry_policy.py"
BOUNDED = "django_pgqueue/worker/runtime/time_limit.py"
DESCRIBE = "django_pgqueue/worker/execution/error_text.py"
HEALTH = "django_pgqueue/worker/runtime/health_report.py"
COUNTS = "django_pgqueue/worker/runtime/counts.py"
SYSTEMD = "django_pgqueue/worker/supervision/systemd.py"

BACKOFF = "django_pgqueue/worker/supervision/restart_backoff.py"

IN_PARTS = ("tests/worker/test_callbacks.py", "tests/worker/test_liveness.py")
IN_WORKERS = ("tests/process/test_hostile_code.py",)
STARVED = ("tests/process/test_starved_completer.py",)

LIVENESS = [
    Mutant(
        "a process that lives for less than an hour does no hourly duty",
        "time.monotonic() + random.uniform(0, duty.interval_seconds)",
        "time.monotonic() + duty.interval_seconds",
        path="django_pgqueue/worker/maintenance/maintenance.py",
        tests=("tests/worker/test_pruner.py",),
    ),
    Mutant(
        "each process that dies at a failover delays the next",
        "elif process.born_at < self._stepped_at:",
        "elif False:",
        path=BACKOFF,
        tests=("tests/worker/test_restart_backoff.py",),
    ),
    Mutant(
        "a worker keeps its sessions with a standby",
        "            server.refuse_standbys()\n",
        "",
        path="django_pgqueue/worker/supervision/startup.py",
        tests=("tests/process/test_failover.py",),
    ),
    Mutant(
        "each process of a worker whose session has survived a promotion ends at once",
        "            self.link.close()  # a pooler",
        "            pass  # a pooler",
        path="django_pgqueue/worker/supervision/supervisor.py",
        tests=("tests/process/test_failover.py",),
    ),
    Mutant(
        "replacements that die are replaced at once",
        "elif process.born_at < self._stepped_at:",
        "elif self._restarts:",
        path=BACKOFF,
        tests=("tests/worker/test_restart_backoff.py",),
    ),
    *(
        mutant._replace(tests=IN_PARTS)
        for mutant in (
            Mutant(
                "a receiver's SystemExit ends the callbacks",
                "except BaseException as error:  # noqa: BLE001 -- whatever a receiver raises",
                "except Exception as error:  # noqa: BLE001 -- whatever a receiver raises",
                path=CALLBACKS,
            ),
            Mutant("the queue of events has no end", "if len(self._events) >= limit:", "if False:", path=CALLBACKS),
            Mutant(
                "a receiver that hangs is waited for",
                "thread.busy_seconds <= CALLBACK_SECONDS",
                "True",
                path=CALLBACKS,
            ),
            Mutant(
                "threads that hang are not bounded",
                "return hanging < ABANDONED_LIMIT",
                "return True",
                path=CALLBACKS,
            ),
            Mutant("a receiver's connection is kept", "            self._leave_clean()\n", "", path=CALLBACKS),
            Mutant(
                "a foreground receiver's SystemExit is the caller's",
                "(Exception, SystemExit, GeneratorExit, asyncio.CancelledError)",
                "(Exception,)",
                path=EVENTS,
            ),
            Mutant(
                "a service dies of SystemExit",
                "        except BaseException as error:  # noqa: BLE001 -- code of the application may",
                "        except Exception as error:  # noqa: BLE001 -- code of the application may",
                path=SERVICE,
            ),
            Mutant(
                "a service dies in its sleep",
                "            except BaseException as error:  # noqa: BLE001 -- as in `_survive`",
                "            except Exception as error:  # noqa: BLE001 -- as in `_survive`",
                path=SERVICE,
            ),
            Mutant("a round may last for ever", "service.busy_seconds > limit_seconds", "False", path=LIVE),
            Mutant(
                "an outage counts as stuck",
                "not is_stuck or self.process_state.lease_left_seconds < lease_seconds / 2",
                "not is_stuck",
                path=LIVE,
            ),
            Mutant("a flood is behind", "max(oldest_at, self._answered_at)", "oldest_at", path=COMPLETER),
            Mutant(
                "it is not behind before it has connected",
                "self._failing_since: float | None = time.monotonic()",
                "self._failing_since: float | None = None",
                path=COMPLETER,
            ),
            Mutant(
                "an exception's report may fail",
                "    except BaseException:  # noqa: BLE001 -- the exception's own code may raise anything\n",
                "    except ZeroDivisionError:\n",
                path="django_pgqueue/worker/execution/failure.py",
            ),
            Mutant("a hostile text is used", "str.__str__(str(exception))", "str(exception)", path=DESCRIBE),
            Mutant(
                "a backoff may exit",
                "    except BaseException as error:  # noqa: BLE001 -- the backoff is",
                "    except Exception as error:  # noqa: BLE001 -- the backoff is",
                path=POLICY,
            ),
            Mutant("a backoff may hang", "if in_time and calls_application else", "if False else", path=POLICY),
            Mutant("calls that hang are not bounded", "if len(hanging) >= HANGING_LIMIT:", "if False:", path=BOUNDED),
        )
    ),
    *(
        mutant._replace(tests=("tests/worker/test_health_report.py",))
        for mutant in (
            Mutant(
                "stuck completions are no news",
                "        if _completions_are_stuck(process):\n",
                "        if False:\n",
                path=HEALTH,
            ),
            Mutant(
                "an outage is a reason to restart a worker",
                "any(_is_lost(memory, process) for process in processes)",
                "any(process.outage_since for process in processes)",
                path=HEALTH,
            ),
            Mutant("busy slots count as stuck claims", "    if not since:\n", "    if False:\n", path=HEALTH),
            Mutant("the watchdog is fed by a stuck worker", "judgement.is_alive and now", "now", path=SYSTEMD),
        )
    ),
    *(
        mutant._replace(path=mutant.path or COUNTS, tests=("tests/worker/test_counts.py",))
        for mutant in (
            Mutant("a lost result counts", "for report in (*unwritten, *lost)", "for report in unwritten"),
            Mutant("a dead job counts as failed", '{State.DEAD: "dead", ', "{"),
            Mutant(
                "only measured jobs count", "            weight = each + (number < more)\n", "            weight = 1\n"
            ),
            Mutant(
                "a new process does not find the rows of its predecessor",
                "        while self._read < rows:",
                "        while False:",
                path="django_pgqueue/worker/runtime/count_memory.py",
            ),
        )
    ),
    Mutant(
        "receivers run in the completer's thread",
        "_reactions(Events(self.callbacks.submit)",
        "_reactions(Events()",
        path="django_pgqueue/worker/services.py",
        tests=IN_WORKERS,
    ),
    Mutant(
        "a dead service is not noticed",
        "            if not service.is_alive():",
        "            if False:",
        path=LIVE,
        tests=IN_WORKERS,
    ),
    Mutant(
        "who cannot complete claims on",
        "if not self.leases.leases_hold() or self.completer.is_behind or",
        "if not self.leases.leases_hold() or",
        path=FETCHER,
        tests=STARVED,
    ),
    Mutant(
        "stuck completions wait for ever",
        "        return self._completions_problem()\n",
        "        return None\n",
        path=LIVE,
        tests=("tests/worker/test_liveness.py",),
    ),
]
