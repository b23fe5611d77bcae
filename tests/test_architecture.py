"""Rules for the structure of the package: which modules write, use SQL or load models, and how long a file may be.

The tests read the source with `ast`, so the rules also apply to code that no test runs. import-linter checks the order
of imports.
"""

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import django_pgqueue
from tests.rules import for_each

PACKAGE = Path(django_pgqueue.__file__).parent
FILES = {
    str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py")) if "migrations" not in path.parts
}
TEMPLATES = sorted(PACKAGE.rglob("*.html"))
WRITES = re.compile(r"\b(insert\s+into|update|delete\s+from|truncate|merge\s+into)\s+\"?pgqueue_", re.I)
DANGEROUS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "jsonpickle"}
FILE_LINES, FUNCTION_LINES = 400, 50


@cache
def tree_of(name):
    """Return the parsed module. It is parsed when a test needs it: each process of a test run imports this file."""
    return ast.parse(FILES[name].read_text())


def nodes(tree, *kinds):
    """Return every node of these kinds in a module. Each module is walked only once."""
    return [node for kind in kinds for node in by_kind(tree).get(kind, ())]


@cache
def by_kind(tree):
    found = defaultdict(list)
    for node in ast.walk(tree):
        found[type(node)].append(node)
    return found


def imported(tree):
    """Yield every dotted name that a module imports. Relative imports lose their leading dots."""
    for node in nodes(tree, ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module or ''}.{alias.name}".lstrip(".") for alias in node.names)


def calls(tree):
    return nodes(tree, ast.Call)


@cache
def called(call):
    """Return what is called, as text."""
    return ast.unparse(call.func)


def functions(tree):
    return nodes(tree, ast.FunctionDef, ast.AsyncFunctionDef)


def parameters(tree):
    return {argument.arg for function in functions(tree) for argument in function.args.args}


def test_architecture_finds_modules_and_templates():
    assert {"sql/claims.py", "states.py", "lifecycle/__init__.py"} <= set(FILES)
    assert {"job.html", "execution.html"} <= {path.name for path in TEMPLATES}


@for_each(FILES)
def test_imports_of_sql_only_in_lifecycle_and_stats(name):
    if name.startswith(("lifecycle/", "sql/", "stats/")):
        return
    ours = {module.removeprefix("django_pgqueue.") for module in imported(tree_of(name))}
    assert "sql" not in ours


@for_each(FILES)
def test_strings_outside_sql_never_write_our_tables(name):
    if name.startswith("sql/"):
        return
    texts = [node.value for node in nodes(tree_of(name), ast.Constant) if isinstance(node.value, str)]
    assert [text for text in texts if WRITES.search(text)] == []


@for_each(FILES)
def test_calls_of_the_orm_never_write_models(name):
    """Calls of `update` and `delete` are allowed only on receivers that are not querysets, for example on dicts.

    `LogEntry` and `Group` are models of Django.
    """
    wrong = {"save", "bulk_create", "bulk_update", "update_or_create", "get_or_create", "create", "asave", "adelete"}
    for call in calls(tree_of(name)):
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in wrong
            and not re.search("LogEntry|Group", called(call))
        ):
            raise AssertionError(f"{name}:{call.lineno}: {ast.unparse(call)}")
        if isinstance(call.func, ast.Attribute) and call.func.attr in {"update", "delete"}:
            receiver = ast.unparse(call.func.value)
            assert not re.search(r"objects|queryset|\bfilter\(|\bjobs?\b|executions?\b|Job|Execution", receiver), (
                f"{name}:{call.lineno}: {ast.unparse(call)}"
            )


@for_each(FILES)
def test_imports_and_calls_never_unpickle_or_evaluate(name):
    used = {module.split(".")[0] for module in imported(tree_of(name))}
    assert not used & DANGEROUS
    for call in calls(tree_of(name)):
        assert called(call) not in {"eval", "exec", "compile", "__import__", "import_string"}, f"{name}:{call.lineno}"


