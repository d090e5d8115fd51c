"""Gate settings: the fields of `procedure.evolve` that say how it judges, and where stored ones come from.

They are stored in `metadata.evolve` of a procedure or in the console, and validated when they are. What was
stored some other way and is not valid is left out of account, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from django.conf import settings
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from loomsite.ops import OpError
from loomsite.ops.schema import Count, Number, invalid_fields
from procedures.gate import GateSettings

RUNS = 5_000
Runs = Annotated[Count, Field(ge=1, le=RUNS)]
Share = Annotated[Number, Field(ge=0, le=1)]
ErrorRate = Annotated[Number, Field(ge=0.0001, le=0.49)]


class EvolveFields(BaseModel):
    """How `procedure.evolve` judges; the defaults are its own."""

    min_runs: Runs = Field(3, description="Runs on a revision before a step that none used is a dead end.")
    gate_mode: Literal["sprt", "margin"] = Field(
        "sprt", description="sprt: a sequential test of a drop. margin: the plain rates are compared once."
    )
    gate_min_runs: Runs = Field(3, description="No verdict before so many runs.")
    gate_margin: Share = Field(0.05, description="margin: by how much the rate may be lower.")
    gate_min_drop: Annotated[Number, Field(ge=0.01, le=0.9)] = Field(
        0.15, description="sprt: the drop of the success rate that has to be found."
    )
    gate_alpha: ErrorRate = Field(0.05, description="sprt: how often a harmless change may be reverted.")
    gate_beta: ErrorRate = Field(0.2, description="sprt: how often such a drop may be missed.")
    gate_max_runs: Runs = Field(50, description="At this run the point estimate decides.")
    strike_limit: Annotated[Count, Field(ge=0, le=RUNS)] | None = Field(
        None, description="Failures in a row until quarantine; 0 is never; null is the server's setting."
    )
    gate_cost_tolerance: Annotated[Number, Field(ge=0, le=100)] = Field(
        0.25, description="By how much the median cost of a success may rise."
    )
    gate_cost_min_samples: Runs | None = Field(
        None, description="Successful runs that report a cost, on both sides; null is gate_min_runs."
    )
    gate_baseline: Literal["integrated", "plugin"] = Field(
        "integrated",
        description="integrated: averaged over what is known of the rate before. plugin: its estimate.",
    )

    @property
    def gate(self) -> GateSettings:
        """As the gate takes them."""
        return GateSettings(
            mode=self.gate_mode,
            baseline=self.gate_baseline,
            min_runs=self.gate_min_runs,
            max_runs=self.gate_max_runs,
            margin=self.gate_margin,
            min_drop=self.gate_min_drop,
            alpha=self.gate_alpha,
            beta=self.gate_beta,
            cost_tolerance=self.gate_cost_tolerance,
            cost_min_samples=self.gate_cost_min_samples,
        )

    @property
    def strikes(self) -> int:
        """Failures in a row until quarantine; 0 is never."""
        return settings.LOOM_PROCEDURE_STRIKE_LIMIT if self.strike_limit is None else self.strike_limit


class StoredSettings(EvolveFields):
    """Stored settings: a field that is not known is a mistake and not ignored."""

    model_config = ConfigDict(extra="forbid")


def given_settings(data: EvolveFields) -> dict[str, Any]:
    """The settings that a call names itself; the others come from what is stored."""
    named = data.model_fields_set & set(EvolveFields.model_fields)
    return data.model_dump(mode="json", include=named)


def require_settings(stored: Any, place: str) -> None:
    """OpError 400 naming every fault of settings that are about to be stored, each under `place`."""
    try:
        StoredSettings.model_validate(stored)
    except ValidationError as error:
        refusal = invalid_fields(error)
        faults = [
            {**fault, "path": place if fault["path"] == "body" else f"{place}.{fault['path']}"}
            for fault in refusal.fields["errors"]
        ]
        known = ", ".join(EvolveFields.model_fields)
        summary = "; ".join(f"{fault['path']}: {fault['message']}" for fault in faults[:5])
        raise OpError("INVALID_ARGUMENT", f"{summary}. Known are: {known}.", errors=faults) from error


@dataclass(frozen=True)
class Chosen:
    """The settings of one evolve, where they come from, and what has to be said of them."""

    settings: EvolveFields
    source: Literal["console", "metadata", "defaults"]
    advisories: tuple[str, ...] = ()


def choose(
    metadata: Mapping[str, Any], console: Any | None, given: Mapping[str, Any] | None = None
) -> Chosen:
    """What the call names, else the console's setting, else `metadata.evolve`, else the defaults."""
    advisories = []
    source: Literal["console", "metadata", "defaults"] = "defaults"
    stored: dict[str, Any] = {}
    for name, found in (("console", console), ("metadata", metadata.get("evolve"))):
        if found is None:
            continue
        try:
            stored = StoredSettings.model_validate(found).model_dump(exclude_unset=True)
        except ValidationError as error:
            said = invalid_fields(error).message
            where = "metadata.evolve" if name == "metadata" else "the console's settings"
            advisories.append(f"{where}: not used, because they are not valid ({said[:300]})")
            continue
        source = "console" if name == "console" else "metadata"
        break
    return Chosen(EvolveFields.model_validate({**stored, **(given or {})}), source, tuple(advisories))
