"""Time rotation against a copy of the same bytes and against other packages. Check every result before it is timed.

Each contender's result is compared with a float64 oracle. Then contenders take turns, and ratios are of medians.
Records are appended to `results/rotation.jsonl`. Usage:

    python benchmarks/rotation.py [--preset quick] [--instructions avx2] [--device cuda] [--from RECORDS]

With `--device cuda` the groups run on a GPU, and records go to `results/gpu-rotation.jsonl`.
"""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from records import (  # noqa: E402
    RESULTS,
    Record,
    add_instructions,
    append,
    environment,
    last_run,
    use_instructions,
)
from timing import Call, CudaClock, Timed, cpu_clock, interleave, last_level_cache  # noqa: E402

import ropewalk as rw  # noqa: E402
from ropewalk.models.norm import RMSNorm  # noqa: E402
from tests import oracle  # noqa: E402
from tests.rotation.backends import truth  # noqa: E402
from tests.rotation.backends.cases import THETA, Case  # noqa: E402

Tensors = tuple[Tensor, ...]
FEW = 128  # sets at most: the smallest cases would need thousands
WHOLE = 2**30  # bytes of a set that exceeds every cache: one set is enough
EPS = 4.0  # of the dtype: others round tables, two products and a sum to the model's dtype
DTYPES = (torch.float32, torch.bfloat16)
TOKENS = 24  # of a long case, evenly spread, the first and the last among them
COPY, CLONE = "copy", "clone"
IN_PLACE, GIVEN, NEW = "ropewalk, in place", "ropewalk, given output", "ropewalk, new output"
INTERLEAVED = "ropewalk, given output, interleaved"
FORWARD, BACKWARD = "ropewalk, forward", "ropewalk, backward"
FUSED, SEPARATE = "ropewalk, qk_norm_rotate", "ropewalk, norm then rotate"
NORM_EPS = 1e-6
NORM_ROUNDINGS = 8.0  # eps of the dtype: the norm's own, and one more to 16 bits if it is a step of its own


# -- the work ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender(Timed):
    """One way to do the work on each set of buffers.

    - `read`: makes the rotated tensors, in the case's layout, of what a call returned; None if nothing is rotated.
    - `interleaved`: its pairing, if it is not the case's.
    - `eps`: the rounding that it is allowed, if it is not ours; see `check`.
    - `before`: what it does to tensor number n before the rotation, in float64.
    """

    read: Callable[[Any], Tensors] | None = None
    eps: float = 0.0
    before: Callable[[int, np.ndarray], np.ndarray] | None = None
    interleaved: bool | None = None
    inverse: bool = False


@dataclass
class Work:
    """A case in `sets` copies, so that a round of all of them exceeds the last-level cache several times.

    `inputs[i]` are queries and keys (or only queries) of set i, `outs[i]` memory for the result, shared by all who can
    write into it; `spare()` returns copies for those who work in place. Tables are float32 `[seq, pairs]`.
    """

    case: Case
    device: str = "cpu"
    sets: int = 0
    inputs: list[Tensors] = field(init=False)
    outs: list[Tensors] = field(init=False)
    cos: Tensor = field(init=False)
    sin: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sets = self.sets or sets_for(self.case.bytes, self.device)
        first = self.case.tensors(self.device)
        self.inputs = [first, *(tuple(x.clone() for x in first) for _ in range(self.sets - 1))]
        self.outs = [tuple(torch.zeros_like(x) for x in first) for _ in range(self.sets)]
        self.cos, self.sin = self.case.cos_sin(self.device)

    def spare(self) -> list[Tensors]:
        """Return copies of the inputs."""
        return [tuple(x.clone() for x in tensors) for tensors in self.inputs]

    def each(self, make: Callable[[int], Call]) -> list[Call]:
        """Return `make(i)` for each set."""
        return [make(i) for i in range(self.sets)]


