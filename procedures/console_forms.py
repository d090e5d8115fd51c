"""Forms of the console's pages about procedures: authoring one, and how it is judged."""

from __future__ import annotations

import json
from typing import Any, get_args

from django import forms

from loomsite.ops import OpError, limits
from procedures.gate_settings import EvolveFields, require_settings
from procedures.graph import MAX_NODES, NAME_CHARS, TEXT_CHARS, Graph, chain, read
from procedures.graph import faults_of as graph_faults


class AuthorForm(forms.Form):
    """A procedure as a person writes it: steps, one a line, or a graph as JSON."""

    namespace = forms.CharField(max_length=260, help_text="organisation/namespace")
    name = forms.CharField(max_length=NAME_CHARS)
    situation = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3}), max_length=16_000,
        help_text="When it applies. Agents find it by this text.",
    )  # fmt: skip
    steps = forms.CharField(
        required=False, widget=forms.Textarea(attrs={"rows": 8}), help_text="One step a line, two at least."
    )
    graph = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false"}),
        help_text="For branches: JSON with nodes and edges. It goes before the steps.",
    )
    reason = forms.CharField(max_length=2000, required=False)

    def clean_graph(self) -> dict[str, Any] | None:
        """The graph as JSON, judged; every fault is shown."""
        text = self.cleaned_data["graph"].strip()
        if not text:
            return None
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"This is no JSON: {error}") from error
        if not isinstance(given, dict):
            raise forms.ValidationError("This is no JSON object with nodes and edges.")
        faults = graph_faults(given)
        if faults:
            raise forms.ValidationError(
                [f"{'.'.join(map(str, fault.place))}: {fault.message}" for fault in faults]
            )
        return given

    def clean_steps(self) -> list[str]:
        """The lines that say something."""
        lines = [line.strip() for line in self.cleaned_data["steps"].splitlines() if line.strip()]
        if len(lines) > MAX_NODES:
            raise forms.ValidationError(f"{len(lines)} steps; the limit is {MAX_NODES}. Put some together.")
        long = [place for place, line in enumerate(lines, 1) if len(line) > TEXT_CHARS]
        if long:
            raise forms.ValidationError(f"Step {long[0]} is longer than {TEXT_CHARS} characters.")
        return lines

    def clean(self) -> dict[str, Any]:
        """Steps or a graph."""
        given = super().clean() or self.cleaned_data
        if "graph" in given and given["graph"] is None and len(given.get("steps", "..")) < 2:
            self.add_error("steps", "Two steps at least, or a graph.")
        return given

    def proposed(self) -> Graph:
        """The graph that would be stored."""
        given = self.cleaned_data
        return read(given["graph"]) if given["graph"] is not None else chain(given["steps"])


class SettingsForm(forms.Form):
    """Gate settings as `procedure.evolve` takes them; a blank field keeps the default."""

    reason = forms.CharField(
        max_length=limits.REASON_CHARS,
        required=False,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="Kept in the audit.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        reason = self.fields.pop("reason")
        for name, known in EvolveFields.model_fields.items():
            default = "null" if known.default is None else known.default
            choices = [one for one in get_args(known.annotation) if isinstance(one, str)]
            help_text = f"{known.description} Blank: {default}."
            if choices:
                options = [("", f"default ({default})"), *((one, one) for one in choices)]
                self.fields[name] = forms.ChoiceField(
                    label=name, choices=options, required=False, help_text=help_text
                )
            else:
                self.fields[name] = forms.CharField(
                    label=name, required=False, max_length=40, help_text=help_text,
                    widget=forms.TextInput(attrs={"inputmode": "decimal"}),
                )  # fmt: skip
        self.fields["reason"] = reason

    def clean(self) -> dict[str, Any]:
        """The settings under `stored`, judged like those of the op; None when every field is blank."""
        given = super().clean() or self.cleaned_data
        stored: dict[str, Any] = {}
        for name in EvolveFields.model_fields:
            text = str(given.get(name) or "").strip()
            if text and isinstance(self.fields[name], forms.ChoiceField):
                stored[name] = text
            elif text:
                try:
                    stored[name] = _number(text)
                except ValueError:
                    self.add_error(name, "This is no number, such as 3 or 0.15.")
        try:
            require_settings(stored, "settings")
        except OpError as error:
            for fault in error.fields["errors"]:
                name = fault["path"].removeprefix("settings.")
                self.add_error(name if name in self.fields else None, fault["message"])
        return {**given, "stored": stored or None}


def _number(text: str) -> int | float:
    """A whole number, or one with a decimal point. ValueError for everything else, nan and inf included."""
    found = json.loads(text, parse_constant=_refuse)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError(text)
    return found


def _refuse(text: str) -> float:
    raise ValueError(text)
