"""What does an engine make of a command: the ropes and the length that result, and the settings without effect?

`READERS` put a command over a model's config or file as each engine does, from the sources that `FLAGS` names.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ropewalk.audit.findings import SEVERITIES, Finding, Severity
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.gguf_file import ROPE_TENSORS, GGUFFile
from ropewalk.checkpoints.gguf_rope import gguf_fields, gguf_ropes
from ropewalk.errors import RopeError, shell_command
from ropewalk.families import FAMILIES
from ropewalk.methods import main_rope
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.hugging_face import text_part
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import RULES, Linear, YaRN
from ropewalk.rope.values import TRAINED_KEY, is_number
from ropewalk.serving.applied import Case, applied, blocks_of
from ropewalk.serving.engines import (
    FLAGS,
    MULTIPLIES_LENGTH,
    NOT_MULTIPLIED,
    ROPE_KEYS,
    EngineCommand,
    read_command,
)
from ropewalk.serving.plan import LENGTHS, parts_of, spelling_of, text_of
from ropewalk.serving.serve import serve_config

_METHODS = {"yarn": "yarn", "linear": "pi", "dynamic": "dynamic", "llama3": "llama3"}
Read = tuple[Checkpoint, float | None, list[Finding]]
"""The checkpoint as the engine reads it, the length that it serves, and faults."""
_LOST = {
    "rope_theta": ("", "theta becomes {theta:,.10g}, the engine's default"),
    "partial_rotary_factor": ("rotary_dim", "every feature of a head rotates"),
    "mrope_section": ("axes", "there is one axis, so images and videos get other positions"),
}
"""Keys that a new block drops if it lacks them: the field of `RopeConfig` that becomes None, and the effect."""
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


def _fault(code: str, message: str, cure: str, severity: Severity = "error") -> Finding:
    return Finding(code=code, severity=severity, message=message, cure=cure)


def _idle(message: str, cure: str = "Remove it.") -> Finding:
    """Return a finding about a setting without effect."""
    return _fault("no-effect", message, cure)


def _as_loaded(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as transformers 5 loads it: `rope_parameters` with theta and fraction, and no older keys."""
    content: dict[str, Any] = copy.deepcopy(dict(config))
    if not parts_of(content) and f"{content.get('model_type')}_text" in FAMILIES:  # flat files of a nested class
        content = {"model_type": content["model_type"], "text_config": content}
    text, ropes = text_of(content), ModelRopes.from_hf(config)
    written = text.get("rope_parameters") or text.get("rope_scaling") or {}
    with suppress(RopeError):  # frequencies without a theta
        if ropes.nested:
            block: dict[str, Any] = {str(label): rope.to_hf() for label, rope in ropes.rotating.items()}
        else:
            plain = next(iter(ropes.rotating.values())).unscaled().to_hf()
            block = {**plain, "rope_type": written.get("type", plain["rope_type"]), **written}
            block.pop("type", None)
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


