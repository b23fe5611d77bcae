from django.db import migrations, models

from django_pgqueue.db.migration_operations import LockTable


class Migration(migrations.Migration):
    dependencies = [
        ("pgqueue", "0011_hold"),
    ]

    operations = [
        LockTable("schedule"),
        migrations.AddField(
            model_name="schedule",
            name="expires_seconds",
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name="schedule",
            name="is_unique",
            field=models.BooleanField(db_default=False),
        ),
        migrations.AddField(
            model_name="schedule",
            name="problem",
            field=models.TextField(db_default="", verbose_name="problem"),
        ),
    ]
