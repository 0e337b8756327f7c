"""An engine that runs the conformance vectors, in each dtype, and with one bug at a time; nothing of the package."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

VECTORS = Path(__file__).parents[2] / "vectors"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NAMES = sorted(path.stem for path in VECTORS.glob("*.json"))


def load(name: str, folder: Path = VECTORS) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The document and the tensors of one config."""
    return json.loads((folder / f"{name}.json").read_text()), load_file(folder / f"{name}.safetensors")


class Engine:
    """Rotates with arithmetic in `dtype` and angles in float32 or float64; `bug` is what it does wrong."""

    def __init__(self, document: dict[str, Any], tensors: dict[str, Tensor], dtype: str, angles: str, bug: str = ""):
        self.document, self.tensors, self.dtype, self.angles, self.bug = document, tensors, dtype, angles, bug
        self.worst = 0.0
        """The largest error so far, as a share of its tolerance."""

    def failures(self) -> set[str]:
        """The names of the cases that fail."""
        return {case["name"] for case in self.document["cases"] if not self.passes(case)}

    def passes(self, case: dict[str, Any]) -> bool:
        """Whether every output is within the tolerance; True if there is none for such angles."""
        limits = case["tolerance"][f"{self.angles}_angles"]
        limit = limits[self.dtype if case["kind"] != "inv_freq" else self.angles]
        outputs = self.run(case)
        for key, name in case["outputs"].items():
            truth, mine = self.tensors[name], outputs[key]
            if mine.shape != truth.shape:
                return False
            if key == "position_ids":
                if not torch.equal(self.masked(case, mine), self.masked(case, truth)):
                    return False
            elif limit is not None:
                error = (self.masked(case, mine.double()) - truth).abs()
                share = error / (limit * truth.abs() if case["measure"] == "relative" else limit)
                share = share.nan_to_num(0, posinf=torch.inf)  # a frequency of zero is exact
                self.worst = max(self.worst, share.max().item())
                if not (share <= 1).all():
                    return False
        return True

    def masked(self, case: dict[str, Any], x: Tensor) -> Tensor:
        """Zero at padding."""
        if "attention_mask" not in case["inputs"]:
            return x
        mask = self.tensors[case["inputs"]["attention_mask"]]
        return x * mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))

    def run(self, case: dict[str, Any]) -> dict[str, Tensor]:
        """The engine's outputs of one case."""
        given = {key: self.tensors[name] for key, name in case["inputs"].items()}
        if case["kind"] == "inv_freq":
            return {"inv_freq": self.frequencies(case)}
        if case["kind"] == "cos_sin":
            cos, sin = self.tables(case, given["position_ids"][:, None])
            return {"cos": cos, "sin": sin}
        ids = self.positions(case, given)
        inputs = {key: given[key] for key in ("q", "k") if key in given}
        if case["kind"] == "context_parallel":  # each rank has its share; the rows are put back in order
            shares = self.tensors[case["outputs"]["position_ids"]].reshape(-1).long()
            rotated = self.rotate(case, inputs["k"][shares], ids.reshape(-1))
            return {"position_ids": ids, "k": rotated[shares.argsort()]}
        axes = given.get("axis_of_pair")
        places = ids if axes is None else ids[..., axes.long() * (self.bug != "one axis")]
        return {"position_ids": ids, **{key: self.rotate(case, x, places, axes) for key, x in inputs.items()}}

    def positions(self, case: dict[str, Any], given: dict[str, Tensor]) -> Tensor:
        """The positions that the engine derives, int32."""
        kind, settings, tokens = case["kind"], case["parameters"], given["k"].shape[0]
        count = torch.arange(tokens, dtype=torch.int32)
        if kind in ("decode", "below_switch", "above_switch"):
            first = settings["cache_length"]
            return count + {"off by one": first + 1, "prompt added again": 2 * first}.get(self.bug, first)
        if kind == "chunks":
            starts = [0, settings["chunks"][0] if self.bug != "chunks restart" else 0]
            return torch.cat([torch.arange(n) + s for n, s in zip(settings["chunks"], starts, strict=True)]).int()
        if kind == "packed" and self.bug != "documents ignored":
            ends = given["cu_seqlens"].tolist()
            return torch.cat([torch.arange(b - a) for a, b in pairwise(ends)]).int()
        if kind == "left_padded":
            mask = given["attention_mask"]
            if self.bug == "padding counted":
                return torch.arange(mask.shape[1], dtype=torch.int32).expand(mask.shape)
            return (mask.cumsum(-1) - 1).clamp(min=0).int()
        if kind == "context_parallel":
            quarter = tokens // 4
            parts = [(0, 1), (2, 3)] if self.bug == "contiguous ranks" else [(0, 3), (1, 2)]
            return torch.stack([torch.cat([count[p * quarter : (p + 1) * quarter] for p in two]) for two in parts])
        if kind == "axes":
            ids = given["position_ids"]
            return ids[:, [1, 0, 2]] if self.bug == "axes in the wrong order" else ids
        return count

    def frequencies(self, case: dict[str, Any]) -> Tensor:
        """The frequencies that the engine uses."""
        rope = self.rope(case)
        inv_freq = self.tensors[case["inv_freq"]]
        if self.bug in ("partial ignored", "scaling ignored"):
            dim = rope["head_dim" if self.bug == "partial ignored" else "rotary_dim"]
            inv_freq = rope["theta"] ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        if self.bug == "switch ignored":
            inv_freq = next(
                self.tensors[other["inv_freq"]] for other in self.document["cases"] if "below" in other["name"]
            )
        return inv_freq.float() if self.angles == "float32" else inv_freq

    def rope(self, case: dict[str, Any]) -> dict[str, Any]:
        """The description of the case's rope."""
        return next(rope for rope in self.document["ropes"] if rope["name"] == case["rope"])

    def tables(self, case: dict[str, Any], ids: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin in the engine's dtype."""
        inv_freq = self.frequencies(case)
        if self.bug == "clamped":
            ids = ids.clamp(max=self.rope(case)["trained_length"] - 1)
        kind = torch.bfloat16 if self.bug == "bfloat16 angles" else inv_freq.dtype
        angle = (ids.to(kind) * inv_freq.to(kind)).to(inv_freq.dtype)
        return angle.cos().to(DTYPES[self.dtype]), angle.sin().to(DTYPES[self.dtype])

    def rotate(self, case: dict[str, Any], x: Tensor, ids: Tensor, axes: Tensor | None = None) -> Tensor:
        """`x` [..., heads, head_dim] rotated at ids [...], or [..., pairs] with axes, all in the engine's dtype."""
        rope = self.rope(case)
        cos, sin = (t.unsqueeze(-2) for t in self.tables(case, ids if axes is not None else ids.unsqueeze(-1)))
        if self.bug == "opposite direction":
            sin = -sin
        pairs = cos.shape[-1]
        interleaved = (rope["pairing"] == "interleaved") != (self.bug == "pairing")
        first = torch.arange(pairs) * 2 if interleaved else torch.arange(pairs)
        second = first + (1 if interleaved else pairs)
        y = x.to(DTYPES[self.dtype]).clone()
        a, b = y[..., first], y[..., second]
        factor = case["attention_factor"] ** {"factor ignored": 0, "factor twice": 2}.get(self.bug, 1)
        cos, sin = (cos, sin) if factor == 1 else (cos * factor, sin * factor)
        y[..., first], y[..., second] = a * cos - b * sin, a * sin + b * cos
        return y
