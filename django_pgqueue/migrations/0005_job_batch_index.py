"""The index of the jobs of batches. An interrupted build can be repeated."""

from django.db import migrations, models

from django_pgqueue.db.migration_operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("pgqueue", "0004_job_batch")]

    operations = [
        BuildIndex(
            "job",
            models.Index(
                condition=models.Q(("batch_id__isnull", False)),
                fields=["batch_id", "state"],
                name="pgqueue_job_batch",
            ),
        ),
    ]
