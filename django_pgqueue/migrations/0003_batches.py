"""The tables of batches."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models.functions import Now

from django_pgqueue.db.fields import PlainJSONField


class Migration(migrations.Migration):
    dependencies = [("pgqueue", "0002_steps")]

    operations = [
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
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="nested",
                        to="pgqueue.jobbatch",
                        verbose_name="part of",
                    ),
                ),
            ],
            options={
                "verbose_name": "batch",
                "verbose_name_plural": "batches",
                "db_table": "pgqueue_batch",
                "default_permissions": ("view",),
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
            },
        ),
    ]