def _folder(command: EngineCommand, opened: Checkpoint) -> Read:
    """Return the checkpoint under vLLM's or SGLang's JSON, and the length that is served."""
    engine, findings, flags = command.engine, list[Finding](), command.flags
    if opened.arch is not None or not opened.config:
        cure = "Pass the Hugging Face folder of the model."
        raise RopeError(f"inspect: {engine} is described for folders.", facts={"model": opened.name}, cure=cure)
    over, after = dict[str, Any](), _as_loaded(opened.config)
    for each in command.json():
        _merge(over, each)
    parts, text = parts_of(after), text_of(after)
    before = copy.deepcopy(text.get("rope_parameters") or {})
    for key, value in over.items():
        name, part, inside = "rope_parameters" if key == "rope_scaling" else key, after.get(key), dict[str, Any]()
        if parts[:1] == (key,) and not isinstance(value, Mapping):
            cure = "Pass an object with the keys to change."
            raise RopeError(f"inspect: `{key}` is the language model's part.", facts={key: value}, cure=cure)
        if key.endswith("_config") and isinstance(value, Mapping):
            if isinstance(part, dict):
                inside = {"rope_parameters" if one == "rope_scaling" else one: own for one, own in value.items()}
                _merge(part, inside) if engine == "vllm" else part.update(inside)
            else:
                findings.append(_idle(f"`{key}`: this config has no such part.", "Write its keys at the top."))
        elif parts and name in ("rope_parameters", *LENGTHS, *_LOST):
            told = f"`{key}` is at the top level, beside `{parts[-1]}`: the language model does not read it."
            findings.append(_idle(told, f"Write it as {'.'.join((*parts, name))}, with every key of the block."))
        elif engine == "sglang" and name == "rope_parameters" and isinstance(value, Mapping):
            after[name] = {**(after.get(name) or {}), **value}
        elif name not in _LOST:
            after[name] = value
        for one in (key, *inside):  # `standardize_rope_params` prefers the block's own
            if one in ("rope_theta", "partial_rotary_factor"):
                findings.append(_idle(f"`{one}`: the block contains its own.", "Write it into the block."))
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
    findings.append(_fault("length", told, cure, "warning" if allowed else "error"))
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
        return {}, [_fault("flat-block", told, "Write a block for each layer type.")] if flat else []
    rule = block["rope_type"] = str(block.get("rope_type", block.pop("type", "default")))
    theta = _THETAS.get(model_type, 1e4) if engine == "vllm" else 1e4
    lost = {key: before[key] for key in _LOST if key in before and key not in block}
    if engine == "sglang" or model_type.startswith("glm4"):  # the configs of one, these classes of the other keep it
        lost.pop("partial_rotary_factor", None)
    for key, value in lost.items():
        stops = key == "rope_theta" and (renamed if engine == "vllm" else model_type == "ministral3")
        effect = "the engine's class finds None in its place, or nothing, and the engine does not start"
        effect = effect if stops else _LOST[key][1].format(theta=theta)
        told = f"The block replaces the config's and drops `{key}`: {effect}."
        findings.append(_fault("stops" if stops else "lost-key", told, f"Add {json.dumps({key: value})[1:-1]}."))
    if rule in ("yarn", "llama3") and "original_max_position_embeddings" not in block:
        block["original_max_position_embeddings"] = text.get("max_position_embeddings")
        if engine == "vllm":
            told = f"The {rule} block lacks `original_max_position_embeddings`: vLLM does not start."
            findings.append(_fault("stops", told, "Add the trained length under this name."))
    keys = {name: {*one.required_keys, *one.optional_keys} for one in RULES.values() for name in one.hf_names}
    foreign = set().union(*keys.values()) - keys.get(rule, set())  # merged into a block of another rule
    kept = {key: value for key, value in before.items() if key.startswith(("mrope", "partial"))}
    block = {**kept, **({"rope_theta": theta} if "rope_theta" in lost else {}), **block}
    text["rope_parameters"] = {key: value for key, value in block.items() if key not in foreign}
    return {field: None for key, (field, _) in _LOST.items() if key in lost and field}, findings


def config_length(engine: str, config: Mapping[str, Any], *, longest: bool = False) -> int | None:
    """Return the length in tokens that vLLM or SGLang take from a config; None if it states none.

    `longest`: the most that a command can ask for; without it vLLM serves the trained length of LongRoPE.

    >>> config_length("vllm", {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}})
    16384
    """
    text = text_part(config) if config else {}
    block = text.get("rope_parameters") or text.get("rope_scaling") or {}
    stated = {key: text[key] for key in LENGTHS if isinstance(text.get(key), int)}
    blocks = [one for one in block.values() if isinstance(one, Mapping)] or [block]  # beside `truncate`
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


