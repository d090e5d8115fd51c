"""The audit can only grow: UPDATE, DELETE and TRUNCATE are refused, whoever asks."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION loom_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Test databases are emptied by TRUNCATE; only there, by name, does this setting count.
  IF TG_OP = 'TRUNCATE' AND current_setting('loom.allow_truncate', true) = 'on'
     AND starts_with(current_database(), 'test_') THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'LM001';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON governance_auditevent
  FOR EACH ROW EXECUTE FUNCTION loom_append_only();
CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON governance_auditevent
  FOR EACH STATEMENT EXECUTE FUNCTION loom_append_only();

-- A chain's head only moves forward, and never goes.
CREATE FUNCTION loom_head_forward() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.org_id = OLD.org_id AND NEW.seq > OLD.seq THEN RETURN NEW; END IF;
  RAISE EXCEPTION 'the head of an audit chain only moves forward' USING ERRCODE = 'LM001';
END $$;
CREATE TRIGGER audit_head_forward BEFORE UPDATE ON governance_audithead
  FOR EACH ROW EXECUTE FUNCTION loom_head_forward();
CREATE TRIGGER audit_head_kept BEFORE DELETE ON governance_audithead
  FOR EACH ROW EXECUTE FUNCTION loom_append_only();
CREATE TRIGGER audit_head_no_truncate BEFORE TRUNCATE ON governance_audithead
  FOR EACH STATEMENT EXECUTE FUNCTION loom_append_only();
"""
BACK = """
DROP TRIGGER audit_head_no_truncate ON governance_audithead;
DROP TRIGGER audit_head_kept ON governance_audithead;
DROP TRIGGER audit_head_forward ON governance_audithead;
DROP FUNCTION loom_head_forward();
DROP TRIGGER audit_no_truncate ON governance_auditevent;
DROP TRIGGER audit_append_only ON governance_auditevent;
DROP FUNCTION loom_append_only();
"""


class Migration(migrations.Migration):
    """Triggers of the audit table."""

    dependencies = [("governance", "0001_initial")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
