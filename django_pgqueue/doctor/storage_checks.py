"""Checks of the tables and indexes of this package: dead rows, autovacuum, bloat, and missing or invalid indexes.

No statement here reads a table of this package. All figures come from the catalogs and the statistics of the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db.models import UniqueConstraint
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue.display import number

from .findings import Level, Result, cannot_see, check, listed, no_tables, ok, span, worst
from .session import Session, models, tables

if TYPE_CHECKING:
    from django.db.models import Index

DEAD_ROWS: Final = 10_000
DEAD_WARNING_FACTOR, DEAD_ERROR_FACTOR = 3.0, 10.0
"""Dead rows, as a multiple of the number at which autovacuum starts."""
BLOAT_FACTOR: Final = 4.0
BLOAT_BYTES: Final = 32 * 1024**2
FREEZE_FACTOR: Final = 1.2
MIB: Final = 1024**2

# The dead rows of each table, and the number at which autovacuum starts, from the table's options or the settings.
TABLES: Final = """/* pgqueue:doctor_tables */
SELECT class.relname, stat.n_live_tup, stat.n_dead_tup,
       coalesce(options.threshold, current_setting('autovacuum_vacuum_threshold')::float8)
           + coalesce(options.scale, current_setting('autovacuum_vacuum_scale_factor')::float8)
           * greatest(class.reltuples, 0),
       date_part('epoch', clock_timestamp() - greatest(stat.last_vacuum, stat.last_autovacuum)),
       coalesce(options.is_enabled, true), age(class.relfrozenxid),
       current_setting('autovacuum_freeze_max_age')::integer
FROM pg_class AS class
JOIN pg_stat_all_tables AS stat ON stat.relid = class.oid
CROSS JOIN LATERAL (
    SELECT max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_threshold')::float8 AS threshold,
           max(option_value) FILTER (WHERE option_name = 'autovacuum_vacuum_scale_factor')::float8 AS scale,
           bool_and(option_value::boolean) FILTER (WHERE option_name = 'autovacuum_enabled') AS is_enabled
    FROM pg_options_to_table(class.reloptions)
) AS options
WHERE class.oid IN (SELECT to_regclass(name) FROM unnest(%(tables)s::text[]) AS name)
ORDER BY class.relname
"""
AUTOVACUUM: Final = """/* pgqueue:doctor_autovacuum */
SELECT current_setting('autovacuum') = 'on', current_setting('track_counts') = 'on'
"""
# All indexes of the tables, valid or not. An index that is being built is left out.
INDEXES: Final = """/* pgqueue:doctor_indexes */
SELECT class.relname, index.indisvalid AND index.indisready
FROM pg_index AS index
JOIN pg_class AS class ON class.oid = index.indexrelid
WHERE index.indrelid IN (SELECT to_regclass(name) FROM unnest(%(tables)s::text[]) AS name)
  AND index.indexrelid NOT IN (SELECT index_relid FROM pg_stat_progress_create_index)
ORDER BY class.relname
"""
# The size of each B-tree, and the size that its entries would need on pages that are full up to the fillfactor. An
# entry takes its values (by the average width in the statistics), 8 bytes of header and 4 bytes of line pointer.
BLOAT: Final = """/* pgqueue:doctor_bloat */
SELECT class.relname, class.reltuples, pg_relation_size(class.oid),
       block.size * (1 + ceil(
           class.reltuples * (12 + 8 * ceil(columns.width / 8.0)) / ((block.size - 40) * 0.9)
       ))
