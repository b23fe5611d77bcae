"""Jobs, executions and workers."""

import datetime

import django.db.models.deletion
import django.db.models.functions.datetime
from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

import django_pgqueue.db.fields
import django_pgqueue.states

# Jobs and executions are updated a few times each and then deleted: room in the page keeps those updates next to the
# row, and autovacuum comes by dead rows in the thousands instead of by a fifth of a large table. Half a page is enough,
# for the first version is gone before the third comes: against a fillfactor of 70, claim and finish wrote 1,425 bytes
# of WAL a job instead of 1,543, and the tables came out smaller, 306 and 216 bytes a job instead of 364 and 239.
STORAGE = """
ALTER TABLE pgqueue_job SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1, autovacuum_vacuum_cost_limit = 2000
);
ALTER TABLE pgqueue_execution SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 1000,
    autovacuum_vacuum_cost_delay = 1, autovacuum_vacuum_cost_limit = 2000
);
"""


def set_storage(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Tell PostgreSQL; a second database of another kind, which `migrate` may be run on too, has no such settings."""
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
                ("queue_names", models.TextField(db_default="", verbose_name="queues")),
                ("concurrency", models.IntegerField(verbose_name="concurrency")),
                (
                    "started_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="started at"
                    ),
                ),
                (
                    "last_beat_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="last beat at"
                    ),
                ),
                ("stopped_at", models.DateTimeField(null=True, verbose_name="stopped at")),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Job",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("task_name", models.CharField(max_length=100, verbose_name="task")),
                ("queue_name", models.CharField(db_default="default", max_length=100, verbose_name="queue")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("arguments", django_pgqueue.db.fields.PlainJSONField(verbose_name="arguments")),
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
                (
                    "run_after",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="run after"
                    ),
                ),
                ("attempt", models.SmallIntegerField(db_default=0, verbose_name="attempt")),
                ("max_attempts", models.SmallIntegerField(db_default=10, verbose_name="attempts at most")),
                ("crashes", models.SmallIntegerField(db_default=0, verbose_name="crashes")),
                (
                    "enqueued_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="enqueued at"
                    ),
                ),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("cancel_requested_at", models.DateTimeField(null=True, verbose_name="cancel requested at")),
                ("unknown_since", models.DateTimeField(null=True, verbose_name="unknown since")),
                ("limit_key", models.CharField(max_length=100, null=True)),
                ("result", django_pgqueue.db.fields.PlainJSONField(null=True, verbose_name="result")),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "permissions": [
                    ("retry_job", "Can retry finished jobs"),
                    ("cancel_job", "Can cancel jobs"),
                    ("run_job", "Can run waiting jobs now"),
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
                        models.F("state"),
                        models.F("finished_at"),
                        condition=models.Q(("finished_at__isnull", False)),
                        name="pgqueue_job_finished",
                    ),
                    models.Index(
                        models.F("task_name"),
                        models.F("finished_at"),
                        condition=models.Q(("finished_at__isnull", False)),
                        name="pgqueue_job_task",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("finished_at__isnull", False),
                                (
                                    "state__in",
                                    [
                                        django_pgqueue.states.State["CANCELLED"],
                                        django_pgqueue.states.State["DEAD"],
                                        django_pgqueue.states.State["SUCCEEDED"],
                                    ],
                                ),
                            ),
                            models.Q(
                                models.Q(
                                    (
                                        "state__in",
                                        [
                                            django_pgqueue.states.State["CANCELLED"],
                                            django_pgqueue.states.State["DEAD"],
                                            django_pgqueue.states.State["SUCCEEDED"],
                                        ],
                                    ),
                                    _negated=True,
                                ),
                                ("finished_at__isnull", True),
                            ),
                            _connector="OR",
                        ),
                        name="pgqueue_job_finished_at",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("run_after__gte", datetime.datetime(2000, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                            ("run_after__lt", datetime.datetime(9000, 1, 1, 0, 0, tzinfo=datetime.UTC)),
                        ),
                        name="pgqueue_job_run_after",
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
            name="Execution",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
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
                        ],
                        max_length=12,
                        null=True,
                        verbose_name="outcome",
                    ),
                ),
                (
                    "claimed_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), verbose_name="claimed at"
                    ),
                ),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                ("finished_at", models.DateTimeField(null=True, verbose_name="finished at")),
                ("lease_expires_at", models.DateTimeField(verbose_name="lease expires at")),
                ("exception_class", models.CharField(db_default="", max_length=200, verbose_name="exception")),
                ("error", models.TextField(db_default="", verbose_name="error")),
                ("traceback", models.TextField(db_default="", verbose_name="traceback")),
                (
                    "job",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
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
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="executions",
                        to="pgqueue.worker",
                        verbose_name="worker",
                    ),
                ),
            ],
            options={
                "verbose_name": "execution",
                "verbose_name_plural": "executions",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        models.F("worker"),
                        models.F("id"),
                        condition=models.Q(("finished_at__isnull", True)),
                        name="pgqueue_execution_open",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("attempt__gte", 0), ("finished_at__isnull", True)),
                        fields=("job",),
                        name="pgqueue_execution_one_open",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("finished_at__isnull", True), ("outcome__isnull", True)),
                            models.Q(("finished_at__isnull", False), ("outcome__isnull", False)),
                            _connector="OR",
                        ),
                        name="pgqueue_execution_closed",
                    ),
                ],
            },
        ),
        migrations.RunPython(set_storage, migrations.RunPython.noop),
    ]
