"""The batch of a job."""

from django.db import migrations, models

from django_pgqueue.db.migration_operations import LockTable


class Migration(migrations.Migration):
    dependencies = [("pgqueue", "0003_batches")]

    operations = [
        LockTable("job"),
        migrations.AddField("job", "batch_id", models.BigIntegerField(null=True, verbose_name="batch")),
    ]
