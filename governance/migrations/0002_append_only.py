"""The audit can only grow: UPDATE, DELETE and TRUNCATE are refused, whoever asks."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION loom_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Test databases are emptied by TRUNCATE; only there is this setting on.
  IF TG_OP = 'TRUNCATE' AND current_setting('loom.allow_truncate', true) = 'on' THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'LM001';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON governance_auditevent
  FOR EACH ROW EXECUTE FUNCTION loom_append_only();
CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON governance_auditevent
  FOR EACH STATEMENT EXECUTE FUNCTION loom_append_only();
"""
BACK = """
DROP TRIGGER audit_no_truncate ON governance_auditevent;
DROP TRIGGER audit_append_only ON governance_auditevent;
DROP FUNCTION loom_append_only();
"""


class Migration(migrations.Migration):
    """Triggers of the audit table."""

    dependencies = [("governance", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
