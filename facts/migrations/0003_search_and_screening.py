import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """The corpus by owner, and which catalogue screened a fact."""

    dependencies = [
        ("facts", "0003_vectors_by_embedder"),
        ("governance", "0005_imported_audit"),
    ]

    operations = [
        migrations.CreateModel(
            name="FactCorpusStripe",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "namespace_id",
                        "owner",
                        "stripe",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "namespace",
                    models.ForeignKey(
                        db_index=False, on_delete=django.db.models.deletion.CASCADE, to="governance.namespace"
                    ),
                ),
                ("owner", models.CharField(max_length=128)),
                ("stripe", models.SmallIntegerField()),
                ("docs", models.BigIntegerField()),
            ],
        ),
        migrations.AddField(
            model_name="factposting",
            name="owner",
            field=models.CharField(default="-", max_length=128),
        ),
        migrations.AddField(
            model_name="lineage",
            name="screened_with",
            field=models.CharField(blank=True, db_default="", default="", max_length=32),
        ),
        migrations.AddIndex(
            model_name="factflag",
            index=models.Index(
                condition=models.Q(("acknowledged_at__isnull", True)),
                fields=["version"],
                name="fact_flag_unread",
            ),
        ),
        migrations.AddIndex(
            model_name="lineage",
            index=models.Index(fields=["screened_with", "id"], name="fact_screened"),
        ),
    ]