def _mlx(command: EngineCommand, opened: Checkpoint) -> Read:
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
            findings.append(_fault("theta", told, "Write `rope_theta` next to the block too."))
        if block.get("rope_type", "default") != "default" and not text.get("rope_scaling"):
            told = f"`rope_parameters`: mlx-lm's class of {model_type} reads only `rope_scaling` and `rope_theta`."
            findings.append(_idle(told, "Write the block as `rope_scaling` too."))
    for name in ("rope_scaling", "rope_parameters"):
        read = dict(text.get(name) or {})
        for key in ("attention_factor", "truncate"):
            if key in read and read.get("rope_type", read.get("type")) == "yarn":
                findings.append(_idle(f"`{key}`: mlx-lm's YaRN does not read it."))
            read.pop(key, None)
        text[name] = read or None
    ropes = ModelRopes.from_hf(config, alpha=opened.alpha)
    return dataclasses.replace(opened, config=_as_loaded(config), ropes=ropes), math.inf, findings


def _factor(command: EngineCommand) -> float | None:
    """Return the factor of llama.cpp's last flag of one; None without one, and if it is 0, for the file's own."""
    last = next((name for name, _ in reversed(command.words) if name in ("--rope-scale", "--rope-freq-scale")), "")
    number = command.number(last)
    return None if not number else number if last == "--rope-scale" else 1 / number


def _file(command: EngineCommand, opened: Checkpoint) -> Read:
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
    kind, factor = command.value("--rope-scaling"), _factor(command) or stated
    if kind not in (None, "none", "linear", "yarn"):
        facts = {"--rope-scaling": kind}
        raise RopeError("inspect: llama.cpp does not start with this.", facts=facts, cure="Pass none, linear or yarn.")
    kind = kind or str(keys.get("rope.scaling.type", "linear"))
    theta, original = (
        command.number(flag) or keys.get(ROPE_KEYS[flag][1]) for flag in ("--rope-freq-base", "--yarn-orig-ctx")
    )
    mixed = command.number("--yarn-ext-factor")
    mixed = mixed if mixed is not None and mixed >= 0 else None  # below 0: the file's
    tensors = [name for name in ROPE_TENSORS if name in file.tensors]
    if kind == "yarn" and factor != 1 and tensors:
        cure = "Remove --rope-scaling and --rope-scale."
        raise RopeError("inspect: YaRN on top of the file's own divisors.", facts={"tensors": tensors}, cure=cure)
    new = (kind, 1.0 if kind == "none" else factor, theta, None, None if original is None else int(original))
    replaced = {key: value for (_, key), value in zip(ROPE_KEYS.values(), new, strict=True) if value is not None}
    file.metadata |= {f"{arch}.{key}": value for key, value in replaced.items()}
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
        raises = (
            "Add --rope-scaling yarn and --rope-scale, which raise the limit since b10754 (ggml-org/llama.cpp#28030)."
        )
        findings.append(_fault("length", told, raises if longest == context else "Raise --rope-scale."))
    if each < given:
        told = f"Each of {slots:.0f} slots gets {each:,.0f} tokens of the context."
        findings.append(_fault("slots", told, "Multiply -c, or add --kv-unified.", "warning"))
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
            told = f"--override-kv {key}: the architecture of the file is {arch}."
            findings.append(_idle(told, f"Write {arch}.{key.partition('.')[2]}."))
        elif type(metadata.get(key, new)) is not type(new):
            findings.append(_idle(f"--override-kv {key}: {kind} is not the type of this key.", "Change TYPE."))
        else:
            metadata[key] = new
    return findings


def _llama_flags(command: EngineCommand, kind: str, factor: float, mixed: float | None) -> Iterator[Finding]:
    """Yield flags without effect under the kind of scaling that results."""
    given = {name for name, _ in command.words}
    scales = sorted(given & {"--rope-scale", "--rope-freq-scale"})
    if kind == "none" and scales:
        yield _idle(f"`{scales[0]}`: nothing is scaled with --rope-scaling none.")
    if kind == "yarn" and factor == 1:
        yield _idle("`--rope-scaling yarn`: without --rope-scale its factor is 1.", "Add --rope-scale.")
    for name in sorted(given & {"--yarn-orig-ctx", "--yarn-beta-fast", "--yarn-beta-slow"} if kind != "yarn" else ()):
        yield _idle(f"`{name}`: the scaling is {kind}, not yarn.", "Add --rope-scaling yarn, or remove it.")
    if kind == "linear" and factor != 1 and scales and command.value("--rope-scaling") is None:
        told = f"`{scales[0]}` without --rope-scaling: the scaling is linear, that of a file without a type."
        yield _fault("kind", told, "Add --rope-scaling yarn, unless you want linear interpolation.", "warning")
    if "--yarn-attn-factor" in given and kind == "yarn" and mixed != 0:
        yield _idle("`--yarn-attn-factor`: under yarn it is computed from the factor.")


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


