"""The library's documents."""

import django.contrib.postgres.indexes
import django.contrib.postgres.search
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Document",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("path", models.CharField(max_length=1000, unique=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("python", "Python"),
                            ("c", "C"),
                            ("sql", "SQL"),
                            ("web", "Web"),
                            ("prose", "Prose"),
                            ("binary", "Binary"),
                        ],
                        max_length=10,
                    ),
                ),
                ("size", models.BigIntegerField(verbose_name="bytes")),
                ("added_at", models.DateTimeField(auto_now_add=True)),
                ("indexed_at", models.DateTimeField(null=True)),
                ("title", models.CharField(blank=True, max_length=200)),
                ("sha256", models.CharField(blank=True, max_length=64)),
                ("lines", models.IntegerField(null=True)),
                ("words", models.IntegerField(null=True)),
                ("vector", django.contrib.postgres.search.SearchVectorField(null=True)),
            ],
            options={
                "ordering": ["path"],
                "indexes": [
                    django.contrib.postgres.indexes.GinIndex(models.F("vector"), name="library_document_vector")
                ],
            },
        ),
    ]