@for_each(FILES)
def test_html_is_marked_safe_only_by_format_html(name):
    """Templates and `format_html` make all HTML, and they escape it. The format must be a plain literal."""
    names = {node.id for node in nodes(tree_of(name), ast.Name)}
    attributes = {node.attr for node in nodes(tree_of(name), ast.Attribute)}
    assert not {"mark_safe", "SafeData", "allow_tags", "__html__", "safe"} & (names | attributes)
    for call in calls(tree_of(name)):
        function = called(call).rpartition(".")[2]
        assert function not in {"SafeString", "SafeText", "Markup"}, f"{name}:{call.lineno}"
        if function in {"format_html", "format_html_join"}:
            literal = call.args[function == "format_html_join"]
            assert isinstance(literal, ast.Constant), f"{name}:{call.lineno}"


@for_each(TEMPLATES)
def test_templates_escape_text_and_contain_no_script(path):
    text = re.sub(
        r'<script src="{% static "pgqueue/(live|graph|keys|search)\.js" %}" defer></script>', "", path.read_text()
    )
    assert not re.search(r"\|\s*safe|autoescape|<script|javascript:|\son\w+=|style=", text)


def test_import_module_is_called_only_in_registry():
    importers = {name for name in FILES for call in calls(tree_of(name)) if "import_module" in called(call)}
    assert importers <= {"tasks/registry.py"}


@for_each(FILES)
def test_execute_statement_is_never_concatenated(name):
    """`execute()` gets a name, an attribute or a plain literal. An f-string may contain upper-case constants only."""
    for call in calls(tree_of(name)):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr in {"execute", "executemany"}) or not call.args:
            continue
        statement = call.args[0]
        if isinstance(statement, ast.JoinedStr):
            pieces = [part.value for part in statement.values if isinstance(part, ast.FormattedValue)]
            assert all(ast.unparse(piece).rpartition(".")[2].isupper() for piece in pieces), f"{name}:{call.lineno}"
        else:
            assert not isinstance(statement, ast.BinOp | ast.Call), f"{name}:{call.lineno}: {ast.unparse(statement)}"
        if isinstance(statement, ast.Name) and not statement.id.isupper():
            assert statement.id in parameters(tree_of(name)), f"{name}:{call.lineno}: {statement.id} is built here"


@for_each(FILES)
def test_sql_runs_only_through_execute(name):
    forbidden = {"raw", "extra", "RawSQL", "mogrify", "executemany", "copy", "callproc"}
    for call in calls(tree_of(name)):
        function = called(call).rpartition(".")[2]
        assert function not in forbidden or not call.args, f"{name}:{call.lineno}: {ast.unparse(call)}"


@for_each(FILES)
def test_modules_and_functions_stay_within_line_limits(name):
    if name.startswith("sql/"):
        return
    limit = FILE_LINES
    assert len(FILES[name].read_text().splitlines()) <= limit
    for function in functions(tree_of(name)):
        lines = (function.end_lineno or 0) - function.lineno + 1
        lines -= len((ast.get_docstring(function) or "").splitlines())
        assert lines <= FUNCTION_LINES, f"{name}: {function.name} has {lines} lines"


@for_each(FILES)
def test_modules_all_have_a_docstring(name):
    empty = not FILES[name].read_text().strip()
    assert empty or ast.get_docstring(tree_of(name)), name


@for_each(FILES)
def test_modules_loaded_before_apps_import_no_models(name):
    loads_early = name in {"task.py", "context.py", "__init__.py"} or name.startswith(("db/", "lifecycle/", "worker/"))
    if not loads_early or name == "db/fields.py":  # Django's `models`, for ours
        return
    for node in tree_of(name).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert "models" not in ast.unparse(node).replace("django.db.models", ""), f"{name}:{node.lineno}"


@cache
def files_by_module():
    """Return the file of each dotted name of a module, also of those of packages without `__init__`."""
    known = {".".join(["django_pgqueue", *Path(other).with_suffix("").parts]): other for other in FILES}
    return known | {module.removesuffix(".__init__"): other for module, other in known.items()}


