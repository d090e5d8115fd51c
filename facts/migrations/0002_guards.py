"""What can never be false of facts, whichever way a write comes.

Two believed versions of a lineage never overlap: one exclusion constraint, whose equalities are one-point
ranges, so that no extension is needed. `value_key` is empty for a fact with one value at a time, which makes
all its versions equal in that column.
"""

from django.db import migrations

FORWARD = """
CREATE TYPE loom_byte_range AS RANGE (subtype = bytea, multirange_type_name = loom_byte_multirange);

ALTER TABLE facts_version ADD CONSTRAINT fact_versions_never_overlap EXCLUDE USING gist (
  int8range(lineage_id, lineage_id, '[]') WITH &&,
  loom_byte_range(value_key, value_key, '[]') WITH &&,
  valid WITH &&, known WITH &&);
-- An infinite bound is an unbounded one: `infinity` cannot be read back by every client.
ALTER TABLE facts_version ADD CONSTRAINT fact_bounds_finite CHECK (
  coalesce(isfinite(lower(valid)), true) AND coalesce(isfinite(upper(valid)), true)
  AND isfinite(lower(known)) AND coalesce(isfinite(upper(known)), true)
  AND lower(known) IS NOT NULL
  AND (lower_inf(valid) OR lower_inc(valid)) AND NOT upper_inc(valid)
  AND lower_inc(known) AND NOT upper_inc(known));
CREATE INDEX fact_version_newest ON facts_version (namespace_id, (lower(known)) DESC, id DESC);

CREATE FUNCTION loom_fact_lock(p_lineage bigint, OUT held text, OUT firm boolean, OUT why text)
LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN in_force THEN lock_mode ELSE 'none' END, in_force OR holds > 0,
    format('fact %s is locked (%s, %s holds): %s', id, CASE WHEN in_force THEN lock_mode ELSE 'none' END,
           holds, lock_reason)
  FROM (SELECT *, lock_mode <> 'none' AND (lock_until IS NULL OR lock_until > clock_timestamp()) AS in_force
        FROM facts_lineage WHERE id = p_lineage) l $$;

CREATE FUNCTION loom_guard_fact_version() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  lock record;
  home record;
BEGIN
  IF TG_OP = 'DELETE' THEN
    RAISE EXCEPTION 'facts_version is append-only: DELETE is refused' USING ERRCODE = 'LM001';
  END IF;
  IF TG_OP = 'UPDATE' AND current_user = 'loom_eraser' THEN
    RETURN NEW;
  END IF;
  SELECT * INTO lock FROM loom_fact_lock(NEW.lineage_id);
  IF TG_OP = 'INSERT' THEN
    SELECT namespace_id, cardinality INTO home FROM facts_lineage WHERE id = NEW.lineage_id;
    IF home.namespace_id <> NEW.namespace_id
       OR NEW.value_key <> (CASE home.cardinality WHEN 'many' THEN NEW.value_sha256 ELSE ''::bytea END) THEN
      RAISE EXCEPTION 'version % does not fit its lineage', NEW.id USING ERRCODE = 'LM001';
    END IF;
  ELSE
    -- All that ever changes is the end of `known`, and that once.
    IF upper(OLD.known) IS NOT NULL OR upper(NEW.known) IS NULL
       OR lower(NEW.known) IS DISTINCT FROM lower(OLD.known)
       OR to_jsonb(NEW) - 'known' IS DISTINCT FROM to_jsonb(OLD) - 'known' THEN
      RAISE EXCEPTION 'facts_version is append-only: UPDATE is refused' USING ERRCODE = 'LM001';
    END IF;
  END IF;
  IF lock.held = 'read_only' THEN
    RAISE EXCEPTION '%. The write would change its value.', lock.why USING ERRCODE = 'LM423';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER fact_version_guard BEFORE INSERT OR UPDATE OR DELETE ON facts_version
  FOR EACH ROW EXECUTE FUNCTION loom_guard_fact_version();
CREATE TRIGGER fact_version_no_truncate BEFORE TRUNCATE ON facts_version
  FOR EACH STATEMENT EXECUTE FUNCTION loom_append_only();

CREATE TRIGGER fact_retraction_append_only BEFORE UPDATE OR DELETE ON facts_retraction
  FOR EACH ROW EXECUTE FUNCTION loom_append_only();
CREATE TRIGGER fact_retraction_no_truncate BEFORE TRUNCATE ON facts_retraction
  FOR EACH STATEMENT EXECUTE FUNCTION loom_append_only();

-- Under `no_delete` or a hold a version may be closed only for one that takes its place: asked at the commit,
-- because the successor is written after the closing.
CREATE FUNCTION loom_guard_fact_end() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  lock record;
BEGIN
  IF current_user = 'loom_eraser' THEN RETURN NULL; END IF;
  SELECT * INTO lock FROM loom_fact_lock(NEW.lineage_id);
  IF lock.firm AND NOT EXISTS (
      SELECT FROM facts_version v WHERE v.made_from_id = NEW.id AND lower(v.known) = upper(NEW.known)
      AND v.kind NOT IN ('clip', 'ended')) THEN
    RAISE EXCEPTION '%. The write would end it.', lock.why USING ERRCODE = 'LM423';
  END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER fact_version_end AFTER UPDATE ON facts_version
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION loom_guard_fact_end();
CREATE INDEX fact_version_made_from ON facts_version (made_from_id) WHERE made_from_id IS NOT NULL;

CREATE FUNCTION loom_guard_fact() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  held text := 'none';
BEGIN
  IF TG_OP = 'DELETE' THEN
    RAISE EXCEPTION 'facts_lineage is append-only: DELETE is refused' USING ERRCODE = 'LM001';
  END IF;
  IF OLD.lock_mode <> 'none' AND (OLD.lock_until IS NULL OR OLD.lock_until > clock_timestamp()) THEN
    held := OLD.lock_mode;
  END IF;
  -- Sharing moves a private fact to everybody, never back and never to another user.
  IF (NEW.id, NEW.namespace_id, NEW.subject, NEW.attribute, NEW.subject_sha256, NEW.attribute_sha256,
      NEW.cardinality, NEW.created_at)
     IS DISTINCT FROM (OLD.id, OLD.namespace_id, OLD.subject, OLD.attribute, OLD.subject_sha256,
      OLD.attribute_sha256, OLD.cardinality, OLD.created_at)
     OR (NEW.owner <> OLD.owner AND NEW.owner <> '-')
     OR NEW.last_known_at < OLD.last_known_at OR NEW.version < OLD.version THEN
    RAISE EXCEPTION 'the identity of fact % never changes, and its clock never goes back', OLD.id
      USING ERRCODE = 'LM001';
  END IF;
  IF current_setting('loom.loosen', true) IS DISTINCT FROM OLD.id::text THEN
    IF NEW.holds < OLD.holds THEN
      RAISE EXCEPTION 'fact % is under % holds, which only an admin releases.', OLD.id, OLD.holds
        USING ERRCODE = 'LM423';
    END IF;
    IF held <> 'none' AND (loom_lock_rank(NEW.lock_mode) < loom_lock_rank(held)
        OR (NEW.lock_until IS NOT NULL AND (OLD.lock_until IS NULL OR NEW.lock_until < OLD.lock_until))) THEN
      RAISE EXCEPTION 'fact % is locked (%): %. Its lock only an admin loosens.',
        OLD.id, held, OLD.lock_reason USING ERRCODE = 'LM423';
    END IF;
  END IF;
  IF held = 'read_only' AND (NEW.owner, NEW.version, NEW.status)
      IS DISTINCT FROM (OLD.owner, OLD.version, OLD.status) THEN
    RAISE EXCEPTION 'fact % is locked (%): %. The write would change its value.',
      OLD.id, held, OLD.lock_reason USING ERRCODE = 'LM423';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER fact_guard BEFORE UPDATE OR DELETE ON facts_lineage
  FOR EACH ROW EXECUTE FUNCTION loom_guard_fact();
CREATE TRIGGER fact_no_truncate BEFORE TRUNCATE ON facts_lineage
  FOR EACH STATEMENT EXECUTE FUNCTION loom_append_only();
"""
BACK = """
DROP TRIGGER fact_retraction_no_truncate ON facts_retraction;
DROP TRIGGER fact_retraction_append_only ON facts_retraction;
DROP TRIGGER fact_no_truncate ON facts_lineage;
DROP TRIGGER fact_guard ON facts_lineage;
DROP FUNCTION loom_guard_fact();
DROP INDEX fact_version_made_from;
DROP TRIGGER fact_version_end ON facts_version;
DROP FUNCTION loom_guard_fact_end();
DROP TRIGGER fact_version_no_truncate ON facts_version;
DROP TRIGGER fact_version_guard ON facts_version;
DROP FUNCTION loom_guard_fact_version();
DROP FUNCTION loom_fact_lock(bigint);
DROP INDEX fact_version_newest;
ALTER TABLE facts_version DROP CONSTRAINT fact_bounds_finite;
ALTER TABLE facts_version DROP CONSTRAINT fact_versions_never_overlap;
DROP TYPE loom_byte_range;
"""


class Migration(migrations.Migration):
    """The exclusion constraint and the triggers of facts."""

    dependencies = [("facts", "0001_initial"), ("memories", "0004_holds_and_erasure")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
