"""Mutants of codecs, sensitive arguments, the permission to see arguments, and tokens.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

CODECS = "django_pgqueue/codecs.py"
SERIALIZATION = "django_pgqueue/serialization.py"
ENVELOPE = "django_pgqueue/envelope.py"
REDACTION = "django_pgqueue/redaction.py"
PRIVATE = "django_pgqueue/admin/private.py"
DISPLAY = "django_pgqueue/display.py"
TOKENS = "django_pgqueue/tokens.py"
VIEWS = "django_pgqueue/views.py"

ENCODED = of_tests(
    ("tests/privacy/test_codecs.py",),
    Mutant(
        "enqueue() stores plain arguments",
        "return codecs.encode(plain_arguments(args, kwargs))",
        "return plain_arguments(args, kwargs)",
        path=SERIALIZATION,
    ),
    Mutant(
        "enqueue_many() stores plain arguments",
        "    _check_size(text)\n    return codecs.encode(text)",
        "    _check_size(text)\n    return text",
        path=SERIALIZATION,
    ),
    Mutant(
        "results are stored plain",
        "    stored = codecs.encode(text)\n    if stored is",
        "    stored = text\n    if stored is",
        path=SERIALIZATION,
    ),
    Mutant("the last codec encodes", "else codecs[0], by_name", "else codecs[-1], by_name", path=CODECS),
    Mutant("None first changes nothing", "not codecs or paths[0] is None", "not codecs", path=CODECS),
    Mutant(
        "the error of a codec is a part of the message",
        "cannot encode the value: it raised {_kind(error)}",
        "cannot encode the value: it raised {error}",
        path=CODECS,
    ),
    Mutant(
        "a codec that panics is not contained",
        "    except BaseException as error:  # noqa: BLE001 -- as above",
        "    except Exception as error:  # noqa: BLE001 -- as above",
        path=CODECS,
    ),
    Mutant(
        "invalid codecs break a query",
        "    except ImproperlyConfigured as error:  # a web server",
        "    except LookupError as error:  # a web server",
        path=CODECS,
    ),
    Mutant(
        "a result can look like an envelope",
        "if stored is text and is_envelope(normalised)",
        "if False",
        path=SERIALIZATION,
    ),
    Mutant("more keys make an envelope too", " and value.keys() == ENVELOPE_KEYS", "", path=ENVELOPE),
    Mutant(
        "the size of a call is not checked with a codec",
        "    _check_size(text)\n    return codecs",
        "    return codecs",
        path=SERIALIZATION,
    ),
    Mutant(
        "a wait returns what cannot be decoded",
        "if isinstance(job.result, EncodedValue):",
        "if False:",
        path="django_pgqueue/waiting/results.py",
    ),
    Mutant(
        "a schedule's arguments are encoded",
        "plain_arguments",
        "encode_arguments",
        times=2,
        path="django_pgqueue/schedules/declarations.py",
    ),
)
SENSITIVE = of_tests(
    ("tests/privacy/test_sensitive.py",),
    Mutant(
        "arguments that belong to no parameter are shown", "and (name in keywords or more_kwargs) ", "", path=REDACTION
    ),
    Mutant("positions count from the context", "[task.takes_context :]", "", path=REDACTION),
    Mutant("more positions are shown", "is_shown += [more_args]", "is_shown += [True]", path=REDACTION),
    Mutant(
        "the task is called without Django's wrapper",
        "if names else self.func",
        "if False else self.func",
        path="django_pgqueue/definition.py",
    ),
    Mutant(
        "a result's repr shows its arguments",
        "if known is None or not known.sensitive:",
        "if True:",
        path="django_pgqueue/backend/results.py",
    ),
)
REPORTED = of_tests(
    ("tests/privacy/test_enqueue_reports.py",),
    Mutant(
        "error reports show the arguments of enqueue()",
        "methods[name] = hidden_from_reports(getattr(base, name))",
        "methods[name] = getattr(base, name)",
        path=REDACTION,
    ),
    Mutant(
        "error reports show the arguments of aenqueue()",
        "sync_to_async(hidden_from_reports(lambda: method(*args, **kwargs)))()",
        "sync_to_async(method)(*args, **kwargs)",
        path=REDACTION,
    ),
    Mutant(
        "an insert after a commit shows its arguments",
        "hidden_from_reports(run) if self.sensitive else run",
        "run",
        path="django_pgqueue/task.py",
    ),
)

HIDDEN = of_tests(
    ("tests/admin/test_private.py",),
    Mutant("everybody may see arguments", "return request.user.has_perm(PERMISSION)", "return True", path=PRIVATE),
    Mutant("an unknown task hides nothing", "if registry.get(task_name) is None:", "if False:", path=DISPLAY),
    Mutant("an encoded value is shown", "if codec := codec_of(text):", "if codec := None:", path=DISPLAY),
    Mutant("a sensitive result is shown", "if task is None or hides_result(task):", "if False:", path=DISPLAY),
    Mutant(
        "errors are shown to everybody",
        "with_texts = private.is_visible(job)",
        "with_texts = True",
        path="django_pgqueue/admin/job_page.py",
    ),
    Mutant(
        "the list shows errors to everybody",
        ' if is_visible(job) else ""\n    name',
        "\n    name",
        path="django_pgqueue/admin/job_columns.py",
    ),
    Mutant(
        "the form takes a hidden argument",
        "if has_sensitive(task, args, kwargs):",
        "if False:",
        path="django_pgqueue/admin/schedule_form.py",
    ),
)
SIGNED = of_tests(
    ("tests/privacy/test_tokens.py",),
    Mutant(
        "any signature will do",
        "signing.loads(token, salt=SALT, max_age=age)",
        "signing.loads(token, max_age=age)",
        path=TOKENS,
    ),
    Mutant("tokens do not expire", ", max_age=age)", ")", path=TOKENS),
    Mutant("a token is for every user", "return token.user_id is None or (", "return True or (", path=TOKENS),
    Mutant("the result is always returned", "if token.with_result and job.state", "if job.state", path=VIEWS),
    Mutant(
        "a sensitive result is returned", "if task is None or hides_result(task) or", "if task is None or", path=VIEWS
    ),
    Mutant(
        "an unknown task's result is returned",
        "if task is None or hides_result(task) or isinstance(job.result, EncodedValue):",
        "if isinstance(job.result, EncodedValue):",
        path=VIEWS,
    ),
    Mutant("what cannot be decoded is returned", " or isinstance(job.result, EncodedValue)", "", path=VIEWS),
    Mutant("answers may be stored", "@cache_control(no_store=True)\n", "", path=VIEWS),
    Mutant("other methods are accepted", "@require_safe\n", "", path=VIEWS),
)

PRIVACY = [*ENCODED, *SENSITIVE, *REPORTED, *HIDDEN, *SIGNED]
