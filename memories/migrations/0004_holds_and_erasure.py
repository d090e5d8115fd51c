"""Holds in the guard, the append-only raw archive, and the one way around the triggers.

`loom_erase_memory` belongs to a role of its own, `loom_eraser`; the triggers let that role through and
nobody else. The role is made here when the migrating role may make roles; otherwise a superuser makes it
once, and the error says how.
"""

from django.db import migrations

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
  IF NOT pg_has_role(current_user, 'loom_eraser', 'MEMBER') THEN
    EXECUTE format('GRANT loom_eraser TO %I', current_user);
  END IF;
END $$;
"""

FORWARD = """
CREATE OR REPLACE FUNCTION loom_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  -- Test databases are emptied by TRUNCATE; only there, by name, does this setting count.
  IF TG_OP = 'TRUNCATE' AND current_setting('loom.allow_truncate', true) = 'on'
     AND starts_with(current_database(), 'test_') THEN
    RETURN NULL;
  END IF;
  -- The erasure function blanks versions; it never touches the audit, which grants it nothing.
  IF TG_OP = 'UPDATE' AND current_user = 'loom_eraser' THEN
    RETURN NEW;
  END IF;
  RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'LM001';
END $$;

CREATE OR REPLACE FUNCTION loom_guard_memory() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  held text := 'none';
  refused text;
BEGIN
  IF OLD.lock_mode <> 'none' AND (OLD.lock_until IS NULL OR OLD.lock_until > clock_timestamp()) THEN
    held := OLD.lock_mode;
  END IF;
  IF TG_OP = 'DELETE' THEN
    IF held = 'none' AND OLD.holds = 0 THEN RETURN OLD; END IF;
    RAISE EXCEPTION '% is locked (%, % holds): %. Its row cannot be deleted.',
      OLD.memory_key, held, OLD.holds, OLD.lock_reason USING ERRCODE = 'LM423';
  END IF;
  IF (NEW.id, NEW.namespace_id, NEW.agent, NEW.user_id, NEW.session_id, NEW.memory_key)
     IS DISTINCT FROM (OLD.id, OLD.namespace_id, OLD.agent, OLD.user_id, OLD.session_id, OLD.memory_key) THEN
    RAISE EXCEPTION 'the identity of memory % never changes', OLD.id USING ERRCODE = 'LM001';
  END IF;
  IF held = 'none' AND OLD.holds = 0 THEN RETURN NEW; END IF;
  IF current_setting('loom.loosen', true) IS DISTINCT FROM OLD.id::text THEN
    IF NEW.holds < OLD.holds THEN
      RAISE EXCEPTION '% is under % holds, which only an admin releases.', OLD.memory_key, OLD.holds
        USING ERRCODE = 'LM423';
    END IF;
    IF held <> 'none' AND (
      loom_lock_rank(NEW.lock_mode) < loom_lock_rank(held)
      OR (NEW.lock_until IS NOT NULL AND (OLD.lock_until IS NULL OR NEW.lock_until < OLD.lock_until))) THEN
      RAISE EXCEPTION '% is locked (%): %. Its lock only an admin loosens.',
        OLD.memory_key, held, OLD.lock_reason USING ERRCODE = 'LM423';
    END IF;
    -- The words of a lock in force change only together with a tighter lock.
    IF held <> 'none'
       AND (NEW.lock_mode, NEW.lock_until) IS NOT DISTINCT FROM (OLD.lock_mode, OLD.lock_until)
       AND (NEW.lock_reason, NEW.locked_by, NEW.locked_at)
           IS DISTINCT FROM (OLD.lock_reason, OLD.locked_by, OLD.locked_at) THEN
      RAISE EXCEPTION '% is locked (%): %. Who locked it, when and why stays.',
        OLD.memory_key, held, OLD.lock_reason USING ERRCODE = 'LM423';
    END IF;
  END IF;
  IF NEW.status IS DISTINCT FROM OLD.status AND NEW.status <> 'active' THEN
    refused := 'existence';
  ELSIF (NEW.expires_at IS DISTINCT FROM OLD.expires_at OR NEW.on_expire IS DISTINCT FROM OLD.on_expire)
        AND NOT (NEW.expires_at IS DISTINCT FROM OLD.expires_at
                 AND (NEW.expires_at IS NULL OR coalesce(NEW.expires_at >= OLD.expires_at, false))) THEN
    refused := 'expiry';
  ELSIF held = 'read_only' AND (
      NEW.value, NEW.content_sha256, NEW.memory_type, NEW.tags, NEW.metadata, NEW.confidence, NEW.pinned,
      NEW.pinned_by, NEW.expires_at, NEW.status, NEW.version, NEW.governed, NEW.source_class,
      NEW.source_trace, NEW.promoted_from, NEW.canonical_key
    ) IS DISTINCT FROM (
      OLD.value, OLD.content_sha256, OLD.memory_type, OLD.tags, OLD.metadata, OLD.confidence, OLD.pinned,
      OLD.pinned_by, OLD.expires_at, OLD.status, OLD.version, OLD.governed, OLD.source_class,
      OLD.source_trace, OLD.promoted_from, OLD.canonical_key
    ) THEN
    refused := 'value';
  END IF;
  IF refused IS NOT NULL THEN
    RAISE EXCEPTION '% is locked (%, % holds): %. The write would change its %.',
      OLD.memory_key, held, OLD.holds, OLD.lock_reason, refused USING ERRCODE = 'LM423';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER raw_append_only BEFORE UPDATE OR DELETE ON memories_rawturn
  FOR EACH ROW EXECUTE FUNCTION loom_append_only();
