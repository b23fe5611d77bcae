"""Mutants of remote workers. `mutation` explains what a mutant is and how mutants are tried."""

from tests.tools.mutation.mutants import Mutant, of_tests

ROLES = of_tests(
    ("tests/security/test_roles.py",),
    Mutant(
        "a user who may not create tokens gets the error of the database",
        "raise CommandError(MAY_NOT_CREATE) from None",
        "raise",
        inside="remote.commands._create",
    ),
)
INTERFACE = of_tests(
    ("tests/remote/test_rules.py", "tests/remote/test_tokens.py"),
    Mutant(
        "the scopes of all tokens count for each of them",
        "group.used_by.get(waiting.digest, NEVER) > used_since",
        "True",
        inside="ClaimThread._is_one_too_many",
    ),
    Mutant(
        "a token may register any number of workers",
        "    check_registration(call.caller.digest)\n",
        "",
        inside="views.workers",
    ),
    Mutant(
        "leases of remote workers are extended by id alone",
        "          AND floor(1000 * date_part('epoch', claimed_at)) = given.claimed_ms\n",
        "",
        "EXTEND_EACH",
    ),
    Mutant(
        "an extension is as long as the leases of local workers",
        "handle.lease_seconds or get_settings().LEASE for",
        "get_settings().LEASE for",
        inside="transitions.extend",
    ),
    Mutant(
        "the lease of one machine is that of the next",
        "waiting.worker_id, waiting.lease_seconds",
        "waiting.worker_id, waiting.lease_seconds or self._claimer.lease_seconds",
        inside="ClaimGroup.claim",
    ),
    Mutant(
        "a revoked token is valid",
        "      AND revoked_at IS NULL\n      AND",
        "      AND",
        "CHECK_REMOTE_ACCESS",
    ),
    Mutant(
        "a handle is valid with every token",
        "    if (found_alias, found_token_id) != (alias, token_id):",
        "    if found_alias != alias:",
        inside="handles._read",
    ),
    Mutant(
        "a scope leaves out nothing",
        "        self.lanes.excluded_tasks = scope.excluded_names()\n",
        "",
        inside="ClaimGroup.__init__",
    ),
    Mutant(
        "jobs of unknown tasks are sent",
        "            is_allowed = job.others is None and self.scope.allows(job.task_name)",
        "            is_allowed = True",
        inside="ClaimGroup._without_foreign",
    ),
    Mutant(
        "expired jobs are sent",
        "        if job.start_by is not None and now > job.start_by:",
        "        if False:",
        inside="prepare",
    ),
    Mutant(
        "the token is checked after the body",
        "caller = known if known is not None and known_alias == alias else await admitted(request, database)",
        "parsed(_body(request)); caller = await admitted(request, database)",
        inside="endpoint.endpoint",
    ),
)

WAITS = of_tests(
    ("tests/remote/test_waiting.py",),
    Mutant(
        "a notification wakes nobody",
        "                group.expect_jobs()\n\n    def _take_new",
        "                pass\n\n    def _take_new",
        inside="ClaimThread",
    ),
    Mutant(
        "a token is not read again while its machine waits",
        "        if remote_tokens.use_remote_token(connection, waiting.digest) is None:",
        "        if False:",
        inside="ClaimThread._is_there",
    ),
    Mutant(
        "a waiting claim of a stopped worker gets jobs",
        "elif not workers.has_stopped(connection, waiting.worker_id):",
        "else:",
        inside="ClaimThread._is_there",
    ),
    Mutant(
        "a request keeps its thread while it waits",
        "            if waits:\n",
        "            if False:\n",
        inside="endpoint.view",
    ),
)

BODIES = of_tests(
    ("tests/remote/test_bodies.py",),
    Mutant("a body with any number of values is parsed", "> max_body_values()", "> 10**9", inside="bodies.parsed"),
    Mutant(
        "a body is read before the token is checked",
        'scope["type"] != "http" or ',
        "True or ",
        inside="asgi._request_of",
    ),
    Mutant("a body is read to its end", "len(body) > max_body_bytes()", "False", inside="asgi._read"),
    Mutant(
        "a request counts twice for the rate",
        "known if known is not None and known_alias == alias else ",
        "",
        inside="endpoint.endpoint",
    ),
    Mutant(
        "a report that is too large is dropped",
        'result["result"] == "too_large" and report.ending in SUCCESSES',
        "False",
        inside="Reports._settle",
    ),
    Mutant(
        "a refused request is not divided",
        "if len(items) == 1:",
        "if items:",
        inside="RemoteClient._results",
    ),
)

REPEATED = of_tests(
    ("tests/remote/test_views.py",),
    Mutant(
        "a completion with another result counts as repeated",
        "if not _is_same(given[each].result, text)",
        "if False",
        inside="_with_other_results",
    ),
    Mutant(
        "one value that is encoded twice counts as two results",
        "if given == stored or given is None or stored is None:",
        "if True:",
        inside="_is_same",
    ),
)

CLIENT = of_tests(
    ("tests/remote/test_client.py",),
    Mutant(
        "a report is dropped without an answer",
        '        if result["result"] == "locked":\n            return False\n',
        "",
        inside="Reports._settle",
    ),
    Mutant(
        "leases count from the answer of a failed extension",
        "        except RemoteError:\n            self._extend_at = 0.0\n            raise\n",
        "        except RemoteError:\n            self._extend_at = 0.0\n",
        inside="Extensions._extend_all",
    ),
)

REMOTE_WORKERS = [*ROLES, *INTERFACE, *WAITS, *BODIES, *REPEATED, *CLIENT]
