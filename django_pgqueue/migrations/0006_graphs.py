"""The graphs of workflows: the dependencies of jobs, and the state `waiting`."""

import django.db.models.deletion
from django.db import migrations, models

from django_pgqueue.db.migration_operations import LockTable, WidenCheck

STATES = ("ready", "running", "succeeded", "dead", "cancelled", "waiting")
POLICIES = ("cancel", "ignore", "block")


class Migration(migrations.Migration):
    dependencies = [("pgqueue", "0005_job_batch_index")]

    operations = [
        LockTable("job"),
        WidenCheck(
            "job",
            models.CheckConstraint(condition=models.Q(("state__in", list(STATES))), name="pgqueue_job_state"),
        ),
        migrations.AddField("job", "in_graph", models.BooleanField(null=True)),
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
                        on_delete=django.db.models.deletion.CASCADE,
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
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="dependents",
                        to="pgqueue.job",
                        verbose_name="needs",
                    ),
                ),
                (
                    "policy",
                    models.CharField(
                        choices=[(policy, policy) for policy in POLICIES],
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
                        condition=models.Q(("policy__in", list(POLICIES))), name="pgqueue_dependency_policy"
                    ),
                ],
            },
        ),
    ]
