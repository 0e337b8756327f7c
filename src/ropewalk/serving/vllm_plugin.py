"""A plug-in for vLLM (`vllm.general_plugins`) that checks each rotary layer when vLLM builds the model."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from weakref import WeakSet

from torch import nn

from ropewalk.audit import Finding, check
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import ModelRopes

VARIABLE = "ROPEWALK_VLLM_CHECK"
"""The environment variable: "log" (the default), "refuse" or "off"."""
LAYERS = "vllm.model_executor.layers.rotary_embedding"
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}
_SAME_RULE = {"mrope": "default", "deepseek_yarn": "yarn", "su": "longrope"}  # vLLM's names of Hugging Face's rules
logger = logging.getLogger("vllm.ropewalk")  # below vLLM's logger, which has the handlers


def register() -> None:
    """Wrap vLLM's `get_rope` to compare each new rotary layer with float64.

    vLLM calls this function at start-up, in each of its processes. A layer is compared with the arguments of its
    construction and with the model's config. Findings go to the logger "vllm.ropewalk". With
    `ROPEWALK_VLLM_CHECK=refuse`, an error stops vLLM; with `off`, nothing is checked. Any other failure of the check is
    logged and does not stop vLLM.
    """
    mode = os.environ.get(VARIABLE, "log")
    if mode == "off":
        return
    if mode not in ("log", "refuse"):
        logger.warning("ropewalk: %s=%s is unknown; use log, refuse or off.", VARIABLE, mode)
    refuse = mode == "refuse"
    if LAYERS in sys.modules:
        _install(sys.modules[LAYERS], refuse)
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher(refuse))


class _Watcher(MetaPathFinder):
    """Wrap `get_rope` when vLLM imports its rotary layers; importing them in the plug-in could initialise a device."""

    def __init__(self, refuse: bool) -> None:
        self.refuse = refuse

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Return the module's own spec, with a loader that wraps the function after the import."""
        if fullname != LAYERS:
            return None
        sys.meta_path.remove(self)
        spec: Any = find_spec(fullname)
        try:
            load = spec.loader.exec_module

            def load_and_install(module: ModuleType) -> None:
                load(module)
                _install(module, self.refuse)

            spec.loader.exec_module = load_and_install
        except Exception:  # no such module in this version, or a loader that cannot be changed
            logger.exception("ropewalk: the rotary layers are not checked.")
        return spec


def _install(package: ModuleType, refuse: bool) -> None:
    """Replace vLLM's `get_rope` by the checked one, also in model files that have imported it."""
    try:
        original = vars(package)["get_rope"]
        if not hasattr(original, "ropewalk_checks"):
            checked = _checked(original, refuse=refuse)
            vars(package)["get_rope"] = checked
            for name, module in list(sys.modules.items()):
                if name.startswith("vllm") and vars(module).get("get_rope") is original:
                    vars(module)["get_rope"] = checked
    except Exception:  # another version of vLLM
        logger.exception("ropewalk: the rotary layers are not checked.")


def _checked(original: Callable[..., Any], *, refuse: bool) -> Callable[..., Any]:
    """Return `get_rope` with the check of each new layer."""
    seen: WeakSet[nn.Module] = WeakSet()

    @functools.wraps(original)
    def get_rope(*args: Any, **kwargs: Any) -> Any:
        layer = original(*args, **kwargs)
        findings: tuple[Finding, ...] = ()
        try:
            if isinstance(layer, nn.Module) and layer not in seen:
                seen.add(layer)
                bound = inspect.signature(original).bind(*args, **kwargs)
                bound.apply_defaults()
                findings = findings_of_layer(layer, bound.arguments)
                for finding in findings:
                    logger.log(_LEVELS[finding.severity], "ropewalk: %s: %s. %s",
                               finding.code, finding.message, finding.cure)  # fmt: skip
                if all(finding.severity == "note" for finding in findings):
                    logger.info("ropewalk: %s agrees with float64.", type(layer).__name__)
        except Exception:
            logger.exception("ropewalk: a rotary layer was not checked.")
        errors = [finding for finding in findings if finding.severity == "error"]
        if refuse and errors:
            raise RopeError(
                "vllm: its rotary layer does not compute what the model's config describes.",
                facts={f"{place}. {finding.code}": finding.message for place, finding in enumerate(errors, start=1)},
                cure=f"{errors[0].cure} To start anyway, set {VARIABLE}=log.",
            )
        return layer

    get_rope.ropewalk_checks = True  # type: ignore[attr-defined]
    return get_rope


