"""Conformance vectors: files for testing the rotary position embedding of an engine in any language.

docs/vectors.md describes the format. The reference values are computed here in float64 from the frequencies, with exact
reduction of the angles, without code of the rotation kernels.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ropewalk.atomic_io import as_path, check_output, finite, write_output
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.imports import need
from ropewalk.positions import positions_for_rank, positions_from
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import Layers
from ropewalk.rope.tables import angle_of

FORMAT, VERSION = "rope-vectors", 1
SCHEMA = Path(__file__).with_name("vectors_schema.json")
"""The JSON schema of the document."""

Array = npt.NDArray[Any]
_TOKENS, _HEADS = 4, {"q": 2, "k": 1}
_DECODE_LENGTH = 8192
_FAR = (1_000_000, 10_000_000)
_ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
_ANGLES = {"float32_angles": 2.0**-24, "float64_angles": 2.0**-53}
_KEYS = re.compile(
    "rope|rotary|theta|head|hidden_size|layer_types|num_.*layers|position|window|interleave|n_embd|n_layer|^model_type$"
    "|seq_length|max_seq|initial_context|local_attention|global_attn|attention_chunk"
)


@dataclasses.dataclass(frozen=True)
class Vectors:
    """The document and the tensors of one config; `write` creates NAME.json and NAME.safetensors."""

    document: dict[str, Any]
    tensors: dict[str, Array]

    @property
    def name(self) -> str:
        """Return the name of both files, without suffix."""
        return str(self.document["name"])

    def write(self, folder: str | Path) -> tuple[Path, Path]:
        """Write both files into a folder and return their paths; raise `RopeError` if they cannot be written."""
        save = need("safetensors.numpy").save
        tensors = {name: np.ascontiguousarray(value) for name, value in self.tensors.items()}
        data = save(tensors, metadata={"cases": "\n".join(map(self._line, self.document["cases"]))})
        text = json.dumps(self.document, indent=1, ensure_ascii=False, allow_nan=False)
        text = re.sub(r"\[[^\[\]{}]*\]|\{[^\[\]{}]{,150}\}", lambda found: " ".join(found[0].split()), text)
        place = as_path(folder, "vectors")
        paths = place / f"{self.name}.json", place / f"{self.name}.safetensors"
        for path in paths:
            check_output(path)
        write_output(paths[0], text + "\n")
        write_output(paths[1], data)
        return paths

    def _line(self, case: Mapping[str, Any]) -> str:
        """Return a case as `key=value` words, for runners without a JSON parser."""
        rope = next(rope for rope in self.document["ropes"] if rope["name"] == case["rope"])
        words = {key: case[key] for key in ("name", "kind", "measure", "inv_freq", "attention_factor")}
        words |= {key: rope[key] for key in ("pairing", "rotary_dim", "rope_type", "theta")}
        words |= {key: ",".join(map(str, v)) if isinstance(v, list) else v for key, v in case["parameters"].items()}
        words |= {f"in.{key}": tensor for key, tensor in case["inputs"].items()}
        words |= {f"out.{key}": tensor for key, tensor in case["outputs"].items()}
        words["tolerance"] = next(iter(case["tolerance"]["float64_angles"].values()))
        return " ".join(f"{key}={value}" for key, value in words.items())


def conformance_vectors(source: str | Path) -> Vectors:
    """Return the conformance vectors of a model's rotary embedding; runs no model.

    **Arguments:**
    - `source`: a config.json, a Hugging Face folder, a .gguf, OWNER/NAME of the hub, or "tiny".

    **Returns:** `Vectors`: for each rope of the model its frequencies, cos and sin at chosen positions and rotated
    queries and keys as float64, and the tolerance of each case and the bug it detects.
    **Numerics:** the angle is the exact product of the position and the float64 frequency, reduced exactly. The
    frequency itself has a relative error of 2^-52: 2e-9 radians at position 10,000,000.
    **Raises:** `RopeError` for a config that `RopeConfig.from_hf` does not support.

    >>> from ropewalk.audit.vectors import conformance_vectors
    >>> found = conformance_vectors("tiny")
    >>> [case["kind"] for case in found.document["cases"]][:3]
    ['inv_freq', 'cos_sin', 'cos_sin']
    """
    read, path = Checkpoint.open(source), Path(source)
    stem = path.resolve().parent.name if path.name == "config.json" else path.name
    made = Vectors(
        {
            "format": FORMAT,
            "version": VERSION,
            "name": re.sub(r"[^\w.-]+", "_", re.sub(r"\.(json|gguf)$", "", stem)),
            "source": str(read.config.get("_source", read.name)),
            "model_type": read.config.get("model_type"),
            "config": finite(_rope_part(read.config)),
            "ropes": [],
            "cases": [],
        },
        {},
    )
    for label, rope in sorted(read.ropes.rotating.items(), key=lambda item: item[0] != "full_attention"):
        name = (label or "rope").replace(" ", "_")  # names are words
        cases = _Cases(name, rope, made.tensors, made.document["cases"])
        cases.add_tables()
        cases.rotate("decode", cases.last, [min(cases.trained, _DECODE_LENGTH) - 1])
        if not made.document["ropes"]:
            cases.add_prompts()
        made.document["ropes"].append({"name": name, **_describe(label, rope, read.ropes.layers_of(label))})
    return made


def _rope_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotation keys of a config.json, verbatim but for infinities, which JSON does not have."""
    parts = {key: config[key] for key in ("text_config", "vision_config") if isinstance(config.get(key), dict)}
    kept = {key: value for key, value in config.items() if _KEYS.search(key)}
    return {**kept, **{key: _rope_part(part) for key, part in parts.items()}}


