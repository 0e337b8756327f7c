"""The truth about a call of attention: float64 in numpy, and what rounding may do to it.

Nothing of the package is used. The bound follows the arithmetic that a kernel may use, to first order in its
roundings: products and sums in float32 (u = 2^-24), a softmax over tiles of 64 keys, weights and turned keys once
rounded to the dtype of 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ropewalk.rotation.backends.request import AttentionRegion, AttentionRequest, Bounds, KeyTurn
from tests.rotation.backends import attention_truth as truth
from tests.rotation.backends.truth import OF_THE_PAIR, Allowed, Array, turn, wide

U = 2.0**-24
HALF_UNIT = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 0.0}
POWER = 3e-7  # relative error that 2^x may have
TILE = 64


@dataclass(frozen=True)
class Met:
    """Queries and keys of one region as numbers; `turned`: cos, sin `[batch, keys, pairs]`, interleaved, factor."""

    q: torch.Tensor
    k: torch.Tensor
    low: Array
    high: Array
    turned: tuple[Array, Array, bool, float] | None = field(default=None)


def attention(
    regions: list[Met], v: torch.Tensor, scale: float | Array, *, softcap: float = 0.0, sinks: Array | None = None
) -> Allowed:
    """What `[batch, heads, queries, head_dim]` may be; `scale` is a number or `[batch, queries]`."""
    dtype, values = v.dtype, wide(v)
    batch, heads, queries, size = regions[0].q.shape
    keys, groups = values.shape[2], heads // values.shape[1]
    factor = np.broadcast_to(np.asarray(scale, dtype=np.float64), (batch, queries))
    expected, off = np.zeros((batch, heads, queries, size)), np.zeros((batch, heads, queries, size))
    for b in range(batch):
        for h in range(heads):
            logits, slips = np.full((queries, keys), -np.inf), np.zeros((queries, keys))
            for met in regions:
                mine, slip = _logits(met, b, h, groups, factor[b], softcap)
                places = np.arange(keys)
                seen = (met.low[b][:, None] <= places) & (places < met.high[b][:, None])
                logits, slips = np.where(seen, mine, logits), np.where(seen, slip, slips)
            sink = -np.inf if sinks is None else sinks[h]
            v_here = values[b, h // groups]
            expected[b, h], off[b, h] = _mixed(logits, slips, sink, v_here, dtype)
    return Allowed(expected, off, dtype)


def _logits(met: Met, b: int, h: int, groups: int, factor: Array, softcap: float) -> tuple[Array, Array]:
    """Logits of one head, and by how much float32 may miss them."""
    q, k = wide(met.q)[b, h], wide(met.k)[b, h // groups]
    missed = np.zeros_like(k)
    if met.turned is not None:
        cos, sin, interleaved, by = met.turned
        k, lengths = turn(k, cos[b], sin[b], interleaved=interleaved, scale=by)
        missed = OF_THE_PAIR * lengths + HALF_UNIT[met.k.dtype] * np.abs(k)
    with np.errstate(invalid="ignore"):
        dots, sizes = q @ k.T, np.abs(q) @ np.abs(k).T
        slip = (q.shape[-1] + 2) * U * sizes + np.abs(q) @ missed.T
        logits, slip = dots * factor[:, None], slip * factor[:, None]
        if softcap:
            slip = slip + 2e-6 * softcap + 4 * U * np.abs(logits)
            logits = softcap * np.tanh(logits / softcap)
    return logits, slip + 4 * U * np.abs(logits)


def _mixed(logits: Array, slips: Array, sink: float, v: Array, dtype: torch.dtype) -> tuple[Array, Array]:
    """The values' mean under softmax, and its slack."""
    with np.errstate(invalid="ignore"):
        best = np.maximum(logits.max(-1, initial=-np.inf), sink)[:, None]
        shift = np.where(np.isneginf(best), 0.0, best)
        weights = np.where(np.isneginf(logits), 0.0, np.exp(logits - shift))
        total = weights.sum(-1, keepdims=True) + np.exp(sink - shift)
        weights = np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)
        out = np.where(weights[..., None] != 0, weights[..., None] * v, 0.0).sum(1)
        far = np.where(weights > 0, np.abs(logits - shift), 0.0)
        wrong = np.where(weights > 0, weights * (slips + 2 * U * (far + 8) + POWER), 0.0)  # of each weight
        tiles = logits.shape[1] / TILE + 3
        sums = (TILE + 4 * tiles) * U + HALF_UNIT[dtype]
        sizes = np.abs(np.where(np.isfinite(v), v, 0.0))
        off = wrong @ sizes + np.abs(out) * wrong.sum(-1, keepdims=True) + (weights @ sizes + np.abs(out)) * sums
    return out, np.where(np.isfinite(off), 1.01 * off + 1e-30, 0.0)


