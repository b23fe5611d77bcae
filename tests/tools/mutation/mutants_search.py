"""Mutants of search keys (what is written, who may search, when the rows go), and of the figures of the queue.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

REMOVED = "DELETE FROM pgqueue_search_key WHERE job_id"
KEPT = "DELETE FROM pgqueue_search_key WHERE false AND job_id"

WRITTEN = of_tests(
    ("tests/test_search_keys.py",),
    Mutant("a list is a search key", "if isinstance(value, list | dict):", "if False:", inside="search_keys_of"),
    Mutant("None is a search key", "        if value is not None:\n", "        if True:\n", inside="search_keys_of"),
    Mutant(
        "a job commits before its keys",
        "    if connection.in_atomic_block:\n",
        "    if True:\n",
        inside="atomic_unless_open",
    ),
    Mutant("a duplicate writes its keys", "if not added.is_duplicate:", "if True:", inside="inserting.insert"),
    Mutant(
        "old keys stay after a replacement",
        'job.uniqueness.on_conflict == "replace"',
        "False",
        inside="write_search_keys",
    ),
    Mutant("enqueue_many() writes no keys", " or bool(self.search)", "", inside="TaskDefinition.__post_init__"),
    Mutant(
        "a sensitive argument is a search key",
        "if name in task.sensitive or (",
        "if False or (",
        inside="_stored_name_problems",
    ),
    *(Mutant(f"keys stay after {name}", REMOVED, KEPT, name) for name in ("REMOVE", "DELETE")),
    Mutant("keys stay after a discarding success", REMOVED, KEPT, "SUCCEED_AND_DISCARD"),
    Mutant("keys are always erased", "%(erases_arguments)s::boolean AND job_id", "job_id", "ERASE"),
    Mutant("the keys of living jobs are pruned", ") IS NULL", ") IS NULL OR true", "PRUNE_SEARCH_KEYS"),
)
SEARCHED = [
    *of_tests(
        ("tests/admin/test_search_keys.py",),
        Mutant(
            "anybody may search for a value",
            "    if not private.may_view(request):\n",
            "    if False:\n",
            inside="search_keys.search",
        ),
        Mutant(
            "anybody may search for the beginning of a value",
            "elif len(text) >= MAX_LENGTH:",
            "elif False:",
            inside="_with_key",
        ),
        Mutant("a sensitive name is searched", "hidden=hidden,", "hidden=(),", inside="_look_up"),
        Mutant(
            "an alias of a sensitive task is searched",
            "for each in registry.names_of(task.name)]\n    found",
            "for each in [task.name]]\n    found",
            inside="_look_up",
        ),
        Mutant(
            "jobs of unknown tasks are found without permission",
            "task_names=known",
            "task_names=None",
            inside="_look_up",
        ),
        Mutant(
            "a name that only rows have is searched without permission",
            "is_in_row = private.may_view(request) and",
            "is_in_row =",
            inside="term_of",
        ),
        Mutant("a search without permission is not logged", "        _log(request, name)\n", "", inside="_with_key"),
        Mutant("an act logs its search twice", "if request in _logged:", "if False:", inside="search_keys._log"),
        Mutant(
            "hidden jobs take the places of others",
            "KEYS_SEARCHED\n    params",
            "limit\n    params",
            inside="jobs_by_search_keys",
        ),
        Mutant("keys count as jobs", "SELECT DISTINCT ON (found.job_id) found", "SELECT found", "JOBS_BY_SEARCH_KEYS"),
        Mutant(
            "the task's name is a search key",
            "if name in declared_names() or (",
            "if True or (",
            inside="term_of",
        ),
        Mutant(
            "a text that is no value lists every job of the chosen task",
            " or (term and not is_by_ids and search.task_names != (term,)):",
            ":",
            inside="listing",
        ),
        Mutant(
            "a filter without a task lists every job",
            'chosen.get("task") or task_name',
            'chosen.get("task", task_name)',
            inside="search_of",
        ),
        Mutant(
            "a search forgets the exception class",
            "matching(search, condition, ",
            "matching(Filters(search.alias), condition, ",
            inside="list_pages._among",
        ),
        Mutant(
            "an act on a search forgets the filters of the list",
            "for name in LISTED if",
            'for name in ("q",) if',
            inside="_of_preview",
        ),
        Mutant(
            "a search forgets the times",
            "            ended_between(filters) if STATE_OF[word] in FINISHED else ids_between(filters)\n",
            "            Q()\n",
            inside="condition_on_few",
        ),
        Mutant(
            "a job with the number stands behind those with the value",
            "[*numbered, *found]",
            "sorted([*numbered, *found], reverse=True)",
            inside="search_keys.search",
        ),
        Mutant(
            "a value is looked up under one name",
            "_look_up(alias, names[:",
            "_look_up(alias, names[:1][:",
            inside="_with_value",
        ),
        Mutant(
            "a value is looked up under any number of names",
            "_look_up(alias, names[:NAMES_LIMIT], text)",
            "_look_up(alias, names, text)",
            inside="_with_value",
        ),
        Mutant("a number is no value", "[*numbered, *found]", "[*numbered]", inside="search_keys.search"),
        Mutant(
            "a count is exact although keys were not searched",
            "{% elif not cl.search_note %}",
            "{% else %}",
            file="pagination.html",
        ),
        Mutant(
            "a list by a hidden limit key hides that it was not searched",
            "if self.hidden_note:",
            "if False:",
            inside="JobChangeList.search_note",
        ),
    ),
    *of_tests(
        ("tests/stats/test_stats_plans.py",),
        Mutant(
            "a lookup reads every key with the value",
            "        LIMIT %(searched)s\n    ) AS key",
            "    ) AS key",
            "JOBS_BY_SEARCH_KEYS",
        ),
    ),
    *of_tests(
        ("tests/admin/test_batches.py",),
        Mutant(
            "a search of descriptions counts as exact",
            "if term and number_of",
            "if False and number_of",
            inside="BatchChangeList.scope_note",
        ),
    ),
    *of_tests(
        ("tests/worker/test_job_options.py",),
        Mutant(
            "a schedule's job has no keys",
            "jobs[job_id].search_keys or {}",
            "{}",
            inside="add_jobs",
        ),
    ),
]
FIGURES = of_tests(
    ("tests/metrics/test_queue_figures.py",),
    Mutant(
        "each scrape reads the queue",
        "Fresh(self._read_alone, CACHE_SECONDS)",
        "Fresh(self._read_alone, 0.0)",
        inside="ScrapedFigures.__init__",
    ),
    Mutant("each scrape begins a read", "(reading.done() and self", "(self", inside="ScrapedFigures.get"),
    Mutant("a hanging read delays the end", "daemon=True", "daemon=False", inside="ScrapedFigures.get"),
    Mutant("a read leaves its connection open", "connections.close_all()", "pass", inside="ScrapedFigures._read_alone"),
    Mutant(
        "an error leaves the last figures",
        "        except Exception:\n",
        "        except KeyError:\n",
        inside="ScrapedFigures._read_alone",
    ),
)
SEARCH = [*WRITTEN, *SEARCHED, *FIGURES]
