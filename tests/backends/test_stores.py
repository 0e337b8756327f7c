"""Caches in pages, in other dtypes and with a scale, without a norm, and RMSNorm over all heads together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk import backends
from ropewalk.backends import cpu
from ropewalk.backends.request import Norm, Store
from tests.backends import truth
from tests.backends.arena import Arena
from tests.backends.places import PLACES, Place
from tests.backends.test_sabotage import Sabotaged

E4M3, E5M2, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16
# digits of the significand, least exponent of a normal number, largest number (OCP 8-bit floating point, table 1)
SMALL = {E4M3: (4, -6, 448.0), E5M2: (3, -14, 57344.0)}
PAIRS, AROUND, ROOM = 5, 3, 4


@dataclass(frozen=True)
class StoreCall:
    """The numbers of a call: `norm` None, "head" or "joint"; `cache` the buffers' dtype; `per_head` scales."""

    dtype: torch.dtype
    cache: torch.dtype
    pages: str | None = None
    norm: str | None = None
    scaled: bool = False
    per_head: bool = False
    layout: str = "bshd"
    interleaved: bool = False
    written: bool | None = None
    first: int = 0
    step: int = 1


def rounded(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The nearest numbers of a cache's dtype; what 8 bits cannot hold becomes the largest."""
    if dtype not in SMALL:
        return truth.rounded(values, dtype)
    digits, least, largest = SMALL[dtype]
    exponent = np.maximum(np.frexp(values)[1] - 1, least)
    unit = np.ldexp(np.ones_like(values), exponent - digits + 1)
    return np.clip(np.rint(values / unit) * unit, -largest, largest)


def check(call: StoreCall, place: Place) -> None:
    """The queries, and every byte of both buffers: the rows of the slots, and nothing else."""
    source = torch.Generator().manual_seed(3)
    batch, tokens, heads, kv_heads, dim = 2, 5, 3, 2, 2 * PAIRS + AROUND
    batch = 1 if call.layout == "thd" else batch
    angle = torch.rand(batch, tokens, PAIRS, generator=source, dtype=torch.float64) * 90
    cos, sin = (t.float().to(place.device) for t in (angle.cos(), angle.sin()))
    shown = {"bshd": lambda x: x, "bhsd": lambda x: x.transpose(1, 2), "thd": lambda x: x[0]}[call.layout]
    given = []
    for count in (heads, kv_heads, kv_heads):
        x = torch.randn(batch, tokens, count, dim, generator=source) * 3
        arena = Arena(x.shape, call.dtype, place.device, step=call.step).holding(x)
        given.append(arena)
    q, k, fresh = (shown(arena.x) for arena in given)
    size, page = tokens + ROOM, 4
    shape = {None: (batch, kv_heads, size, dim), "bshd": (5, page, kv_heads, dim), "bhsd": (5, kv_heads, page, dim)}
    caches = [Arena(shape[call.pages], call.cache, place.device, gaps=(2, 1, 3)) for _ in range(2)]
    order = torch.randperm(size if call.pages is None else 5 * page, generator=source)
    slots = order[: batch * tokens].reshape(batch, tokens) if call.pages else order[:tokens].repeat(batch, 1)
    slots[:, 2] = -1
    scales = [None, None]
    if call.scaled:
        scales = [
            ((torch.rand(kv_heads if call.per_head else 1, generator=source) + 1) / 50).to(place.device) for _ in "kv"
        ]
    store = Store(caches[0].x, caches[1].x, fresh, slots.to(place.device), call.pages, *scales)
    options = {"interleaved": call.interleaved, "rotary_dim": 2 * PAIRS, "scale": 1.25, "layout": call.layout,
               "backend": place.backend}  # fmt: skip
    tables = (cos[0], sin[0]) if call.layout == "thd" else (cos, sin)
    weights: list[Tensor] = []
    if call.norm is None:
        options |= {"interleaved_out": call.written, "rotary_offset": call.first}
        turned, buffer = rw.fused.rotate_store(q, k, *tables, store, **options)
    else:
        counts = (heads, kv_heads) if call.norm == "joint" else (1, 1)
        weights = [(torch.rand(n * dim, generator=source) + 0.5).to(place.device) for n in counts]
        turned, buffer = rw.fused.qk_norm_rotate(q, k, *weights, *tables, eps=1e-2, joint=call.norm == "joint",
                                           store=store, **options)  # fmt: skip
    assert buffer is caches[0].x
    rows = [truth.wide(table)[:, :, None] for table in (cos, sin)]
    right = []
    for number, arena in enumerate(given[:2]):
        x, roundings = truth.wide(arena.x), 2.0
        if weights:
            weight = truth.wide(weights[number]).reshape(-1, dim)
            over = (-2, -1) if call.norm == "joint" else -1
            x = x / np.sqrt((x * x).mean(over, keepdims=True) + 1e-2) * weight
            roundings = 4.0
        y, lengths = truth.turn(
            x, *rows, interleaved=call.interleaved, written=call.written, first=call.first, scale=1.25
        )
        right.append((y, truth.slack(np.where(lengths == 0, abs(x) * (roundings - 2), lengths), call.dtype, roundings)))
    expected_q = right[0]
    back = {"bshd": lambda x: x, "bhsd": lambda x: x.transpose(1, 2), "thd": lambda x: x[None]}[call.layout]
    truth.Allowed(*expected_q, call.dtype).check(back(turned), f"{call}: queries")
    values = truth.wide(given[2].x)
    for arena, (y, off), scale in zip(caches, (right[1], (values, np.zeros_like(values))), scales, strict=True):
        by = 1.0 if scale is None else truth.wide(scale)[:, None]
        extra = 0.0 if scale is None else 2.5e-7 * abs(y / by)  # a reciprocal and a product in float32
        low, high = (rounded(y / by + sign * (off / by + extra), call.cache) for sign in (-1, 1))
        found = (arena.x.float() if call.cache.itemsize == 1 else arena.x).cpu().double().numpy()
        for b in range(batch):
            for t in range(tokens):
                slot = int(slots[b, t])
                if slot < 0:
                    continue
                here = (b, slice(None), slot) if call.pages is None else (
                    (slot // page, slot % page) if call.pages == "bshd" else (slot // page, slice(None), slot % page)
                )  # fmt: skip
                got = found[here]
                assert ((low[b, t] <= got) & (got <= high[b, t])).all(), f"{call}: slot {slot} is wrong"
                arena.x.view(torch.uint8 if call.cache.itemsize == 1 else call.cache)[here] = 0
        flat = arena.x.view(torch.uint8) if call.cache.itemsize == 1 else arena.x.float().nan_to_num(1.0)
        kept = int((slots >= 0).sum()) * kv_heads * dim
        assert int((flat == 0).sum()) == kept, f"{call}: rows that have no token"
        assert arena.around_is_untouched(), f"{call}: bytes around the cache"
    assert all(arena.is_untouched() for arena in given), f"{call}: an input"


PLAIN = StoreCall(torch.float32, torch.float32)
CALLS = [
    PLAIN, replace(PLAIN, pages="bshd"), replace(PLAIN, pages="bhsd", layout="thd", dtype=BF16, cache=BF16),
    replace(PLAIN, cache=BF16, layout="bhsd", step=2), replace(PLAIN, dtype=BF16, interleaved=True),
    replace(PLAIN, cache=E4M3), replace(PLAIN, cache=E4M3, scaled=True, pages="bshd", dtype=BF16),
    replace(PLAIN, cache=E5M2, scaled=True, per_head=True, pages="bhsd", dtype=torch.float16, interleaved=True),
    replace(PLAIN, cache=torch.float16, scaled=True, per_head=True, layout="thd"),
    replace(PLAIN, interleaved=True, written=False, first=3, cache=E4M3, pages="bshd"),
    replace(PLAIN, interleaved=True, written=False, first=2, dtype=BF16, cache=BF16),
    replace(PLAIN, norm="head", cache=E4M3, scaled=True, pages="bshd", dtype=BF16),
    replace(PLAIN, norm="joint", layout="bhsd"), replace(PLAIN, norm="joint", dtype=BF16, cache=BF16, layout="thd"),
    replace(PLAIN, norm="joint", cache=E5M2, pages="bhsd", interleaved=True, step=3),
    replace(PLAIN, dtype=torch.float64, cache=torch.float64, pages="bshd"),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda call: "-".join(str(part).replace("torch.", "") for part in
                         (call.dtype, call.cache, call.pages, call.norm, call.layout)))  # fmt: skip
def test_stored(call, place):
    """Every number within its rounding, every other byte as it was."""
    check(call, place)


def test_joint_norm_as_olmo2():
    """RMSNorm over all heads and the rotation, as OLMo 2's layers; its gradients are those of the plain expression."""
    from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

    rope = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=False))
    cos, sin = rope.cos_sin(torch.arange(5))
    q, k = torch.randn(2, 5, 4, 8, requires_grad=True), torch.randn(2, 5, 2, 8, requires_grad=True)
    norms = [Olmo2RMSNorm(x.shape[-2] * 8, eps=1e-5) for x in (q, k)]
    for norm in norms:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    normed = [norm(x.flatten(-2)).view_as(x) for norm, x in zip(norms, (q, k), strict=True)]
    expected = rw.rotate_qk(*normed, cos, sin, interleaved=False)
    weights = [norm.weight for norm in norms]
    with torch.no_grad():
        alone = rw.fused.qk_norm_rotate(q, k, *weights, cos, sin, eps=1e-5, joint=True, interleaved=False)
    trained = rw.fused.qk_norm_rotate(q, k, *weights, cos, sin, eps=1e-5, joint=True, interleaved=False)
    leaves = [q, k, *weights]
    found, right = (torch.autograd.grad(sum(x.square().sum() for x in pair), leaves) for pair in (trained, expected))
    for a, b in zip([*alone, *trained, *found], [*expected, *expected, *right], strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_page_slots():
    """By a loop over each token's page; tokens and pages that there are not have none."""
    table = torch.tensor([[4, 1, -1], [0, 3, 2]], dtype=torch.int32)
    positions = torch.tensor([[0, 3, 5, -1], [2, 7, 8, 11]])
    expected = [[16, 19, 5, -1], [2, 15, 8, 11]]
    assert rw.positions.page_slots(table, positions, 4).tolist() == expected
    assert rw.positions.page_slots(table, positions[0] + 4, 4).tolist() == [[4, 7, -1, 19], [12, 15, 9, 3]]
    compiled = torch.compile(rw.positions.page_slots, backend="eager", fullgraph=True)
    assert compiled(table, positions, 4).tolist() == expected


def faults() -> dict[str, Callable]:
    """Wrong on purpose: what a cache's write may get wrong beside a plain one's."""

    def changed(change: Callable[[Store], Store]) -> Callable:
        def norm_rotate(q, k, cos, sin, turn, norm, store):
            turned, _ = cpu.norm_rotate(q, k, cos, sin, turn, norm, change(store))
            return turned, store.keys

        return norm_rotate

    def twice(q, k, cos, sin, turn, norm, store):
        """Keys rounded to 16 bits before they are rounded to 8."""
        _, turned = cpu.norm_rotate(q, k, cos, sin, turn, norm, None)
        one = torch.ones_like(cos)
        still = turn._replace(scale=1.0, interleaved=turn.written, interleaved_out=None)
        cpu.norm_rotate(q, turned.bfloat16().to(k.dtype), one, one * 0, still, None, store)
        return cpu.norm_rotate(q, k, cos, sin, turn, norm, None)[0], store.keys

    def each_head(q, k, cos, sin, turn, norm, store):
        own = Norm(norm.q_weight[: q.shape[-1]], norm.k_weight[: q.shape[-1]], norm.eps)
        return cpu.norm_rotate(q, k, cos, sin, turn, own, store)

    return {
        "no key scale": changed(lambda s: s._replace(key_scale=None)),
        "scales swapped": changed(lambda s: s._replace(key_scale=s.value_scale, value_scale=s.key_scale)),
        "scales inverted": changed(lambda s: s._replace(key_scale=1 / s.key_scale)),
        "a slot later": changed(lambda s: s._replace(slots=(s.slots + 1).clamp(max=19))),
        "rounded twice": twice, "norm of each head": each_head,
    }  # fmt: skip


@pytest.mark.skipif(not any(p.backend == "cpu" for p in PLACES), reason="needs the compiled extension")
@pytest.mark.parametrize("name", faults())
def test_faults_are_found(name, monkeypatch):
    """A sabotaged backend fails the same check, and an honest one does not."""
    call = replace(PLAIN, cache=E4M3, scaled=True, pages="bshd")
    call = replace(PLAIN, norm="joint") if name == "norm of each head" else call
    monkeypatch.setattr(backends, "BACKENDS", (Sabotaged(), *backends.BACKENDS))
    check(call, Place("sabotaged"))
    monkeypatch.setattr(backends, "BACKENDS", (Sabotaged(norm_rotate=faults()[name]), *backends.BACKENDS[1:]))
    with pytest.raises(AssertionError):
        check(call, Place("sabotaged"))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pages": "thd"}, "unknown `pages`"),
        ({"pages": "bshd"}, "the cache's buffers do not fit"),
        ({"key_scale": torch.ones(3)}, "`key_scale` and `value_scale` must be"),
        ({"value_scale": torch.ones(1, dtype=torch.float64)}, "`key_scale` and `value_scale` must be"),
        ({"values": torch.zeros(1, 2, 6, 8, dtype=BF16)}, "the cache's buffers do not fit"),
        ({"slots": torch.tensor([[0, 6]])}, "below the capacity"),
    ],
)
def test_refused(changes, message):
    """What does not fit, before anything is written; as well as queries of another kind and gradients."""
    x, table = torch.ones(1, 2, 2, 8), torch.ones(2, 4)
    caches = torch.zeros(2, 1, 2, 6, 8)
    store = Store(caches[0], caches[1], x, torch.tensor([[0, 1]]))
    with pytest.raises(rw.RopeError, match=message):
        rw.fused.rotate_store(x, x, table, table, store._replace(**changes), interleaved=False)
    assert not caches.any()
    with pytest.raises(rw.RopeError, match="must have one dtype, batch"):
        rw.fused.rotate_store(x.half(), x, table, table, store, interleaved=False)
    with pytest.raises(rw.RopeError, match="loses gradients"):
        rw.fused.rotate_store(x.clone().requires_grad_(), x, table, table, store, interleaved=False)
    with pytest.raises(rw.RopeError, match="weights one float"):
        rw.fused.qk_norm_rotate(x, x, *([torch.ones(8)] * 2), table, table, joint=True, interleaved=False)