# --- cases


Attend = Callable[[AttentionRequest], Tensor]


@dataclass(frozen=True)
class Case:
    """Sizes, what is seen, how the tensors lie, and what else is asked for."""

    heads: int = 3
    kv_heads: int = 1
    queries: int = 20
    keys: int = 20
    head_dim: int = 16
    batch: int = 1
    seen: str = "causal"  # causal, window, all, ragged, documents, nothing, apart (two regions)
    lie: str = "bhsd"  # bhsd, bshd, features (apart), odd (rows of 4n + 1 numbers), shared (one row for all batches)
    turned: str = ""  # half, interleaved, part
    softcap: float = 0.0
    sinks: bool = False
    spread: float = 1.0  # of the logits
    seed: int = 0

    def __str__(self) -> str:
        sizes = f"{self.batch}x{self.heads}/{self.kv_heads}x{self.queries}/{self.keys}x{self.head_dim}"
        extras = [self.turned, "cap" * bool(self.softcap), "sinks" * self.sinks]
        return "-".join([sizes, self.seen, self.lie, *filter(None, extras)])


def laid(x: Tensor, lie: str) -> Tensor:
    """The same numbers `[batch, heads, tokens, head_dim]` in other places."""
    if lie == "bshd":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if lie == "features":
        return x.transpose(2, 3).contiguous().transpose(2, 3)
    if lie == "odd":
        return torch.nn.functional.pad(x, (0, 1 + -x.shape[-1] % 4))[..., : x.shape[-1]]
    if lie == "shared":
        return x[:1].expand_as(x)
    return x