def _describe(label: str | None, rope: RopeConfig, of: Layers) -> dict[str, Any]:
    every = label is None and len(of.numbers) in (0, of.count)
    pairing = "interleaved" if rope.interleaved else "halves_of_each_axis" if rope.blocks else "halves"
    return {
        "layers": "all" if every else list(of.numbers) or None,
        "pairing": pairing,
        "head_dim": rope.head_dim,
        "rotary_dim": 2 * rope.pairs,
        "theta": None if rope.inv_freq is not None else rope.ladders[0].theta,
        "rope_type": "default" if rope.scaling is None else rope.scaling.rope_type,
        "max_position_embeddings": rope.max_position_embeddings,
        "original_max_position_embeddings": rope.original_length,
        "trained_length": rope.trained_length,
        "axis_of_pair": None if rope.axes is None else list(rope.axes),
    }


def _pairs_of(rope: RopeConfig) -> tuple[Array, Array]:
    """Return the first and the second feature of each pair."""
    if rope.interleaved:
        return np.arange(rope.pairs) * 2, np.arange(rope.pairs) * 2 + 1
    blocks = np.array(rope.blocks or (rope.pairs,))
    first = np.arange(rope.pairs) + np.repeat(np.cumsum(blocks) - blocks, blocks)
    return first, first + np.repeat(blocks, blocks)


def _input(tokens: int, heads: int, head_dim: int, seed: int) -> Array:
    """Return multiples of 1/64 below 2, float32 `[tokens, heads, head_dim]`: exact in bfloat16 and float16, too."""
    drawn = np.random.RandomState(seed).randint(-127, 128, (tokens, heads, head_dim))
    return (drawn / 64).astype(np.float32)


