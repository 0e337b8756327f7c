"""How each engine puts the settings of a command over a model's config or file, from the sources that `FLAGS` names."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ropewalk.audit.findings import Finding, Severity
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.gguf_file import ROPE_TENSORS, GGUFFile
from ropewalk.checkpoints.gguf_rope import gguf_fields, gguf_ropes
from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.hugging_face import text_part
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import RULES, Linear, YaRN
from ropewalk.rope.values import TRAINED_KEY
from ropewalk.serving.command import EngineCommand
from ropewalk.serving.engines import MULTIPLIES_LENGTH, NOT_MULTIPLIED
from ropewalk.serving.served import LENGTHS, parts_of, text_of

Read = tuple[Checkpoint, float | None, list[Finding]]
"""The checkpoint as the engine reads it, the length that it serves, and faults."""
_LOST = {
    "rope_theta": "theta becomes {theta:,.10g}, the engine's default",
    "partial_rotary_factor": "every feature of a head rotates",
    "mrope_section": "there is one axis, so images and videos get other positions",
}
_THETAS = {"qwen2": 1e6, "qwen3": 1e6, "exaone4": 1e6, "ernie4_5_moe": 5e5, "falcon_h1": 1e11}
"""vLLM's theta for a block without one, if it is not 10,000 (`set_default_rope_theta` in models/*.py of 0.32.0)."""
_ORDER = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")  # SGLang's
_MLX_READS = (
    "exaone_moe", "gemma4_text", "glm_moe_dsa", "granitemoehybrid", "laguna", "lfm2", "lfm2_moe", "minimax_m3_vl",
    "ministral3", "mistral4", "olmo_hybrid", "qwen3", "qwen3_5_text", "qwen3_5_moe_text",
)  # fmt: skip
"""The language models of which mlx-lm reads `rope_parameters`; of others `rope_theta` and `rope_scaling` only."""
_MLX_THETAS = {
    "llama": 1e4, "mistral": 1e4, "qwen2": 1e6, "qwen2_moe": 1e6, "mixtral": 1e6, "gemma": 1e4, "gemma2": 1e4,
    "gemma3_text": 1e6, "phi3": 1e4, "olmo2": 1e4, "cohere": 8e6, "cohere2": 5e4, "starcoder2": 1e5, "seed_oss": 1e4,
    "gpt_oss": 1.5e5,
}  # fmt: skip
"""mlx-lm's theta without `rope_theta`; a class that is not here does not load."""


def fault(code: str, message: str, cure: str, severity: Severity = "error") -> Finding:
    """Return a finding about a command."""
    return Finding(code=code, severity=severity, message=message, cure=cure)


def _without_effect(message: str, cure: str = "Remove it.") -> Finding:
    return fault("no-effect", message, cure)


