"""The house: who may write, who knows SQL, what is never used, and how large a room may be.

Read from the source by `ast`, so that it holds for code no test runs. Import order is import-linter's.
"""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import django_pgqueue

PACKAGE = Path(django_pgqueue.__file__).parent
FILES = {
    str(path.relative_to(PACKAGE)): path for path in sorted(PACKAGE.rglob("*.py")) if "migrations" not in path.parts
}
TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}
TEMPLATES = sorted(PACKAGE.rglob("*.html"))
WRITES = re.compile(r"\b(insert\s+into|update|delete\s+from|truncate|merge\s+into)\s+\"?pgqueue_", re.I)
DANGEROUS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "jsonpickle"}
FILE_LINES, FUNCTION_LINES = 300, 50


def for_each_file(check):
    """Make one test of a check: a test for each file and rule would be 2,000, and take longer to start than to run."""

    def test():
        wrong = {}
        for name in FILES:
            try:
                check(name)
            except AssertionError as error:
                wrong[name] = str(error)
        assert wrong == {}

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    return test


def nodes(tree, *kinds):
    """Every node of these kinds below a module, each module walked once."""
    return [node for kind in kinds for node in by_kind(tree).get(kind, ())]


@cache
def by_kind(tree):
    found = defaultdict(list)
    for node in ast.walk(tree):
        found[type(node)].append(node)
    return found


def imported(tree):
    """Every dotted name that a module imports, relative ones by what follows the dots."""
    for node in nodes(tree, ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module or ''}.{alias.name}".lstrip(".") for alias in node.names)


def calls(tree):
    return nodes(tree, ast.Call)


def functions(tree):
    return nodes(tree, ast.FunctionDef, ast.AsyncFunctionDef)


def parameters(tree):
    return {argument.arg for function in functions(tree) for argument in function.args.args}


def test_there_is_something_to_read():
    assert {"sql/claims.py", "states.py", "lifecycle/__init__.py"} <= set(FILES)
    assert {"job.html", "execution.html"} <= {path.name for path in TEMPLATES}


@for_each_file
def test_only_lifecycle_and_stats_know_sql(name):
    if name.startswith(("lifecycle/", "sql/")) or name == "stats.py":
        return
    ours = {module.removeprefix("django_pgqueue.") for module in imported(TREES[name])}
    assert "sql" not in ours


@for_each_file
def test_no_statement_writes_our_tables_outside_of_sql(name):
    if name.startswith("sql/"):
        return
    texts = [node.value for node in nodes(TREES[name], ast.Constant) if isinstance(node.value, str)]
    assert [text for text in texts if WRITES.search(text)] == []


@for_each_file
def test_no_model_is_written_through_the_orm(name):
    """`update` and `delete` of dicts and the like have a receiver that is no queryset: none is called so far."""
    wrong = {"save", "bulk_create", "bulk_update", "update_or_create", "get_or_create", "create", "asave", "adelete"}
    for call in calls(TREES[name]):
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in wrong
            and "LogEntry" not in ast.unparse(call.func)
        ):
            raise AssertionError(f"{name}:{call.lineno}: {ast.unparse(call)}")
        if isinstance(call.func, ast.Attribute) and call.func.attr in {"update", "delete"}:
            receiver = ast.unparse(call.func.value)
            assert not re.search(r"objects|queryset|\bfilter\(|\bjobs?\b|executions?\b|Job|Execution", receiver), (
                f"{name}:{call.lineno}: {ast.unparse(call)}"
            )


@for_each_file
def test_nothing_is_unpickled_or_evaluated(name):
    used = {module.split(".")[0] for module in imported(TREES[name])}
    assert not used & DANGEROUS
    for call in calls(TREES[name]):
        called = ast.unparse(call.func)
        assert called not in {"eval", "exec", "compile", "__import__", "import_string"}, f"{name}:{call.lineno}"