class _Cases:
    """Build the cases of one rope, and their tensors."""

    def __init__(self, name: str, rope: RopeConfig, tensors: dict[str, Array], cases: list[dict[str, Any]]) -> None:
        self.name, self.rope, self.tensors, self.cases = name, rope, tensors, cases
        self.trained = rope.trained_length or rope.max_position_embeddings or 4096
        self.first, self.second = _pairs_of(rope)
        self.inputs = {key: f"input.{key}.{rope.head_dim}" for key in _HEADS}
        self.last = {key: f"{name}.last" for key, name in self.inputs.items()}
        for number, (key, heads) in enumerate(_HEADS.items()):
            tensors[self.inputs[key]] = _input(_TOKENS, heads, rope.head_dim, number)
            tensors[self.last[key]] = tensors[self.inputs[key]][-1:]

    # --- truth

    def frequencies(self, length: int) -> tuple[Array, float]:
        """Return the frequency of each pair and the attention factor for a sequence of this length."""
        return np.array(self.rope.columns_at(length)), self.rope.attention_factor_at(length)

    def tables(self, positions: Array, length: int) -> tuple[Array, Array]:
        """Return cos and sin `[..., pairs]` at positions `[..., 1 or pairs]`."""
        columns, _ = self.frequencies(length)
        by_pair = np.broadcast_to(positions, (*positions.shape[:-1], len(columns)))
        angles = [
            angle_of(position, frequency)
            for row in by_pair.reshape(-1, len(columns)).tolist()
            for position, frequency in zip(row, columns.tolist(), strict=True)
        ]  # cos and sin by the C library: those of numpy depend on the width of the processor's vectors
        cos, sin = (np.array([function(angle) for angle in angles]) for function in (math.cos, math.sin))
        return cos.reshape(by_pair.shape), sin.reshape(by_pair.shape)

    def rotated(self, x: Array, positions: Array, length: int) -> Array:
        """Return `x` `[..., heads, head_dim]` rotated at positions `[..., 1 or pairs]`, float64."""
        cos, sin = (table[..., None, :] for table in self.tables(positions, length))
        factor, y = self.frequencies(length)[1], x.astype(np.float64)
        a, b = y[..., self.first], y[..., self.second]
        y[..., self.first], y[..., self.second] = (a * cos - b * sin) * factor, (a * sin + b * cos) * factor
        return y

    # --- tolerances: docs/vectors.md explains each term

    def frequency_units(self, length: int) -> Array:
        """Return the relative error of each frequency under correct arithmetic, in units of its roundoff."""
        columns = self.frequencies(length)[0]
        if self.rope.inv_freq is not None:
            return np.ones(len(columns))
        units = np.full(len(columns), 3.0 if self.rope.scaling is None else 7.0)
        for ladder in self.rope.ladders:
            units[list(ladder.columns)] += np.arange(len(ladder.columns)) * 2 / ladder.dim * math.log(ladder.theta)
        if self.rope.scaling is not None and self.rope.scaling.rope_type in ("yarn", "llama3"):
            unscaled = np.array(self.rope.unscaled().columns_at(length))
            ratio = np.divide(unscaled, columns, out=np.ones_like(columns), where=columns != 0)
            blended = (ratio > 1 + 1e-9) & (ratio < ratio.max() * (1 - 1e-9))
            units = units * np.where(blended, 1 + 2 * ratio, 1)
        return units

    def tolerance(self, positions: Array, length: int, x: Array | None = None) -> dict[str, dict[str, float | None]]:
        """Return the tolerance of cos and sin, or of the rotation of `x`, by arithmetic of angles and by dtype."""
        columns, factor = self.frequencies(length)
        cos, sin = (np.abs(table)[..., None, :] for table in self.tables(positions, length))
        size = np.abs(positions * columns) * (self.frequency_units(length) + 1)
        found: dict[str, dict[str, float | None]] = {}
        for angles, angle_unit in _ANGLES.items():
            errors, found[angles] = np.minimum(size * angle_unit, 2), {}
            for dtype, unit in _ROUNDOFF.items():
                table = 2 * _ROUNDOFF["float32"] + (0 if dtype == "float32" else unit)
                bound = float(errors.max()) + table
                if x is not None:
                    a, b = (np.abs(x[..., part]).astype(np.float64) for part in (self.first, self.second))
                    rounded = (1 + table) * (1 + unit) ** (2 if factor == 1 else 4) - 1
                    sums = np.maximum(a * cos + b * sin, a * sin + b * cos)
                    bound = factor * float((np.hypot(a, b) * errors[..., None, :] + rounded * sums).max())
                    bound += 3 * 2.0**-25 if dtype == "float16" else 0
                found[angles][dtype] = None if errors.max() >= 0.5 else _up(bound)
        return found

    # --- cases

    def add(
        self,
        case: str,
        length: int,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        tolerance: Mapping[str, Mapping[str, float | None]],
        **parameters: Any,
    ) -> None:
        """Add a case named `kind`, or `kind:` and a distinguishing label."""
        kind, columns, needs = case.partition(":")[0], self.frequencies(length)[0], self.rope.needs_seq_len
        own = (k for k, v in self.tensors.items() if k.startswith(f"{self.name}.inv_freq") and (v == columns).all())
        key = next(own, f"{self.name}.inv_freq" + (f".{length}" if needs else ""))
        self.tensors.setdefault(key, columns)
        self.cases.append(
            {
                "name": f"{self.name}.{case.replace(':', '_')}",
                "kind": kind,
                "rope": self.name,
                "sequence_length": length if needs else None,
                "inv_freq": key,
                "attention_factor": self.frequencies(length)[1],
                "parameters": parameters,
                "inputs": dict(inputs),
                "outputs": dict(outputs) or {"inv_freq": key},
                "measure": "relative" if kind == "inv_freq" else "absolute",
                "tolerance": tolerance,
                "fails_if": CASES[kind],
            }
        )

    def store(self, case: str, tensors: Mapping[str, Array]) -> dict[str, str]:
        """Store the tensors of a case, integers as int32, and return their names."""
        names = {key: f"{self.name}.{case.replace(':', '_')}.{key}" for key in tensors}
        for key, value in tensors.items():
            self.tensors[names[key]] = value if value.dtype.kind == "f" else value.astype(np.int32)
        return names

    def rotate(
        self, case: str, inputs: Mapping[str, str], positions: Any, mask: Any = 1, **parameters: Any
    ) -> Mapping[str, str]:
        """Add a case that rotates inputs at these positions, and return its outputs."""
        ids = np.asarray(positions)
        by_pair = ids[..., list(self.rope.axes or ())] if "axis_of_pair" in inputs else ids[..., None]
        length, x = int(ids.max()) + 1, {key: self.tensors[inputs[key]] for key in _HEADS if key in inputs}
        if case in ("decode", "below_switch", "above_switch"):
            parameters["cache_length"] = length - 1
        rows = {key: self.rotated(value, by_pair, length) * mask for key, value in x.items()}
        outputs = self.store(case, {"position_ids": ids, **rows})
        tolerance = self.tolerance(by_pair, length, np.concatenate(list(x.values()), axis=-2))
        self.add(case, length, inputs, outputs, tolerance, **parameters)
        return outputs

    def add_tables(self) -> None:
        """Add frequencies, on both sides of a switch if they depend on the length, and rows of cos and sin."""
        sides = {"": 1}
        if self.rope.needs_seq_len:
            switch = self.rope.switch_length
            below = switch or self.rope.original_length or self.trained
            sides = {"below_switch": below, "above_switch": below + 1 if switch else 2 * below}
        for side, length in sides.items():
            worst = float(self.frequency_units(length).max())
            tolerance = {angles: {angles[:7]: _up(worst * unit)} for angles, unit in _ANGLES.items()}
            self.add(f"inv_freq:{side}".rstrip(":"), length, {}, {}, tolerance)
            if side:
                self.rotate(side, self.last, [length - 1])
        rows = {"start": (0, 1, 2), "trained": (self.trained - 1, self.trained), **{str(far): (far,) for far in _FAR}}
        for label, chosen in rows.items():
            case, ids, length = f"cos_sin:{label}", np.array(chosen), max(chosen) + 1
            cos, sin = self.tables(ids[:, None], length)
            inputs, outputs = self.store(case, {"position_ids": ids}), self.store(case, {"cos": cos, "sin": sin})
            self.add(case, length, inputs, outputs, self.tolerance(ids[:, None], length))

    def add_prompts(self) -> None:
        """Add a short prompt, and prompts with other positions: chunks, ranks, documents, padding, axes."""
        outputs = self.rotate("prefill", self.inputs, range(_TOKENS))
        tolerance, half, keys = self.cases[-1]["tolerance"], _TOKENS // 2, {"k": self.inputs["k"]}
        self.add("chunks", _TOKENS, self.inputs, outputs, tolerance, chunks=[half, half])
        shares = [positions_for_rank("head-tail", _TOKENS, rank=rank, cp=2).numpy() for rank in range(2)]
        ids = self.store("context_parallel", {"position_ids": np.stack(shares)})
        self.add("context_parallel", _TOKENS, keys, {**ids, "k": outputs["k"]}, tolerance, ranks=2)
        ends = torch.tensor([0, half, _TOKENS])
        given = self.store("packed", {"cu_seqlens": ends.numpy()})
        self.rotate("packed", {**keys, **given}, positions_from(ends).numpy())
        mask, x = np.array([[0, 1], [1, 1]]), self.tensors[keys["k"]]
        given = self.store("left_padded.input", {"k": x.reshape(2, 2, *x.shape[1:]), "attention_mask": mask})
        self.rotate("left_padded", given, np.maximum(mask.cumsum(-1) - 1, 0), mask[..., None, None])
        if self.rope.axes is not None:
            positions = np.arange(_TOKENS)[:, None] + 5 * np.arange(self.rope.num_axes)
            given = self.store("axes", {"position_ids": positions, "axis_of_pair": np.array(self.rope.axes)})
            self.rotate("axes", {**self.inputs, **given}, positions)


def _up(tolerance: float) -> float:
    """Return a tolerance with two digits, rounded up."""
    digits = 10.0 ** (math.floor(math.log10(tolerance)) - 1)
    return float(f"{math.ceil(tolerance / digits - 1e-9) * digits:.1e}")


CASES = {
    "inv_freq": "a different theta, the scaling rule ignored or applied with a wrong original length, the rotated "
    "fraction ignored",
    "below_switch": "the frequencies for long sequences used for short ones",
    "above_switch": "the switch to the frequencies for long sequences ignored",
    "cos_sin": "angles formed in bfloat16 or float16, wrong frequencies, a table that ends too early",
    "prefill": "the wrong pairing, the rotated fraction ignored, the attention factor ignored or applied twice, the "
    "opposite direction, wrong frequencies",
    "decode": "a position that is off by one, the prompt's length added again, position 0 for the new token",
    "chunks": "positions that restart at 0 in each chunk",
    "packed": "positions that continue across the boundary of documents",
    "left_padded": "padding counted as tokens",
    "context_parallel": "ranks that count from 0, or contiguous shares",
    "axes": "one position for all axes, the axes in the wrong order, sections where the pairs alternate or the reverse",
}
"""The bug of an engine that fails each kind of case."""