@cache
def modules_imported(name):
    """Return the modules of the package that a file imports at the top, in functions or for typing."""
    package, known = ["django_pgqueue", *Path(name).parts[:-1]], files_by_module()
    found = set()
    for node in nodes(tree_of(name), ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            found |= {known[alias.name] for alias in node.names if alias.name in known}
        else:
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                target = known.get(f"{module}.{alias.name}") or known.get(module)
                found |= {target} if target else set()
    return found - {name}


@for_each(FILES)
def test_only_contrib_imports_its_libraries(name):
    """A worker without the integrations needs neither library."""
    names = {module.partition(".")[0] for module in imported(tree_of(name))}
    assert name.startswith("contrib/") or not names & {"sentry_sdk", "opentelemetry"}


def test_imports_anywhere_form_no_cycle():
    """Imports in functions and for typing count too, although no linter counts them.

    A reader has to understand the modules of a cycle together.
    """
    imports = {name: modules_imported(name) for name in FILES}
    while leaves := [name for name, targets in imports.items() if not targets & imports.keys()]:
        for name in leaves:
            del imports[name]
    left = {name: sorted(targets & imports.keys()) for name, targets in imports.items()}
    assert left == {}


# ------------------------------------------------------------------ layout


def room_of(name):
    """Return the room of a file: a package below the root, or a module of the root."""
    return name.split("/")[0]


def test_root_has_few_modules():
    """A newcomer finds a file by the room. Modules of the root are those that a project imports, and few others."""
    assert sum("/" not in name for name in FILES) <= 20
    assert len({room_of(name) for name in FILES}) <= 48


def test_rooms_form_no_cycle():
    """No room imports another one that imports it, also in functions and for typing."""
    imports = {room_of(name): set() for name in FILES}
    for name in FILES:
        imports[room_of(name)] |= {room_of(target) for target in modules_imported(name)} - {room_of(name)}
    while leaves := [room for room, targets in imports.items() if not targets & imports.keys()]:
        for room in leaves:
            del imports[room]
    assert {room: sorted(targets & imports.keys()) for room, targets in imports.items()} == {}


# The modules with less than 60 lines that one module imports, and why each group stays.
SMALL = {
    "one table": "models/",
    "the statements of one transition": "sql/",
    "one transition": "lifecycle/",
    "one page": "admin/console/",
    "Django looks for it by this name": "apps.py urls.py",
    "a setting of a project names it": "testing/backends.py",
    "one capability in this layer": "job_search/batch_jobs.py stats/chunk_explanation.py",
    "an invariant of its own": "worker/runtime/exit_cause.py worker/supervision/stop_deadline.py",
}


def test_small_modules_have_a_second_caller_or_a_reason():
    """A reader of many tiny modules turns pages instead of reading."""
    callers = Counter(target for name in FILES for target in modules_imported(name))
    small = {
        name
        for name, path in FILES.items()
        if not name.endswith("__init__.py") and callers[name] < 2 and len(path.read_text().splitlines()) < 60
    }
    parts = [part for parts in SMALL.values() for part in parts.split()]
    assert {name for name in small if not any(part in name for part in parts)} == set()
    assert {part for part in parts if not any(part in name for name in small)} == set()


RECURRING = {
    "a capability, in several layers": "audit batches breakers bulk_acts chunks claims completions controls ends "
    "enqueueing events expiry graphs history installations lanes leases limit_overrides limits logs middleware "
    "operator past_acts pauses pruning queues remote_tokens rescues stranded rollups sagas schedules search "
    "search_keys steps stored_calls unique worker_requests workers",
    "the same part of several pages": "actions columns form page words",
    "the same part of several kinds of statistics": "answers explanation figures queries",
    "Django looks for it by this name": "apps views",
}


def test_modules_share_names_only_for_one_thing():
    """A search for a module finds one, unless its name is that of a capability in several layers."""
    names = Counter(Path(name).stem for name in FILES if not name.endswith("__init__.py"))
    assert {name for name, count in names.items() if count > 1} == {
        name for known in RECURRING.values() for name in known.split()
    }


def test_classes_have_names_of_their_own():
    """A search for a class finds one class. Django prescribes the name of a command."""
    names = Counter(node.name for name in FILES for node in tree_of(name).body if isinstance(node, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1} == {"Command"}
    assert {name for name in names if name.startswith("_") and name[1:] in names} == set()


def test_lifecycle_passes_on_no_names():
    """Callers import the module of a transition, so that a search for its name finds all of them."""
    assert [type(node) for node in tree_of("lifecycle/__init__.py").body] == [ast.Expr]
