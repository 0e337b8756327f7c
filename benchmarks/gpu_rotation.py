"""Jobs of the step `rotation`: rotation, norm and rotation, cache writes and training, over a copy of the same bytes.

The groups are those of `rotation.py` on a GPU, and two more: cache writes (`stored`) and a forward with its backward
(`trained`). bfloat16 and 8,192 tokens come first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import rotation
import torch
from gpu_jobs import Job, Place, over
from peers import EPS, Contender, Skip, Work, package
from records import Record
from rotation import COPY, Builds, Group, Preset
from timing import Call
from torch import Tensor

import ropewalk as rw

SECONDS = 3.0  # of a group
FIRST = 8192  # tokens of the groups that come first
PRESET = Preset("gpu", tokens=FIRST, sweep=(FIRST, 131_072, 1024, 64, 16_384, 65_536, 256, 4096))
TINY = Preset("interpreter", tokens=8, sweep=(8,), heads=2, kv_heads=1, head_dim=16, judged=False)
TOGETHER, APART = "ropewalk, rotate_store", "ropewalk, rotate then write"
TRAINED = "ropewalk, forward and backward"


def jobs(place: Place) -> list[Job]:
    """Return one job for each group, in order of value."""
    preset = TINY if place.interpreter else PRESET
    every = [*rotation.groups_of(preset, device="cuda"), *more_groups(preset)]
    order = ["sweep", "cache writes", "training", "norm and rotation", "host", "one decoded token"]

    def rank(group: Group) -> tuple[bool, bool, int]:
        first = group.case.seq in (preset.tokens, 1)
        return (group.case.dtype != torch.bfloat16, not first, order.index(group.kind))

    return [Job(f"{group.kind}, {group.case.name}", runner(group, place)) for group in sorted(every, key=rank)]


def runner(group: Group, place: Place) -> Callable[[float], Record]:
    """Return a function that checks and times a group, at most for `SECONDS`."""
    builds = dict(group.builds)
    if "floors" not in builds and group.kind not in ("host", "one decoded token"):
        builds = {"floors": rotation.floors, **builds}
    if place.interpreter and "torch.compile" in builds:
        builds["torch.compile"] = not_compiled
    chosen = replace(group, builds=builds)
    device = "cpu" if place.interpreter else place.device

    def run(seconds: float) -> Record:
        limit = 0.0 if place.interpreter else min(SECONDS, seconds)
        found = rotation.measure(chosen, device=device, seconds=limit)
        times = found["microseconds"]
        moved = 2 * found["bytes"] * (2 if group.kind == "training" else 1)
        speeds = {name: round(moved / each["p50"] / 1e3, 1) for name, each in times.items()}
        return {**found, "over_copy": over(times, COPY), "gb_per_second": speeds}

    return run


def not_compiled(work: Work) -> Contender:
    """Skip the compiler, which takes half a minute for each group."""
    raise Skip("not compiled in a small run")


def more_groups(preset: Preset) -> list[Group]:
    """Return the groups that only this step times."""
    shape = rotation.Case(seq=preset.tokens, heads=preset.heads, kv_heads=preset.kv_heads, head_dim=preset.head_dim,
                          dtype=torch.bfloat16, interleaved=False)  # fmt: skip
    writes: Builds = {"floors": floor_with_values, TOGETHER: stored, APART: rotated_then_stored}
    training: Builds = {
        "floors": two_copies, TRAINED: trained, "transformers": transformers, "torch.compile": compiled,
        "Liger-Kernel": liger,
    }  # fmt: skip
    cases = [replace(shape, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)]
    return [Group(kind, case, builds) for case in cases
            for kind, builds in (("cache writes", writes), ("training", training))]  # fmt: skip


# -- cache writes -----------------------------------------------------------------------------------------------------


def floor_with_values(work: Work) -> Contender:
    """Copy queries, keys and values."""
    fresh, outs = values_of(work), values_of(work)

    def copy(i: int) -> Call:
        pairs = [*zip(work.outs[i], work.inputs[i], strict=True), (outs[i], fresh[i])]
        return lambda: [out.copy_(x) for out, x in pairs]

    return Contender(COPY, work.each(copy))


def values_of(work: Work) -> list[Tensor]:
    """Return new values of the shape of the keys for each set."""
    return [tensors[1].clone() for tensors in work.inputs]


def stored(work: Work) -> Contender:
    """Rotate, and write keys and values into a cache whose rows are sequences, in one launch."""
    case, fresh = work.case, values_of(work)
    slots = torch.arange(case.seq, device=work.device)[None]
    shape = 1, case.kv_heads, case.seq, case.head_dim
    buffers = [[x.new_full(shape, torch.nan) for _ in range(2)] for x in fresh]

    def make(i: int) -> Call:
        (q, k), (keys, values) = work.inputs[i], buffers[i]
        store = rw.fused.Store(keys, values, fresh[i], slots)
        return lambda: (rw.fused.rotate_store(q, k, work.cos, work.sin, store, interleaved=case.interleaved)[0], i)

    def read(returned: Any) -> tuple[Tensor, ...]:
        q, i = returned
        keys, values = (x.transpose(1, 2) for x in buffers[i])
        assert torch.equal(values, fresh[i]), "it writes other values"
        return q, keys

    return Contender(TOGETHER, work.each(make), read)


def rotated_then_stored(work: Work) -> Contender:
    """Rotate queries and keys in one launch, then write keys and values in two more."""
    case, fresh = work.case, values_of(work)
    slots = torch.arange(case.seq, device=work.device)
    buffers = [[torch.zeros_like(x.transpose(1, 2)) for _ in range(2)] for x in fresh]

    def make(i: int) -> Call:
        q, k = work.inputs[i]

        def call() -> tuple[Tensor, Tensor]:
            turned, near = rw.rotate_qk(q, k, work.cos, work.sin, interleaved=case.interleaved)
            for buffer, new in zip(buffers[i], (near, fresh[i]), strict=True):
                buffer.index_copy_(2, slots, new.transpose(1, 2))
            return turned, buffers[i][0].transpose(1, 2)

        return call

    return Contender(APART, work.each(make), tuple)


# -- forward and backward ---------------------------------------------------------------------------------------------


def two_copies(work: Work) -> Contender:
    """Copy queries and keys twice, for a forward and a backward."""
    one = rotation.floors(work)[0].calls
    return Contender(COPY, [lambda call=call: (call(), call()) for call in one])


def trained(work: Work) -> Contender:
    """Rotate under autograd and go back."""

    def function(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return rw.rotate_qk(q, k, work.cos, work.sin, interleaved=work.case.interleaved)

    return _trained(work, TRAINED, function, eps=0.0)


def transformers(work: Work, name: str = "transformers", wrap: Callable[[Any], Any] = lambda made: made) -> Contender:
    """Run transformers' eager function of Llama; `wrap` may compile it."""
    function = wrap(package("transformers.models.llama.modeling_llama", "transformers").apply_rotary_pos_emb)
    return _trained(work, name, _heads_first(function, work))