@pytest.mark.parametrize("backend", ["reference", None])
@pytest.mark.parametrize("source", ["k", "fresh", "both"])
def test_inputs_that_are_views_of_the_buffers(backend, source):
    """Rows that lie one place before their slots are read before the slots are written."""
    generator = torch.Generator().manual_seed(7)
    caches = torch.randn(2, 1, 2, 9, 8, generator=generator)
    q, table = torch.randn(1, 2, 5, 8, generator=generator), torch.rand(5, 4, generator=generator)
    k, fresh = torch.randn(2, 1, 2, 5, 8, generator=generator)

    def stored(caches, *, apart):
        shifted = [k if source == "fresh" else caches[0, :, :, :5], fresh if source == "k" else caches[1, :, :, :5]]
        mine, values = [x.clone() if apart else x for x in shifted]
        store = Store(caches[0], caches[1], values, torch.arange(1, 6)[None])
        turned, _ = rw.fused.rotate_store(
            q, mine, table, 1 - table, store, interleaved=False, layout="bhsd", backend=backend
        )
        return turned, caches

    for found, expected in zip(stored(caches.clone(), apart=False), stored(caches.clone(), apart=True), strict=True):
        assert torch.equal(found, expected)


def test_one_buffer_for_keys_and_values_is_refused():
    """The same one and one that overlaps; keys and values that alternate in one buffer, as vLLM's, are apart."""
    x, table = torch.ones(1, 2, 2, 8), torch.ones(2, 4)
    slots, buffer = torch.tensor([[0, 1]]), torch.zeros(3, 2, 4, 2, 8)
    rw.fused.rotate_store(
        x, x, table, table, Store(buffer[:, 0], buffer[:, 1], 2 * x, slots, "bshd"), interleaved=False
    )
    assert buffer.sum() == 32 * 3
    for keys, values in ((buffer[0], buffer[0]), (buffer[0], buffer.flatten()[64:192].view(2, 4, 2, 8))):
        with pytest.raises(rw.RopeError, match="share memory"):
            rw.fused.rotate_store(x, x, table, table, Store(keys, values, x, slots, "bshd"), interleaved=False)
