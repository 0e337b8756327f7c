"""What a run measures: groups of contenders that are timed together, for each preset."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import torch

from ropewalk.bench import norm, ours
from ropewalk.bench.cases import Case
from ropewalk.bench.peers import peers_of
from ropewalk.bench.work import Contender, Work

Builds = dict[str, Callable[[Work], Contender | list[Contender]]]

SWEPT = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Preset:
    """Sizes of a run: the shape of the bounds, the tokens of the sweep, and seconds for each group.

    `judged`: the bounds are meant for this shape. The heads are those of Llama-3-8B.
    """

    name: str
    tokens: int = 4096
    sweep: tuple[int, ...] = (64, 256, 1024, 4096, 16_384)
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    seconds: float = 6.0
    judged: bool = True


DEFAULT = Preset("default")
WIDE = Preset("wide", sweep=(64, 256, 1024, 4096, 8192, 16_384, 65_536, 131_072), seconds=10.0)
QUICK = Preset("quick", tokens=64, sweep=(16, 64), heads=8, kv_heads=2, seconds=0.2, judged=False)


@dataclass(frozen=True)
class Group:
    """Contenders that take turns on one case. `kind` is what `rows` and the figure look for."""

    kind: str
    case: Case
    builds: Builds
    host: bool = False  # the clock is the host's, not the GPU's

    @property
    def name(self) -> str:
        """Its kind and its case."""
        return f"{self.kind}: {self.case.name}"


def groups_of(preset: Preset, *, device: str = "cpu", peers: Collection[str] | None = None) -> list[Group]:
    """Every group of a run, the bounds' own first; `peers` names those that take part (None: all of the device)."""
    theirs: Builds = {name: build for name, build in peers_of(device).items() if peers is None or name in peers}
    shape = Case(seq=preset.tokens, heads=preset.heads, head_dim=preset.head_dim, dtype=SWEPT[0], interleaved=False)
    both = replace(shape, kv_heads=preset.kv_heads)
    decoded = replace(both, seq=1, offset=preset.tokens)
    eager = {name: theirs[name] for name in ("transformers",) if name in theirs}
    found = []
    for dtype in SWEPT:
        rivals = ("onnxruntime",) if dtype == torch.float32 else ("transformers", "torch.compile")
        if device == "cpu":
            builds: Builds = {**_one_tensor(), **{name: theirs[name] for name in rivals if name in theirs}}
            found.append(Group("one tensor", replace(shape, dtype=dtype), builds))
        found.append(Group("one decoded token", replace(decoded, dtype=dtype), {ours.NEW: ours.new, **eager}))
        found.append(Group("norm and rotation", replace(both, dtype=dtype), _normed()))
        if device != "cpu":
            found.append(Group("host", replace(both, dtype=dtype), {ours.NEW: ours.new}, host=True))
    for dtype in SWEPT:
        found += [Group("sweep", replace(both, seq=seq, dtype=dtype), {**_swept(device), **theirs})
                  for seq in preset.sweep]  # fmt: skip
    return found


def _one_tensor() -> Builds:
    def turned_otherwise(work: Work) -> Contender:
        return ours.given(work, interleaved=not work.case.interleaved, name=ours.INTERLEAVED)

    return {
        "floors": lambda work: ours.floors(work, clone=True),
        ours.IN_PLACE: ours.in_place,
        ours.GIVEN: ours.given,
        ours.NEW: ours.new,
        ours.INTERLEAVED: turned_otherwise,
        "gradients": ours.gradients,
    }


def _normed() -> Builds:
    return {
        norm.FUSED: norm.fused,
        norm.SEPARATE: norm.separate,
        norm.SEPARATE_IN_PLACE: lambda work: norm.separate(work, inplace=True),
    }


def _swept(device: str) -> Builds:
    builds: Builds = {"floors": ours.floors, ours.IN_PLACE: ours.in_place, ours.GIVEN: ours.given, ours.NEW: ours.new}
    return builds if device == "cpu" else {**builds, "gradients": ours.gradients}
