"""How `ropewalk.audit.check` checks each rotary class of transformers: `python -m tests.audit.coverage`."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ropewalk.attachment.probe import is_rotary
from ropewalk.audit.findings import Finding
from ropewalk.audit.live_check import check, examine
from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES, family_name
from ropewalk.rope.model_ropes import ModelRopes
from tests.parity.causal import causal_families, small_model
from tests.parity.classes import CHANGES, Part, config_of, reading_of, rotary_classes

WAYS = ("called", "tables", "frequencies")


def built(part: Part) -> tuple[nn.Module, Any] | str:
    """A new module of a rotary class with the defaults of its config, and that config; or why there is none."""
    try:
        config = config_of(part)
        return part.cls(config), config
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def way(part: Part) -> tuple[str, list[str]]:
    """The best of the ways in which a class is checked, "not checked" or "not built"; and its warnings and errors."""
    made = built(part)
    if isinstance(made, str):
        return "not built", [made]
    module, config = made
    try:
        family = FAMILIES.get(family_name(config.model_type) or "")
        how, problems = examine(module, ModelRopes.from_hf(reading_of(config)), family and family.module.looked_up)
    except RopeError as error:
        return "not checked", [str(error).splitlines()[0]]
    bad = [problem.text for problem in problems if problem.severity != "note"]
    return next((way for way in WAYS if way in how), "not checked"), bad


def causal_findings() -> dict[str, tuple[Finding, ...] | str]:
    """The findings on a small random model of each causal family with its own config; or why it cannot be built."""
    found: dict[str, tuple[Finding, ...] | str] = {}
    for name in causal_families():
        try:
            model = small_model(name)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        found[name] = check(model)
    return found


def whole_models() -> Iterator[tuple[str, tuple[Finding, ...]]]:
    """The findings on each model of AutoModel with its default config: on the meta device, but its rotary modules."""
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, model_type_to_module_name
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    folders = {part.folder for part in rotary_classes()}
    for name in MODEL_MAPPING_NAMES:
        if model_type_to_module_name(name) not in folders:
            continue
        try:
            with torch.device("meta"):
                model = AutoModel.from_config(CONFIG_MAPPING[name](**copy.deepcopy(CHANGES.get(name, {}))))
            for path, module in list(model.named_modules()):
                if is_rotary(module) and path:
                    owner, _, attribute = path.rpartition(".")
                    setattr(model.get_submodule(owner), attribute, type(module)(module.config))
        except Exception:  # default configs that do not fit themselves
            continue
        yield name, check(model)


def main() -> None:
    """Print the numbers of docs/check.md."""
    ways = {part.name: way(part) for part in rotary_classes()}
    print(f"{len(rotary_classes())} rotary classes:", dict(Counter(how for how, _ in ways.values())))
    for name, (how, bad) in ways.items():
        if how not in ("called", "tables") or bad:
            print(f"  {name}: {how} {bad}")
    families = causal_findings()
    built_ones = {name: found for name, found in families.items() if not isinstance(found, str)}
    bad_ones = {name: found for name, found in built_ones.items() if any(f.severity != "note" for f in found)}
    print(f"{len(families)} causal families: {len(built_ones)} built, {len(bad_ones)} with a warning or an error")
    for name, found in families.items():
        if isinstance(found, str) or found:
            print(f"  {name}: {found if isinstance(found, str) else [(f.code, f.message) for f in found]}")
    whole = dict(whole_models())
    bad_ones = {name: found for name, found in whole.items() if any(f.severity != "note" for f in found)}
    print(f"{len(whole)} whole models of default configs, {len(bad_ones)} with a warning or an error")
    for name, found in bad_ones.items():
        print(f"  {name}: {[(f.code, f.message) for f in found]}")


if __name__ == "__main__":
    main()
