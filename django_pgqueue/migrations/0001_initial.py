"""All tables of the first release. Until version 0.1.0, each change of the schema edits this file."""

from datetime import UTC, datetime

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models.functions import Greatest, Least, Now
from django.db.models.lookups import Exact, GreaterThan, GreaterThanOrEqual, IsNull, LessThan, LessThanOrEqual

from django_pgqueue.db.fields import IsJson, NameField, NumbersField, OneOf, PlainJSONField, Untyped

# Each job and each execution is updated a few times and then deleted. Free space in the page keeps the updated versions
# beside the row. Half a page is enough, because the first version is gone before the third is written. Compared with a
# fillfactor of 70, claim and completion wrote 1,425 bytes of WAL per job instead of 1,543, and the tables were smaller:
# 306 and 216 bytes per job instead of 364 and 239. Autovacuum starts after thousands of dead rows, because the default
# of a fifth of a large table would be too late.
STORAGE = """
ALTER TABLE pgqueue_job SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1, autovacuum_vacuum_cost_limit = 2000
);
ALTER TABLE pgqueue_execution SET (
    fillfactor = 42,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1, autovacuum_vacuum_cost_limit = 2000
);
"""

FIRST, LAST = datetime(1, 1, 3, tzinfo=UTC), datetime(9999, 12, 29, tzinfo=UTC)


def instants(*names: str) -> models.Q:
    """Return the condition that each of these columns is NULL or an instant that can be read and subtracted."""
    if len(names) == 1:
        return models.Q((f"{names[0]}__gte", FIRST), (f"{names[0]}__lt", LAST))
    return models.Q(GreaterThanOrEqual(Least(*names), FIRST), LessThan(Greatest(*names), LAST))


def numbers(*names: str, least: int = 0, most: int = 2**62) -> models.Q:
    """Return the condition that each of these columns is NULL or a number from `least` on and below `most`."""
    if len(names) == 1:
        return models.Q((f"{names[0]}__gte", least), (f"{names[0]}__lt", most))
    field = models.BigIntegerField()
    lowest, highest = Least(*names, output_field=field), Greatest(*names, output_field=field)
    return models.Q(GreaterThanOrEqual(lowest, least), LessThan(highest, most))


