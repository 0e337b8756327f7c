"""The rope of each layer of a GGUF file, from its metadata, as llama.cpp computes it. No weights and no tokenizer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ropewalk.checkpoints.gguf_file import ROPE_TENSORS, GGUFFile
from ropewalk.errors import NoRotation, RopeError
from ropewalk.families import trained_as
from ropewalk.families.llama_cpp import ARCHITECTURES, STILL, Architecture, Windows
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import LayerType, ModelRopes
from ropewalk.rope.scaling import Ladder, Linear, Llama3, LongRoPE, Proportional, Scaling, YaRN
from ropewalk.rope.scaling.yarn import yarn_mscale
from ropewalk.rope.values import MOST_SIZE, MOST_TOKENS, as_whole, is_number

STOPPED = 1e30  # the divisor of a pair that does not rotate, as llama.cpp's converter writes it for Gemma 4
_FULL, _RECURRENT = "full_attention", "recurrent"
# The architectures whose files are copied with a new rope, and whether their converter permutes q and k for llama.cpp's
# interleaved rotation.
PERMUTED = {"llama": True, "smollm3": True, "qwen2": False, "qwen3": False}
SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "context_length": "max_position_embeddings",
    "attention.sliding_window": "sliding_window",
}


def own_keys(file: GGUFFile) -> tuple[str, dict[str, Any]]:
    """Return the architecture, and its metadata without the prefix; raise `RopeError` for a later part of a split."""
    arch = file.metadata.get("general.architecture")
    if file.metadata.get("split.no") or not isinstance(arch, str):
        raise file.error(
            "this file has no metadata of a model.",
            facts={"split.no": file.metadata.get("split.no"), "general.architecture": arch},
            cure="Of a split GGUF file pass the first part, -00001-of-.",
        )
    return arch, {key[len(arch) + 1 :]: one for key, one in file.metadata.items() if key.startswith(f"{arch}.")}


def model_type_of(file: GGUFFile) -> str:
    """Return the model_type of the config of a file's model."""
    arch, own = own_keys(file)
    row = ARCHITECTURES.get(arch)
    return "mistral" if arch == "llama" and own.get("attention.sliding_window") else (row and row.family) or arch


def gguf_fields(file: GGUFFile, ropes: ModelRopes) -> dict[str, Any]:
    """Return the sizes of a file's model, and the `rope_parameters` of its ropes, as a config.json names them."""
    own, blocks = own_keys(file)[1], dict[str, dict[str, Any]]()
    fields = {name: own[key] for key, name in SIZES.items() if as_whole(own.get(key))}
    for label, rope in ropes.rotating.items():
        block = {"rope_type": "default"}
        with suppress(RopeError):  # no name for the rule
            block = replace(rope, axes=None).to_hf()
        more = {"mrope_section": rope.axes and own["rope.dimension_sections"],
                "llama_4_scaling_beta": own.get("attention.temperature_scale")}  # fmt: skip
        blocks[str(label)] = block | {key: value for key, value in more.items() if value}
        fields |= {"head_dim": rope.head_dim} if len(blocks) == 1 else {}
    fields |= {"rope_parameters": blocks if len(blocks) > 1 else next(iter(blocks.values()))} if blocks else {}
    return {"model_type": model_type_of(file), **fields}


def gguf_ropes(file: GGUFFile) -> ModelRopes:
    """Return the rope and the window of each layer of a file, its pairs in the order of the file's rows.

    **Raises:** `NoRotation` for an architecture or a file without rotation; `RopeError` for an unknown architecture or
    scaling, for a missing or damaged number, and if the file ends before the tensors that divide its frequencies.
    **Source:** llama.cpp b11549; see `ropewalk.families.llama_cpp`.
    """
    arch, own = own_keys(file)
    if arch not in ARCHITECTURES and arch not in STILL:
        cure = "Use the model's Hugging Face folder."
        raise file.error("unknown architecture.", facts={"general.architecture": arch}, cure=cure)
    model = None if arch in STILL else _Model(file, arch, own, ARCHITECTURES[arch])
    layers = [] if model is None else model.layers()
    if not any(one.rope for one in layers):
        raise NoRotation(
            f"load: no layer of this GGUF file rotates; {arch} uses {STILL.get(arch, 'no positions with these keys')}.",
            facts={"file": str(file.path), **{key: own[key] for key in ("block_count", _SWITCH) if key in own}},
            cure="Choose a model with rotary embeddings, such as Llama or Qwen.",
        )
    rotate_last = sorted(layers, key=lambda one: one.rope is not None)
    return ModelRopes(
        tuple(one.rope for one in layers),
        (None,) * len(layers),
        tuple(one.window for one in layers),
        labels=tuple(one.name for one in layers),
        types=tuple({one.name: one for one in rotate_last}.values()),
        nested=len({one.rope for one in layers if one.rope}) > 1,
    )