def sets_for(size: int, device: str = "cpu") -> int:
    """Return how many sets of `size` bytes in and as many out exceed the last-level cache four times."""
    if device != "cpu" or size >= WHOLE:
        return 1
    return max(2, min(FEW, -(-4 * last_level_cache() // (2 * size))))


# -- correctness ------------------------------------------------------------------------------------------------------


def check(work: Work, contender: Contender) -> None:
    """Raise AssertionError if the first call of a contender is not the rotation of the first inputs.

    Ours may be off by 2e-7 of a pair's length before one rounding. Other packages round tables and products to the
    model's dtype (`eps`). Long cases are checked on some tokens.
    """
    case = work.case
    tokens = np.unique(np.linspace(0, case.seq - 1, min(case.seq, TOKENS)).round().astype(int))
    positions = case.positions()[tokens]
    angle = oracle.angles(positions, THETA, 2 * case.pairs)[None, :, None]
    interleaved = case.interleaved if contender.interleaved is None else contender.interleaved
    assert contender.read is not None
    for number, (x, y) in enumerate(zip(work.inputs[0], contender.read(contender.calls[0]()), strict=True)):
        assert (y.shape, y.dtype) == (x.shape, x.dtype), f"{contender.name} returns {y.dtype} {tuple(y.shape)}"
        source = truth.wide(x[:, torch.from_numpy(tokens)])
        source = source if contender.before is None else contender.before(number, source)
        expected, lengths = truth.turn(
            source, np.cos(angle), np.sin(angle), interleaved=interleaved, inverse=contender.inverse
        )
        loose = lengths * contender.eps * torch.finfo(x.dtype).eps
        off = loose if contender.eps else truth.slack(lengths, x.dtype)
        found = y[:, torch.from_numpy(tokens).to(y.device)]
        truth.Allowed(expected, off, x.dtype).check(found, f"{contender.name}, {case.name}, {'qk'[number]}:")


# -- our contenders ---------------------------------------------------------------------------------------------------


def floors(work: Work, *, clone: bool = False) -> list[Contender]:
    """Return `y.copy_(x)`, and `x.clone()` with `clone`."""

    def copy(i: int) -> Call:
        pairs = list(zip(work.outs[i], work.inputs[i], strict=True))
        return lambda: [out.copy_(x) for out, x in pairs]

    def cloned(i: int) -> Call:
        return lambda: [x.clone() for x in work.inputs[i]]

    contenders = [Contender(COPY, work.each(copy))]
    return [*contenders, Contender(CLONE, work.each(cloned))] if clone else contenders


def in_place(work: Work) -> Contender:
    """Rotate over the input."""
    spare = work.spare()
    return Contender(IN_PLACE, work.each(lambda i: lambda: _turn(spare[i], work, inplace=True)), tuple)


def new(work: Work) -> Contender:
    """Rotate into new memory."""
    return Contender(NEW, work.each(lambda i: lambda: _turn(work.inputs[i], work)), tuple)


def given(work: Work, *, other: bool = False) -> Contender:
    """Rotate into given memory, one call for each tensor; by the `other` pairing."""
    pairing = work.case.interleaved != other

    def make(i: int) -> Call:
        todo, cos, sin = list(zip(work.inputs[i], work.outs[i], strict=True)), work.cos, work.sin
        return lambda: [rw.rotate(x, cos, sin, interleaved=pairing, out=out) for x, out in todo]

    return Contender(INTERLEAVED if other else GIVEN, work.each(make), tuple, interleaved=pairing)


def gradients(work: Work) -> list[Contender]:
    """Return the forward pass under autograd, and the backward pass by itself."""
    leaves = [tuple(x.clone().requires_grad_() for x in tensors) for tensors in work.inputs]
    turned = [_turn(tensors, work) for tensors in leaves]

    def backward(i: int) -> Call:
        return lambda: torch.autograd.grad(turned[i], leaves[i], work.inputs[i], retain_graph=True)

    return [
        Contender(FORWARD, work.each(lambda i: lambda: _turn(leaves[i], work)), tuple),
        Contender(BACKWARD, work.each(backward), tuple, inverse=True),
    ]


def _turn(tensors: Tensors, work: Work, *, inplace: bool = False) -> Sequence[Tensor]:
    options = {"interleaved": work.case.interleaved, "inplace": inplace}
    if len(tensors) == 2:
        return rw.rotate_qk(*tensors, work.cos, work.sin, **options)
    return (rw.rotate(tensors[0], work.cos, work.sin, **options),)


def separate(work: Work) -> Contender:
    """Norm queries, norm keys, then rotate both, as `Attention` does without the fused call."""
    norms = []
    for _ in work.inputs[0]:
        norms.append(RMSNorm(work.case.head_dim, eps=NORM_EPS).to(work.device, work.case.dtype).requires_grad_(False))
        norms[-1].weight.copy_(_weight(work))
    q_norm, k_norm = norms

    def make(i: int) -> Call:
        q, k = work.inputs[i]
        return lambda: _turn((q_norm(q), k_norm(k)), work)

    return _normed(SEPARATE, work, make)


def fused(work: Work) -> Contender:
    """Norm and rotate in one pass."""
    weight = _weight(work)

    def make(i: int) -> Call:
        (q, k), cos, sin, pairing = work.inputs[i], work.cos, work.sin, work.case.interleaved
        return lambda: rw.fused.qk_norm_rotate(q, k, weight, weight, cos, sin, eps=NORM_EPS, interleaved=pairing)

    return _normed(FUSED, work, make)


def _normed(name: str, work: Work, make: Callable[[int], Call]) -> Contender:
    weight = _weight(work).double().cpu().numpy()
    return Contender(name, work.each(make), tuple, eps=NORM_ROUNDINGS,
                     before=lambda number, x: truth.rms_norm(x, weight, NORM_EPS)[0])  # fmt: skip


def _weight(work: Work) -> Tensor:
    """Return a weight that is not constant, so that a norm which ignores it fails."""
    return torch.linspace(0.5, 1.5, work.case.head_dim).to(work.device, work.case.dtype)


def transformers(work: Work, name: str = "transformers", wrap: Callable[[Any], Any] = lambda made: made) -> Contender:
    """Call transformers' eager function of Llama; `wrap` may compile it.

    Tables have the dtype of the model, as its rotary embedding makes them.
    """
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    function = wrap(apply_rotary_pos_emb)
    cos, sin = (torch.cat((table, table), -1)[None].to(work.case.dtype) for table in (work.cos, work.sin))

    def make(i: int) -> Call:
        q, *rest = (x.transpose(1, 2) for x in work.inputs[i])
        k = rest[0] if rest else q[:, :0]  # it takes both: keys of no heads cost it next to nothing
        return lambda: function(q, k, cos, sin)

    def read(returned: Any) -> Tensors:
        return tuple(x.transpose(1, 2) for x in returned[: len(work.inputs[0])])

    return Contender(name, work.each(make), read, eps=EPS)


def compiled(work: Work) -> Contender:
    """Compile transformers' function for the shape that is timed: static shapes, one graph.

    Earlier compiled code is dropped, so that no limit on recompiling is reached.
    """
    torch.compiler.reset()
    return transformers(work, "torch.compile", lambda made: torch.compile(made, dynamic=False, fullgraph=True))


PEERS: dict[str, Callable[[Work], Contender]] = {"transformers": transformers, "torch.compile": compiled}
"""The packages that compete with ours: nothing is converted inside a timed call."""


# -- a run ------------------------------------------------------------------------------------------------------------


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


PRESETS = {
    "default": Preset("default"),
    "quick": Preset("quick", tokens=64, sweep=(16, 64), heads=8, kv_heads=2, seconds=0.2, judged=False),
    "gpu": Preset("gpu", tokens=8192, sweep=(64, 1024, 8192, 131_072), seconds=3.0, judged=False),
}
Builds = dict[str, Callable[[Work], Contender | list[Contender]]]


@dataclass(frozen=True)
class Group:
    """Contenders that take turns on one case. `kind` is what bounds and the report look for."""

    kind: str
    case: Case
    builds: Builds


def groups_of(preset: Preset, *, device: str = "cpu", peers: Collection[str] | None = None) -> list[Group]:
    """Return every group of a run, the bounds' own first; `peers` names those that take part (None: all)."""
    theirs: Builds = {name: build for name, build in PEERS.items() if peers is None or name in peers}
    shape = Case(seq=preset.tokens, heads=preset.heads, head_dim=preset.head_dim, dtype=DTYPES[0], interleaved=False)
    both = replace(shape, kv_heads=preset.kv_heads)
    eager = {name: theirs[name] for name in ("transformers",) if name in theirs}
    swept: Builds = {"floors": floors, IN_PLACE: in_place, GIVEN: given, NEW: new}
    one: Builds = {"floors": lambda work: floors(work, clone=True), IN_PLACE: in_place, GIVEN: given, NEW: new,
                   INTERLEAVED: partial(given, other=True), "gradients": gradients}  # fmt: skip
    normed: Builds = {FUSED: fused, SEPARATE: separate}
    groups = []
    for dtype in DTYPES:
        if device == "cpu":
            builds = {**one, **(theirs if dtype == torch.bfloat16 else {})}
            groups.append(Group("one tensor", replace(shape, dtype=dtype), builds))
        decoded = replace(both, seq=1, offset=preset.tokens, dtype=dtype)
        groups.append(Group("one decoded token", decoded, {NEW: new, **eager}))
        groups.append(Group("norm and rotation", replace(both, dtype=dtype), normed))
    if device != "cpu":
        swept["gradients"] = gradients
    groups += [Group("sweep", replace(both, seq=seq, dtype=dtype), {**swept, **theirs})
               for dtype in DTYPES for seq in preset.sweep]  # fmt: skip
    return groups


def run(
    preset: Preset, *, device: str = "cpu", seconds: float | None = None, peers: Sequence[str] | None = None
) -> Iterator[Record]:
    """Check and time each group; yield its record. `seconds` for each group replaces the preset's."""
    shared = {"run": uuid.uuid4().hex[:12], "preset": preset.name, **environment(device)}
    for group in groups_of(preset, device=device, peers=peers):
        print(f"{group.kind}: {group.case.name}", file=sys.stderr, flush=True)
        yield {**measure(group, device=device, seconds=preset.seconds if seconds is None else seconds), **shared}


def measure(group: Group, *, device: str = "cpu", seconds: float) -> Record:
    """Build the group's contenders, check each, and time them.

    Raises AssertionError if one is wrong.
    """
    case, work, timed = group.case, Work(group.case, device), list[Contender]()
    for build in group.builds.values():
        built = build(work)
        for contender in built if isinstance(built, list) else [built]:
            if contender.read is not None:
                check(work, contender)
            timed.append(contender)
    clock = cpu_clock if device == "cpu" else CudaClock(device)
    return {
        "kind": group.kind,
        "case": case.name,
        "tokens": case.batch * case.seq,
        "dtype": str(case.dtype).removeprefix("torch."),
        "bytes": case.bytes,
        "sets": work.sets,
        "seconds": seconds,
        "backends": rw.explain_backends(work.inputs[0][0]).splitlines()[1:],
        "microseconds": interleave(timed, seconds=seconds, clock=clock),
    }


# -- bounds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """`contender` takes at most `at_most` of the time of the fastest of `against`, in groups of its kind and dtype."""

    kind: str
    dtype: str
    contender: str
    against: tuple[str, ...]
    at_most: float

    @property
    def name(self) -> str:
        """Return what is measured, in words."""
        words = [self.contender.removeprefix("ropewalk, "), self.dtype]
        words += [self.kind] if self.kind not in ("one tensor", "norm and rotation") else []
        return ", ".join(words)


def _both(kind: str, contender: str, against: str, at_most: float) -> list[Bound]:
    return [Bound(kind, dtype, contender, (against,), at_most) for dtype in ("float32", "bfloat16")]


CPU_BOUNDS = (
    *_both("one tensor", IN_PLACE, COPY, 0.90),
    *_both("one tensor", GIVEN, COPY, 1.25),
    Bound("one tensor", "float32", NEW, (CLONE,), 0.40),
    *_both("one tensor", INTERLEAVED, GIVEN, 1.15),
    *_both("one tensor", BACKWARD, FORWARD, 1.10),
    Bound("one tensor", "bfloat16", NEW, ("transformers",), 0.10),
    Bound("one tensor", "bfloat16", NEW, ("torch.compile",), 0.30),
    *_both("one decoded token", NEW, "transformers", 0.50),
    *_both("norm and rotation", FUSED, SEPARATE, 0.60),
)


def judge(bounds: Sequence[Bound], records: Sequence[Record]) -> list[tuple[Bound, float | None]]:
    """Return each bound with its worst measured value, rounded to three digits; None if it was not measured."""
    return [(bound, max(_ratios(bound, records), default=None)) for bound in bounds]


def _ratios(bound: Bound, records: Sequence[Record]) -> Iterator[float]:
    for record in records:
        if (record["kind"], record.get("dtype")) != (bound.kind, bound.dtype):
            continue
        medians = {name: times["p50"] for name, times in record["microseconds"].items()}
        against = [medians[name] for name in bound.against if name in medians]
        if bound.contender in medians and against:
            yield round(medians[bound.contender] / min(against), 3)


def shares(records: Sequence[Record]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return for each dtype and contender of the sweep: (tokens, the copy's median time over its own), by tokens."""
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for record in records:
        times = record.get("microseconds", {})
        if record["kind"] != "sweep" or COPY not in times:
            continue
        for name in times.keys() - {COPY}:
            curve = panels.setdefault(record["dtype"], {}).setdefault(name, [])
            curve.append((record["tokens"], times[COPY]["p50"] / times[name]["p50"]))
    return {dtype: {name: sorted(curves[name]) for name in sorted(curves)} for dtype, curves in panels.items()}


def report(records: Sequence[Record]) -> str:
    """Return the bounds and the sweep, as text."""
    first = records[0]
    judged = PRESETS[first["preset"]].judged
    title = "Bounds: ratios of medians" if judged else "Ratios of medians; the shapes are too small to judge"
    lines = [f"{first['device']}, {first['threads']} threads, ropewalk {first['commit']}", "", title]
    for bound, value in judge(CPU_BOUNDS, records):
        verdict = "not measured" if value is None else "pass" if value <= bound.at_most else "FAIL"
        verdict = verdict if judged or value is None else ""
        against = ", ".join(name.removeprefix("ropewalk, ") for name in bound.against)
        number = "-" if value is None else f"{value:.2f}"
        lines.append(f"  {f'{bound.name} / {against}':64} {number:>6} at most {bound.at_most:.2f}  {verdict}".rstrip())
    for dtype, curves in shares(records).items():
        sizes = sorted({tokens for curve in curves.values() for tokens, _ in curve})
        lines += ["", f"Share of copy bandwidth, {dtype}, by tokens", " " * 26 + "".join(f"{n:>9,}" for n in sizes)]
        for name, curve in curves.items():
            found = dict(curve)
            lines.append(f"  {name:24}" + "".join(f"{found[n]:>9.0%}" if n in found else f"{'-':>9}" for n in sizes))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and report, or report the last run of a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, help='default: "default", on a GPU "gpu"')
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, help="of each group; default: the preset's")
    parser.add_argument("--peers", nargs="*", help="names; default: all", metavar="PEER", choices=list(PEERS))
    parser.add_argument("--out", type=Path, help="append records to this file")
    parser.add_argument("--from", type=Path, dest="source", metavar="RECORDS", help="report the last run of this file")
    add_instructions(parser)
    options = parser.parse_args(arguments)
    use_instructions(options.instructions)
    if options.source is not None:
        records = last_run(options.source)
    else:
        on_cpu, records = options.device == "cpu", []
        out = options.out or RESULTS / ("rotation.jsonl" if on_cpu else "gpu-rotation.jsonl")
        preset = PRESETS[options.preset or ("default" if on_cpu else "gpu")]
        for record in run(preset, device=options.device, seconds=options.seconds, peers=options.peers):
            append(out, record)
            records.append(record)
    print(report(records))


if __name__ == "__main__":
    main()