def compiled(work: Work) -> Contender:
    """Compile transformers' function for the shape that is timed."""
    torch.compiler.reset()
    return transformers(work, "torch.compile", lambda made: torch.compile(made, dynamic=False, fullgraph=True))


def liger(work: Work) -> Contender:
    """Run Liger-Kernel's autograd function, which overwrites queries and keys."""
    function = package("liger_kernel.transformers.rope", "liger-kernel").liger_rotary_pos_emb
    return _trained(work, "Liger-Kernel", _heads_first(function, work))


def _heads_first(function: Any, work: Work) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return a function of `[batch, seq, heads, head_dim]` with tables in the model's dtype, as transformers makes."""
    if work.case.interleaved:
        raise Skip("half-split only")
    cos, sin = (torch.cat((table, table), -1)[None].to(work.case.dtype) for table in (work.cos, work.sin))

    def turned(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = function(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2)

    return turned


def _trained(work: Work, name: str, function: Callable[..., Any], *, eps: float = EPS) -> Contender:
    """Time a forward and a backward whose incoming gradients are the inputs: the result is their inverse rotation."""
    grads = work.inputs
    leaves = [tuple(x.clone().requires_grad_() for x in tensors) for tensors in work.inputs]

    def make(i: int) -> Call:
        return lambda: torch.autograd.grad(function(*leaves[i]), leaves[i], grads[i])

    return Contender(name, work.each(make), tuple, eps=eps, inverse=True)
