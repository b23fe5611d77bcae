"""The compensation of a durable step."""

from django.db import migrations, models

from django_pgqueue.db.fields import PlainJSONField
from django_pgqueue.db.migration_operations import LockTable


class Migration(migrations.Migration):
    dependencies = [("pgqueue", "0007_waiting_index")]

    operations = [
        LockTable("jobstep"),
        migrations.AddField("jobstep", "compensation", PlainJSONField(null=True, verbose_name="compensation")),
        migrations.AddField(
            "jobstep",
            "compensation_arguments",
            PlainJSONField(null=True, verbose_name="arguments of the compensation"),
        ),
        migrations.AddField(
            "jobstep", "compensation_id", models.BigIntegerField(null=True, verbose_name="compensated by")
        ),
    ]