def as_loaded(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as transformers 5 loads it: `rope_parameters` with theta and fraction, and no older keys."""
    content: dict[str, Any] = copy.deepcopy(dict(config))
    if not parts_of(content) and f"{content.get('model_type')}_text" in FAMILIES:  # flat files of a nested class
        content = {"model_type": content["model_type"], "text_config": content}
    text, ropes, block = text_of(content), ModelRopes.from_hf(config), dict[str, Any]()
    written = text.get("rope_parameters") or text.get("rope_scaling") or {}
    with suppress(RopeError):  # frequencies without a theta
        if ropes.nested:
            block = {str(label): rope.to_hf() for label, rope in ropes.rotating.items()}
        else:
            plain = next(iter(ropes.rotating.values())).unscaled().to_hf()
            kind = written.get("rope_type", written.get("type", plain["rope_type"]))
            block = {**plain, **{key: value for key, value in written.items() if key != "type"}, "rope_type": kind}
    if block:
        for key in ("rope_scaling", "rope_theta", "partial_rotary_factor"):
            text.pop(key, None)
        text["rope_parameters"] = block
    return content


def _merge(target: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Put values into a dict as vLLM does below the top level: dicts are merged, everything else replaced."""
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = copy.deepcopy(value)


def over_config(command: EngineCommand, opened: Checkpoint) -> Read:
    """Return the checkpoint under vLLM's or SGLang's JSON, and the length that is served."""
    engine, findings, flags = command.engine, list[Finding](), command.flags
    if opened.arch is not None or not opened.config:
        cure = "Pass the Hugging Face folder of the model."
        raise RopeError(f"inspect: {engine} is described for folders.", facts={"model": opened.name}, cure=cure)
    over, after = dict[str, Any](), as_loaded(opened.config)
    for each in command.json():
        _merge(over, each)
    parts, text = parts_of(after), text_of(after)
    before = copy.deepcopy(text.get("rope_parameters") or {})
    for key, value in over.items():
        name, inner = "rope_parameters" if key == "rope_scaling" else key, after.get(key)
        if parts[:1] == (key,) and not isinstance(value, Mapping):
            cure = "Pass an object with the keys to change."
            raise RopeError(f"inspect: `{key}` is the language model's part.", facts={key: value}, cure=cure)
        if key.endswith("_config") and isinstance(value, Mapping):
            value = {"rope_parameters" if one == "rope_scaling" else one: own for one, own in value.items()}
            if not isinstance(inner, dict):
                told = f"`{key}`: this config has no such part."
                findings.append(_without_effect(told, "Write its keys at the top."))
            else:
                _merge(inner, value) if engine == "vllm" else inner.update(value)
        elif parts and name in ("rope_parameters", *LENGTHS, *_LOST):
            told = f"`{key}` is at the top level, beside `{parts[-1]}`: the language model does not read it."
            cure = f"Write it as {'.'.join((*parts, name))}, with every key of the block."
            findings.append(_without_effect(told, cure))
        elif engine == "sglang" and name == "rope_parameters" and isinstance(value, Mapping):
            after[name] = {**(after.get(name) or {}), **value}
        elif name not in _LOST:
            after[name] = value
        inside = value if key.endswith("_config") and isinstance(inner, dict) and isinstance(value, Mapping) else {}
        for one in (key, *inside):  # `standardize_rope_params` prefers the block's own
            if one in ("rope_theta", "partial_rotary_factor"):
                findings.append(_without_effect(f"`{one}`: the block contains its own.", "Write it into the block."))
    changes, faults = _settle(engine, text, before, renamed="rope_scaling" in over)
    ropes = ModelRopes.from_hf(after, alpha=opened.alpha).mapped(lambda rope: dataclasses.replace(rope, **changes))
    found, findings = dataclasses.replace(opened, config=after, ropes=ropes), findings + faults
    derived, given = config_length(engine, after, longest=True), command.number(*flags.length)
    if given is None or derived is None or given <= derived:
        return found, (config_length(engine, after) or 2048) if given is None else given, findings
    allowed = command.environment.get(flags.longer, "0").lower() in ("1", "true")
    told = f"{flags.length[0]} {given:,.0f} is more than the config's {derived:,}"
    told += f"; {flags.longer} lets it start." if allowed else ", so the engine does not start."
    cure = "State max_position_embeddings in the same JSON, at the place of the block."
    findings.append(fault("length", told, cure, "warning" if allowed else "error"))
    return found, given if allowed else None, findings


def _settle(engine: str, text: dict[str, Any], before: Any, *, renamed: bool) -> tuple[dict[str, Any], list[Finding]]:
    """Complete the block that results as the engine does, and return the fields of the ropes that differ then.

    `renamed`: whether vLLM gets it through the setter of `rope_scaling`, which writes a theta of None.
    """
    block, findings, model_type = text.get("rope_parameters"), list[Finding](), str(text.get("model_type"))
    block = dict(block) if isinstance(block, Mapping) else {"rope_type": "default"}
    if before and "rope_type" not in before:
        flat = bool({"rope_type", "type", "factor"} & {*block})
        text["rope_parameters"] = before if flat else block
        told = f"One block for a model with several ropes ({', '.join(before)}): its classes look up each by name."
        return {}, [fault("flat-block", told, "Write a block for each layer type.")] if flat else []
    rule = block["rope_type"] = str(block.get("rope_type", block.pop("type", "default")))
    theta = _THETAS.get(model_type, 1e4) if engine == "vllm" else 1e4
    lost = {key: before[key] for key in _LOST if key in before and key not in block}
    if engine == "sglang" or model_type.startswith("glm4"):  # the configs of one, these classes of the other keep it
        lost.pop("partial_rotary_factor", None)
    for key, value in lost.items():
        stops = key == "rope_theta" and (renamed if engine == "vllm" else model_type == "ministral3")
        effect = "the engine's class finds None in its place, or nothing, and the engine does not start"
        told = (
            f"The block replaces the config's and drops `{key}`: {effect if stops else _LOST[key].format(theta=theta)}."
        )
        findings.append(fault("stops" if stops else "lost-key", told, f"Add {json.dumps({key: value})[1:-1]}."))
    if rule in ("yarn", "llama3") and "original_max_position_embeddings" not in block:
        block["original_max_position_embeddings"] = text.get("max_position_embeddings")
        if engine == "vllm":
            told = f"The {rule} block lacks `original_max_position_embeddings`: vLLM does not start."
            findings.append(fault("stops", told, "Add the trained length under this name."))
    keys = {name: {*one.required_keys, *one.optional_keys} for one in RULES.values() for name in one.hf_names}
    foreign = set().union(*keys.values()) - keys.get(rule, set())  # merged into a block of another rule
    kept = {key: value for key, value in before.items() if key.startswith(("mrope", "partial"))}
    block = {**kept, **({"rope_theta": theta} if "rope_theta" in lost else {}), **block}
    text["rope_parameters"] = {key: value for key, value in block.items() if key not in foreign}
    fields = {"partial_rotary_factor": "rotary_dim", "mrope_section": "axes"}
    return {fields[key]: None for key in lost if key in fields}, findings


def config_length(engine: str, config: Mapping[str, Any], *, longest: bool = False) -> int | None:
    """Return the length in tokens that vLLM or SGLang take from a config; None if it states none.

    `longest`: the most that a command can ask for; without it vLLM serves the trained length of LongRoPE.

    >>> config_length("vllm", {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}})
    16384
    """
    text = text_part(config) if config else {}
    block = text.get("rope_parameters") or text.get("rope_scaling") or {}
    stated = {key: text[key] for key in LENGTHS if isinstance(text.get(key), int)}
    blocks = block.values() if isinstance(next(iter(block.values()), 0), Mapping) else [block]
    rules = [(one.get("rope_type", one.get("type")), one.get("factor")) for one in blocks]
    if engine == "sglang":
        length = next((stated[key] for key in _ORDER if key in stated), None)
        states = "original_max_position_embeddings" in block or rules[0][0] in ("llama3", "yarn")  # which get one
        factor = 1 if states or NOT_MULTIPLIED in str(text.get("model_type")) else block.get("factor") or 1
    else:
        length = stated.get("model_max_length") or min(stated.values(), default=None)
        multiplied = [own for rule, own in rules if rule in MULTIPLIES_LENGTH and own]
        factor = multiplied[0] if multiplied and NOT_MULTIPLIED not in str(text.get("model_type")) else 1
        if not longest and {"longrope", "su"} & {rule for rule, _ in rules} and isinstance(text.get(TRAINED_KEY), int):
            return int(text[TRAINED_KEY])
    return None if length is None else int(length * factor)


def mlx(command: EngineCommand, opened: Checkpoint) -> Read:
    """Return the checkpoint as mlx-lm reads its config; it has no limit of the length."""
    findings, config = list[Finding](), copy.deepcopy(dict(opened.config))
    text = text_of(config)
    model_type, block = str(text.get("model_type", "")), text.get("rope_parameters") or {}
    if block and model_type not in _MLX_READS:
        text.pop("rope_parameters")
        stated, theta = block.get("rope_theta", 1e4), _MLX_THETAS.get(model_type)
        if text.setdefault("rope_theta", theta or stated) != stated or theta is None:
            effect = f"theta is {theta:,.10g}, its class's default" if theta else "its class does not load without one"
            told = f"`rope_theta` in `rope_parameters`: mlx-lm does not read it for {model_type}, and {effect}."
            findings.append(fault("theta", told, "Write `rope_theta` next to the block too."))
        if block.get("rope_type", "default") != "default" and not text.get("rope_scaling"):
            told = f"`rope_parameters`: mlx-lm's class of {model_type} reads only `rope_scaling` and `rope_theta`."
            findings.append(_without_effect(told, "Write the block as `rope_scaling` too."))
    for name in ("rope_scaling", "rope_parameters"):
        read = text.get(name) or {}
        for key in ("attention_factor", "truncate") if read.get("rope_type", read.get("type")) == "yarn" else ():
            if key in read:
                findings.append(_without_effect(f"`{key}`: mlx-lm's YaRN does not read it."))
        text[name] = {key: value for key, value in read.items() if key not in ("attention_factor", "truncate")} or None
    ropes = ModelRopes.from_hf(config, alpha=opened.alpha)
    return dataclasses.replace(opened, config=as_loaded(config), ropes=ropes), math.inf, findings


def llama(command: EngineCommand, opened: Checkpoint) -> Read:
    """Return the checkpoint under llama.cpp's flags, which replace keys of the file, and the length of a slot."""
    if opened.arch is None or opened.path is None:
        cure = "Pass the file: ropewalk inspect MODEL.gguf --command ..."
        raise RopeError("inspect: llama.cpp loads a .gguf file.", facts={"model": opened.name}, cure=cure)
    file, arch = GGUFFile(opened.path, rope_only=True), opened.arch
    findings = _override(command, file.metadata, arch)
    for name in ("--rope-scale", "--rope-freq-scale", "--rope-freq-base", "--yarn-orig-ctx"):
        number = command.number(name)  # 0: the file's, but its inverse is no number
        if number is not None and (number < 0 or (number == 0 and name == "--rope-scale")):
            cure = "Correct the command, or remove the option: the file's own number applies."
            raise RopeError("inspect: an option needs a positive number.", facts={name: number}, cure=cure)
    own = gguf_ropes(file)
    keys = {key.removeprefix(f"{arch}."): value for key, value in file.metadata.items()}
    stated = float(keys.get("rope.scaling.factor") or keys.get("rope.scale_linear") or 1.0)
    kind, factor = command.value("--rope-scaling") or str(keys.get("rope.scaling.type", "linear")), stated
    if command.value("--rope-scaling") not in (None, "none", "linear", "yarn"):
        facts = {"--rope-scaling": kind}
        raise RopeError("inspect: llama.cpp does not start with this.", facts=facts, cure="Pass none, linear or yarn.")
    scales = [name for name, _ in command.words if name in ("--rope-scale", "--rope-freq-scale")]
    number = command.number(*scales[-1:]) if scales else None
    factor = factor if not number else number if scales[-1] == "--rope-scale" else 1 / number
    original = command.number("--yarn-orig-ctx") or keys.get("rope.scaling.original_context_length")
    theta, mixed = command.number("--rope-freq-base") or keys.get("rope.freq_base"), command.number("--yarn-ext-factor")
    mixed = mixed if mixed is not None and mixed >= 0 else None  # below 0: the file's
    tensors = [name for name in ROPE_TENSORS if name in file.tensors]
    if kind == "yarn" and factor != 1 and tensors:
        cure = "Remove --rope-scaling and --rope-scale."
        raise RopeError("inspect: YaRN on top of the file's own divisors.", facts={"tensors": tensors}, cure=cure)
    new = {"rope.scaling.type": kind, "rope.scaling.factor": 1.0 if kind == "none" else factor, "rope.freq_base": theta,
           "rope.scaling.original_context_length": None if original is None else int(original)}  # fmt: skip
    file.metadata |= {f"{arch}.{key}": value for key, value in new.items() if value is not None}
    ropes = gguf_ropes(file).mapped(lambda rope: _mixed(command, rope, mixed))
    layers = zip(own.ropes, ropes.ropes, ropes.sliding_windows, strict=True)  # flags do not reach those with a window
    ropes = dataclasses.replace(ropes, ropes=tuple(new if window is None else old for old, new, window in layers))
    context = int(keys["context_length"])
    longest = int((original or context) * factor) if kind == "yarn" and factor != stated else context
    given = command.number(*command.flags.length) or longest  # what --fit finds (common/fit.cpp)
    slots = command.number("--parallel", "-np") or 1
    each = given if slots < 0 or {"--kv-unified", "-kvu"} & {*command.rest} else given / slots
    if each > longest:
        told = f"-c {given:,.0f}: llama-server serves no more than {longest:,} tokens of it."
        cure = "Raise --rope-scale." if longest != context else "Add --rope-scaling yarn and --rope-scale, which raise "
        cure += "" if longest != context else "the limit since b10754 (ggml-org/llama.cpp#28030)."
        findings.append(fault("length", told, cure))
    if each < given:
        told = f"Each of {slots:.0f} slots gets {each:,.0f} tokens of the context."
        findings.append(fault("slots", told, "Multiply -c, or add --kv-unified.", "warning"))
    found = dataclasses.replace(opened, config=gguf_fields(file, ropes), ropes=ropes)
    return found, min(each, longest), [*findings, *_llama_flags(command, kind, factor, mixed)]


def _override(command: EngineCommand, metadata: dict[str, Any], arch: str) -> list[Finding]:
    """Put the values of --override-kv into the metadata."""
    kinds: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str, "bool": "true".__eq__}
    findings = []
    for each in (one for name, value in command.words if name == "--override-kv" for one in value.split(",")):
        key, _, typed = each.partition("=")
        kind, _, value = typed.partition(":")
        try:
            new = kinds[kind](value)
        except (KeyError, ValueError) as error:
            cure = f"For example {arch}.context_length=int:131072."
            raise RopeError("inspect: --override-kv needs KEY=TYPE:VALUE.", facts={"got": each}, cure=cure) from error
        if not key.startswith((f"{arch}.", "general.", "tokenizer.")):
            cure = f"Write {arch}.{key.partition('.')[2]}."
            findings.append(_without_effect(f"--override-kv {key}: the architecture of the file is {arch}.", cure))
        elif type(metadata.get(key, new)) is not type(new):
            told = f"--override-kv {key}: {kind} is not the type of this key."
            findings.append(_without_effect(told, "Change TYPE."))
        else:
            metadata[key] = new
    return findings


