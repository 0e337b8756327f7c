"""Time rotation against a copy of the same bytes and against other packages. Check every result before it is timed.

Each contender's result is compared with a float64 oracle. Then contenders take turns, and ratios are of medians.
Records are appended to `results/rotation.jsonl`. Usage:

    python benchmarks/rotation.py [--instructions avx2] [--device cuda]

With `--device cuda` the groups run on a GPU, and records go to `results/gpu-rotation.jsonl`.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from records import RESULTS, Record, append, environment, last_level_cache

import ropewalk as rw
from ropewalk.compiled import kernels
from ropewalk.models.norm import RMSNorm
from tests import oracle
from tests.rotation.backends import truth
from tests.rotation.backends.cases import THETA, Case

Call = Callable[[], object]
Clock = Callable[[Sequence[Call]], float]  # microseconds that the calls took together
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


# -- taking turns -----------------------------------------------------------------------------------------------------

SAMPLE_US = 300.0  # short calls are timed in bursts of about so long
PAUSE_S = 0.002  # before each sample, so that another runtime's threads have stopped spinning
AWAKE_US = 5000.0  # shorter calls follow an untimed one, so that their own threads are awake


@dataclass(frozen=True)
class Contender:
    """One way to do the work: its name, and its call on each of several sets of buffers.

    - `read`: makes the rotated tensors, in the case's layout, of what a call returned; None if nothing is rotated.
    - `interleaved`: its pairing, if it is not the case's.
    - `eps`: the rounding that it is allowed, if it is not ours; see `check`.
    - `normed`: whether it norms the tensors before the rotation.
    """

    name: str
    calls: Sequence[Call]
    read: Callable[[Any], Tensors] | None = tuple
    eps: float = 0.0
    normed: bool = False
    interleaved: bool | None = None
    inverse: bool = False


def interleave(
    contenders: Sequence[Contender], *, seconds: float, clock: Clock, least: int = 5
) -> dict[str, dict[str, float]]:
    """Time the contenders in turn until the time is up; p20, p50 and p80 of each, in microseconds a call.

    Contenders take turns in a different order each round, so that the noise of a shared machine meets them all and
    ratios of medians hold even if times do not. Each sample uses the next set of buffers, so that no contender finds in
    the cache what another one just read. A contender that has used its share of the time sits rounds out; each gets
    `least` samples. A new result is freed inside its time, as in use.
    """
    once = {timed.name: _once(timed, clock) for timed in contenders}
    bursts = {name: max(1, min(64, round(SAMPLE_US / max(took, 0.1)))) for name, took in once.items()}
    taken: dict[str, list[float]] = {timed.name: [] for timed in contenders}
    spent = dict.fromkeys(taken, 0.0)
    order, shuffle, turn = list(contenders), random.Random(0), 0
    start = time.perf_counter()
    while time.perf_counter() < start + seconds or min(map(len, taken.values())) < least:
        shuffle.shuffle(order)
        for timed in order:
            name, began = timed.name, time.perf_counter()
            if began < start + seconds and spent[name] * len(order) > began - start:
                continue
            sets, count = len(timed.calls), bursts[name]
            calls = [timed.calls[(turn + i) % sets] for i in range(count)]
            time.sleep(PAUSE_S)
            if once[name] < AWAKE_US:
                timed.calls[(turn + count + sets // 2) % sets]()
            taken[name].append(clock(calls) / count)
            spent[name] += time.perf_counter() - began
            turn += count
    return {
        name: {**{f"p{p}": round(float(np.percentile(times, p)), 2) for p in (20, 50, 80)},
               "samples": len(times), "burst": bursts[name]}
        for name, times in taken.items()
    }  # fmt: skip


def cpu_clock(calls: Sequence[Call]) -> float:
    """Return the wall time of the calls in microseconds."""
    start = time.perf_counter()
    for call in calls:
        call()
    return (time.perf_counter() - start) * 1e6


class CudaClock:
    """Time on the GPU between two events around each call, in microseconds, its L2 cache overwritten before."""

    def __init__(self, device: str) -> None:
        size = 4 * torch.cuda.get_device_properties(device).L2_cache_size
        self.scratch: Tensor = torch.empty(max(size, 2**20), dtype=torch.int8, device=device)

    def __call__(self, calls: Sequence[Call]) -> float:
        new: Any = torch.cuda.Event
        events = []
        for call in calls:
            start, end = new(enable_timing=True), new(enable_timing=True)
            self.scratch.zero_()
            start.record()
            call()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return float(sum(start.elapsed_time(end) for start, end in events)) * 1e3


def _once(timed: Contender, clock: Clock) -> float:
    """Return the microseconds of a call: the fastest of three, or the second if it takes long; the first warms up."""
    timed.calls[0]()
    first = clock([timed.calls[-1]])
    return first if first > 1e5 else min(first, *(clock([timed.calls[i]]) for i in (0, -1)))


# -- the work ----------------------------------------------------------------------------------------------------------


class Work:
    """A case in `sets` copies, so that a round of all of them exceeds the last-level cache several times.

    `inputs[i]` are queries and keys (or only queries) of set i, `outs[i]` memory for the result, shared by all who can
    write into it. Tables are float32 `[seq, pairs]`.
    """

    def __init__(self, case: Case, device: str = "cpu", sets: int = 0) -> None:
        whole = device != "cpu" or case.bytes >= WHOLE
        sets_for_cache = 1 if whole else max(2, min(FEW, -(-4 * last_level_cache() // (2 * case.bytes))))
        self.case, self.device, self.sets = case, device, sets or sets_for_cache
        first = case.tensors(device)
        self.inputs = [first, *(tuple(x.clone() for x in first) for _ in range(self.sets - 1))]
        self.outs = [tuple(torch.zeros_like(x) for x in first) for _ in range(self.sets)]
        self.cos, self.sin = case.cos_sin(device)
        self.compiled: Any = None  # transformers' function for this shape

    @property
    def weight(self) -> Tensor:
        """Return the norms' weight, which is not constant, so that a norm that ignores it fails."""
        return torch.linspace(0.5, 1.5, self.case.head_dim).to(self.device, self.case.dtype)


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
    for number, (x, y) in enumerate(zip(work.inputs[0], contender.read(contender.calls[0]()), strict=True)):
        assert (y.shape, y.dtype) == (x.shape, x.dtype), f"{contender.name} returns {y.dtype} {tuple(y.shape)}"
        source = truth.wide(x[:, torch.from_numpy(tokens)])
        if contender.normed:
            source = truth.rms_norm(source, work.weight.double().cpu().numpy(), NORM_EPS)[0]
        expected, lengths = truth.turn(
            source, np.cos(angle), np.sin(angle), interleaved=interleaved, inverse=contender.inverse
        )
        loose = lengths * contender.eps * torch.finfo(x.dtype).eps
        off = loose if contender.eps else truth.slack(lengths, x.dtype)
        found = y[:, torch.from_numpy(tokens).to(y.device)]
        truth.Allowed(expected, off, x.dtype).check(found, f"{contender.name}, {case.name}, {'qk'[number]}:")