@for_each_file
def test_nothing_is_declared_safe_that_was_not_escaped(name):
    """HTML is made by templates and `format_html`, which escape; the format itself is a plain literal."""
    names = {node.id for node in nodes(TREES[name], ast.Name)}
    attributes = {node.attr for node in nodes(TREES[name], ast.Attribute)}
    assert not {"mark_safe", "SafeData", "allow_tags", "__html__", "safe"} & (names | attributes)
    for call in calls(TREES[name]):
        called = ast.unparse(call.func).rpartition(".")[2]
        assert called not in {"SafeString", "SafeText", "Markup"}, f"{name}:{call.lineno}"
        if called in {"format_html", "format_html_join"}:
            literal = call.args[called == "format_html_join"]
            assert isinstance(literal, ast.Constant), f"{name}:{call.lineno}"


@pytest.mark.parametrize("path", TEMPLATES, ids=str)
def test_templates_escape_and_run_nothing(path):
    text = path.read_text()
    assert not re.search(r"\|\s*safe|autoescape|<script|javascript:|\son\w+=|style=", text)


def test_only_the_registry_imports_by_name():
    importers = {name for name, tree in TREES.items() for call in calls(tree) if "import_module" in ast.unparse(call)}
    assert importers <= {"registry.py"}


@for_each_file
def test_statements_are_not_made_of_pieces(name):
    """What is executed is a name, an attribute or a plain literal; an f-string may hold upper-case constants only."""
    for call in calls(TREES[name]):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr in {"execute", "executemany"}) or not call.args:
            continue
        statement = call.args[0]
        if isinstance(statement, ast.JoinedStr):
            pieces = [part.value for part in statement.values if isinstance(part, ast.FormattedValue)]
            assert all(ast.unparse(piece).rpartition(".")[2].isupper() for piece in pieces), f"{name}:{call.lineno}"
        else:
            assert not isinstance(statement, ast.BinOp | ast.Call), f"{name}:{call.lineno}: {ast.unparse(statement)}"
        if isinstance(statement, ast.Name) and not statement.id.isupper():
            assert statement.id in parameters(TREES[name]), f"{name}:{call.lineno}: {statement.id} is made here"


@for_each_file
def test_no_door_to_sql_but_execute(name):
    doors = {"raw", "extra", "RawSQL", "mogrify", "executemany", "copy", "callproc"}
    for call in calls(TREES[name]):
        called = ast.unparse(call.func).rpartition(".")[2]
        assert called not in doors or not call.args, f"{name}:{call.lineno}: {ast.unparse(call)}"


@for_each_file
def test_a_module_and_its_functions_are_rooms_not_halls(name):
    if name.startswith("sql/"):
        return
    limit = FILE_LINES
    assert len(FILES[name].read_text().splitlines()) <= limit
    for function in functions(TREES[name]):
        lines = (function.end_lineno or 0) - function.lineno + 1
        lines -= len((ast.get_docstring(function) or "").splitlines())
        assert lines <= FUNCTION_LINES, f"{name}: {function.name} has {lines} lines"


@for_each_file
def test_every_module_says_what_it_is_for(name):
    empty = not FILES[name].read_text().strip()
    assert empty or ast.get_docstring(TREES[name]), name


@for_each_file
def test_what_loads_before_the_apps_leaves_the_models_alone(name):
    loads_early = name in {"task.py", "context.py", "__init__.py"} or name.startswith(("db/", "lifecycle/", "worker/"))
    if not loads_early or name == "db/fields.py":  # Django's `models`, for ours
        return
    for node in TREES[name].body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert "models" not in ast.unparse(node).replace("django.db.models", ""), f"{name}:{node.lineno}"


def modules_imported(name):
    """Return the modules of the package that a file imports anywhere: at the top, in functions, for typing."""
    parts = ["django_pgqueue", *Path(name).with_suffix("").parts]
    package = parts[:-1]
    known = {".".join(["django_pgqueue", *Path(other).with_suffix("").parts]): other for other in FILES}
    known |= {module.removesuffix(".__init__"): other for module, other in known.items()}
    found = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            found |= {known[alias.name] for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                target = known.get(f"{module}.{alias.name}") or known.get(module)
                found |= {target} if target else set()
    return found - {name}


def test_imports_anywhere_form_no_cycle():
    """Also imports inside functions and for typing, which no linter counts: a knot of modules is read as one."""
    imports = {name: modules_imported(name) for name in FILES}
    while leaves := [name for name, targets in imports.items() if not targets & imports.keys()]:
        for name in leaves:
            del imports[name]
    left = {name: sorted(targets & imports.keys()) for name, targets in imports.items()}
    assert left == {}