READERS = {"vllm": _folder, "sglang": _folder, "llama.cpp": _file, "mlx": _mlx}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Started:
    """What an engine makes of a command.

    - `before`, `model`: the checkpoint as it is, and as the engine reads it.
    - `length`: tokens that it serves; None if it does not start, infinite without a limit.
    - `findings`: settings without effect, and other faults. `line`: commands that do what was meant, or ().
    """

    command: EngineCommand
    before: Checkpoint
    model: Checkpoint
    length: float | None
    findings: tuple[Finding, ...]
    line: tuple[str, ...]


def started(text: str, model: str | None = None) -> Started:
    """Return what an engine makes of a command line; it is not run.

    **Arguments:** `text`: the command. `model`: a local path or name of its model, if the command's own is not one.
    **Raises:** `RopeError` as `read_command` and `Checkpoint.open` do.
    """
    command = read_command(text)
    given = model or command.model
    if given is None:
        cure = "Pass it first: ropewalk inspect MODEL --command ..."
        raise RopeError("inspect: the command names no model.", facts={"command": text}, cure=cure)
    before = Checkpoint.open(given)
    found, length, faults = READERS[command.engine](command, before)
    own = main_rope(before.ropes.ropes)
    trained = None if own is None else own.trained_length
    findings = [*_foreign(command), *faults, *_differences(command.engine, before, found)]
    length = None if {"stops", "unknown-option"} & {one.code for one in findings} else length
    line: tuple[str, ...] = ()
    if own is not None and trained is not None:
        findings += [] if length is None else _lengths(found, length, trained, own.theta)
        try:
            line = _right(command, given, trained) if any(one.severity != "note" for one in findings) else ()
        except RopeError as error:
            findings.append(_fault("refused", error.rule, error.cure, "note"))
    findings.sort(key=lambda one: SEVERITIES.index(one.severity))
    return Started(command=command, before=before, model=found, length=length, findings=tuple(findings), line=line)


def served_words(model: Checkpoint, done: Started | None) -> str:
    """Return the length that engines serve, in words."""
    if done is not None:
        no_limit = "no limit" if done.length == math.inf else ""
        return "the engine does not start" if done.length is None else no_limit or f"{done.length:,.0f}"
    lengths = {} if model.arch else {name: config_length(name, model.config) for name in ("vllm", "sglang")}
    shown = {value: [name for name in lengths if lengths[name] == value] for value in lengths.values() if value}
    return "; ".join(f"{value:,} ({', '.join(names)})" for value, names in shown.items())


def _foreign(command: EngineCommand) -> Iterator[Finding]:
    """Yield options for the rope or the length that the engine does not have."""
    lengths, over = {name for flags in FLAGS.values() for name in flags.length}, command.flags.over
    for name in command.unread:
        if re.search("rope|yarn", name) or (name.startswith("--") and name.replace("_", "-") in lengths):
            since = " since 0.11.1 (vllm-project/vllm#28006)" if command.engine == "vllm" else ""
            told = f"`{name}` is no option of {command.engine}{since}, which does not start with it."
            yield _fault("unknown-option", told, f"Use {over}." if over else "Change the model's config.")