CREATE TRIGGER raw_no_truncate BEFORE TRUNCATE ON memories_rawturn
  FOR EACH STATEMENT EXECUTE FUNCTION loom_append_only();
CREATE TRIGGER raw_session_kept BEFORE DELETE ON memories_rawsession
  FOR EACH ROW EXECUTE FUNCTION loom_append_only();

-- Take a memory's content out of every version and every index; hashes and the fact that it was stay.
-- The guard has been asked before: the row is 'redacted' by now, which a lock or a hold refuses.
CREATE FUNCTION loom_erase_memory(p_memory bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM memories_memory WHERE id = p_memory AND status = 'redacted'
                 AND holds = 0 AND (lock_mode = 'none' OR lock_until <= clock_timestamp())) THEN
    RAISE EXCEPTION 'memory % is not redacted, or is guarded', p_memory USING ERRCODE = 'LM423';
  END IF;
  UPDATE memories_memory SET value = NULL, tags = '{}', metadata = '{}', source_trace = '',
    doc_len = NULL, held = false WHERE id = p_memory;
  UPDATE memories_memoryversion SET value = NULL, tags = '{}', metadata = '{}', source_trace = ''
    WHERE memory_id = p_memory;
  DELETE FROM memories_posting WHERE memory_id = p_memory;
  DELETE FROM memories_embedding WHERE memory_id = p_memory;
  DELETE FROM memories_flag WHERE memory_id = p_memory;
END $$;
REVOKE ALL ON FUNCTION loom_erase_memory(bigint) FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO loom_eraser;
GRANT SELECT, UPDATE ON memories_memory, memories_memoryversion TO loom_eraser;
GRANT SELECT, DELETE ON memories_posting, memories_embedding, memories_flag TO loom_eraser;
ALTER FUNCTION loom_erase_memory(bigint) OWNER TO loom_eraser;
REVOKE CREATE ON SCHEMA public FROM loom_eraser;
GRANT EXECUTE ON FUNCTION loom_erase_memory(bigint) TO PUBLIC;
"""
BACK = """
DROP FUNCTION loom_erase_memory(bigint);
DROP TRIGGER raw_session_kept ON memories_rawsession;
DROP TRIGGER raw_no_truncate ON memories_rawturn;
DROP TRIGGER raw_append_only ON memories_rawturn;
"""


class Migration(migrations.Migration):
    """Guards, second part."""

    dependencies = [("memories", "0003_whole")]
    operations = [
        migrations.RunSQL(ROLE, migrations.RunSQL.noop),
        migrations.RunSQL(FORWARD, BACK),
    ]