def bounds_of(case: Case, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Low and high, int64 `[1 or batch, queries]`, of each region."""
    q, n = case.queries, case.keys
    rows = torch.arange(n - q, n)[None]
    zeros = torch.zeros(1, 1, dtype=torch.int64).expand(1, q)
    if case.seen == "all":
        return [(zeros, zeros + n)]
    if case.seen == "window":
        return [((rows - 6).clamp(min=0), rows + 1)]
    if case.seen == "nothing":
        high = (rows + 1).clone()
        high[:, ::3] = 0
        return [(zeros, high)]
    if case.seen == "ragged":
        ends = torch.randint(0, n + 1, (case.batch, 1), generator=generator)
        high = (ends - q + 1 + torch.arange(q)).clamp(min=0)
        return [(zeros.expand(case.batch, q), high)]
    if case.seen == "documents":
        begins = torch.where(torch.rand(1, q, generator=generator) < 0.1, rows, 0).cummax(1).values
        return [(begins, rows + 1)]
    if case.seen == "apart":
        border = (rows - 5).clamp(min=0)
        return [(border, rows + 1), (zeros, border)]
    return [(zeros, rows + 1)]


def request_of(case: Case, dtype: torch.dtype) -> tuple[AttentionRequest, truth.Allowed]:
    """The call and what its result may be."""
    g = torch.Generator().manual_seed(case.seed)
    b, n, d = case.batch, case.keys, case.head_dim

    def tensor(heads: int, tokens: int, spread: float = 1.0) -> Tensor:
        return laid((torch.randn(b, heads, tokens, d, generator=g) * spread).to(dtype), case.lie)

    v = tensor(case.kv_heads, n)
    sinks = torch.randn(case.heads, generator=g) * 2 if case.sinks else None
    regions, met = [], []
    for low, high in bounds_of(case, g):
        q, k = tensor(case.heads, case.queries, case.spread), tensor(case.kv_heads, n)
        turn = numbers = None
        if case.turned:
            pairs = max(1, d // 4) if case.turned == "part" else d // 2
            rows = 1 if case.turned == "half" else b
            angles = torch.rand(rows, n, pairs, generator=g) * 6
            cos, sin, interleaved = angles.cos(), angles.sin(), case.turned == "interleaved"
            turn = KeyTurn(cos if rows == b else cos[0], sin if rows == b else sin[0], interleaved, 1.25)
            wide = (np.broadcast_to(x.double().numpy(), (b, n, pairs)) for x in (cos, sin))
            numbers = (*wide, interleaved, 1.25)
        regions.append(AttentionRegion(q, k, Bounds(low, high), turn))
        low, high = (x.expand(b, -1).numpy() for x in (low, high))
        met.append(truth.Met(q, k, low, high, numbers))
    logits = None if sinks is None else sinks.double().numpy()
    allowed = truth.attention(met, v, d**-0.5, softcap=case.softcap, sinks=logits)
    return AttentionRequest(tuple(regions), v, d**-0.5, case.softcap, sinks), allowed


def check(case: Case, dtype: torch.dtype, attend: Attend) -> None:
    """Raises AssertionError where a number is out of bounds, or where the call's tensors were changed."""
    request, allowed = request_of(case, dtype)
    given = [request.values, *(x for region in request.regions for x in (region.q, region.k))]
    before = [x.clone() for x in given]
    out = attend(request)
    assert (out.dtype, out.shape) == (dtype, request.regions[0].q.shape)
    allowed.check(out, str(case))
    for x, was in zip(given, before, strict=True):
        assert torch.equal(x, was), "an input was changed"


BASE = Case()
CASES = [
    BASE,
    Case(seen="all"),
    Case(seen="window", queries=70, keys=70),
    Case(seen="nothing"),
    Case(seen="documents", queries=90, keys=90),
    Case(seen="ragged", batch=3, queries=5, keys=40),
    Case(seen="apart", queries=80, keys=200),
    Case(heads=6, kv_heads=2, queries=10, keys=30),
    Case(heads=9, kv_heads=3, queries=64, keys=150, head_dim=64, lie="bshd"),
    Case(heads=8, kv_heads=2, queries=100, keys=100, head_dim=96, batch=2),
    Case(heads=4, kv_heads=1, queries=33, keys=260, head_dim=128, seen="window"),
    Case(heads=2, kv_heads=2, queries=9, keys=77, head_dim=256),
    Case(heads=1, queries=200, keys=200),
    Case(heads=5, queries=50, keys=50, head_dim=6),
    Case(heads=200, queries=2, keys=9),
    *(Case(heads=1, queries=260, keys=270, lie=lie) for lie in ("features", "odd")),  # laid out before
    Case(queries=1, keys=1),
    Case(queries=1, keys=130, head_dim=64),
    Case(queries=1, keys=65, batch=3, seen="ragged"),
    *(
        Case(lie=lie, batch=2, keys=69, head_dim=dim)
        for lie in ("features", "odd", "shared", "bshd")
        for dim in (16, 7)
    ),
    *(Case(turned=how, keys=70, batch=2, head_dim=dim) for how in ("half", "interleaved", "part") for dim in (16, 10)),
    Case(turned="half", lie="features", keys=30),
    Case(turned="interleaved", seen="apart", queries=40, keys=140, head_dim=64),
    Case(softcap=3.0, spread=4.0),
    Case(sinks=True),
    Case(sinks=True, seen="nothing", softcap=20.0),
    # few queries: features stand in the lanes
    *(
        Case(queries=queries, keys=150, turned=how, lie=lie, head_dim=dim)
        for queries, how, lie, dim in (
            (1, "half", "bhsd", 32),
            (1, "", "features", 32),
            (1, "", "odd", 10),
            (1, "", "bshd", 128),
            (2, "interleaved", "odd", 10),
            (2, "part", "bshd", 64),
        )
    ),
    Case(queries=2, keys=150, seen="apart", head_dim=96, softcap=5.0, sinks=True),
    Case(heads=4, kv_heads=4, queries=1, keys=200, spread=60.0, batch=2),
    Case(heads=7, queries=1, keys=70),
    Case(heads=2, kv_heads=2, queries=3, keys=64, seen="nothing", head_dim=64),
    Case(spread=60.0, keys=300),
    # several tiles that all columns see: of one, two and three vectors of columns, with few and with many rescalings
    *(
        Case(heads=heads, queries=queries, keys=560, head_dim=dim, spread=spread, sinks=spread == 4.0)
        for heads, queries, dim, spread in ((1, 24, 64, 1.0), (3, 16, 32, 4.0), (3, 5, 20, 30.0), (4, 8, 6, 0.0))
    ),
    Case(spread=0.0, keys=130),
]
SMALL = [replace(case, seed=1) for case in CASES if case.queries * case.heads * case.head_dim < 20_000]