_SWITCH = "rope.scaling.finetuned"


@dataclass(frozen=True)
class _Model:
    """The metadata of a model, without the architecture's prefix, and its row of the table."""

    file: GGUFFile
    arch: str
    own: dict[str, Any]
    row: Architecture

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number of the metadata, the first of a list."""
        value = self.own.get(key, default)
        size = as_whole(value[0] if isinstance(value, list) and value else value)
        if size is None or not least <= size <= (MOST_TOKENS if key == "context_length" else MOST_SIZE):
            facts = {f"{self.arch}.{key}": self.own.get(key, "missing")}
            raise self.file.error("a number is missing from the metadata, or out of range.", facts=facts)
        return size

    def layers(self) -> list[LayerType]:
        """Return the type, rope and window of each layer."""
        row, count = self.row, self.size("block_count") - self.size("nextn_predict_layers", 0, least=0)
        if row.layers not in (None, count) or (row.switch and self.own.get(_SWITCH) is False):
            return []
        window, labels = self._labels(count)
        full, local = self._rope(), self._rope(row.windows) if window else None
        every = row.still_every if window or row.still_without_window is None else 0
        every = count if not window and row.still_without_window == "last" else every
        made = []
        for layer, label in enumerate(labels):
            still = every > 0 and (layer + (not row.still_first)) % every == 0
            still |= label == _RECURRENT or (label == _FULL and window is not None and not row.full_rotates)
            has_window = label not in (_FULL, _RECURRENT)
            rope = None if still else local if has_window else full
            made.append(
                LayerType(label if len({*labels}) > 1 or has_window else None, rope, window if has_window else None)
            )
        return made

    def _labels(self, count: int) -> tuple[int | None, list[str]]:
        """Return the window in tokens, None if the model has none, and the type of each layer."""
        windows, key = self.row.windows, "attention.sliding_window"
        labels, size = [_FULL] * count, None
        if windows is not None and windows.layers in (None, count):
            size = self.size(key, windows.size, least=0) or None
        if windows is not None and size:
            pattern = self.own.get(f"{key}_pattern", windows.period) if windows.period != 0 else 0
            period, edge = as_whole(pattern), 0 if windows.first else (as_whole(pattern) or 0) - 1
            if isinstance(pattern, list):
                self._check_list(f"{key}_pattern", count)
            elif period is None or not 0 <= period <= MOST_SIZE:
                raise self.file.error("the metadata does not list the layers with a window.", facts={key: size})
            has = pattern if isinstance(pattern, list) else [not period or n % period != edge for n in range(count)]
            labels, size = [windows.kind if one else _FULL for one in has[:count]], windows.fixed or size
        if self.row.interval and not isinstance(self.own.get("attention.recurrent_layers"), list):
            every = self.size("full_attention_interval", self.row.interval)
            return size, [_RECURRENT if (n + 1) % every else label for n, label in enumerate(labels)]
        recurrent = {"attention.head_count": 0, "attention.head_count_kv": 0}
        for key, value in (recurrent | ({"attention.recurrent_layers": 1} if self.row.interval else {})).items():
            if isinstance(self.own.get(key), list):
                stated = self._check_list(key, count)
                labels = [_RECURRENT if bool(n) == value else old for n, old in zip(stated, labels, strict=False)]
        return size, labels

    def _check_list(self, key: str, count: int) -> list[Any]:
        """Return a list of the metadata with a value for each layer."""
        stated: list[Any] = self.own[key]
        if len(stated) < count:
            facts = {key: len(stated), "layers": count}
            raise self.file.error("a list of the metadata is shorter than the model.", facts=facts)
        return stated

    def _rope(self, windows: Windows | None = None) -> RopeConfig:
        """Return the rope of the layers without a window, or of those with one."""
        row, own, keys, context = self.row, self.own, dict(self.own), self.size("context_length")
        head = self.size("attention.key_length", self.size("embedding_length") // self.size("attention.head_count"))
        width = self.size("rope.dimension_count", head)
        if windows is not None:
            head, width = self.size("attention.key_length_swa", head), self.size("rope.dimension_count_swa", width)
            base = windows.theta or own.get("rope.freq_base", 10_000.0)
            keys["rope.freq_base"] = own.get("rope.freq_base_swa", base) if windows.own_theta else base
            keys |= {} if windows.scaled else {"rope.scaling.type": "none"}
        width, keys = (head, {"context_length": context}) if row.plain else (width, keys)
        width = width // 2 if row.half_in_full and windows is None else width
        if row.whole and width != head:
            facts = {"rope.dimension_count": width, "features of a head": head}
            raise self.file.error("llama.cpp rotates only whole heads of this architecture.", facts=facts)
        base, alpha = keys.get("rope.freq_base", 10_000.0), own.get("rope.scaling.alpha", 0.0)
        if row.alpha and is_number(alpha) and is_number(base) and alpha > 0 and head > 2:
            keys["rope.freq_base"] = base * alpha ** (head / (head - 2))
        divisors = {} if windows is not None and row.full_only else self._divisors()
        divisors = {name: of[: width // 2] for name, of in divisors.items()}
        rope = scaled_rope(keys, divisors, width, str(self.file.path), arch=self.arch)
        axes = self._axes(width // 2)
        vocabulary = own.get("vocab_size", len(self.file.metadata.get("tokenizer.ggml.tokens") or ()))
        known = {**rope.to_hf(), "max_position_embeddings": context, "vocab_size": vocabulary}
        if keys.get(_SWITCH) is True and not row.switch:
            known["finetuned"] = True
        trained, pairs = (
            trained_as(model_type_of(self.file), known["rope_type"], known),
            row.interleaved and axes is None,
        )
        head = width if row.mla else head
        return replace(rope, head_dim=head, rotary_dim=width, interleaved=pairs, axes=axes, trained=trained)

    def _divisors(self) -> dict[str, list[float]]:
        """Return the divisors of each pair's frequency that llama.cpp loads, by tensor without ".weight"."""
        file, kind, form = self.file, self.own.get("rope.scaling.type"), self.row.divisors
        lists = form == "lists" or (form == "either" and kind == "longrope")
        taken = ROPE_TENSORS[1:] if lists else ROPE_TENSORS[:1] if form in ("fixed", "either") else ()
        strange = sorted({*ROPE_TENSORS} & {*file.tensors} - {*taken})
        if strange and form != "ignored":
            raise file.error(
                "llama.cpp does not load these divisors for this architecture and type of scaling.",
                facts={"tensors": strange, "rope.scaling.type": kind},
                cure="Convert the checkpoint again.",
            )
        if taken and not file.whole:
            warnings.warn(
                f"load: {file.path} ends before the names of its tensors. If it contains {taken[0]}, as Llama 3.1 "
                "does, the frequencies are divided by it: fetch more of the file.",
                stacklevel=2,
            )
        return {name[: -len(".weight")]: file.read(name).flatten().tolist() for name in taken if name in file.tensors}

    def _axes(self, pairs: int) -> tuple[int, ...] | None:
        """Return the axis of each pair (time, height, width and llama.cpp's fourth), None without sections."""
        stated, row = self.own.get("rope.dimension_sections"), self.row
        sections = [as_whole(one) or 0 for one in stated] if isinstance(stated, list) else []
        if row.axes is None or not (row.needs_axes or min((*sections, 0, 0)[:2], default=0)):
            return None
        if not 0 < sum(sections) <= MOST_SIZE or min(sections) < 0 or not 3 <= len(sections) <= 4:
            facts = {"rope.dimension_sections": stated}
            raise self.file.error("the metadata lacks the sections of the axes.", facts=facts)
        ends = [sum(sections[:end]) for end in (1, 2, 3)]
        places = [pair % sum(sections) for pair in range(pairs)]
        axes = [sum(place >= end for end in ends) for place in places]
        if row.axes == "interleaved":
            axes = [place % 3 if place < 3 * sections[place % 3] else 3 for place in places]
        if 3 in axes:
            named = ", ".join(str(pair) for pair, axis in enumerate(axes) if axis == 3)
            warnings.warn(
                f"load: {self.file.path} gives pairs {named} the fourth axis of llama.cpp, which is 0 for all tokens "
                "of a text: there these pairs do not rotate.",
                stacklevel=2,
            )
        return tuple(sorted({*axes}).index(axis) for axis in axes)


