"""Mutants of connections: parameters from outside, poolers, odd settings, the console's numbers, dumps, other systems.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant

OUTSIDE = ("tests/test_parameters_outside.py",)
POOLERS = ("tests/test_startup_options.py",)
ODD = ("tests/worker/test_odd_settings.py",)
PAGES = ("tests/admin/test_every_page.py",)
DUMP = ("tests/test_dumpdata.py",)

TRUST_CONNECTIONS = [
    Mutant(
        "the options of a service file or the environment are lost",
        old='values_outside(django_params, ["options"]).get("options", "")',
        new='django_params.get("options", "")',
        inside="engine_connection._connect",
        tests=OUTSIDE,
    ),
    Mutant(
        "keepalives replace those that are set outside",
        old="{**defaults, **values_outside(params, defaults), **params}",
        new="{**defaults, **params}",
        inside="with_defaults",
        tests=OUTSIDE,
    ),
    Mutant(
        "jobs' connections lose parameters that are set outside",
        old="set(options) - set(given)",
        new="set(options)",
        inside="add_options",
        tests=OUTSIDE,
    ),
    Mutant(
        "a refusal of options is recognized by its words",
        old="                if not self._should_try_without(message, time.monotonic() - began):\n",
        new='                if "startup parameter" not in message:\n',
        inside="StartupOptions.connect",
        tests=POOLERS,
    ),
    Mutant(
        "a refusal of options is forgotten",
        old="self._refusal, self._refused_at = message, time.monotonic()",
        new="self._refusal = message",
        inside="StartupOptions._refuse",
        tests=POOLERS,
    ),
    Mutant(
        "an outage that ends between two attempts counts as a refusal",
        old='second, message = with_options(), ""',
        new='second, message = None, ""',
        inside="StartupOptions._try_without",
        tests=POOLERS,
    ),
    Mutant(
        "every failure is followed by an attempt without options",
        old="        if message in self._failures or len(self._failures) >= KNOWN_FAILURES:\n",
        new="        if False:\n",
        inside="StartupOptions._should_try_without",
        tests=POOLERS,
    ),
    Mutant(
        "the loss of a known server is noticed after twice the time",
        old="not self.are_accepted or seconds < SLOW_SECONDS",
        new="True",
        inside="StartupOptions._should_try_without",
        tests=POOLERS,
    ),
    Mutant(
        "the time of a claim loses digits on Django's connections",
        old="floor(1000 * date_part('epoch', statement_timestamp() + %(time_shift)s::interval))::bigint",
        new="floor(1000 * date_part('epoch', statement_timestamp() + %(time_shift)s::interval))",
        statement="CLAIM",
        tests=ODD,
    ),
    Mutant(
        "PGDATESTYLE changes the format of times",
        old="    _set(connection, FORMAT_OF_TIMES)\n",
        new="",
        inside="_has_its_options",
        tests=ODD,
    ),
    Mutant(
        "ready jobs cannot be listed with array_nulls=off",
        old="%(are_paused)s::text[]",
        new="%(are_paused)s::boolean[]",
        inside="READY_IN_LANES",
        tests=ODD,
    ),
    Mutant(
        "a filter of Django's own kind is refused",
        old=' or (getattr(list_filter, "parameter_name", ""),)',
        new=" or ()",
        inside="readonly._parameters",
        tests=PAGES,
    ),
    Mutant(
        "numbers in a dump cannot be loaded",
        old="json.loads(value) if isinstance(value, str) else value",
        new="value",
        inside="NumbersField.to_python",
        tests=DUMP,
    ),
    Mutant(
        "the package needs os.register_at_fork",
        old="    if CAN_FORK:\n        os",
        new="    if True:\n        os",
        inside="after_fork_in_child",
        tests=("tests/test_without_posix.py",),
    ),
    Mutant(
        "a worker starts without fork",
        old="    if not CAN_FORK:\n",
        new="    if False:\n",
        inside="runworker.run",
        tests=("tests/test_without_posix.py",),
    ),
    Mutant(
        "a command fails on a terminal without a character",
        old='            stream.reconfigure(errors="backslashreplace")\n',
        new="            pass\n",
        inside="_escape_unknown_characters",
        tests=("tests/management/test_ascii_terminal.py",),
    ),
    Mutant(
        "a worker fails if its output has become a pipe",
        old="        with suppress(OSError, ValueError):  # ValueError: the stream is closed\n",
        new="        with suppress(ValueError):\n",
        inside="_escape_unknown_characters",
        tests=("tests/management/test_ascii_terminal.py",),
    ),
]
