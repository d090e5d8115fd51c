"""A guarded fact is not moved away, the words of its lock stay, and a fact of many values is read in part."""

from importlib import import_module

from django.db import migrations

_GUARDS: str = import_module("facts.migrations.0002_guards").FORWARD
_END_BEFORE = _GUARDS[
    _GUARDS.index("CREATE FUNCTION loom_guard_fact_end() RETURNS") : _GUARDS.index(
        "CREATE CONSTRAINT TRIGGER fact_version_end"
    )
].replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
# A successor under another subject or attribute leaves the guarded fact without one.
_SUCCESSOR = "WHERE v.made_from_id = NEW.id AND"
_END_AFTER = _END_BEFORE.replace(
    _SUCCESSOR, "WHERE v.made_from_id = NEW.id AND v.lineage_id = NEW.lineage_id AND", 1
)
_LINE_BEFORE: str = import_module("facts.migrations.0010_erasure")._AFTER
_STATUS = "  END IF;\n  IF held = 'read_only' AND (NEW.owner"
_WORDS = """    -- The words of a lock in force change only together with a tighter lock.
    IF held <> 'none'
       AND (NEW.lock_mode, NEW.lock_until) IS NOT DISTINCT FROM (OLD.lock_mode, OLD.lock_until)
       AND (NEW.lock_reason, NEW.locked_by, NEW.locked_at)
           IS DISTINCT FROM (OLD.lock_reason, OLD.locked_by, OLD.locked_at) THEN
      RAISE EXCEPTION 'fact % is locked (%): %. Who locked it, when and why stays.',
        OLD.id, held, OLD.lock_reason USING ERRCODE = 'LM423';
    END IF;
"""
_LINE_AFTER = _LINE_BEFORE.replace(_STATUS, _WORDS + _STATUS, 1)
_INDEXES = """
CREATE INDEX fact_version_believed ON facts_version (lineage_id, value_key, (lower(valid)))
  WHERE upper_inf(known);
CREATE INDEX fact_version_private ON facts_version (lineage_id, owner) WHERE owner <> '-';
"""
FORWARD = _END_AFTER + _LINE_AFTER + _INDEXES
BACK = f"""{_END_BEFORE}{_LINE_BEFORE}
DROP INDEX fact_version_believed;
DROP INDEX fact_version_private;
"""


class Migration(migrations.Migration):
    """Two guards and two indexes."""

    dependencies = [("facts", "0010_erasure")]
    operations = [migrations.RunSQL(FORWARD, BACK)]