FROM pg_index AS index
JOIN pg_class AS class ON class.oid = index.indexrelid
JOIN pg_am AS method ON method.oid = class.relam AND method.amname = 'btree'
JOIN pg_class AS owner ON owner.oid = index.indrelid
JOIN pg_namespace AS namespace ON namespace.oid = owner.relnamespace
CROSS JOIN (SELECT current_setting('block_size')::float8 AS size) AS block
CROSS JOIN LATERAL (
    SELECT sum(coalesce(stats.avg_width, CASE WHEN attribute.attlen > 0 THEN attribute.attlen ELSE 32 END)) AS width
    FROM pg_attribute AS attribute
    LEFT JOIN pg_stats AS stats
        ON stats.schemaname = namespace.nspname AND stats.tablename = owner.relname
        AND stats.attname = attribute.attname AND NOT stats.inherited
    WHERE attribute.attrelid = owner.oid AND attribute.attnum = ANY (index.indkey)
) AS columns
WHERE index.indrelid IN (SELECT to_regclass(name) FROM unnest(%(tables)s::text[]) AS name)
ORDER BY class.relname
"""


def _table_figures(session: Session) -> list[dict[str, Any]]:
    keys = (
        *("table", "live_rows", "dead_rows", "autovacuum_at", "vacuumed_seconds_ago", "is_enabled"),
        *("age", "freeze_at"),
    )
    return [dict(zip(keys, row, strict=True)) for row in session.rows(TABLES, tables=tables())]


@check(
    "dead_rows",
    f"Warning: a table has at least {DEAD_ROWS:,} dead rows, and {DEAD_WARNING_FACTOR:g} times as many as start "
    f"autovacuum. Error: {DEAD_ERROR_FACTOR:g} times as many.",
    gettext_lazy("Dead rows make every claim and completion read more pages."),
)
def _dead_rows(session: Session) -> Result:
    found = _table_figures(session)
    if not found:
        return no_tables()
    data = {"tables": found}
    full = [(level, each) for each in found if (level := _dead_level(each)) is not Level.OK]
    if not full:
        dead = sum(each["dead_rows"] for each in found)
        what = ngettext(
            "Autovacuum keeps up: the tables have %(count)s dead row.",
            "Autovacuum keeps up: the tables have %(count)s dead rows.",
            dead,
        ) % {"count": number(dead)}
        return ok(what, **data)
    level = worst(each for each, _table in full)
    most = max((each for _level, each in full), key=lambda each: float(each["dead_rows"]))
    fix = _("Fix what pinned_rows and autovacuum report, then run %(statement)s")
    return Result(level, _dead_text(most), fix % {"statement": f"VACUUM (VERBOSE) {most['table']};"}, data)


def _dead_text(table: dict[str, Any]) -> str:
    ago, dead = table["vacuumed_seconds_ago"], table["dead_rows"]
    values = {"table": table["table"], "count": number(dead), "threshold": number(table["autovacuum_at"])}
    if ago is None:
        what = ngettext(
            "%(table)s, which was never vacuumed, has %(count)s dead row. Autovacuum starts at %(threshold)s.",
            "%(table)s, which was never vacuumed, has %(count)s dead rows. Autovacuum starts at %(threshold)s.",
            dead,
        )
        return what % values
    what = ngettext(
        "%(table)s, last vacuumed %(span)s ago, has %(count)s dead row. Autovacuum starts at %(threshold)s.",
        "%(table)s, last vacuumed %(span)s ago, has %(count)s dead rows. Autovacuum starts at %(threshold)s.",
        dead,
    )
    return what % {**values, "span": span(ago)}


def _dead_level(table: dict[str, Any]) -> Level:
    if table["dead_rows"] < DEAD_ROWS or table["dead_rows"] < DEAD_WARNING_FACTOR * table["autovacuum_at"]:
        return Level.OK
    is_far_behind = table["dead_rows"] >= DEAD_ERROR_FACTOR * table["autovacuum_at"]
    return Level.ERROR if is_far_behind else Level.WARNING


@check(
    "autovacuum",
    "Error: autovacuum is off for the server or for a table of the queue, or does not keep up with freezing.",
    gettext_lazy("Every job leaves dead rows, so without autovacuum the tables grow without limit."),
)
def _autovacuum(session: Session) -> Result:
    found = _table_figures(session)
    if not found:
        return no_tables()
    is_on, counts = session.row(AUTOVACUUM)
    disabled = [each["table"] for each in found if not each["is_enabled"]]
    old = [each["table"] for each in found if each["age"] > FREEZE_FACTOR * each["freeze_at"]]
    data = {"autovacuum": is_on, "track_counts": counts, "disabled_tables": disabled, "old_tables": old}
    if not (is_on and counts):
        name = "track_counts" if is_on else "autovacuum"
        fix = f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();"
        what = _("%(name)s is off on this server, so no table is vacuumed.") % {"name": name}
        return Result(Level.ERROR, what, fix, data)
    if disabled:
        fix = " ".join(f"ALTER TABLE {name} RESET (autovacuum_enabled);" for name in disabled)
        what = _("Autovacuum is disabled for %(tables)s.") % {"tables": listed(disabled)}
        return Result(Level.ERROR, what, fix, data)
    if old:
        fix = " ".join(f"VACUUM (FREEZE) {name};" for name in old)
        what = _("Autovacuum does not keep up with freezing %(tables)s.") % {"tables": listed(old)}
        return Result(Level.ERROR, what, fix, data)
    return ok(_("Autovacuum is on for all %(count)s tables.") % {"count": len(found)}, **data)


@check(
    "index_bloat",
    f"Warning: an index has at least {BLOAT_BYTES / MIB:.0f} MiB and is {BLOAT_FACTOR:g} times as large as its "
    "entries need, by an estimate.",
    gettext_lazy("A bloated index occupies memory that other pages need, and a scan of it reads empty pages."),
)
def _index_bloat(session: Session) -> Result:
    keys = ("index", "entries", "bytes", "estimated_bytes")
    found = [dict(zip(keys, row, strict=True)) for row in session.rows(BLOAT, tables=tables())]
    if not found:
        return no_tables()
    large = [each for each in found if each["bytes"] >= BLOAT_BYTES]
    unknown = [each["index"] for each in large if each["entries"] < 0]
    bloated = [
        each for each in large if each["entries"] >= 0 and each["bytes"] >= BLOAT_FACTOR * each["estimated_bytes"]
    ]
    data = {"bloated": bloated, "never_analyzed": unknown}
    if bloated:
        worst_of_all = max(bloated, key=lambda each: float(each["bytes"]))
        what = ngettext(
            "%(count)s index is bloated: %(name)s has %(size)s MiB, and its entries need about %(needed)s MiB.",
            "%(count)s indexes are bloated: %(name)s has %(size)s MiB, and its entries need about %(needed)s MiB.",
            len(bloated),
        ) % {
            "count": len(bloated),
            "name": worst_of_all["index"],
            "size": number(worst_of_all["bytes"] / MIB, 1),
            "needed": number(worst_of_all["estimated_bytes"] / MIB, 1),
        }
        fix = " ".join(f"REINDEX INDEX CONCURRENTLY {each['index']};" for each in bloated)
        return Result(Level.WARNING, what, fix, data)
    if unknown:
        what = _("Cannot see the entries of %(indexes)s.") % {"indexes": listed(unknown)}
        return cannot_see(what, _("Run ANALYZE on the tables of the queue."), **data)
    return ok(_("None of %(count)s indexes is bloated, by an estimate.") % {"count": len(found)}, **data)


@check(
    "indexes",
    "Error: an index of the migrations is missing, or an index on a table of the queue is invalid.",
    gettext_lazy("Without its index, a statement reads the whole table, or a job can get two executions."),
)
def _indexes(session: Session) -> Result:
    found: dict[str, bool] = dict(session.rows(INDEXES, tables=tables()))
    if not found:
        return no_tables()
    expected = expected_indexes(session)
    missing = [name for name in expected if name not in found]
    invalid = [name for name, is_valid in found.items() if not is_valid]
    data = {"missing": missing, "invalid": invalid}
    if not missing and not invalid:
        what = _("All %(count)s indexes of the migrations exist and are valid.") % {"count": len(expected)}
        return ok(what, **data)
    sentences = [_("Indexes are not as the migrations made them.")]
    if missing:
        sentences.append(_("Missing: %(names)s.") % {"names": listed(missing)})
    if invalid:
        sentences.append(_("Invalid: %(names)s.") % {"names": listed(invalid)})
    fixes = [expected[name] for name in missing] + [f"REINDEX INDEX CONCURRENTLY {name};" for name in invalid]
    return Result(Level.ERROR, " ".join(sentences), " ".join(fixes), data)


def expected_indexes(session: Session) -> dict[str, str]:
    """Return the names of the indexes that the migrations make, each with the statement that makes it."""
    found: dict[str, str] = {}
    editor = session.connection.schema_editor(collect_sql=True)
    for model in models():
        table = model._meta.db_table
        key = model._meta.pk.column
        found[f"{table}_pkey"] = f"ALTER TABLE {table} ADD PRIMARY KEY ({key});"
        of_model: list[Index | UniqueConstraint] = [
            *model._meta.indexes,
            *(each for each in model._meta.constraints if isinstance(each, UniqueConstraint)),
        ]
        # Without CONCURRENTLY, the build would block all writers.
        found |= {
            each.name: f"{each.create_sql(model, editor)};".replace(" INDEX ", " INDEX CONCURRENTLY ", 1)
            for each in of_model
        }
    return found


STORAGE_CHECKS: Final = (_dead_rows, _autovacuum, _index_bloat, _indexes)
