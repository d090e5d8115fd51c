"""Erasure requests, and the question that every erasing function asks first."""

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

# Nothing beside redaction is erased but under a request that runs, and only where that request reaches.
FORWARD = """
CREATE FUNCTION loom_erasure_reaches(p_request bigint, p_namespace bigint) RETURNS bool
LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (
    SELECT FROM public.governance_erasurerequest r JOIN public.governance_namespace n ON n.org_id = r.org_id
    WHERE r.id = p_request AND r.state = 'running' AND n.id = p_namespace
      AND (r.scope = 'org' OR r.namespace_id = n.id));
END $$;
GRANT USAGE ON SCHEMA public TO loom_eraser;
GRANT SELECT ON governance_erasurerequest, governance_namespace TO loom_eraser;
"""
ROLE = """
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'loom_eraser') THEN
    IF NOT (SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user) THEN
      RAISE EXCEPTION 'the role loom_eraser is missing; as a superuser run once: '
        'CREATE ROLE loom_eraser NOLOGIN; GRANT loom_eraser TO %;', current_user;
    END IF;
    CREATE ROLE loom_eraser NOLOGIN;
  END IF;
END $$;
"""
BACK = "DROP FUNCTION loom_erasure_reaches(bigint, bigint);"


class Migration(migrations.Migration):
    """The table and the function."""

    dependencies = [
        ("governance", "0007_plans_frozen"),
    ]

    operations = [
        migrations.CreateModel(
            name="ErasureRequest",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "scope",
                    models.CharField(
                        choices=[("namespace", "Namespace"), ("org", "Org")],
                        default="namespace",
                        max_length=9,
                    ),
                ),
                ("user_id", models.CharField(blank=True, default="", max_length=128)),
                ("agent", models.CharField(blank=True, default="", max_length=128)),
                ("session_id", models.CharField(blank=True, default="", max_length=128)),
                (
                    "node_ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), default=list, size=None
                    ),
                ),
                ("subject", models.TextField(blank=True, default="")),
                ("raw", models.BooleanField(default=True)),
                ("reason", models.TextField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("requested", "Requested"),
                            ("parked", "Parked"),
                            ("running", "Running"),
                            ("done", "Done"),
                            ("failed", "Failed"),
                        ],
                        default="requested",
                        max_length=9,
                    ),
                ),
                ("counts", models.JSONField(default=dict)),
                ("guards", models.JSONField(default=list)),
                ("requested_by", models.CharField(max_length=150)),
                ("requested_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
                (
                    "job",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="governance.job",
                    ),
                ),
                (
                    "namespace",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="erasures",
                        to="governance.namespace",
                    ),
                ),
                (
                    "org",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="erasures",
                        to="governance.org",
                    ),
                ),
            ],
            options={
                "verbose_name": "erasure request",
                "ordering": ["-id"],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("state__in", ["requested", "parked", "running", "done", "failed"])
                        ),
                        name="erasure_state_known",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("user_id", ""), _negated=True),
                            models.Q(("node_ids", []), _negated=True),
                            models.Q(("subject", ""), _negated=True),
                            ("state", "done"),
                            _connector="OR",
                        ),
                        name="erasure_of_something",
                    ),
                ],
            },
        ),
        migrations.RunSQL(ROLE, migrations.RunSQL.noop),
        migrations.RunSQL(FORWARD, BACK),
    ]
