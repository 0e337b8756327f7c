"""Jobs of the step `attention`: Triton attention over flex attention (compiled, one call per region) and torch's SDPA.

Each result is compared with float64 on some rows of the first and the last key head before it is timed. Where a rule
has several regions of keys, flex attention runs once for each and the results are merged by their log-sum-exps; sinks
enter the same way. Gradients are compared with float64 in whole at a small size by the same code.

The last job reads the records of the others. If flex attention is right in every case and takes at most 1.5 times as
long as ours, ours goes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gpu_jobs import Job, Place, Records, over
from peers import Skip
from records import Record
from timing import Timed, interleave
from torch import Tensor

import ropewalk as rw
from ropewalk.attention.attend import LogitRules
from ropewalk.attention.extensions import DualChunk, Extension, LogN, ReRoPE, SelfExtend
from ropewalk.attention.masks import lay_out
from ropewalk.attention.remap import Remap
from ropewalk.backends import triton
from ropewalk.backends.autograd import attended
from ropewalk.backends.request import AttentionRegion, AttentionRequest, Backend
from tests.backends import attention_truth
from tests.backends.attention_gradients import Meets, gradients

SECONDS = 3.0  # of a case
LIMIT = 1.5  # flex attention's time over ours, up to which ours is not worth its lines
OURS, FLEX, SDPA, COPY, PRODUCT = "ropewalk", "flex attention", "SDPA", "copy", "matrix product"
LOOSE = 4.0  # times the bound of ours, for kernels that round more often
ROWS = 33  # checked of each head
MOST_MASKED = 40_000  # tokens up to which a mask of all pairs fits into memory
SIDE = 4096  # of the matrices
MOST_COMPILED = 64  # forms of flex attention in one case; beyond them torch would refuse


@dataclass(frozen=True)
class Case:
    """One call: a position rule, its sizes, and whether gradients are timed."""

    rule: str
    tokens: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    backward: bool = False

    @property
    def key(self) -> str:
        """Return a name that no other case has."""
        kind = "forward and backward" if self.backward else "forward"
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.rule}, {self.tokens} tokens, {self.heads}/{self.kv_heads} heads of {self.head_dim}, {dtype}, {kind}"
        )


def rules_of(tokens: int) -> dict[str, tuple[Extension | None, int | None, float, bool]]:
    """Return by name: position rule, window, softcap, sinks. At 8,192 tokens they are those of `attention.py`."""
    part = max(tokens // 8, 2)
    return {
        "dual chunk": (DualChunk(chunk=3 * part // 2, trained_length=2 * part), None, 0.0, False),
        "Self-Extend": (SelfExtend(group=8, window=part), None, 0.0, False),
        "ReRoPE": (ReRoPE(window=part), None, 0.0, False),
        "window": (None, part, 0.0, False),
        "softcap": (None, None, 50.0, False),
        "sinks": (None, None, 0.0, True),
        "log-n": (LogN(trained_length=2 * part), None, 0.0, False),
        "plain": (None, None, 0.0, False),
    }


def cases(place: Place) -> list[Case]:
    """Return every case, in order of value."""
    if place.interpreter:
        small = [Case(rule, 24, 4, 2, 16, torch.float32) for rule in rules_of(24)]
        return [*small, *(replace(small[n], backward=True) for n in (0, 5, 6)), replace(small[1], dtype=torch.bfloat16)]
    first = [Case(rule, 8192) for rule in rules_of(8192)]
    trained = [replace(case, backward=True) for case in first if case.rule != "log-n"]
    long = [replace(case, tokens=32_768) for case in first]
    narrow = [replace(case, heads=9, kv_heads=3, head_dim=64) for case in first]
    return [*first, *trained, *long, *narrow, *(replace(case, dtype=torch.float32) for case in narrow)]


def jobs(place: Place, records: Records) -> list[Job]:
    """Return a job for each case, and the decision."""
    every = cases(place)
    timed = [Job(case.key, lambda seconds, case=case: measure(case, place, seconds)) for case in every]
    return [*timed, Job("decision", lambda _: decision(every, records, place), least=0.0, again=True)]


# -- the calls --------------------------------------------------------------------------------------------------------


def request_of(case: Case, device: str, seed: int = 0) -> AttentionRequest:
    """Return the request that a layer would make, with random queries, keys and values."""
    extension, window, softcap, with_sinks = rules_of(case.tokens)[case.rule]
    g = torch.Generator().manual_seed(seed)
    shapes = [(1, case.tokens, n, case.head_dim) for n in (case.heads, case.kv_heads, case.kv_heads)]
    # queries token by token, keys and values head by head out of a cache, as a model passes them
    q, k, v = (torch.randn(shape, generator=g).to(device, case.dtype).transpose(1, 2) for shape in shapes)
    k, v = k.contiguous(), v.contiguous()
    sinks = torch.randn(case.heads, generator=g).to(device) if with_sinks else None
    layout = lay_out(1, case.tokens, torch.device(device))
    rules = LogitRules(softcap, sinks)
    if extension is not None and extension.remaps:
        rotary = rw.RotaryEmbedding(rw.RopeConfig(case.head_dim, interleaved=False))
        remap = Remap(rotary, extension, layout, None, None, case.dtype)
        with torch.enable_grad():  # keys are rotated before the call, as for gradients and for many queries
            made = remap.request(q, k.requires_grad_(), v, rules, triton.most_regions)
        assert made is not None, f"{extension} has more regions than a kernel takes"
        regions = tuple(region._replace(q=region.q.detach(), k=region.k.detach()) for region in made.regions)
        return made._replace(regions=regions, values=made.values.detach())
    if extension is not None:
        factor = extension.logit_scale(layout.position_ids())
        q = q * factor if isinstance(factor, float) else (q * factor.to(q.device)[:, None]).to(q.dtype)
    bounds = layout.visibility(True, window).bounds()
    assert bounds is not None
    regions = tuple(AttentionRegion(q, k, within) for within in bounds)
    return AttentionRequest(regions, v, 1.0 / math.sqrt(case.head_dim), softcap, sinks)


class Flex:
    """Flex attention for a request: one call for each region, merged by their log-sum-exps, then the sinks."""

    def __init__(self, request: AttentionRequest, *, compiled: bool) -> None:
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

        self.request, self.aux = request, AuxRequest(lse=True)
        self.call: Any = (
            torch.compile(flex_attention, dynamic=False, fullgraph=True) if compiled else _quietly(flex_attention)
        )
        queries, keys = request.regions[0].q.shape[2], request.values.shape[2]
        device = str(request.values.device)
        self.masks = [create_block_mask(_seen(region), None, None, queries, keys, device=device)
                      for region in request.regions]  # fmt: skip
        self.bend = _softcap(request.softcap) if request.softcap else None

    def __call__(self, regions: tuple[AttentionRegion, ...], values: Tensor, sinks: Tensor | None) -> Tensor:
        one = len(regions) == 1 and sinks is None  # its log-sum-exp is not needed
        options = {"score_mod": self.bend, "scale": self.request.scale, "enable_gqa": True}
        parts = []
        for region, mask in zip(regions, self.masks, strict=True):
            if one:
                alone: Tensor = self.call(region.q, region.k, values, block_mask=mask, **options)
                return alone
            out, aux = self.call(region.q, region.k, values, block_mask=mask, return_aux=self.aux, **options)
            parts.append((out, aux.lse))
        return merged(parts, sinks)


def _quietly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return flex attention without its warning that it is not compiled."""

    def call(*arguments: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            return function(*arguments, **options)

    return call


def _seen(region: AttentionRegion) -> Callable[..., Tensor]:
    low, high = (edge[0].contiguous() for edge in region.bounds)

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (low[query] <= key) & (key < high[query])

    return seen


def _softcap(cap: float) -> Callable[..., Tensor]:
    def bend(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return bend


def merged(parts: list[tuple[Tensor, Tensor]], sinks: Tensor | None) -> Tensor:
    """Merge attention over disjoint keys by log-sum-exps `[batch, heads, queries]`; a sink only takes weight."""
    sums = [lse.float() for _, lse in parts]
    if sinks is not None:
        sums.append(sinks.float()[None, :, None].expand_as(sums[0]))
    shares = torch.stack(sums).softmax(0)  # a row sees a key in some region, so not all are minus infinity
    whole = sum(out.float() * share[..., None] for (out, _), share in zip(parts, shares, strict=False))
    return whole.to(parts[0][0].dtype)


class Sdpa:
    """Torch's `scaled_dot_product_attention`, for one region without softcap and sinks."""

    def __init__(self, case: Case, request: AttentionRequest) -> None:
        if len(request.regions) > 1 or request.softcap or request.sinks is not None:
            raise Skip("it has no regions, softcap or sinks")
        self.scale, self.mask = request.scale, None
        self.grouped = case.dtype != torch.float32  # its kernels for float32 take no groups
        if case.rule == "window":
            if case.tokens > MOST_MASKED:
                raise Skip("a mask of all pairs is too large")
            low, high = (edge[0][:, None] for edge in request.regions[0].bounds)
            keys = torch.arange(case.tokens, device=low.device)
            self.mask = (low <= keys) & (keys < high)

    def __call__(self, regions: tuple[AttentionRegion, ...], values: Tensor, sinks: Tensor | None) -> Tensor:
        q, k = regions[0].q, regions[0].k
        if not self.grouped:
            groups = q.shape[1] // k.shape[1]
            k, values = k.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
        return F.scaled_dot_product_attention(q, k, values, attn_mask=self.mask, is_causal=self.mask is None,
                                              scale=float(self.scale), enable_gqa=self.grouped)  # fmt: skip


def ours(request: AttentionRequest) -> Callable[..., Tensor]:
    """Return our kernels as a function of regions, values and sinks."""
    backend: Backend = triton  # type: ignore[assignment]
    return lambda regions, values, sinks: attended(
        backend, request._replace(regions=regions, values=values, sinks=sinks)
    )


def contenders(case: Case, place: Place, request: AttentionRequest) -> tuple[dict[str, Callable[..., Tensor]], Record]:
    """Return the functions that are compared, and why others cannot take part."""
    made: dict[str, Callable[..., Tensor]] = {OURS: ours(request)}
    skipped: Record = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in (
            (FLEX, lambda: Flex(request, compiled=not place.interpreter)),
            (SDPA, lambda: Sdpa(case, request)),
        ):
            try:
                if case.backward and place.interpreter and name == FLEX:
                    raise Skip("it has no backward on a CPU")
                made[name] = make()
            except Exception as error:
                skipped[name] = _reason(error)
    return made, skipped


def _reason(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0][:300]
    return text if isinstance(error, Skip) else f"{type(error).__name__}: {text}"


# -- checks -----------------------------------------------------------------------------------------------------------


def check(case: Case, request: AttentionRequest, out: Tensor, name: str) -> None:
    """Raise AssertionError unless some rows of the first and the last key head are what float64 gives."""
    groups, dtype = case.heads // case.kv_heads, case.dtype
    assert (out.shape, out.dtype) == (request.regions[0].q.shape, dtype), f"{name} returns {out.dtype} {out.shape}"
    rows = np.unique(np.linspace(0, case.tokens - 1, ROWS).round().astype(int))
    for kv_head in sorted({0, case.kv_heads - 1}):
        heads = slice(kv_head * groups, (kv_head + 1) * groups)
        met = [
            attention_truth.Met(region.q[:, heads][:, :, rows].cpu(), region.k[:, kv_head : kv_head + 1].cpu(),
                                *(edge.expand(1, -1).cpu().numpy()[:, rows] for edge in region.bounds))
            for region in request.regions
        ]  # fmt: skip
        sinks = None if request.sinks is None else request.sinks[heads].double().cpu().numpy()
        values = request.values[:, kv_head : kv_head + 1].cpu()
        allowed = attention_truth.attention(met, values, float(request.scale), softcap=request.softcap, sinks=sinks)
        if name != OURS:
            allowed = attention_truth.Allowed(allowed.expected, LOOSE * allowed.off, dtype)
        allowed.check(out[:, heads][:, :, rows].cpu(), f"{name}, {case.key}, key head {kv_head}:")


def check_gradients(case: Case, place: Place, name: str) -> None:
    """Raise AssertionError unless all gradients of a short call are what float64 gives."""
    short = replace(case, tokens=min(case.tokens, 192), heads=4, kv_heads=2)
    request = request_of(short, "cpu" if place.interpreter else place.device, seed=1)
    made, skipped = contenders(short, place, request)
    if name in skipped:
        raise Skip(skipped[name])
    grad = torch.randn(request.regions[0].q.shape, generator=torch.Generator().manual_seed(7)).to(case.dtype)
    found = _gradients(made[name], request, grad.to(request.values.device))()
    places = torch.arange(short.tokens)
    met = []
    for region in request.regions:
        low, high = (x.cpu().expand(1, -1)[..., None] for x in region.bounds)
        met.append(Meets(region.q.cpu(), region.k.cpu(), (low <= places) & (places < high)))
    sinks = None if request.sinks is None else request.sinks.cpu()
    truths = gradients(met, request.values.cpu(), float(request.scale), request.softcap, sinks, grad)
    for number, (truth, x) in enumerate(zip(truths, found, strict=True)):
        if name != OURS:
            truth = replace(truth, off=LOOSE * truth.off)
        truth.check(x.cpu(), f"{name}, {case.key}, gradient {number}")


def _gradients(function: Callable[..., Tensor], request: AttentionRequest, grad: Tensor) -> Callable[[], Any]:
    """Return a forward and its backward: gradients of each region's queries and keys, of values and of sinks."""
    regions = tuple(region._replace(q=_leaf(region.q), k=_leaf(region.k)) for region in request.regions)
    values, sinks = _leaf(request.values), None if request.sinks is None else _leaf(request.sinks)
    leaves = [x for region in regions for x in (region.q, region.k)] + [x for x in (values, sinks) if x is not None]
    return lambda: torch.autograd.grad(function(regions, values, sinks), leaves, grad)


def _leaf(x: Tensor) -> Tensor:
    return x.detach().clone(memory_format=torch.preserve_format).requires_grad_()


# -- measuring --------------------------------------------------------------------------------------------------------


def measure(case: Case, place: Place, seconds: float) -> Record:
    """Check every contender, then time those that are right; raise AssertionError if ours is wrong."""
    device = "cpu" if place.interpreter else place.device
    if not place.interpreter:  # each region, size and kind of call is compiled by itself
        from torch._dynamo import config as of_compiler

        torch.compiler.reset()
        of_compiler.recompile_limit = MOST_COMPILED
    request = request_of(case, device)
    made, skipped = contenders(case, place, request)
    timed = []
    grad = torch.randn(request.regions[0].q.shape, generator=torch.Generator().manual_seed(3)).to(device, case.dtype)
    arguments = request.regions, request.values, request.sinks
    for name, function in made.items():
        try:
            with torch.no_grad():
                check(case, request, function(*arguments), name)
            if case.backward:
                check_gradients(case, place, name)
                timed.append(Timed(name, [_gradients(function, request, grad)]))
            else:
                timed.append(Timed(name, [_without_gradients(function, arguments)]))
        except Exception as error:
            if name == OURS:
                raise
            skipped[name] = f"wrong: {_reason(error)}" if isinstance(error, AssertionError) else _reason(error)
    outs = [torch.empty_like(x) for x in request.tensors()]
    timed.append(Timed(COPY, [lambda: [out.copy_(x) for out, x in zip(outs, request.tensors(), strict=True)]]))
    side = 32 if place.interpreter else SIDE
    a, b = (torch.randn(side, side).to(device, case.dtype) for _ in range(2))
    timed.append(Timed(PRODUCT, [lambda: a @ b]))
    limit = 0.0 if place.interpreter else min(SECONDS, seconds)
    found = interleave(timed, seconds=limit, least=3, clock=place.clock())
    seen = sum(int((region.bounds.high - region.bounds.low).clamp(min=0).sum()) for region in request.regions)
    work = 4.0 * seen * case.heads * case.head_dim * (3.5 if case.backward else 1.0)  # operations
    rates = {name: round(work / found[name]["p50"] / 1e6, 2) for name in (OURS, FLEX, SDPA) if name in found}
    peak = 2.0 * side**3 / found[PRODUCT]["p50"] / 1e6
    return {
        "kind": "backward" if case.backward else "forward", "rule": case.rule, "tokens": case.tokens,
        "heads": case.heads, "kv_heads": case.kv_heads, "head_dim": case.head_dim,
        "dtype": str(case.dtype).removeprefix("torch."), "regions": len(request.regions), "microseconds": found,
        "tflops": rates, "matrix_product_tflops": round(peak, 2), "over_ropewalk": over(found, OURS),
        "over_copy": over(found, COPY), "skipped": skipped,
    }  # fmt: skip


def _without_gradients(function: Callable[..., Tensor], arguments: tuple[Any, ...]) -> Callable[[], Tensor]:
    @torch.no_grad()
    def call() -> Tensor:
        return function(*arguments)

    return call


def decision(every: list[Case], records: Records, place: Place) -> Record:
    """Return what the records of this machine say about removing our kernels."""
    last = records.latest(place.name)
    return {
        "kind": "decision",
        **decide({case.key: last.get(case.key) for case in every}, interpreter=place.interpreter),
    }


def decide(found: dict[str, Record | None], *, interpreter: bool) -> Record:
    """Return the rule, the ratios and the decision: remove, keep or undecided.

    One case in which flex attention is wrong, or takes more than `LIMIT` times as long, is enough to keep ours. Without
    such a case, every case must have been timed: one that failed for any other reason leaves it undecided.
    """
    rule = f"remove ours if flex attention is right in every case and takes at most {LIMIT} times as long"
    ratios = {key: one["over_ropewalk"][FLEX] for key, one in found.items()
              if one and one["status"] == "done" and FLEX in one["over_ropewalk"]}  # fmt: skip
    against = {key: one["skipped"][FLEX] for key, one in found.items()
               if one and one["status"] == "done" and one["skipped"].get(FLEX, "").startswith("wrong: ")}  # fmt: skip
    missing = [key for key in found if key not in ratios and key not in against]
    worst = max(ratios.values(), default=None)
    facts = {"rule": rule, "ratios": ratios, "worst": worst, "against": against, "missing": missing}
    if interpreter:
        return {**facts, "decision": "undecided", "because": "no GPU: the interpreter's times mean nothing"}
    if against or (worst is not None and worst > LIMIT):
        because = f"flex attention is wrong in {len(against)} cases" if against else f"the worst ratio is {worst}"
        return {**facts, "decision": "keep", "because": because}
    if missing:
        return {**facts, "decision": "undecided", "because": f"{len(missing)} cases are missing"}
    return {**facts, "decision": "remove", "because": f"the worst ratio is {worst}"}
