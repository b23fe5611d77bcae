"""The tables of durable steps and of events."""

from django.db import migrations, models
from django.db.models.functions import Now

from django_pgqueue.db.fields import NameField, PlainJSONField
from django_pgqueue.db.migration_operations import LockTable, WidenCheck

OUTCOMES = ("succeeded", "failed", "crashed", "cancelled", "released", "snoozed", "suspended")


class Migration(migrations.Migration):
    dependencies = [("pgqueue", "0001_initial")]

    operations = [
        LockTable("execution"),
        WidenCheck(
            "execution",
            models.CheckConstraint(
                condition=models.Q(("outcome__in", list(OUTCOMES))), name="pgqueue_execution_outcome"
            ),
        ),
        migrations.AlterField(
            model_name="execution",
            name="outcome",
            field=models.CharField(
                choices=[(outcome, outcome) for outcome in OUTCOMES],
                max_length=12,
                null=True,
                verbose_name="outcome",
            ),
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
                    )
                ],
            },
        ),
    ]
