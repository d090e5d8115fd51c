"""What was asked and shown stays as it was: a plan's final state, its digest, and the rows that it names."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION loom_plan_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.state NOT IN ('pending', 'approved') AND NEW.state <> OLD.state THEN
    RAISE EXCEPTION 'plan % is %, which is final', OLD.id, OLD.state USING ERRCODE = 'LM001';
  END IF;
  IF (NEW.id, NEW.org_id, NEW.namespace_id, NEW.op, NEW.action, NEW.input_sha256, NEW.requested_by,
      NEW.token_prefix, NEW.digest, NEW.rows, NEW.changes, NEW.created_at)
     IS DISTINCT FROM
     (OLD.id, OLD.org_id, OLD.namespace_id, OLD.op, OLD.action, OLD.input_sha256, OLD.requested_by,
      OLD.token_prefix, OLD.digest, OLD.rows, OLD.changes, OLD.created_at) THEN
    RAISE EXCEPTION 'plan % is frozen as it was asked', OLD.id USING ERRCODE = 'LM001';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER plan_frozen BEFORE UPDATE ON governance_plan
  FOR EACH ROW EXECUTE FUNCTION loom_plan_frozen();

CREATE FUNCTION loom_plan_target_frozen() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (NEW.plan_id, NEW.kind, NEW.node_id, NEW.version, NEW.content_sha256, NEW.lock, NEW.status,
      NEW.planned, NEW.changes)
     IS DISTINCT FROM
     (OLD.plan_id, OLD.kind, OLD.node_id, OLD.version, OLD.content_sha256, OLD.lock, OLD.status,
      OLD.planned, OLD.changes) THEN
    RAISE EXCEPTION 'the rows of plan % are frozen as they were shown', OLD.plan_id
      USING ERRCODE = 'LM001';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER plan_target_frozen BEFORE UPDATE ON governance_plantarget
  FOR EACH ROW EXECUTE FUNCTION loom_plan_target_frozen();
"""
BACK = """
DROP TRIGGER plan_target_frozen ON governance_plantarget;
DROP FUNCTION loom_plan_target_frozen();
DROP TRIGGER plan_frozen ON governance_plan;
DROP FUNCTION loom_plan_frozen();
"""


class Migration(migrations.Migration):
    """Triggers of plans."""

    dependencies = [("governance", "0006_plans")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