def _wanted(command: EngineCommand) -> tuple[str | None, float | None, float | None]:
    """Return the rule and the factor that a command asks for, and the length in tokens."""
    length = command.number(*command.flags.length)
    if command.engine == "llama.cpp":
        factor = _factor(command)
        return command.value("--rope-scaling") or ("linear" if factor else None), factor, length
    for word in (*(value for _, value in command.words), *command.rest):  # also of an option that no longer exists
        with suppress(ValueError):
            for block in _objects(json.loads(word)):
                kind, factor = block.get("rope_type", block.get("type")), block.get("factor")
                if isinstance(kind, str) and kind in _METHODS:
                    return kind, factor if is_number(factor) else None, length
    return None, None, length


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object of a JSON value."""
    if isinstance(value, Mapping):
        yield value
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _objects(inner)


def _right(command: EngineCommand, model: str, trained: int) -> tuple[str, ...]:
    """Return the plan of `serve-config` for what a command asks, with its other options; () if there is none."""
    rule, factor, length = _wanted(command)
    target = math.ceil(max((factor or 1) * trained, length or 0))
    extends = target > trained and (not length or length > trained)
    if not extends and rule is None and command.engine != "mlx":
        return ()
    served = int(length) if length and trained < length < target else None
    method = _METHODS.get(rule or "", "yarn") if extends else "as-is"
    plan = serve_config(model, command.engine, method=method, target=target if extends else None, length=served)
    wrong = {name for name in command.unread if re.search("rope|yarn", name)}
    other = [word for at, word in enumerate(command.rest) if not {word, *command.rest[at - 1 : at]} & wrong]
    start = f"{shell_command(command.program)}{plan.steps[-1].removeprefix(command.flags.starts[0])}"
    return *plan.steps[:-1], f"{start} {shell_command(*other)}".rstrip()


def _differences(engine: str, before: Checkpoint, found: Checkpoint) -> Iterator[Finding]:
    """Yield what the engine's classes do with the block that results."""
    text, rope, changed = text_part(found.config), main_rope(found.ropes.ropes), found.ropes != before.ropes
    block = text.get("rope_parameters") or {}
    blocks = [block] if "rope_type" in block else [one for one in block.values() if isinstance(one, Mapping)]
    if found.arch or not block or rope is None or not all("rope_type" in one for one in blocks):
        return
    case = Case(
        block=block, model_type=str(text.get("model_type", "")), extends=changed, override=changed,
        scaled=blocks_of(block)[0]["rope_type"] != "default", interleaved=rope.interleaved,
        spelling=spelling_of(text_part(before.config)),
    )  # fmt: skip
    answer = applied(engine, case)
    if answer.state == "lost":
        yield _fault("not-applied", f"The block is not applied: {answer.reason}.", f"It was {answer.source}.")
    if answer.state == "unknown":
        yield _fault("not-run", f"{answer.reason}.".capitalize(), "Run ropewalk verify with --engine.", "warning")
    for one in answer.caveats:
        if one.effect == "differs":
            yield _fault("engine", one.text, f"It was {one.evidence}.", "warning")


def _lengths(found: Checkpoint, length: float, trained: int, theta: float) -> Iterator[Finding]:
    """Yield a factor without a length, a length without a scaling or a new theta, and a wrong original length."""
    rope = main_rope(found.ropes.ropes)
    if rope is None or math.isinf(length):
        return
    scaling = rope.scaling if rope.as_trained() != rope else None
    reach = None if scaling is None else scaling.target_length(rope.original_length or trained)
    serves = f"The engine serves {length:,.0f} tokens"
    if scaling is not None and length <= trained:
        far = f"reaches {reach:,} and " if reach else ""
        told = f"{serves}, no more than without the {scaling.rope_type} scaling, which {far}changes every text."
        yield _fault("factor-without-length", told, "State the length too, or remove the scaling.", "warning")
    elif reach is not None and length > reach:
        told = f"{serves}, and the scaling reaches {reach:,}."
        yield _fault("beyond-scaling", told, "Raise the factor, or serve less.")
    elif scaling is None and length > trained and rope.theta == theta:
        told = f"{serves} with a rope that was trained to {trained:,}."
        yield _fault("beyond-trained", told, "Scale the rope, or serve less.")
    original = None if scaling is None else scaling.original_length
    if original not in (None, trained):
        told = f"`original_max_position_embeddings` is {original:,}; the model was trained to {trained:,} tokens."
        yield _fault("original-length", told, "State the trained length: the ramp follows from it.", "warning")