# -- contenders: each makes the call on set i -------------------------------------------------------------------------


def _copied(work: Work, i: int) -> Call:
    pairs = list(zip(work.outs[i], work.inputs[i], strict=True))
    return lambda: [out.copy_(x) for out, x in pairs]


def _cloned(work: Work, i: int) -> Call:
    return lambda: [x.clone() for x in work.inputs[i]]


def _in_place(work: Work, i: int) -> Call:
    spare = [x.clone() for x in work.inputs[i]]
    return lambda: _turn(spare, work, inplace=True)


def _new(work: Work, i: int) -> Call:
    return lambda: _turn(work.inputs[i], work)


def _given(work: Work, i: int, other: bool = False) -> Call:
    """One call for each tensor, which writes into given memory; by the `other` pairing."""
    todo, cos, sin = list(zip(work.inputs[i], work.outs[i], strict=True)), work.cos, work.sin
    return lambda: [rw.rotate(x, cos, sin, interleaved=work.case.interleaved != other, out=out) for x, out in todo]


def _forward(work: Work, i: int) -> Call:
    leaves = [x.clone().requires_grad_() for x in work.inputs[i]]
    return lambda: _turn(leaves, work)


def _backward(work: Work, i: int) -> Call:
    leaves = [x.clone().requires_grad_() for x in work.inputs[i]]
    turned = _turn(leaves, work)
    return lambda: torch.autograd.grad(turned, leaves, work.inputs[i], retain_graph=True)


