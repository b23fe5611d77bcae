"""Build two releases as two source trees, from which the tests start real processes.

`previous` is the package of this checkout. If PGQUEUE_PREVIOUS_TREE names another tree, such as a real earlier release,
`previous` is the package of that tree. `next` is the package of this checkout, changed like a later release: three more
migrations add columns and an index, and the code writes these columns.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

TOP = Path(__file__).parents[2]
PREVIOUS_TREE = "PGQUEUE_PREVIOUS_TREE"

MODELS = """
from django.db import models
Job.add_to_class("note", models.TextField(null=True))
Execution.add_to_class("host", models.TextField(db_default=""))
"""
MIGRATION = """
from django.db import migrations, models
from django_pgqueue.db.migration_operations import BuildIndex, LockTable

class Migration(migrations.Migration):
    atomic = {atomic}
    dependencies = [("pgqueue", "{after}")]
    operations = {operations}
"""
NOTE = '[LockTable("job"), migrations.AddField("job", "note", models.TextField(null=True))]'
HOST = '[LockTable("execution"), migrations.AddField("execution", "host", models.TextField(db_default=""))]'
INDEX = '[BuildIndex("job", models.Index(fields=["enqueued_at"], name="pgqueue_job_enqueued"))]'
OPERATIONS = {"8001_note": NOTE, "8002_host": HOST, "8003_index": INDEX}
ENQUEUED_BY_NEXT = "next"


def migrations(after: str) -> dict[str, str]:
    """Return the source of the migrations of the next release, by name. The first one follows `after`."""
    made = {}
    for name, operations in OPERATIONS.items():
        made[name] = MIGRATION.format(atomic=operations is not INDEX, after=after, operations=operations)
        after = name
    return made


def path_to(tree: Path) -> dict[str, str]:
    """Return the environment variables with which a process imports the code of a tree, whatever its directory."""
    return {"PYTHONPATH": f"{tree}{os.pathsep}{TOP}", "PYTHONSAFEPATH": "1"}


def build_previous(home: Path) -> Path:
    """Make the tree of the previous release below `home`."""
    source = Path(os.environ.get(PREVIOUS_TREE, TOP))
    return _build(home / "previous", source, "shop_previous.py")


def build_next(home: Path) -> Path:
    """Make the tree of the next release below `home`."""
    tree = _build(home / "next", TOP, "shop_next.py")
    package = tree / "django_pgqueue"
    with (package / "models/__init__.py").open("a") as models:
        models.write(MODELS)
    inserts = package / "sql" / "enqueueing.py"
    inserts.write_text(_writing_notes(inserts.read_text()))
    last = max(path.stem for path in (package / "migrations").glob("[0-9]*.py"))
    for name, text in migrations(last).items():
        (package / "migrations" / f"{name}.py").write_text(text)
    return tree


def _build(tree: Path, source: Path, shop: str) -> Path:
    shutil.copytree(source / "django_pgqueue", tree / "django_pgqueue", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "shop").mkdir()
    (tree / "shop" / "__init__.py").touch()
    shutil.copy(Path(__file__).parent / shop, tree / "shop" / "tasks.py")
    return tree


def _writing_notes(sql: str) -> str:
    """Have both statements that enqueue plain jobs write the new column."""
    for name in ("enqueue", "enqueue_many"):
        before, mark, after = sql.partition(f"/* pgqueue:{name} */")
        after, columns = re.subn(r"(INSERT INTO pgqueue_job\s*\()", r"\1note, ", after, count=1)
        after, values = re.subn(
            r"(VALUES \(|SELECT)\n    %\(task_name\)s", rf"\1 '{ENQUEUED_BY_NEXT}', %(task_name)s", after, count=1
        )
        assert mark and columns == values == 1, "the text of the enqueue statements has changed: adapt this function"
        sql = before + mark + after
    return sql