def findings_of_layer(layer: nn.Module, arguments: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return the findings of one rotary layer of vLLM.

    `arguments`: of `get_rope`, by name. If the layer agrees with them, it is also compared with the ropes of the
    model's config that have its head size; it must agree with one of them.
    """
    inner = nn.ModuleDict({type(layer).__name__: layer})
    try:
        rope = rope_of_arguments(arguments)
    except RopeError as error:
        cure = "Compare the engine's predictions: ropewalk verify."
        text = f"{type(layer).__name__} was not checked: {error.rule}"
        return (Finding(code="not-checked", severity="note", message=text, cure=cure),)
    findings = check(inner, rope)
    if any(finding.severity == "error" for finding in findings):
        return findings
    compared = [check(inner, one) for one in _ropes_of_model() if one.head_dim == rope.head_dim]
    if not compared:
        return findings
    nearest = min(compared, key=lambda findings: sum(finding.severity == "error" for finding in findings))
    errors = (finding for finding in nearest if finding.severity == "error")
    return (
        *(dataclasses.replace(one, message=f"unlike the model's config, {one.message}") for one in errors),
        *findings,
    )


def rope_of_arguments(arguments: Mapping[str, Any]) -> RopeConfig:
    """Return the rope described by the arguments of vLLM's `get_rope`, with the names of any version.

    **Raises:** `RopeError` for rules that exist only in vLLM.

    >>> rope_of_arguments({"head_size": 64, "max_position": 4096, "is_neox_style": True, "rope_parameters": None}).theta
    10000.0
    """
    block = dict(arguments.get("rope_parameters") or arguments.get("rope_scaling") or {})
    kind = str(block.pop("rope_type", block.get("type", "default")))
    head = int(arguments["head_size"])
    share = float(block.pop("partial_rotary_factor", None) or arguments.get("partial_rotary_factor") or 1.0)
    width = int((arguments.get("rotary_dim") or head) * share)
    theta = float(arguments.get("base") or block.get("rope_theta") or 10_000.0)
    if arguments.get("dual_chunk_attention_config"):
        raise RopeError(
            "vllm: dual chunk attention has several tables.",
            facts={"rope_type": kind},
            cure="Check the model without dual_chunk_attention_config.",
        )
    # sections of M-RoPE choose among the rows of a table, which are those of plain text
    rules = {key: value for key, value in block.items() if key != "type" and not key.startswith("mrope")}
    rope = RopeConfig.from_block(
        {**rules, "rope_theta": theta, "rope_type": _SAME_RULE.get(kind, kind)},
        head_dim=width,
        interleaved=not arguments.get("is_neox_style", True),
        max_position_embeddings=int(arguments["max_position"]),
    )
    return dataclasses.replace(rope, head_dim=head, rotary_dim=width)


def _ropes_of_model() -> set[RopeConfig]:
    """Return the ropes of the config of the model that vLLM builds; none if it is not accessible."""
    try:
        current = import_module("vllm.config").get_current_vllm_config()
        model = current.model_config
        config = getattr(model, "hf_text_config", None) or model.hf_config
        return set(ModelRopes.from_hf(config).rotating.values())
    except Exception:  # outside of a model's construction vLLM raises; other versions have other names
        logger.debug("ropewalk: the model's config is not accessible.", exc_info=True)
        return set()