def _turn(tensors: Sequence[Tensor], work: Work, *, inplace: bool = False) -> Sequence[Tensor]:
    options = {"interleaved": work.case.interleaved, "inplace": inplace}
    if len(tensors) == 2:
        return rw.rotate_qk(*tensors, work.cos, work.sin, **options)
    return (rw.rotate(tensors[0], work.cos, work.sin, **options),)


def _separate(work: Work, i: int) -> Call:
    """Norm queries, norm keys, then rotate both, as `Attention` does without the fused call."""
    norm, (q, k) = RMSNorm(work.case.head_dim, eps=NORM_EPS).to(work.device, work.case.dtype), work.inputs[i]
    norm.requires_grad_(False).weight.copy_(work.weight)
    return lambda: _turn((norm(q), norm(k)), work)


def _fused(work: Work, i: int) -> Call:
    """Norm and rotate in one pass."""
    (q, k), weight, cos, sin = work.inputs[i], work.weight, work.cos, work.sin
    pairing = work.case.interleaved
    return lambda: rw.fused.qk_norm_rotate(q, k, weight, weight, cos, sin, eps=NORM_EPS, interleaved=pairing)


def _transformers(work: Work, i: int, compiled: bool = False) -> Call:
    """Call transformers' function of Llama. Tables have the dtype of the model, as its rotary embedding makes them."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as function

    if compiled:
        if i == 0:
            torch.compiler.reset()  # so that no limit on recompiling is reached
            work.compiled = torch.compile(function, dynamic=False, fullgraph=True)
        function = work.compiled
    cos, sin = (torch.cat((table, table), -1)[None].to(work.case.dtype) for table in (work.cos, work.sin))
    q, *rest = (x.transpose(1, 2) for x in work.inputs[i])
    k = rest[0] if rest else q[:, :0]  # it takes both: keys of no heads cost it next to nothing
    return lambda: function(q, k, cos, sin)


def _read_theirs(returned: Sequence[Tensor]) -> Tensors:
    return tuple(x.transpose(1, 2) for x in returned if x.shape[1])


PEERS = ("transformers", "torch.compile")  # nothing is converted inside a timed call
MADE: dict[str, tuple[Callable[[Work, int], Call], dict[str, Any]]] = {
    COPY: (_copied, {"read": None}), CLONE: (_cloned, {"read": None}), IN_PLACE: (_in_place, {}), GIVEN: (_given, {}),
    NEW: (_new, {}), INTERLEAVED: (partial(_given, other=True), {"interleaved": True}), FORWARD: (_forward, {}),
    BACKWARD: (_backward, {"inverse": True}), FUSED: (_fused, {"eps": NORM_ROUNDINGS, "normed": True}),
    SEPARATE: (_separate, {"eps": NORM_ROUNDINGS, "normed": True}),
    PEERS[0]: (_transformers, {"eps": EPS, "read": _read_theirs}),
    PEERS[1]: (partial(_transformers, compiled=True), {"eps": EPS, "read": _read_theirs}),
}  # fmt: skip
"""What makes the calls of each contender, and its other fields."""


def built(name: str, work: Work) -> Contender:
    """Return a contender of `MADE`."""
    make, options = MADE[name]
    return Contender(name, [make(work, i) for i in range(work.sets)], **options)


# -- a run ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preset:
    """Sizes of a run: the shape of the bounds, the tokens of the sweep, and seconds for each group.

    The heads are those of Llama-3-8B.
    """

    tokens: int = 4096
    sweep: tuple[int, ...] = (64, 256, 1024, 4096, 16_384)
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    seconds: float = 6.0


PRESETS = {"default": Preset(), "gpu": Preset(tokens=8192, sweep=(64, 1024, 8192, 131_072), seconds=3.0)}
Group = tuple[str, Case, tuple[str, ...]]
"""What bounds and the report look for, the case, and the contenders that take turns on it, by name."""


def groups_of(preset: Preset, *, device: str = "cpu") -> list[Group]:
    """Return every group of a run, the bounds' own first."""
    shape = Case(seq=preset.tokens, heads=preset.heads, head_dim=preset.head_dim, dtype=DTYPES[0], interleaved=False)
    both = replace(shape, kv_heads=preset.kv_heads)
    on_cpu, gradients, groups = device == "cpu", (FORWARD, BACKWARD), list[Group]()
    for dtype in DTYPES:
        if on_cpu:
            names = (COPY, CLONE, IN_PLACE, GIVEN, NEW, INTERLEAVED, *gradients, *PEERS * (dtype == torch.bfloat16))
            groups.append(("one tensor", replace(shape, dtype=dtype), names))
        decoded = replace(both, seq=1, offset=preset.tokens, dtype=dtype)
        groups.append(("one decoded token", decoded, (NEW, PEERS[0])))
        groups.append(("norm and rotation", replace(both, dtype=dtype), (FUSED, SEPARATE)))
    swept = (COPY, IN_PLACE, GIVEN, NEW, *gradients * (not on_cpu), *PEERS)
    return groups + [("sweep", replace(both, seq=seq, dtype=dtype), swept) for dtype in DTYPES for seq in preset.sweep]


