"""A namespace's language."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("governance", "0004_holds"), ("memories", "0006_chunks_and_graph")]
    operations = [
        migrations.CreateModel(
            name="TextConfig",
            fields=[
                (
                    "namespace",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="text_config",
                        serialize=False,
                        to="governance.namespace",
                    ),
                ),
                ("language", models.CharField(max_length=32)),
                ("previous", models.CharField(blank=True, default="", max_length=32)),
                ("reindexed_to", models.BigIntegerField(default=0)),
            ],
        ),
    ]
