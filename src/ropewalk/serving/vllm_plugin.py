"""A plug-in for vLLM (`vllm.general_plugins`) that checks the rotary layers of each model when vLLM builds it."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from ropewalk.audit import Finding, check
from ropewalk.errors import RopeError

VARIABLE = "ROPEWALK_VLLM_CHECK"
"""The environment variable: "log" (the default), "refuse" or "off"."""
BUILDS = "vllm.model_executor.model_loader.utils"
"""The module of `initialize_model`, which every loader of vLLM calls."""
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}
logger = logging.getLogger("vllm.ropewalk")  # below vLLM's logger, which has the handlers


def register() -> None:
    """Wrap vLLM's `initialize_model` to compare the rotary layers of each model with its config, in float64.

    vLLM calls this function at start-up, in each of its processes. The logger "vllm.ropewalk" gets one line for each
    model. With `ROPEWALK_VLLM_CHECK=refuse`, an error stops vLLM; with `off`, nothing is checked. Any other failure of
    the check is logged and does not stop vLLM.
    """
    mode = os.environ.get(VARIABLE, "log")
    if mode == "off":
        return
    if mode not in ("log", "refuse"):
        logger.warning("ropewalk: %s=%s is unknown; use log, refuse or off.", VARIABLE, mode)
    refuse = mode == "refuse"
    if BUILDS in sys.modules:
        _install(sys.modules[BUILDS], refuse)
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher(refuse))


class _Watcher(MetaPathFinder):
    """Wrap `initialize_model` when vLLM imports its module; the plug-in's own import could initialise a device."""

    def __init__(self, refuse: bool) -> None:
        self.refuse = refuse

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """Return the module's own spec, with a loader that wraps the function after the import."""
        if fullname != BUILDS:
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


def _install(module: ModuleType, refuse: bool) -> None:
    """Replace vLLM's `initialize_model` by the checked one, also in modules that have imported it."""
    try:
        original = vars(module)["initialize_model"]
        if not hasattr(original, "ropewalk_checks"):
            wrapped = checked(original, refuse=refuse)
            for name, one in list(sys.modules.items()):
                if name.startswith("vllm") and vars(one).get("initialize_model") is original:
                    vars(one)["initialize_model"] = wrapped
            vars(module)["initialize_model"] = wrapped
    except Exception:  # another version of vLLM
        logger.exception("ropewalk: the rotary layers are not checked.")


def checked(original: Callable[..., nn.Module], *, refuse: bool) -> Callable[..., nn.Module]:
    """Return `initialize_model` with the check of each model; a multimodal one builds its parts by nested calls."""
    nested = False

    @functools.wraps(original)
    def initialize_model(vllm_config: Any, *args: Any, model_config: Any = None, **kwargs: Any) -> nn.Module:
        nonlocal nested
        outermost, nested = not nested, True
        try:
            model = original(vllm_config, *args, model_config=model_config, **kwargs)
        finally:
            nested = not outermost
        if outermost:
            try:
                settings = model_config or vllm_config.model_config
                level, line = line_of(model, settings.hf_config, settings.max_model_len)
            except Exception:
                logger.exception("ropewalk: the rotary layers were not checked.")
                return model
            logger.log(level, "ropewalk: %s", line)
            if refuse and level == logging.ERROR:
                raise RopeError(
                    "vllm: the rotary layers do not compute what the model's config describes.",
                    facts={"model": line},
                    cure=f"Correct the config or the version of vLLM. To start anyway, set {VARIABLE}=log.",
                )
        return model

    initialize_model.ropewalk_checks = True  # type: ignore[attr-defined]
    return initialize_model


def line_of(model: nn.Module, config: Any, length: int = 0) -> tuple[int, str]:
    """Return a level of `logging` and a line about the rotary layers of a model.

    `config`: of transformers, with all parts of a multimodal model. `length`: of vLLM's context, in tokens.
    """
    findings, name = [*_short_tables(model, length), *check(model, config)], type(model).__name__
    if not findings:
        return logging.INFO, f"{name}: the rotary layers agree with the config in float64."
    worst = [one for one in findings if one.severity == findings[0].severity]
    text = "; ".join(f"{one.code}: {one.message}" for one in worst)
    return _LEVELS[findings[0].severity], f"{name}: {text}. {worst[0].cure}"


def _short_tables(model: nn.Module, length: int) -> Iterator[Finding]:
    """Yield the first table of vLLM with fewer rows than its context, which it reads beyond the end (dynamic NTK)."""
    for name, module in model.named_modules():
        table = getattr(module, "cos_sin_cache", None)
        tower = any(word in name for word in ("vis", "audio", "tower"))  # its positions are not the text's
        if isinstance(table, Tensor) and len(table) < length and not tower:
            text = f"{name}.cos_sin_cache: has rows for {len(table):,} positions, and vLLM accepts {length:,}"
            cure = f"Start vLLM with --max-model-len {len(table)}."
            yield Finding(code="short-table", severity="error", message=text, cure=cure)
            return
