from django.db import migrations, models

from django_pgqueue.db.migration_operations import BuildUniqueIndex


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("pgqueue", "0009_job_unique_key"),
    ]

    operations = [
        BuildUniqueIndex(
            model_name="job",
            constraint=models.UniqueConstraint(
                fields=["task_name", "unique_key"],
                name="pgqueue_job_unique",
                condition=models.Q(unique_key__isnull=False)
                & (models.Q(state="ready") | models.Q(state="running", unique_ready_only__isnull=True)),
            ),
        ),
    ]
