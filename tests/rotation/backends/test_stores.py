"""The write into a cache without a norm, and RMSNorm over all heads together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.rotation import backends
from ropewalk.rotation.backends import cpu
from ropewalk.rotation.backends.request import Norm, Store
from tests.rotation.backends import truth
from tests.rotation.backends.arena import Arena
from tests.rotation.backends.places import PLACES, Place
from tests.rotation.backends.test_sabotage import Sabotaged

BF16 = torch.bfloat16
PAIRS, AROUND, ROOM = 5, 3, 4


@dataclass(frozen=True)
class StoreCall:
    """The numbers of a call: `norm` None, "head" or "joint"."""

    dtype: torch.dtype
    norm: str | None = None
    layout: str = "bshd"
    interleaved: bool = False
    written: bool | None = None
    first: int = 0
    step: int = 1


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
    size = tokens + ROOM
    caches = [Arena((batch, kv_heads, size, dim), call.dtype, place.device, gaps=(2, 1, 3)) for _ in range(2)]
    slots = torch.randperm(size, generator=source)[:tokens].repeat(batch, 1)
    slots[:, 2] = -1
    store = Store(caches[0].x, caches[1].x, fresh, slots.to(place.device))
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
    for arena, (y, off) in zip(caches, (right[1], (values, np.zeros_like(values))), strict=True):
        low, high = (truth.rounded(y + sign * off, call.dtype) for sign in (-1, 1))
        found = arena.x.cpu().double().numpy()
        for b in range(batch):
            for t in range(tokens):
                slot = int(slots[b, t])
                if slot < 0:
                    continue
                got = found[b, :, slot]
                assert ((low[b, t] <= got) & (got <= high[b, t])).all(), f"{call}: slot {slot} is wrong"
                arena.x[b, :, slot] = 0
        kept = int((slots >= 0).sum()) * kv_heads * dim
        assert int((arena.x.float().nan_to_num(1.0) == 0).sum()) == kept, f"{call}: rows that have no token"
        assert arena.around_is_untouched(), f"{call}: bytes around the cache"
    assert all(arena.is_untouched() for arena in given), f"{call}: an input"


PLAIN = StoreCall(torch.float32)
CALLS = [
    PLAIN, replace(PLAIN, layout="thd", dtype=BF16), replace(PLAIN, layout="bhsd", step=2),
    replace(PLAIN, dtype=BF16, interleaved=True), replace(PLAIN, dtype=torch.float16, written=True),
    replace(PLAIN, interleaved=True, written=False, first=3),
    replace(PLAIN, interleaved=True, written=False, first=2, dtype=BF16),
    replace(PLAIN, norm="head", dtype=BF16), replace(PLAIN, norm="joint", layout="bhsd"),
    replace(PLAIN, norm="joint", dtype=BF16, layout="thd"), replace(PLAIN, norm="joint", interleaved=True, step=3),
    replace(PLAIN, dtype=torch.float64),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda call: "-".join(str(part).replace("torch.", "") for part in
                         (call.dtype, call.norm, call.layout, call.interleaved, call.written)))  # fmt: skip
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


def faults() -> dict[str, Callable]:
    """Wrong on purpose: what a cache's write may get wrong beside a plain one's."""

    def changed(change: Callable[[Store], Store]) -> Callable:
        def norm_rotate(q, k, cos, sin, turn, norm, store):
            turned, _ = cpu.norm_rotate(q, k, cos, sin, turn, norm, change(store))
            return turned, store.keys

        return norm_rotate

    def each_head(q, k, cos, sin, turn, norm, store):
        own = Norm(norm.q_weight[: q.shape[-1]], norm.k_weight[: q.shape[-1]], norm.eps)
        return cpu.norm_rotate(q, k, cos, sin, turn, own, store)

    return {
        "a slot later": changed(lambda s: s._replace(slots=(s.slots + 1).clamp(max=8))),
        "keys and values swapped": changed(lambda s: s._replace(keys=s.values, values=s.keys)),
        "norm of each head": each_head,
    }  # fmt: skip


@pytest.mark.skipif(not any(p.backend == "cpu" for p in PLACES), reason="needs the compiled extension")
@pytest.mark.parametrize("name", faults())
def test_faults_are_found(name, monkeypatch):
    """A sabotaged backend fails the same check, and an honest one does not."""
    call = replace(PLAIN, norm="joint") if name == "norm of each head" else PLAIN
    monkeypatch.setattr(backends, "BACKENDS", (Sabotaged(), *backends.BACKENDS))
    check(call, Place("sabotaged"))
    monkeypatch.setattr(backends, "BACKENDS", (Sabotaged(norm_rotate=faults()[name]), *backends.BACKENDS[1:]))
    with pytest.raises(AssertionError):
        check(call, Place("sabotaged"))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": torch.zeros(1, 2, 6, 8, dtype=BF16), "values": torch.zeros(1, 2, 6, 8, dtype=BF16)}, "do not fit"),
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
    """The same one and one that overlaps; keys and values that alternate in one buffer are apart."""
    x, table = torch.ones(1, 2, 2, 8), torch.ones(2, 4)
    slots, buffer = torch.tensor([[0, 1]]), torch.zeros(1, 2, 2, 4, 8)
    rw.fused.rotate_store(x, x, table, table, Store(buffer[:, 0], buffer[:, 1], 2 * x, slots), interleaved=False)
    assert buffer.sum() == 32 * 3
    whole = torch.zeros(192)
    for keys, values in ((buffer[:, 0], buffer[:, 0]), (whole[:64].view(1, 2, 4, 8), whole[32:96].view(1, 2, 4, 8))):
        with pytest.raises(rw.RopeError, match="share memory"):
            rw.fused.rotate_store(x, x, table, table, Store(keys, values, x, slots), interleaved=False)