def set_storage(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Apply the settings on PostgreSQL. Another kind of database, which `migrate` may run on too, has none."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(STORAGE)


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("hostname", models.CharField(max_length=255, verbose_name="host")),
                ("pid", models.IntegerField(verbose_name="process id")),
                ("version", models.CharField(max_length=50, verbose_name="version")),
                ("release", models.CharField(blank=True, db_default="", max_length=100, verbose_name="release")),
                ("queue_names", models.TextField(db_default="", verbose_name="queues")),
                ("concurrency", models.IntegerField(verbose_name="concurrency")),
                ("started_at", models.DateTimeField(db_default=Now(), verbose_name="started at")),
                ("last_heartbeat_at", models.DateTimeField(db_default=Now(), verbose_name="last heartbeat at")),
                ("lease_expires_at", models.DateTimeField(null=True, verbose_name="lease expires at")),
                ("stopped_at", models.DateTimeField(null=True, verbose_name="stopped at")),
                ("supervisor_pid", models.IntegerField(null=True, verbose_name="process id of the supervisor")),
                ("resident_mib", models.IntegerField(null=True, verbose_name="resident memory in MiB")),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "default_permissions": ("view",),
                "permissions": [
                    ("stop_worker", "Can stop a worker"),
                    ("view_stack", "Can view the stacks of running jobs"),
                ],
                "indexes": [
                    models.Index(
                        models.F("release"),
                        models.F("version"),
                        models.F("started_at"),
                        condition=models.Q(("supervisor_pid__isnull", False)),
                        name="pgqueue_worker_release",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=instants("started_at", "last_heartbeat_at", "lease_expires_at", "stopped_at"),
                        name="pgqueue_worker_instants",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(id__lt=2**62) & models.Q(concurrency__gte=0),
                        name="pgqueue_worker_numbers",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="WorkerRequest",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("worker_id", models.BigIntegerField(verbose_name="worker")),
                (
                    "kind",
                    models.CharField(choices=[("stop", "stop"), ("stack", "stack")], max_length=5, verbose_name="kind"),
                ),
                ("execution_id", models.BigIntegerField(db_default=0, verbose_name="execution")),
                ("requested_at", models.DateTimeField(db_default=Now(), verbose_name="requested at")),
                (
                    "requested_by",
                    models.CharField(blank=True, db_default="", max_length=150, verbose_name="requested by"),
                ),
                ("answered_at", models.DateTimeField(null=True, verbose_name="answered at")),
                ("answer", models.TextField(blank=True, db_default="", verbose_name="answer")),
            ],
            options={
                "verbose_name": "request to a worker",
                "verbose_name_plural": "requests to workers",
                "db_table": "pgqueue_worker_request",
                "default_permissions": (),
                "indexes": [models.Index(models.F("worker_id"), models.F("id"), name="pgqueue_worker_request_worker")],
                "constraints": [
                    models.CheckConstraint(
                        condition=instants("requested_at", "answered_at"), name="pgqueue_worker_request_instants"
                    ),
                    models.CheckConstraint(condition=models.Q(id__lt=2**62), name="pgqueue_worker_request_numbers"),
                    models.UniqueConstraint(
                        condition=models.Q(("answered_at__isnull", True)),
                        fields=("worker_id", "kind", "execution_id"),
                        name="pgqueue_worker_request_open",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Rollup",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "span",
                    models.CharField(
                        choices=[
                            ("part", "part"),
                            ("minute", "minute"),
                            ("hour", "hour"),
                            ("minute_total", "minute_total"),
                            ("hour_total", "hour_total"),
                        ],
                        max_length=12,
                        verbose_name="span",
                    ),
                ),
                ("starts_at", models.DateTimeField(verbose_name="starts at")),
                ("queue_name", models.CharField(max_length=100, verbose_name="queue")),
                ("task_name", models.CharField(max_length=100, verbose_name="task")),
                ("exception_class", models.CharField(db_default="", max_length=200, verbose_name="exception")),
                ("succeeded", models.BigIntegerField(db_default=0, verbose_name="succeeded")),
                ("retried", models.BigIntegerField(db_default=0, verbose_name="retried")),
                ("dead", models.BigIntegerField(db_default=0, verbose_name="dead")),
                ("cancelled", models.BigIntegerField(db_default=0, verbose_name="cancelled")),
                ("released", models.BigIntegerField(db_default=0, verbose_name="released")),
                ("snoozed", models.BigIntegerField(db_default=0, verbose_name="snoozed")),
                ("crashed", models.BigIntegerField(db_default=0, verbose_name="crashed")),
                ("wait_seconds", models.FloatField(db_default=0.0, verbose_name="seconds waited")),
                ("run_seconds", models.FloatField(db_default=0.0, verbose_name="seconds run")),
                ("wait_buckets", NumbersField(verbose_name="buckets of waits")),
                ("wait_counts", NumbersField(verbose_name="counts of waits")),
                ("run_buckets", NumbersField(verbose_name="buckets of run times")),
                ("run_counts", NumbersField(verbose_name="counts of run times")),
            ],
            options={
                "verbose_name": "rollup",
                "verbose_name_plural": "rollups",
                "default_permissions": (),
                "indexes": [models.Index(models.F("span"), models.F("starts_at"), name="pgqueue_rollup_starts")],
                "constraints": [
                    models.CheckConstraint(condition=instants("starts_at"), name="pgqueue_rollup_instants"),
                    models.CheckConstraint(
                        condition=models.Q(id__lt=2**62)
                        & numbers(
                            "succeeded", "retried", "dead", "cancelled", "released", "snoozed", "crashed", most=10**15
                        )
                        & numbers("wait_seconds", "run_seconds", least=-(10**15), most=10**15),
                        name="pgqueue_rollup_numbers",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("span__in", ["part", "minute", "hour", "minute_total", "hour_total"])),
                        name="pgqueue_rollup_span",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="UniquenessWindow",
            fields=[
                ("job_id", models.BigIntegerField(primary_key=True, serialize=False, verbose_name="job")),
                ("task_name", NameField(db_collation="C", max_length=100, verbose_name="task")),
                ("unique_key", NameField(db_collation="C", max_length=200, verbose_name="unique key")),
                ("ends_at", models.DateTimeField(verbose_name="ends at")),
            ],
            options={
                "verbose_name": "uniqueness window",
                "verbose_name_plural": "uniqueness windows",
                "db_table": "pgqueue_uniqueness_window",
                "default_permissions": (),
                "indexes": [models.Index(models.F("ends_at"), name="pgqueue_uniqueness_window_ends")],
                "constraints": [
                    models.CheckConstraint(condition=instants("ends_at"), name="pgqueue_uniqueness_window_instants"),
                    models.UniqueConstraint(fields=("task_name", "unique_key"), name="pgqueue_uniqueness_window_key"),
                ],
            },
        ),
        migrations.CreateModel(
            name="LimitState",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("limit_key", NameField(db_collation="C", max_length=200, verbose_name="limit key")),
                ("full_at", models.DateTimeField(verbose_name="full at")),
                ("held_until", models.DateTimeField(null=True, verbose_name="held until")),
            ],
            options={
                "verbose_name": "state of a limit",
                "verbose_name_plural": "states of limits",
                "db_table": "pgqueue_limit_state",
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        models.F("limit_key"),
                        models.F("id"),
                        name="pgqueue_limit_state_key",
                        condition=models.Q(held_until__isnull=True),
                    ),
                    models.Index(
                        models.F("limit_key"),
                        models.F("held_until"),
                        name="pgqueue_limit_state_held",
                        condition=models.Q(held_until__isnull=False),
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(condition=models.Q(id__lt=2**62), name="pgqueue_limit_state_numbers"),
                    models.CheckConstraint(
                        condition=instants("full_at", "held_until"), name="pgqueue_limit_state_instants"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LimitOverride",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("limit_key", NameField(db_collation="C", max_length=200, verbose_name="limit key")),
                ("concurrency", models.IntegerField(null=True, verbose_name="concurrency")),
                ("rate", models.CharField(max_length=20, null=True, verbose_name="rate")),
                ("burst", models.IntegerField(null=True, verbose_name="burst")),
                ("share", models.IntegerField(null=True, verbose_name="share")),
                ("valid_until", models.DateTimeField(null=True, verbose_name="until")),
                ("changed_at", models.DateTimeField(db_default=Now(), verbose_name="changed at")),
                ("changed_by", models.CharField(blank=True, db_default="", max_length=150, verbose_name="by")),
                ("reason", models.TextField(blank=True, db_default="", verbose_name="reason")),
            ],
            options={
                "verbose_name": "override of a limit",
                "verbose_name_plural": "overrides of limits",
                "db_table": "pgqueue_limit_override",
                "permissions": [("change_limits", "Can override limits and end their holds")],
                "default_permissions": ("view",),
                "constraints": [
                    models.CheckConstraint(condition=models.Q(id__lt=2**62), name="pgqueue_limit_override_ids"),
                    models.UniqueConstraint(fields=("limit_key",), name="pgqueue_limit_override_key"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("concurrency__range", (1, 1_000_000_000)),
                            ("burst__range", (1, 1_000_000_000)),
                            ("share__range", (1, 1_000_000_000)),
                        ),
                        name="pgqueue_limit_override_numbers",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("rate__regex", "^0*[1-9][0-9]{0,8}/(0*[1-9][0-9]{0,5})?[smhd]$")),
                        name="pgqueue_limit_override_rate",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("concurrency__isnull", False),
                            ("rate__isnull", False),
                            ("burst__isnull", False),
                            ("share__isnull", False),
                            _connector="OR",
                        ),
                        name="pgqueue_limit_override_values",
                    ),
                    models.CheckConstraint(
                        condition=instants("valid_until", "changed_at"), name="pgqueue_limit_override_instants"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OpenBreaker",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("limit_key", NameField(db_collation="C", max_length=200, verbose_name="limit key")),
                ("opened_at", models.DateTimeField(db_default=Now(), verbose_name="opened at")),
                ("after_execution_id", models.BigIntegerField(verbose_name="after execution")),
                ("probes_failed", models.IntegerField(db_default=0, verbose_name="failed probes")),
                ("probed_at", models.DateTimeField(null=True, verbose_name="probed at")),
            ],
            options={
                "verbose_name": "open circuit breaker",
                "verbose_name_plural": "open circuit breakers",
                "db_table": "pgqueue_open_breaker",
                "default_permissions": (),
                "constraints": [
                    models.CheckConstraint(
                        condition=numbers("probes_failed") & models.Q(id__lt=2**62),
                        name="pgqueue_open_breaker_numbers",
                    ),
                    models.UniqueConstraint(fields=("limit_key",), name="pgqueue_open_breaker_key"),
                    models.CheckConstraint(
                        condition=instants("opened_at", "probed_at"), name="pgqueue_open_breaker_instants"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="BreakerCount",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("limit_key", NameField(db_collation="C", max_length=200, verbose_name="limit key")),
                ("ended_at", models.DateTimeField(verbose_name="ended at")),
                ("succeeded", models.IntegerField(verbose_name="succeeded")),
                ("failed", models.IntegerField(verbose_name="failed")),
            ],
            options={
                "verbose_name": "count of a circuit breaker",
                "verbose_name_plural": "counts of circuit breakers",
                "db_table": "pgqueue_breaker_count",
                "default_permissions": (),
                "indexes": [
                    models.Index(models.F("limit_key"), models.F("ended_at"), name="pgqueue_breaker_count_key")
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=numbers("succeeded", "failed") & models.Q(id__lt=2**62),
                        name="pgqueue_breaker_count_numbers",
                    ),
                    models.CheckConstraint(condition=instants("ended_at"), name="pgqueue_breaker_count_instants"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Installation",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("system_identifier", NameField(db_collation="C", max_length=20, verbose_name="system identifier")),
                ("database_oid", models.BigIntegerField(verbose_name="OID of the database")),
                ("environment", NameField(db_collation="C", max_length=100, verbose_name="environment")),
                ("adopted_at", models.DateTimeField(db_default=Now(), verbose_name="adopted at")),
                ("adopted_by", models.CharField(db_default="", max_length=150, verbose_name="adopted by")),
            ],
            options={
                "verbose_name": "installation",
                "verbose_name_plural": "installations",
                "default_permissions": (),
                "constraints": [
                    models.CheckConstraint(condition=models.Q(id__lt=2**62), name="pgqueue_installation_numbers"),
                    models.UniqueConstraint(
                        fields=("system_identifier", "database_oid", "environment"),
                        name="pgqueue_installation_identity",
                    ),
                    models.CheckConstraint(condition=instants("adopted_at"), name="pgqueue_installation_instants"),
                ],
            },
        ),
        migrations.CreateModel(
            name="ArchivedJob",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("job_id", models.BigIntegerField(verbose_name="job")),
                ("task_name", NameField(db_collation="C", max_length=100, verbose_name="task")),
                ("queue_name", NameField(db_collation="C", max_length=100, verbose_name="queue")),
                ("state", models.CharField(max_length=12, verbose_name="state")),
                ("enqueued_at", models.DateTimeField(verbose_name="enqueued at")),
                ("finished_at", models.DateTimeField(verbose_name="finished at")),
                ("archived_at", models.DateTimeField(db_default=Now(), verbose_name="archived at")),
                ("document", PlainJSONField(verbose_name="document")),
            ],
            options={
                "verbose_name": "archived job",
                "verbose_name_plural": "archived jobs",
                "db_table": "pgqueue_archived_job",
                "default_permissions": (),
                "indexes": [
                    models.Index(models.F("job_id"), name="pgqueue_archived_job_job"),
                    models.Index(models.F("task_name"), models.F("finished_at"), name="pgqueue_archived_job_task"),
                    models.Index(models.F("finished_at"), name="pgqueue_archived_job_finished"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=instants("enqueued_at", "finished_at", "archived_at"),
                        name="pgqueue_archived_job_instants",
                    ),
                    models.CheckConstraint(condition=models.Q(id__lt=2**62), name="pgqueue_archived_job_numbers"),
                ],
            },
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("action", models.CharField(max_length=50, verbose_name="action")),
                ("done_by", models.CharField(blank=True, db_default="", max_length=150, verbose_name="by")),
                ("reason", models.TextField(blank=True, db_default="", verbose_name="reason")),
                ("began_at", models.DateTimeField(db_default=Now(), verbose_name="began at")),
                ("ended_at", models.DateTimeField(null=True, verbose_name="ended at")),
                ("filter", PlainJSONField(verbose_name="filter")),
                ("job_count", models.BigIntegerField(db_default=0, verbose_name="jobs")),
                ("left_count", models.BigIntegerField(db_default=0, verbose_name="jobs left")),
                ("total", models.BigIntegerField(null=True, verbose_name="jobs chosen")),
                ("rate", models.FloatField(null=True, verbose_name="jobs per second")),
                ("stops_on_repeat", models.BooleanField(db_default=False, verbose_name="stops at the first repeat")),
                ("previewed_at", models.DateTimeField(null=True, verbose_name="previewed at")),
                ("next_batch_at", models.DateTimeField(null=True, verbose_name="next batch at")),
                ("cursor", PlainJSONField(null=True, verbose_name="cursor")),
                ("stop_asked_at", models.DateTimeField(null=True, verbose_name="stop asked at")),
                (
                    "stop_asked_by",
                    models.CharField(blank=True, db_default="", max_length=150, verbose_name="stop asked by"),
                ),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("done", "done"),
                            ("stopped", "stopped"),
                            ("repeated", "repeated"),
                            ("failed", "failed"),
                        ],
                        max_length=12,
                        null=True,
                        verbose_name="outcome",
                    ),
                ),
                ("failed_job_id", models.BigIntegerField(null=True, verbose_name="job that failed again")),
                ("error", models.TextField(blank=True, db_default="", verbose_name="error")),
                ("form_token", models.UUIDField(null=True, verbose_name="form")),
            ],
            options={
                "verbose_name": "audit entry",
                "verbose_name_plural": "audit entries",
                "db_table": "pgqueue_audit",
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        models.F("next_batch_at"),
                        condition=models.Q(("next_batch_at__isnull", False)),
                        name="pgqueue_audit_next",
                    ),
                    models.Index(models.F("action"), models.F("began_at"), name="pgqueue_audit_action"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=instants("began_at", "ended_at", "previewed_at", "next_batch_at", "stop_asked_at"),
                        name="pgqueue_audit_instants",
                    ),
                    models.CheckConstraint(
                        condition=numbers("id", "job_count", "left_count", "total", "failed_job_id")
                        & numbers("rate", most=10**15),
                        name="pgqueue_audit_numbers",
                    ),
                    models.CheckConstraint(condition=models.Q(IsJson("filter", "object")), name="pgqueue_audit_filter"),
                    models.UniqueConstraint(
                        condition=models.Q(("form_token__isnull", False)),
                        fields=("form_token",),
                        name="pgqueue_audit_form",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="AuditedJob",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "entry",
                    models.ForeignKey(
                        db_column="audit_id",
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="jobs",
                        to="pgqueue.auditentry",
                        verbose_name="audit entry",
                    ),
                ),
                ("job_id", models.BigIntegerField(verbose_name="job")),
                ("detail", PlainJSONField(null=True, verbose_name="detail")),
            ],
            options={
                "verbose_name": "audited job",
                "verbose_name_plural": "audited jobs",
                "db_table": "pgqueue_audit_job",
                "default_permissions": (),
                "indexes": [models.Index(models.F("entry"), models.F("id"), name="pgqueue_audit_job_entry")],
                "constraints": [
                    models.UniqueConstraint(fields=("job_id", "entry"), name="pgqueue_audit_job_once"),
                    models.CheckConstraint(condition=models.Q(id__lt=2**62), name="pgqueue_audit_job_numbers"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Job",
            # An UPDATE compares each indexed column of the old row with that of the new one, and finds a column by
            # counting from the first. So they come first, and those that are mostly NULL before the texts. With the
            # other columns between, claim and completion cost 5,100 instructions more.
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("run_after", models.DateTimeField(db_default=Now(), verbose_name="run after")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("worker_id", models.BigIntegerField(null=True, verbose_name="worker")),
                ("execution_id", models.BigIntegerField(null=True, verbose_name="execution")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("expires_at", models.DateTimeField(null=True, verbose_name="expires at")),
                ("acknowledged_at", models.DateTimeField(null=True, verbose_name="acknowledged at")),
                ("batch_id", models.BigIntegerField(null=True, verbose_name="batch")),
                ("limit_key", NameField(db_collation="C", max_length=200, null=True, verbose_name="limit key")),
                ("unique_key", NameField(db_collation="C", max_length=200, null=True, verbose_name="unique key")),
                ("limit_order", models.SmallIntegerField(null=True, verbose_name="order")),
                ("unique_ready_only", models.BooleanField(null=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("ready", "ready"),
                            ("running", "running"),
                            ("succeeded", "succeeded"),
                            ("dead", "dead"),
                            ("cancelled", "cancelled"),
                            ("waiting", "waiting"),
                        ],
                        db_default="ready",
                        max_length=12,
                        verbose_name="state",
                    ),
                ),
                ("queue_name", NameField(db_collation="C", db_default="default", max_length=100, verbose_name="queue")),
                ("task_name", NameField(db_collation="C", max_length=100, verbose_name="task")),
                ("enqueued_at", models.DateTimeField(db_default=Now(), verbose_name="enqueued at")),
                ("attempt", models.SmallIntegerField(db_default=0, verbose_name="attempt")),
                ("max_attempts", models.SmallIntegerField(db_default=10, verbose_name="attempts at most")),
                ("crashes", models.SmallIntegerField(db_default=0, verbose_name="crashes")),
                ("isolated", models.BooleanField(db_default=False, verbose_name="isolated")),
                ("limit_weight", models.IntegerField(null=True, verbose_name="weight")),
                ("unknown_since", models.DateTimeField(null=True, verbose_name="unknown since")),
                ("cancel_requested_at", models.DateTimeField(null=True, verbose_name="cancel requested at")),
                ("in_graph", models.BooleanField(null=True)),
                ("arguments", PlainJSONField(verbose_name="arguments")),
                ("headers", PlainJSONField(null=True, verbose_name="headers")),
                ("result", PlainJSONField(null=True, verbose_name="result")),
                ("progress_done", models.FloatField(null=True, verbose_name="done")),
                ("progress_total", models.FloatField(null=True, verbose_name="of")),
                ("progress_message", models.TextField(null=True, verbose_name="message")),
                ("progress_at", models.DateTimeField(null=True, verbose_name="progress reported at")),
            ],
            options={
                "base_manager_name": "objects",
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "permissions": [
                    ("retry_job", "Can retry finished jobs"),
                    ("acknowledge_job", "Can acknowledge dead jobs"),
                    ("cancel_job", "Can cancel jobs"),
                    ("run_job", "Can run waiting jobs now"),
                    ("view_arguments", "Can view arguments and results of jobs"),
                    ("move_job", "Can move waiting jobs to another queue or priority"),
                    ("set_max_attempts_job", "Can change how many attempts of unfinished jobs may count"),
                    ("erase_job", "Can erase values of finished jobs"),
                    ("delete_job", "Can delete finished jobs"),
                    ("edit_and_retry_job", "Can retry finished jobs with other arguments"),
                    ("enqueue_job", "Can enqueue jobs of any task"),
                ],
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        models.F("queue_name"),
                        models.OrderBy(models.F("priority"), descending=True),
                        models.F("run_after"),
                        models.F("id"),
                        condition=models.Q(("limit_key__isnull", True), ("state", "ready")),
                        name="pgqueue_job_ready",
                    ),
                    models.Index(
                        models.F("expires_at"),
                        condition=models.Q(("expires_at__isnull", False), ("state", "ready")),
                        name="pgqueue_job_expiring",
                    ),
                    models.Index(
                        models.F("queue_name"),
                        models.OrderBy(models.F("priority"), descending=True),
                        models.F("limit_key"),
                        models.F("run_after"),
                        models.F("id"),
                        condition=models.Q(("limit_key__isnull", False), ("state", "ready")),
                        name="pgqueue_job_limited",
                    ),
                    models.Index(
                        models.F("worker_id"),
                        models.F("execution_id"),
                        condition=models.Q(("state", "running"), ("worker_id__isnull", False)),
                        name="pgqueue_job_running",
                    ),
                    models.Index(
                        models.F("limit_key"),
                        models.F("execution_id"),
                        condition=models.Q(("limit_key__isnull", False), ("state", "running")),
                        name="pgqueue_job_running_key",
                    ),
                    models.Index(
                        models.F("limit_key"),
                        models.F("id"),
                        condition=models.Q(
                            ("limit_order__isnull", False),
                            models.Q(
                                ("state__in", ["ready", "running"]),
                                models.Q(("limit_order", 2), ("state", "dead")),
                                _connector="OR",
                            ),
                        ),
                        name="pgqueue_job_ordered",
                    ),
                    models.Index(
                        models.F("state"),
                        models.F("finished_at"),
                        condition=models.Q(("finished_at__isnull", False)),
                        name="pgqueue_job_finished",
                    ),
                    models.Index(
                        models.F("finished_at"),
                        condition=models.Q(("acknowledged_at__isnull", True), ("state", "dead")),
                        name="pgqueue_job_dead",
                    ),
                    models.Index(
                        models.F("task_name"),
                        models.F("finished_at"),
                        condition=models.Q(("finished_at__isnull", False)),
                        name="pgqueue_job_task",
                    ),
                    models.Index(
                        models.F("task_name"),
                        models.F("unique_key"),
                        models.F("state"),
                        models.F("finished_at"),
                        models.F("id"),
                        condition=models.Q(("finished_at__isnull", False), ("unique_key__isnull", False)),
                        name="pgqueue_job_keyed",
                    ),
                    models.Index(
                        condition=models.Q(("batch_id__isnull", False)),
                        fields=["batch_id", "state"],
                        name="pgqueue_job_batch",
                    ),
                    models.Index(condition=models.Q(("state", "waiting")), fields=["id"], name="pgqueue_job_waiting"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(
                            ("unique_key__isnull", False),
                            models.Q(
                                ("state", "ready"),
                                models.Q(("state", "running"), ("unique_ready_only__isnull", True)),
                                _connector="OR",
                            ),
                        ),
                        fields=("task_name", "unique_key"),
                        name="pgqueue_job_unique",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("run_after__gte", datetime(2000, 1, 1, 0, 0, tzinfo=UTC)),
                            ("run_after__lt", datetime(9000, 1, 1, 0, 0, tzinfo=UTC)),
                        ),
                        name="pgqueue_job_run_after",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("finished_at__isnull", True), OneOf("state", "ready", "running", "waiting")),
                            models.Q(("finished_at__isnull", False), OneOf("state", "succeeded", "dead", "cancelled")),
                            _connector="OR",
                        ),
                        name="pgqueue_job_state",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            GreaterThanOrEqual(Least("attempt", "crashes"), 0),
                            LessThanOrEqual(Greatest("attempt", Untyped(1)), models.F("max_attempts")),
                            ("id__lt", 2**62),
                        ),
                        name="pgqueue_job_counters",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("unique_ready_only", True)), name="pgqueue_job_unique_ready_only"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("limit_key__gt", ""),
                            ("limit_weight__gte", 1),
                            models.Q(
                                ("limit_key__isnull", False),
                                models.Q(("limit_order__isnull", True), ("limit_weight__isnull", True)),
                                _connector="OR",
                            ),
                        ),
                        name="pgqueue_job_limit",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(GreaterThan(Least("task_name", "queue_name"), "")), name="pgqueue_job_names"
                    ),
                    models.CheckConstraint(
                        condition=instants("enqueued_at", "finished_at", "unknown_since", "expires_at"),
                        name="pgqueue_job_instants",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="DeadJob",
            fields=[],
            options={
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("pgqueue.job",),
        ),
        migrations.CreateModel(
            name="Pause",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "kind",
                    models.CharField(
                        choices=[("queue", "queue"), ("task", "task"), ("limit", "limit")],
                        max_length=5,
                        verbose_name="kind",
                    ),
                ),
                ("name", NameField(db_collation="C", max_length=200, verbose_name="name")),
                ("paused_at", models.DateTimeField(db_default=Now(), verbose_name="paused at")),
                ("paused_until", models.DateTimeField(blank=True, null=True, verbose_name="until")),
                ("paused_by", models.CharField(blank=True, db_default="", max_length=150, verbose_name="by")),
                ("reason", models.TextField(blank=True, db_default="", verbose_name="reason")),
            ],
            options={
                "verbose_name": "pause",
                "verbose_name_plural": "pauses",
                "permissions": [("pause_queue", "Can pause and resume queues, tasks and limits")],
                "default_permissions": ("view",),
                "constraints": [
                    models.CheckConstraint(condition=models.Q(id__lt=2**62), name="pgqueue_pause_numbers"),
                    models.UniqueConstraint(fields=("kind", "name"), name="pgqueue_pause_name"),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ["queue", "task", "limit"])), name="pgqueue_pause_kind"
                    ),
                    models.CheckConstraint(
                        condition=instants("paused_at", "paused_until"), name="pgqueue_pause_instants"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", NameField(db_collation="C", max_length=200, verbose_name="name")),
                (
                    "origin",
                    models.CharField(
                        choices=[("code", "code"), ("admin", "admin")],
                        db_default="admin",
                        max_length=5,
                        verbose_name="defined in",
                    ),
                ),
                ("task_name", models.CharField(max_length=100, verbose_name="task")),
                ("arguments", PlainJSONField(verbose_name="arguments")),
                ("expression", models.CharField(max_length=200, verbose_name="when")),
                ("time_zone", models.CharField(db_default="UTC", max_length=64, verbose_name="time zone")),
                (
                    "missed",
                    models.CharField(
                        choices=[
                            ("skip", "skip them"),
                            ("latest", "run once for all of them"),
                            ("all", "run each, the last 100 at most"),
                        ],
                        db_default="latest",
                        max_length=6,
                        verbose_name="missed runs",
                    ),
                ),
                (
                    "if_running",
                    models.CharField(
                        choices=[("overlap", "run beside it"), ("skip", "skip this tick"), ("queue", "run after it")],
                        db_default="overlap",
                        max_length=7,
                        verbose_name="if one still runs",
                    ),
                ),
                ("jitter_seconds", models.FloatField(db_default=0, verbose_name="jitter")),
                ("queue_name", models.CharField(db_default="default", max_length=100, verbose_name="queue")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("max_attempts", models.SmallIntegerField(db_default=10, verbose_name="attempts at most")),
                ("enabled", models.BooleanField(db_default=True, verbose_name="enabled")),
                ("paused_until", models.DateTimeField(null=True, verbose_name="paused until")),
                ("next_run_at", models.DateTimeField(verbose_name="next run")),
                ("last_run_at", models.DateTimeField(null=True, verbose_name="last run")),
                ("last_job_id", models.BigIntegerField(null=True, verbose_name="last job")),
                ("revision", models.BigIntegerField(db_default=0)),
                ("digest", models.CharField(db_default="", max_length=32)),
                ("former_digests", models.TextField(db_default="")),
                ("confirmed_at", models.DateTimeField(null=True)),
                ("expires_seconds", models.FloatField(null=True)),
                ("is_unique", models.BooleanField(db_default=False)),
                ("is_limited", models.BooleanField(db_default=False)),
                ("has_own_queue", models.BooleanField(db_default=False)),
                ("has_own_priority", models.BooleanField(db_default=False)),
                ("problem", models.TextField(db_default="", verbose_name="problem")),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
                "permissions": [
                    ("run_schedule", "Can run schedules now"),
                    ("pause_schedule", "Can pause and resume schedules, and skip their runs"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=numbers("id", "last_job_id", "revision")
                        & numbers("jitter_seconds", "expires_seconds", most=10**15)
                        & models.Q(max_attempts__gte=1),
                        name="pgqueue_schedule_numbers",
                    ),
                    models.UniqueConstraint(fields=("origin", "name"), name="pgqueue_schedule_name"),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("if_running__in", ["overlap", "skip", "queue"]),
                            ("missed__in", ["skip", "latest", "all"]),
                            ("origin__in", ["code", "admin"]),
                        ),
                        name="pgqueue_schedule_choices",
                    ),
                    models.CheckConstraint(
                        condition=instants("next_run_at", "last_run_at", "confirmed_at", "paused_until"),
                        name="pgqueue_schedule_instants",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ScheduleRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("tick_at", models.DateTimeField(verbose_name="tick")),
                ("fired_at", models.DateTimeField(db_default=Now(), verbose_name="fired at")),
                ("job_id", models.BigIntegerField(null=True, verbose_name="job")),
                ("skipped_by", models.CharField(max_length=150, null=True, verbose_name="skipped by")),
                (
                    "schedule",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.DO_NOTHING,
                        related_name="runs",
                        to="pgqueue.schedule",
                        verbose_name="schedule",
                    ),
                ),
            ],
            options={
                "verbose_name": "run of a schedule",
                "verbose_name_plural": "runs of schedules",
                "default_permissions": (),
                "indexes": [models.Index(models.F("job_id"), name="pgqueue_schedulerun_job")],
                "constraints": [
                    models.CheckConstraint(
                        condition=instants("tick_at", "fired_at"), name="pgqueue_schedulerun_instants"
                    ),
                    models.CheckConstraint(condition=models.Q(id__lt=2**62), name="pgqueue_schedulerun_numbers"),
                    models.UniqueConstraint(fields=("schedule", "tick_at"), name="pgqueue_schedulerun_tick"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Execution",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="executions",
                        to="pgqueue.job",
                        verbose_name="job",
                    ),
                ),
                (
                    "worker",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.DO_NOTHING,
                        related_name="executions",
                        to="pgqueue.worker",
                        verbose_name="worker",
                    ),
                ),
                ("claimed_at", models.DateTimeField(db_default=Now(), verbose_name="claimed at")),
                ("lease_expires_at", models.DateTimeField(verbose_name="lease expires at")),
                ("attempt", models.SmallIntegerField(verbose_name="attempt")),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("succeeded", "succeeded"),
                            ("failed", "failed"),
                            ("crashed", "crashed"),
                            ("cancelled", "cancelled"),
                            ("released", "released"),
                            ("snoozed", "snoozed"),
                            ("suspended", "suspended"),
                        ],
                        max_length=12,
                        null=True,
                        verbose_name="outcome",
                    ),
                ),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("exception_class", models.CharField(db_default="", max_length=200, verbose_name="exception")),
                ("error", models.TextField(db_default="", verbose_name="error")),
                ("traceback", models.TextField(db_default="", verbose_name="traceback")),
                ("limit_key", NameField(db_collation="C", max_length=200, null=True, verbose_name="limit key")),
                ("limit_weight", models.IntegerField(null=True, verbose_name="weight")),
            ],
            options={
                "verbose_name": "execution",
                "verbose_name_plural": "executions",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(models.F("job"), models.F("id"), name="pgqueue_execution_job"),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            Exact(IsNull(models.F("finished_at"), rhs=True), IsNull(models.F("outcome"), rhs=True)),
                            OneOf(
                                *("outcome", "succeeded", "failed", "crashed", "cancelled", "released"),
                                *("snoozed", "suspended"),
                            ),
                            ("id__lt", 2**62),
                        ),
                        name="pgqueue_execution_outcome",
                    ),
                    models.CheckConstraint(
                        condition=instants("claimed_at", "started_at", "finished_at", "lease_expires_at"),
                        name="pgqueue_execution_instants",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ExecutionLog",
            fields=[
                (
                    "execution",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=models.CASCADE,
                        primary_key=True,
                        related_name="log",
                        serialize=False,
                        to="pgqueue.execution",
                        verbose_name="execution",
                    ),
                ),
                ("first_lines", PlainJSONField(verbose_name="first lines")),
                ("last_lines", PlainJSONField(verbose_name="last lines")),
                ("cut_lines", models.BigIntegerField(verbose_name="lines cut")),
            ],
            options={
                "verbose_name": "execution log",
                "verbose_name_plural": "execution logs",
                "db_table": "pgqueue_execution_log",
                "default_permissions": (),
                "constraints": [
                    models.CheckConstraint(condition=numbers("cut_lines"), name="pgqueue_execution_log_numbers"),
                ],
            },
        ),
        migrations.CreateModel(
            name="SearchKey",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "job_id", "name", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="search_keys",
                        to="pgqueue.job",
                        verbose_name="job",
                    ),
                ),
                ("name", NameField(db_collation="C", max_length=100, verbose_name="name")),
                ("value", NameField(db_collation="C", max_length=200, verbose_name="value")),
            ],
            options={
                "verbose_name": "search key",
                "verbose_name_plural": "search keys",
                "db_table": "pgqueue_search_key",
                "default_permissions": (),
                "indexes": [models.Index(fields=["name", "value", "-job"], name="pgqueue_search_key_value")],
            },
        ),
        migrations.CreateModel(
            name="SentEvent",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", NameField(db_collation="C", max_length=100, verbose_name="name")),
                ("key", NameField(db_collation="C", max_length=200, verbose_name="key")),
                ("payload", PlainJSONField(null=True, verbose_name="payload")),
                ("sent_at", models.DateTimeField(db_default=Now(), verbose_name="sent at")),
            ],
            options={
                "verbose_name": "event",
                "verbose_name_plural": "events",
                "db_table": "pgqueue_event",
                "default_permissions": (),
                "indexes": [models.Index(fields=["name", "key", "id"], name="pgqueue_event_key")],
                "constraints": [
                    models.CheckConstraint(condition=instants("sent_at"), name="pgqueue_event_instants"),
                    models.CheckConstraint(condition=models.Q(id__lt=2**62), name="pgqueue_event_numbers"),
                ],
            },
        ),
        migrations.CreateModel(
            name="JobStep",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "job_id", "name", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="steps",
                        to="pgqueue.job",
                        verbose_name="job",
                    ),
                ),
                ("name", NameField(db_collation="C", max_length=100, verbose_name="name")),
                ("position", models.FloatField(verbose_name="position")),
                (
                    "kind",
                    models.CharField(
                        choices=[("step", "step"), ("sleep", "sleep"), ("event", "event")],
                        max_length=12,
                        verbose_name="kind",
                    ),
                ),
                ("attempt", models.SmallIntegerField(verbose_name="attempt")),
                ("tries", models.IntegerField(db_default=1, verbose_name="tries")),
                ("result", PlainJSONField(null=True, verbose_name="result")),
                ("error", models.TextField(db_default="", verbose_name="error")),
                ("started_at", models.DateTimeField(verbose_name="started at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("wake_at", models.DateTimeField(null=True, verbose_name="wakes at")),
                ("event_name", NameField(db_collation="C", max_length=100, null=True, verbose_name="event")),
                ("event_key", NameField(db_collation="C", max_length=200, null=True, verbose_name="key")),
                ("event_id", models.BigIntegerField(null=True, verbose_name="received event")),
                ("compensation", PlainJSONField(null=True, verbose_name="compensation")),
                (
                    "compensation_arguments",
                    PlainJSONField(null=True, verbose_name="arguments of the compensation"),
                ),
                ("compensation_id", models.BigIntegerField(null=True, verbose_name="compensated by")),
            ],
            options={
                "verbose_name": "step",
                "verbose_name_plural": "steps",
                "db_table": "pgqueue_step",
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        condition=models.Q(("event_name__isnull", False), ("finished_at__isnull", True)),
                        fields=["event_name", "event_key", "job"],
                        name="pgqueue_step_waiting",
                    ),
                    models.Index(
                        condition=models.Q(("compensation_id__isnull", False)),
                        fields=["compensation_id"],
                        name="pgqueue_step_undone",
                    ),
                    models.Index(
                        condition=models.Q(("compensation__isnull", False)),
                        fields=["job"],
                        name="pgqueue_step_compensation",
                    ),
                    models.Index(
                        condition=models.Q(("event_name__isnull", True), ("finished_at__isnull", True)),
                        fields=["wake_at"],
                        name="pgqueue_step_wakes",
                    ),
                    models.Index(
                        condition=models.Q(("event_id__isnull", False)), fields=["event_id"], name="pgqueue_step_event"
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=instants("started_at", "finished_at", "wake_at"), name="pgqueue_step_instants"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(IsJson("compensation", "object")), name="pgqueue_step_calls"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="JobBatch",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("description", models.TextField(db_default="", verbose_name="description")),
                ("created_at", models.DateTimeField(db_default=Now(), verbose_name="created at")),
                ("closed_at", models.DateTimeField(null=True, verbose_name="closed at")),
                ("failed_at", models.DateTimeField(null=True, verbose_name="failed at")),
                ("completed_at", models.DateTimeField(null=True, verbose_name="completed at")),
                ("succeeded_at", models.DateTimeField(null=True, verbose_name="succeeded at")),
                ("on_success", PlainJSONField(null=True, verbose_name="on success")),
                ("on_complete", PlainJSONField(null=True, verbose_name="on complete")),
                ("on_failure", PlainJSONField(null=True, verbose_name="on failure")),
                (
                    "parent",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=models.DO_NOTHING,
                        related_name="nested",
                        to="pgqueue.jobbatch",
                        verbose_name="part of",
                    ),
                ),
            ],
            options={
                "base_manager_name": "objects",
                "verbose_name": "batch",
                "verbose_name_plural": "batches",
                "db_table": "pgqueue_batch",
                "default_permissions": ("view",),
                "permissions": [("close_batch", "Can close batches")],
                "indexes": [
                    models.Index(
                        condition=models.Q(("parent__isnull", False)), fields=["parent"], name="pgqueue_batch_parent"
                    ),
                    models.Index(
                        condition=models.Q(("completed_at__isnull", True)),
                        fields=["id"],
                        name="pgqueue_batch_incomplete",
                    ),
                    models.Index(
                        condition=models.Q(("succeeded_at__isnull", True)),
                        fields=["id"],
                        name="pgqueue_batch_unsettled",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=instants("created_at", "closed_at", "failed_at", "completed_at", "succeeded_at"),
                        name="pgqueue_batch_instants",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("id__lt", 2**62), ("parent__lt", models.F("id"))),
                        name="pgqueue_batch_numbers",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(IsJson("on_success", "object"))
                        & models.Q(IsJson("on_complete", "object"))
                        & models.Q(IsJson("on_failure", "object")),
                        name="pgqueue_batch_calls",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="BatchRemoval",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("batch_id", models.BigIntegerField(verbose_name="batch")),
                ("state", models.CharField(max_length=12, verbose_name="state")),
                ("count", models.BigIntegerField(verbose_name="jobs")),
            ],
            options={
                "verbose_name": "removed jobs of a batch",
                "verbose_name_plural": "removed jobs of batches",
                "db_table": "pgqueue_batch_removal",
                "default_permissions": (),
                "indexes": [models.Index(fields=["batch_id"], name="pgqueue_batch_removal_batch")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(OneOf("state", "succeeded", "dead", "cancelled")),
                        name="pgqueue_batch_removal_state",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(id__lt=2**62) & numbers("count", most=10**15),
                        name="pgqueue_batch_removal_numbers",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="JobDependency",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "job_id", "needs_id", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.CASCADE,
                        related_name="dependencies",
                        to="pgqueue.job",
                        verbose_name="job",
                    ),
                ),
                (
                    "needs",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=models.DO_NOTHING,
                        related_name="dependents",
                        to="pgqueue.job",
                        verbose_name="needs",
                    ),
                ),
                (
                    "policy",
                    models.CharField(
                        choices=[("cancel", "cancel"), ("ignore", "ignore"), ("block", "block")],
                        max_length=12,
                        verbose_name="if the dependency fails",
                    ),
                ),
                ("has_cancelled", models.BooleanField(null=True, verbose_name="has cancelled")),
            ],
            options={
                "verbose_name": "dependency",
                "verbose_name_plural": "dependencies",
                "db_table": "pgqueue_dependency",
                "default_permissions": (),
                "indexes": [models.Index(fields=["needs", "job"], name="pgqueue_dependency_needs")],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("policy__in", ["cancel", "ignore", "block"])),
                        name="pgqueue_dependency_policy",
                    ),
                ],
            },
        ),
        migrations.RunPython(set_storage, migrations.RunPython.noop),
    ]