def _llama_flags(command: EngineCommand, kind: str, factor: float, mixed: float | None) -> Iterator[Finding]:
    """Yield flags without effect under the kind of scaling that results."""
    given = {name for name, _ in command.words}
    scales = sorted(given & {"--rope-scale", "--rope-freq-scale"})
    if kind == "none" and scales:
        yield _without_effect(f"`{scales[0]}`: nothing is scaled with --rope-scaling none.")
    if kind == "yarn" and factor == 1:
        yield _without_effect("`--rope-scaling yarn`: without --rope-scale its factor is 1.", "Add --rope-scale.")
    for name in sorted(given & {"--yarn-orig-ctx", "--yarn-beta-fast", "--yarn-beta-slow"} if kind != "yarn" else ()):
        yield _without_effect(f"`{name}`: the scaling is {kind}, not yarn.", "Add --rope-scaling yarn, or remove it.")
    if kind == "linear" and factor != 1 and scales and command.value("--rope-scaling") is None:
        told = f"`{scales[0]}` without --rope-scaling: the scaling is linear, that of a file without a type."
        yield fault("kind", told, "Add --rope-scaling yarn, unless you want linear interpolation.", "warning")
    if "--yarn-attn-factor" in given and kind == "yarn" and mixed != 0:
        yield _without_effect("`--yarn-attn-factor`: under yarn it is computed from the factor.")


def _mixed(command: EngineCommand, rope: RopeConfig, mixed: float | None) -> RopeConfig:
    """Return a rope with YaRN's numbers of the command."""
    if not isinstance(rope.scaling, YaRN):
        return rope
    if mixed not in (None, 0, 1):
        cure = "Pass 0 or 1, or omit it."
        raise RopeError("inspect: a part of YaRN's extrapolation is not described.", facts={"part": mixed}, cure=cure)
    given: dict[str, Any] = {f"beta_{name}": command.number(f"--yarn-beta-{name}") for name in ("fast", "slow")}
    given = {key: value for key, value in given.items() if value is not None and value >= 0}
    scaling = Linear(rope.scaling.factor) if mixed == 0 else dataclasses.replace(rope.scaling, **given)
    return dataclasses.replace(rope, scaling=scaling)


READERS = {"vllm": over_config, "sglang": over_config, "llama.cpp": llama, "mlx": mlx}
"""How each engine of `FLAGS` reads a model."""
