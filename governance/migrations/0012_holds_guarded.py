"""Holds end in one way only: an admin releases one, in a transaction that says which row is loosened."""

from django.db import migrations

FORWARD = """
CREATE FUNCTION loom_guard_hold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    RAISE EXCEPTION 'holds are kept: DELETE is refused' USING ERRCODE = 'LM001';
  END IF;
  -- The erasing functions blank the words of a hold that has ended.
  IF current_user = 'loom_eraser' AND OLD.released_at IS NOT NULL THEN RETURN NEW; END IF;
  IF OLD.released_at IS NOT NULL OR NEW.released_at IS NULL
     OR to_jsonb(NEW) - ARRAY['released_at', 'released_by', 'release_reason']
        IS DISTINCT FROM to_jsonb(OLD) - ARRAY['released_at', 'released_by', 'release_reason'] THEN
    RAISE EXCEPTION 'a hold changes once, when it is released' USING ERRCODE = 'LM001';
  END IF;
  IF current_setting('loom.loosen', true) IS DISTINCT FROM OLD.node_id::text THEN
    RAISE EXCEPTION '% is under a hold (%), which only an admin releases.', OLD.target, OLD.matter
      USING ERRCODE = 'LM423';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER hold_guard BEFORE UPDATE OR DELETE ON governance_hold
  FOR EACH ROW EXECUTE FUNCTION loom_guard_hold();
CREATE TRIGGER hold_no_truncate BEFORE TRUNCATE ON governance_hold
  FOR EACH STATEMENT EXECUTE FUNCTION loom_append_only();
"""
BACK = """
DROP TRIGGER hold_no_truncate ON governance_hold;
DROP TRIGGER hold_guard ON governance_hold;
DROP FUNCTION loom_guard_hold();
"""


class Migration(migrations.Migration):
    """The guard of holds."""

    dependencies = [("governance", "0011_answers_by_namespace")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
