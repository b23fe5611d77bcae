"""Mutants of codecs, sensitive arguments, the permission to see arguments, and tokens.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

ENCODED = of_tests(
    ("tests/privacy/test_codecs.py",),
    Mutant(
        "enqueue() stores plain arguments",
        "return text if codecs.project_codecs().encoder is None else codecs.encode(text)",
        "return text",
        inside="encode_arguments",
    ),
    Mutant(
        "enqueue_many() stores plain arguments",
        "    _check_size(text)\n    return codecs.encode(text)",
        "    _check_size(text)\n    return text",
        inside="_encode_call",
    ),
    Mutant(
        "results are stored plain",
        "    stored = codecs.encode(text)\n    if stored is",
        "    stored = text\n    if stored is",
        inside="encode_result",
    ),
    Mutant("the last codec encodes", "else codecs[0], by_name", "else codecs[-1], by_name", inside="project_codecs"),
    Mutant("None first changes nothing", "not codecs or paths[0] is None", "not codecs", inside="project_codecs"),
    Mutant(
        "the error of a codec is a part of the message",
        "cannot encode the value: it raised {_kind(error)}",
        "cannot encode the value: it raised {error}",
        inside="encode",
    ),
    Mutant(
        "a codec that panics is not contained",
        "    except BaseException as error:  # noqa: BLE001 -- as above",
        "    except Exception as error:  # noqa: BLE001 -- as above",
        inside="decode",
    ),
    Mutant(
        "invalid codecs break a query",
        "    except ImproperlyConfigured as error:  # a web server",
        "    except LookupError as error:  # a web server",
        inside="_known_codecs",
    ),
    Mutant(
        "a result can look like an envelope",
        "if stored is text and is_envelope(normalised)",
        "if False",
        inside="encode_result",
    ),
    Mutant("more keys make an envelope too", " and value.keys() == ENVELOPE_KEYS", "", inside="is_envelope"),
    Mutant(
        "the size of a call is not checked with a codec",
        "    _check_size(text)\n    return codecs",
        "    return codecs",
        inside="_encode_call",
    ),
    Mutant(
        "a wait returns what cannot be decoded",
        "if isinstance(job.result, EncodedValue):",
        "if False:",
        inside="return_value",
    ),
    Mutant(
        "a schedule's arguments are encoded",
        "plain_arguments",
        "encode_arguments",
        times=2,
        file="declarations.py",
    ),
)
SENSITIVE = of_tests(
    ("tests/privacy/test_sensitive.py",),
    Mutant(
        "arguments that belong to no parameter are shown",
        "and (name in keywords or more_kwargs) ",
        "",
        inside="redacted_call",
    ),
    Mutant("positions count from the context", "[task.takes_context :]", "", inside="redacted_call"),
    Mutant("more positions are shown", "is_shown += [more_args]", "is_shown += [True]", inside="redacted_call"),
    Mutant(
        "the task is called without Django's wrapper",
        "if names else self.func",
        "if False else self.func",
        inside="TaskDefinition.__post_init__",
    ),
    Mutant(
        "a result's repr shows its arguments",
        "if known is None or not known.sensitive:",
        "if True:",
        inside="JobResult.__repr__",
    ),
)
REPORTED = of_tests(
    ("tests/privacy/test_enqueue_reports.py",),
    Mutant(
        "error reports show the arguments of enqueue()",
        "methods[name] = hidden_from_reports(getattr(base, name))",
        "methods[name] = getattr(base, name)",
        inside="hiding_class",
    ),
    Mutant(
        "error reports show the arguments of aenqueue()",
        "sync_to_async(hidden_from_reports(lambda: method(*args, **kwargs)))()",
        "sync_to_async(method)(*args, **kwargs)",
        inside="_in_thread.call_in_thread",
    ),
    Mutant(
        "an insert after a commit shows its arguments",
        "hidden_from_reports(run) if self.sensitive else run",
        "run",
        inside="Task.prepare_insert",
    ),
)

HIDDEN = of_tests(
    ("tests/admin/test_private.py",),
    Mutant(
        "everybody may see arguments",
        "return request.user.has_perm(PERMISSION)",
        "return True",
        inside="private.may_view",
    ),
    Mutant(
        "an unknown task hides nothing", "if registry.get(task_name) is None:", "if False:", inside="_hidden_because"
    ),
    Mutant("an encoded value is shown", "if codec := codec_of(text):", "if codec := None:", inside="_hidden_because"),
    Mutant(
        "a sensitive result is shown",
        "if task is None or hides_result(task):",
        "if False:",
        inside="display.shown_result",
    ),
    Mutant(
        "errors are shown to everybody",
        "with_texts = private.is_visible(job)",
        "with_texts = True",
        inside="read_attempts",
    ),
    Mutant(
        "the list shows errors to everybody",
        ' if is_visible(job) else ""\n    name',
        "\n    name",
        inside="last_error",
    ),
    Mutant(
        "the form takes a hidden argument",
        "if has_sensitive(task, args, kwargs):",
        "if False:",
        inside="ScheduleForm._check_call",
    ),
)
SIGNED = of_tests(
    ("tests/privacy/test_tokens.py",),
    Mutant(
        "any signature will do",
        "signing.loads(token, salt=salt, max_age=age)",
        "signing.loads(token, max_age=age)",
        inside="tokens._read",
    ),
    Mutant(
        "a token names each job that gets its id",
        "return self.earliest_ms <= _milliseconds(job.enqueued_at.timestamp()) <= self.latest_ms",
        "return True",
        inside="Token.names",
    ),
    Mutant("tokens do not expire", ", max_age=age)", ")", inside="tokens._read"),
    Mutant("a token is for every user", "return token.user_id is None or (", "return True or (", inside="belongs_to"),
    Mutant("the result is always returned", "if token.with_result and job.state", "if job.state", inside="_status"),
    Mutant(
        "a sensitive result is returned",
        "if task is None or hides_result(task) or",
        "if task is None or",
        inside="_may_show",
    ),
    Mutant(
        "an unknown task's result is returned",
        "if task is None or hides_result(task) or isinstance(job.result, EncodedValue):",
        "if isinstance(job.result, EncodedValue):",
        inside="_may_show",
    ),
    Mutant("what cannot be decoded is returned", " or isinstance(job.result, EncodedValue)", "", inside="_may_show"),
    Mutant("answers may be stored", "@cache_control(no_store=True)\n", "", inside="job_status"),
    Mutant("other methods are accepted", "@require_safe\n", "", inside="job_status"),
)
BATCH_TOKENS = of_tests(
    ("tests/privacy/test_batch_tokens.py",),
    Mutant("answers about batches may be stored", "@cache_control(no_store=True)\n", "", inside="batch_status"),
    Mutant(
        "the token of a job opens a batch", '"django_pgqueue.tokens.batch"', '"django_pgqueue.tokens"', file="tokens.py"
    ),
    Mutant("a batch with the id later is shown", " or not content.names(row)", "", inside="batch_status"),
    Mutant("everybody may see the batch", "not _is_of_user(content, request)", "False", inside="batch_status"),
)
KEYS = of_tests(
    ("tests/privacy/test_canaries.py",),
    Mutant(
        "the error of a suspended attempt contains the key of the event",
        "waits for the event {self.event_name}",
        "waits for the event {self.event_name}, key {self.event_key}",
        inside="Suspension.reason",
    ),
    Mutant(
        "the error of a wait whose time is over contains the key of the event",
        "for the event {step.event_name}",
        "for the event {step.event_name}, key {step.event_key}",
        inside="timed_out",
    ),
    Mutant(
        "a log line contains the value of a limit key",
        "visible(logged(opened.limit_key))",
        "visible(opened.limit_key)",
        inside="_log_opened",
    ),
    Mutant("all limit keys have one digest", "limit_key', value)", "limit_key', name)", inside="limits.logged"),
    Mutant(
        "the list of jobs says whether a hidden limit key exists",
        '        or not private.may_view_key(request, limit or "")\n',
        "",
        inside="search_of",
    ),
    Mutant(
        "a bulk act counts the jobs of a hidden limit key",
        "    bulk_acts.check_filter(request, selection)\n",
        "",
        inside="preview_context",
    ),
    Mutant(
        "the page of a limit shows its keys to everybody", "private.may_view(request)", "True", inside="_limit_context"
    ),
    Mutant(
        "a button acts on a hidden limit key",
        "private.check_key(request, name)",
        "pass",
        inside="buttons._post",
    ),
    Mutant(
        "everybody can pause a limit key by the form",
        "if has_value(name) and not self.may_view_keys:",
        "if False:",
        inside="PauseForm.clean_name",
    ),
    Mutant(
        "the list of pauses can be filtered by a hidden limit key",
        "not private.may_view_key(request, str(value))",
        "False",
        inside="PauseAdmin.lookup_allowed",
    ),
    Mutant(
        "the reason of a job names its hidden limit key",
        "in_words(without_value(key))",
        "in_words(key)",
        inside="job.story._without_key",
    ),
    Mutant("the history of a pause names a limit key", "without_value(self.name)", "self.name", inside="Pause.__str__"),
)

PRIVACY = [*ENCODED, *SENSITIVE, *REPORTED, *HIDDEN, *SIGNED, *BATCH_TOKENS, *KEYS]