def measure(group: Group, *, device: str = "cpu", seconds: float) -> Record:
    """Build the group's contenders, check each, and time them.

    Raises AssertionError if one is wrong.
    """
    kind, case, names = group
    work = Work(case, device)
    timed = [built(name, work) for name in names]
    for one in timed:
        if one.read is not None:
            check(work, one)
    clock = cpu_clock if device == "cpu" else CudaClock(device)
    return {
        "kind": kind, "case": case.name, "tokens": case.batch * case.seq,
        "dtype": str(case.dtype).removeprefix("torch."), "bytes": case.bytes, "sets": work.sets, "seconds": seconds,
        "backends": rw.explain_backends(work.inputs[0][0]).splitlines()[1:],
        "microseconds": interleave(timed, seconds=seconds, clock=clock),
    }  # fmt: skip


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
        medians = {name: times["p50"] for name, times in record["microseconds"].items()}
        against = [medians[name] for name in bound.against if name in medians]
        if (record["kind"], record["dtype"]) == (bound.kind, bound.dtype) and bound.contender in medians and against:
            yield round(medians[bound.contender] / min(against), 3)


def described(record: Record) -> str:
    """Return the medians of a group in microseconds, and of copy's time, as text."""
    medians = {name: times["p50"] for name, times in record["microseconds"].items()}
    copied = medians.get(COPY)
    lines = [f"{name:36}{time:12,.1f}" + (f"{time / copied:8.2f}" if copied else "") for name, time in medians.items()]
    return "\n  ".join([f"{record['kind']}, {record['case']}", *lines])


def limit(name: str) -> None:
    """Run our kernels with an instruction set; exit if variables that torch reads at its start do not limit it, too."""
    kernels.use_instruction_set(name)
    wanted = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    if name == "avx2" and any(os.environ.get(key) != value for key, value in wanted.items()):
        raise SystemExit(f"set {' '.join(f'{key}={value}' for key, value in wanted.items())} before Python starts")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, record and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, help="of each group; default: the preset's")
    parser.add_argument("--out", type=Path, help="append records to this file")
    names = [] if kernels is None else kernels.instruction_sets()
    parser.add_argument("--instructions", choices=names, help="of our kernels, and of torch's; default: the best")
    options = parser.parse_args(arguments)
    if options.instructions is not None:
        limit(options.instructions)
    name, file = ("default", "rotation.jsonl") if options.device == "cpu" else ("gpu", "gpu-rotation.jsonl")
    preset, shared = PRESETS[name], {"run": uuid.uuid4().hex[:12], "preset": name, **environment(options.device)}
    seconds = preset.seconds if options.seconds is None else options.seconds
    for group in groups_of(preset, device=options.device):
        record = {**measure(group, device=options.device, seconds=seconds), **shared}
        append(options.out or RESULTS / file, record)
        print(described(record), flush=True)


if __name__ == "__main__":
    main()
