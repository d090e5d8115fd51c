"""What no writer may do, whichever way it comes: break a lock, change a lineage's identity, edit history.

The gateway judges the same rules first and explains them; these triggers hold for `.update()`, bulk and
raw SQL, cascades and sweeps. SQLSTATE LM423 is answered as 423 LOCKED.
"""

from django.db import migrations

FORWARD = """
CREATE FUNCTION loom_lock_rank(mode text) RETURNS int LANGUAGE sql IMMUTABLE AS
  $$ SELECT CASE mode WHEN 'read_only' THEN 2 WHEN 'no_delete' THEN 1 ELSE 0 END $$;

CREATE FUNCTION loom_guard_memory() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  held text := 'none';
  refused text;
BEGIN
  IF OLD.lock_mode <> 'none' AND (OLD.lock_until IS NULL OR OLD.lock_until > clock_timestamp()) THEN
    held := OLD.lock_mode;
  END IF;
  IF TG_OP = 'DELETE' THEN
    IF held = 'none' THEN RETURN OLD; END IF;
    RAISE EXCEPTION '% is locked (%): %. Its row cannot be deleted.', OLD.memory_key, held, OLD.lock_reason
      USING ERRCODE = 'LM423';
  END IF;
  IF (NEW.id, NEW.namespace_id, NEW.agent, NEW.user_id, NEW.session_id, NEW.memory_key)
     IS DISTINCT FROM (OLD.id, OLD.namespace_id, OLD.agent, OLD.user_id, OLD.session_id, OLD.memory_key) THEN
    RAISE EXCEPTION 'the identity of memory % never changes', OLD.id USING ERRCODE = 'LM001';
  END IF;
  IF held = 'none' THEN RETURN NEW; END IF;
  IF loom_lock_rank(NEW.lock_mode) < loom_lock_rank(held)
     OR (NEW.lock_until IS NOT NULL AND (OLD.lock_until IS NULL OR NEW.lock_until < OLD.lock_until)) THEN
    IF current_setting('loom.loosen', true) IS DISTINCT FROM OLD.id::text THEN
      RAISE EXCEPTION '% is locked (%): %. Its lock only an admin loosens.',
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
      NEW.pinned_by, NEW.expires_at, NEW.status, NEW.version, NEW.governed, NEW.source_class, NEW.source_trace
    ) IS DISTINCT FROM (
      OLD.value, OLD.content_sha256, OLD.memory_type, OLD.tags, OLD.metadata, OLD.confidence, OLD.pinned,
      OLD.pinned_by, OLD.expires_at, OLD.status, OLD.version, OLD.governed, OLD.source_class, OLD.source_trace
    ) THEN
    refused := 'value';
  END IF;
  IF refused IS NOT NULL THEN
    RAISE EXCEPTION '% is locked (%): %. The write would change its %.',
      OLD.memory_key, held, OLD.lock_reason, refused USING ERRCODE = 'LM423';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER memory_guard BEFORE UPDATE OR DELETE ON memories_memory
  FOR EACH ROW EXECUTE FUNCTION loom_guard_memory();
CREATE TRIGGER memory_no_truncate BEFORE TRUNCATE ON memories_memory
  FOR EACH STATEMENT EXECUTE FUNCTION loom_append_only();
CREATE TRIGGER version_append_only BEFORE UPDATE OR DELETE ON memories_memoryversion
  FOR EACH ROW EXECUTE FUNCTION loom_append_only();
CREATE TRIGGER version_no_truncate BEFORE TRUNCATE ON memories_memoryversion
  FOR EACH STATEMENT EXECUTE FUNCTION loom_append_only();

-- The default embedder's graph. Rows of other embedders are scanned exactly until they have their own.
CREATE INDEX embedding_wordllama ON memories_embedding
  USING hnsw ((vector::halfvec(256)) halfvec_cosine_ops)
  WHERE embedder = 'wordllama-l2-supercat-256-centred-30';
"""
BACK = """
DROP INDEX embedding_wordllama;
DROP TRIGGER version_no_truncate ON memories_memoryversion;
DROP TRIGGER version_append_only ON memories_memoryversion;
DROP TRIGGER memory_no_truncate ON memories_memory;
DROP TRIGGER memory_guard ON memories_memory;
DROP FUNCTION loom_guard_memory();
DROP FUNCTION loom_lock_rank(text);
"""


class Migration(migrations.Migration):
    """Triggers of memories and their versions, and the vector index."""

    dependencies = [("memories", "0001_initial"), ("governance", "0002_append_only")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