# --- the scaling of one rope

_YARN = ("ext_factor", "attn_factor", "beta_fast", "beta_slow")
_FLAGS = {"ext_factor", "beta_fast", "beta_slow"}  # --yarn-attn-factor is computed
_NUMBERS = {"context_length", "rope.scale_linear"}
_NUMBERS |= {f"rope.{name}{end}" for name in ("freq_base", "dimension_count") for end in ("", "_swa")}
_NUMBERS |= {f"rope.scaling.{name}" for name in ("factor", "original_context_length", "attn_factor", "alpha")}
_NUMBERS |= {f"rope.scaling.yarn_{name}" for name in (*_YARN, "log_multiplier")}
_KNOWN = _NUMBERS | {"rope.scaling.type", "rope.scaling.finetuned", "rope.dimension_sections"}
_PAIR = {"rope_factors_long", "rope_factors_short"}


def scaled_rope(
    metadata: Mapping[str, Any], factors: Mapping[str, Sequence[float]], rotary_dim: int, where: str, *, arch: str
) -> RopeConfig:
    """Return a half-split rope from metadata keys without their architecture's prefix, and the divisor tensors.

    llama.cpp applies divisors and `attn_factor` with every type, but YaRN's numbers only for the architectures whose
    `ARCHITECTURES` row has them; a warning names the others if they differ from 1, the usual attention factor, 32 and
    1. Source: `llama_model_base::load_hparams`, each architecture's `load_arch_hparams` and src/llama-context.cpp of
    b11549. `rotary_dim`: rotated features. `where` names the file in errors.
    """
    unknown = sorted(key for key in metadata if key.startswith("rope.") and key not in _KNOWN)
    kind = metadata.get("rope.scaling.type", "linear")  # llama.cpp's default: a factor without a type is linear
    if unknown or kind not in ("none", "linear", "yarn", "longrope"):
        raise RopeError(
            "load: the GGUF file has an unknown rope scaling.",
            facts={"file": where, "rope.scaling.type": kind, "unknown keys": unknown},
            cure="Use the model's Hugging Face folder.",
        )
    for key in sorted(_NUMBERS & {*metadata, "context_length"}):
        value = metadata.get(key, "missing")
        counts = key.startswith(("context_length", "rope.dimension_count"))
        if (
            not is_number(value)
            or (value < 0 and key != "rope.scaling.yarn_ext_factor")
            or (value == 0 and key.startswith("rope.freq_base"))
            or (counts and not as_whole(value))
        ):
            raise RopeError(
                "load: a value in the GGUF file's metadata must be a finite number of at least 0. The base must be "
                "above 0, the context length and the rotated width also whole.",
                facts={"file": where, key: value},
                cure="Fetch or convert the file again.",
            )
    theta = float(metadata.get("rope.freq_base", 10_000.0))
    stated, context = metadata.get("rope.scaling.original_context_length"), int(metadata["context_length"])
    length = int(stated or context)
    factor = float(metadata.get("rope.scaling.factor") or metadata.get("rope.scale_linear") or 1.0)  # 0 means none
    factor, row = 1.0 if kind == "none" else factor, ARCHITECTURES[arch]
    attention = float(metadata.get("rope.scaling.attn_factor", 1.0))
    share = float(metadata.get("rope.scaling.yarn_ext_factor", -1.0)) if "ext_factor" in row.yarn else -1.0
    yarn = (kind == "yarn" if share < 0 else share > 0) and factor != 1.0
    lone = (kind == "longrope" or _PAIR & {*factors}) and {*factors} != _PAIR
    if lone or (yarn and (factors or share not in (-1.0, 1.0))):
        raise RopeError(
            "load: the GGUF file scales its rope by YaRN and by a tensor of divisors, or by a part of YaRN, or it "
            "lacks a tensor of longrope.",
            facts={"file": where, "rope.scaling.type": kind, "tensors": sorted(factors), "yarn_ext_factor": share},
            cure="Convert the checkpoint again.",
        )
    if "attn_factor" in row.yarn and not yarn:  # YaRN replaces it
        attention *= float(metadata.get("rope.scaling.yarn_attn_factor", 1.0))
    scaled = {name: tuple(factor * divisor for divisor in divisors) for name, divisors in factors.items()}
    one = scaled.get("rope_freqs", (factor,) * (rotary_dim // 2))
    scaling: Scaling | None
    if yarn:
        scaling = _yarn(metadata, factor, length, attention, arch, where)
    elif {*factors} == _PAIR:
        short, long = scaled["rope_factors_short"], scaled["rope_factors_long"]
        scaling = LongRoPE(short, long, length, attention_factor=attention)
    elif attention != 1.0:  # no rule of transformers has a factor and divisors
        scaling = LongRoPE(one, one, length, attention_factor=attention)
    elif factors:
        scaling = rule_of_divisors(one, theta, rotary_dim, stated, context)
    else:
        scaling = None if factor == 1.0 else Linear(factor)
    return RopeConfig(rotary_dim, interleaved=False, theta=theta, scaling=scaling, max_position_embeddings=context)


def _yarn(metadata: Mapping[str, Any], factor: float, length: int, attention: float, arch: str, where: str) -> YaRN:
    """Return llama.cpp's YaRN: truncated bounds, and 0.1 ln(factor) + 1 times attn_factor."""
    row, whole = ARCHITECTURES[arch], yarn_mscale(factor, 1.0)
    usual = {"ext_factor": 1.0, "attn_factor": whole, "beta_fast": 32.0, "beta_slow": 1.0, "log_multiplier": 0.0}
    stated = {name: float(metadata.get(f"rope.scaling.yarn_{name}", value)) for name, value in usual.items()}
    betas: dict[str, Any] = {
        name: float(metadata.get(f"rope.scaling.yarn_{name}", row.yarn[name])) if name in row.yarn else usual[name]
        for name in ("beta_fast", "beta_slow")
    }
    dimensions = stated["log_multiplier"] * (10.0 if "tenth" in row.yarn else 1.0)  # mscale_all_dim
    if dimensions and {"tenth", "log_multiplier"} & row.yarn.keys():
        whole = 1.0 if row.equal_mscales else whole / yarn_mscale(factor, dimensions)
    applied = {*row.yarn, *(["log_multiplier"] if "tenth" in row.yarn else [])} - {"attn_factor"}
    ignored = {name: value for name, value in stated.items()
               if name not in applied and not math.isclose(value, usual[name], rel_tol=1e-6)}  # fmt: skip
    if ignored:
        options = {name.replace("_", "-"): value for name, value in ignored.items() if name in _FLAGS}
        flags = " ".join(f"--yarn-{name} {value:g}" for name, value in options.items())
        numbers = ", ".join(f"yarn_{name} {value:g} (uses {usual[name]:g})" for name, value in ignored.items())
        warnings.warn(
            f"load: {where} contains numbers that llama.cpp ignores for `{arch}`: {numbers}. The rope is the one that "
            f"llama.cpp computes. For the numbers in the file {f'start it with {flags}, or ' if flags else ''}use the "
            "model's Hugging Face folder.",
            stacklevel=2,
        )
    own = math.isclose(attention * whole, usual["attn_factor"], rel_tol=1e-9)
    return YaRN(factor, length, attention_factor=None if own else attention * whole, **betas)


def rule_of_divisors(
    divisors: Sequence[float], theta: float, head_dim: int, stated: int | None, context: int
) -> Scaling | None:
    """Return the rule of rope_freqs.weight: Llama 3's rule if it gives every divisor to 2e-6, else the divisors.

    The file does not contain the rule's numbers. The published ones are tried: 1, 4, and 8192 or the stated length.

    >>> rule_of_divisors([1.0, 1e30], 10000.0, 4, None, 8192)
    Proportional(partial_rotary_factor=0.5, factor=1.0)
    """
    turning = sum(divisor == 1 for divisor in divisors)
    if turning == len(divisors):
        return None
    if all(divisor == 1 for divisor in divisors[:turning]) and min(divisors[turning:]) >= STOPPED:
        return Proportional(turning / len(divisors))
    if len(divisors) == head_dim // 2:
        ladder = Ladder(theta, head_dim, tuple(range(len(divisors))), context)
        plain = ladder.inv_freq()
        for length in (stated, 8192) if max(divisors) > 1 else ():
            rule = Llama3(max(divisors), 1.0, 4.0, length or 8192)
            scaled = zip(rule.inv_freq(ladder, None), plain, divisors, strict=True)
            if all(abs(got * divisor / unscaled - 1) < 2e-6 for got, unscaled, divisor in scaled):
                return rule
    return LongRoPE(tuple(divisors), tuple(divisors), stated or context, attention_factor=1.0)
