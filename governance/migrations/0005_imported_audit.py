"""Audit rows that came with an imported namespace: kept as history, apart from this database's own chain."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

FORWARD = """
CREATE TRIGGER imported_audit_append_only BEFORE UPDATE OR DELETE ON governance_importedaudit
  FOR EACH ROW EXECUTE FUNCTION loom_append_only();
CREATE TRIGGER imported_audit_no_truncate BEFORE TRUNCATE ON governance_importedaudit
  FOR EACH STATEMENT EXECUTE FUNCTION loom_append_only();
"""
BACK = """
DROP TRIGGER imported_audit_no_truncate ON governance_importedaudit;
DROP TRIGGER imported_audit_append_only ON governance_importedaudit;
"""


class Migration(migrations.Migration):
    """The table and its guards."""

    dependencies = [("governance", "0004_holds")]
    operations = [
        migrations.CreateModel(
            name="ImportedAudit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("row", models.TextField()),
                ("imported_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                (
                    "namespace",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="imported_audit",
                        to="governance.namespace",
                    ),
                ),
            ],
            options={"ordering": ["id"]},
        ),
        migrations.RunSQL(FORWARD, BACK),
    ]
