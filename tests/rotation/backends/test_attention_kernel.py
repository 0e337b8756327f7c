"""The attention kernel against the float64 truth, in every instruction set; and kernels wrong on purpose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ropewalk import compiled
from ropewalk.rotation import backends
from ropewalk.rotation.backends import choose_attention, cpu, explain_attention, reference
from ropewalk.rotation.backends.request import AttentionRegion, AttentionRequest, Bounds
from tests.rotation.backends.attention_truth import CASES, SMALL, Attend, Case, check, request_of
from tests.rotation.backends.places import PLACES, Place
from tests.rotation.backends.truth import same_bits

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HERE = [place for place in PLACES if place.backend == "cpu"]
pytestmark = pytest.mark.skipif(not HERE, reason="needs the compiled extension")


@pytest.fixture(params=HERE, ids=str)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each instruction set of this processor."""
    with request.param.held() as held:
        yield held


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cases(place: Place, dtype: torch.dtype) -> None:
    """Sizes, masks, memory layouts and options agree with the truth within rounding."""
    for case in CASES:
        check(case, dtype, cpu.attend)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_definition(dtype: torch.dtype) -> None:
    """The written-out form meets the same bounds (float64 those of float32)."""
    for case in SMALL:
        if dtype == torch.float32:
            check(case, dtype, reference.attend)
        else:
            request, allowed = request_of(case, torch.float32)
            wide = [AttentionRegion(r.q.double(), r.k.double(), *r[2:]) for r in request.regions]
            out = reference.attend(request._replace(regions=tuple(wide), values=request.values.double()))
            allowed.check(out.float(), str(case))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_call(data: st.DataObject) -> None:
    """Whatever the sizes, masks and options are."""
    kv_heads = data.draw(st.integers(1, 3))
    queries = data.draw(st.integers(1, 90))
    case = Case(
        heads=kv_heads * data.draw(st.integers(1, 7)),
        kv_heads=kv_heads,
        queries=queries,
        keys=queries + data.draw(st.integers(0, 90)),
        head_dim=data.draw(st.integers(2, 40)),
        batch=data.draw(st.integers(1, 2)),
        seen=data.draw(st.sampled_from(["causal", "window", "all", "ragged", "documents", "nothing", "apart"])),
        lie=data.draw(st.sampled_from(["bhsd", "bshd", "features", "odd", "shared"])),
        turned=data.draw(st.sampled_from(["", "half", "interleaved", "part"])),
        softcap=data.draw(st.sampled_from([0.0, 5.0])),
        sinks=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 1000)),
    )
    check(case, data.draw(st.sampled_from(DTYPES)), cpu.attend)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_threads_give_the_same_bits(dtype: torch.dtype) -> None:
    """One thread or several."""
    request, _ = request_of(Case(heads=6, kv_heads=2, queries=300, keys=300, head_dim=32), dtype)
    before, outs = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            outs.append(cpu.attend(request))
    finally:
        torch.set_num_threads(before)
    assert same_bits(outs[0], outs[1])
    assert same_bits(outs[0], outs[2])


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("queries", [2, 50])
def test_a_wrong_number_reaches_those_that_see_it(place: Place, dtype: torch.dtype, wrong: float, queries: int) -> None:
    """A key or a value that is missing or infinite: later queries get no finite number, the others what they got."""
    request, _ = request_of(Case(heads=2, queries=queries, keys=150, head_dim=32), dtype)
    (region,), last = request.regions, 150 - queries // 2
    clean, seen = cpu.attend(request), region.bounds.high[0] > last
    assert not seen.all()
    for name, held in (("k", region.k), ("v", request.values)):
        spoiled = held.clone()
        spoiled[:, :, last] = wrong
        k, v = (spoiled, request.values) if name == "k" else (region.k, spoiled)
        out = cpu.attend(request._replace(regions=(region._replace(k=k),), values=v))
        close = {"rtol": 1e-2 if dtype == torch.bfloat16 else 1e-5, "atol": 1e-6}
        torch.testing.assert_close(out[:, :, ~seen], clean[:, :, ~seen], **close)
        if name == "v" or math.isnan(wrong):  # an infinite key may have no weight
            assert not out[:, :, seen].isfinite().any()


def test_empty_calls(place: Place) -> None:
    """No keys: zeros; no queries, no heads' features or no rows: nothing."""
    none = torch.zeros(1, 3, dtype=torch.int64)

    def out(batch: int, queries: int, keys: int, head_dim: int) -> Tensor:
        q, k = torch.ones(batch, 2, queries, head_dim), torch.ones(batch, 1, keys, head_dim)
        bounds = Bounds(none[:, :queries], none[:, :queries] + 9)
        return cpu.attend(AttentionRequest((AttentionRegion(q, k, bounds),), k, 1.0, 0.0, None))

    assert out(1, 3, 0, 8).tolist() == torch.zeros(1, 2, 3, 8).tolist()
    assert out(1, 0, 3, 8).shape == (1, 2, 0, 8)
    assert out(0, 3, 3, 8).shape == (0, 2, 3, 8)
    assert out(1, 3, 3, 0).shape == (1, 2, 3, 0)
    assert out(1, 3, 2, 8).tolist() == torch.ones(1, 2, 3, 8).tolist()  # bounds beyond the keys are the keys' end


X, KEYS, ROWS = torch.zeros(2, 4, 5, 8), torch.zeros(2, 2, 6, 8), torch.zeros(1, 5, dtype=torch.int64)
GOOD = {"q": X, "k": KEYS, "low": ROWS, "high": ROWS, "tables": None, "out": X, "v": KEYS, "scale": 1.0,
        "sinks": None}  # fmt: skip
TABLE = torch.zeros(6, 4)
WRONG = {
    "q of other heads": {"q": X[:, :3]},
    "q in float64": {"q": X.double()},
    "q on meta": {"q": X.to("meta")},
    "k shorter": {"k": KEYS[:, :, :5]},
    "k of other heads": {"k": KEYS[:, :1]},
    "k in 16 bits": {"k": KEYS.half()},
    "values of another batch": {"v": KEYS[:1], "k": KEYS[:1]},
    "three heads": {"v": torch.zeros(2, 3, 6, 8), "k": torch.zeros(2, 3, 6, 8)},
    "no heads": {"v": KEYS[:, :0], "k": KEYS[:, :0]},
    "integers": {"out": X.long()},
    "packed": {"out": X[0]},
    "float bounds": {"low": ROWS.float()},
    "short bounds": {"high": ROWS[:, :4]},
    "bounds of three rows": {"high": ROWS.expand(3, 5)},
    "one bound": {"low": ROWS[0]},
    "scales of queries": {"scale": torch.ones(1, 5)},
    "few sinks": {"sinks": torch.zeros(3)},
    "short tables": {"tables": (TABLE[:5], TABLE[:5], True, 1.0)},
    "many pairs": {"tables": (torch.zeros(6, 5),) * 2 + (True, 1.0)},
    "other sin": {"tables": (TABLE, TABLE[:, :3], True, 1.0)},
    "tables of three rows": {"tables": (TABLE.expand(3, 6, 4),) * 2 + (True, 1.0)},
    "tables apart": {"tables": (torch.zeros(4, 6).T,) * 2 + (True, 1.0)},
    "float64 tables": {"tables": (TABLE.double(),) * 2 + (True, 1.0)},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused(wrong: dict[str, object]) -> None:
    """No call, however wrong, reads or writes outside its tensors."""
    for change, fails in (({}, False), (wrong, True)):
        a = {**GOOD, **change}
        regions = ((a["q"], a["k"], a["low"], a["high"], a["tables"]),)
        call = (1, a["out"], a["v"], a["scale"], 0.0, a["sinks"], regions)
        if fails:
            with pytest.raises((ValueError, RuntimeError, TypeError)):
                compiled.kernels.attend(*call)
        else:
            compiled.kernels.attend(*call)


def test_too_many_regions() -> None:
    """As many regions as the backend takes, and one more."""
    regions = ((X, KEYS, ROWS, ROWS, None),) * cpu.most_regions
    compiled.kernels.attend(1, X.clone(), KEYS, 1.0, 0.0, None, regions)
    with pytest.raises(ValueError, match="regions"):
        compiled.kernels.attend(1, X.clone(), KEYS, 1.0, 0.0, None, (*regions, regions[0]))


def test_choosing() -> None:
    """The first that can: the kernel for plain eager tensors."""
    q = torch.zeros(1, 2, 3, 8)
    assert choose_attention(q, q, q).name == "cpu"
    assert choose_attention(q.double(), q.double(), q.double()).name == "reference"
    assert choose_attention(q, q.half(), q).name == "reference"
    leaf = q.clone().requires_grad_()
    assert choose_attention(q, leaf, q).name == "reference"
    assert "a gradient is needed" in explain_attention(q, leaf, q)
    with torch.no_grad():
        assert choose_attention(q, leaf, q).name == "cpu"
    keys = torch.zeros(1, 1, 1, 1).expand(1, 2, 2**24, 8)  # float32, which counts keys, has 24 bits
    assert choose_attention(q, keys, keys).name == "reference"
    assert choose_attention(q, keys[:, :, 1:], keys[:, :, 1:]).name == "cpu"
    meta = q.to("meta")
    assert "not on the CPU" in explain_attention(meta, meta, meta)
    assert backends.ATTENTION[-1].name == "reference"

    class Mine(Tensor):
        pass

    assert choose_attention(q, q.as_subclass(Mine), q).name == "reference"


# --- kernels that are wrong on purpose


def changed(change: Callable[[AttentionRequest], AttentionRequest]) -> Attend:
    return lambda request: cpu.attend(change(request))


def with_bounds(change: Callable[[Bounds], Bounds]) -> Attend:
    return changed(lambda r: r._replace(regions=tuple(x._replace(bounds=change(x.bounds)) for x in r.regions)))


def with_regions(change: Callable[[AttentionRegion], AttentionRegion]) -> Attend:
    return changed(lambda r: r._replace(regions=tuple(map(change, r.regions))))


def heads_in_turn(request: AttentionRequest) -> Tensor:
    """Query head h by key head h modulo their number."""
    kv_heads = request.values.shape[1]
    heads = request.regions[0].q.shape[1]
    order = torch.arange(heads).view(-1, kv_heads).T.flatten() if heads % kv_heads == 0 else torch.arange(heads)
    regions = tuple(region._replace(q=region.q[:, order]) for region in request.regions)
    return cpu.attend(request._replace(regions=regions))[:, order.argsort()]


def coarse(request: AttentionRequest) -> Tensor:
    """A result that went through fewer bits than its dtype has."""
    out = cpu.attend(request)
    return out.bfloat16().to(out.dtype) if out.dtype == torch.float32 else (out.float() * 1.02).to(out.dtype)


def unwritten(request: AttentionRequest) -> Tensor:
    out = cpu.attend(request)
    out[-1, -1, -1, -1] = float("nan")
    return out


def spoiled(request: AttentionRequest) -> Tensor:
    out = cpu.attend(request)
    request.values[0, 0, 0, 0] += 1.0
    return out


def of_turn(**change: object) -> Attend:
    return with_regions(lambda x: x if x.turn is None else x._replace(turn=x.turn._replace(**change)))


FAULTS: dict[str, Attend] = {
    "one key more": with_bounds(lambda b: Bounds(b.low, b.high + 1)),
    "one key fewer": with_bounds(lambda b: Bounds(b.low, b.high - 1)),
    "the first key is missing": with_bounds(lambda b: Bounds(b.low.clamp(min=1), b.high)),
    "bounds of the first row for all": with_bounds(lambda b: Bounds(b.low[:1], b.high[:1])),
    "a scale off by 1 %": changed(lambda r: r._replace(scale=r.scale * 1.01)),
    "no softcap": changed(lambda r: r._replace(softcap=0.0)),
    "no sinks": changed(lambda r: r._replace(sinks=None)),
    "the first region alone": changed(lambda r: r._replace(regions=r.regions[:1])),
    "keys as they are": with_regions(lambda x: x._replace(turn=None)),
    "keys of the other pairing": with_regions(
        lambda x: x if x.turn is None else x._replace(turn=x.turn._replace(interleaved=not x.turn.interleaved))
    ),
    "keys without the scale": of_turn(scale=1.0),
    "tables of the key before": with_regions(
        lambda x: x if x.turn is None else x._replace(turn=x.turn._replace(cos=x.turn.cos.roll(1, -2)))
    ),
    "heads in turn": heads_in_turn,
    "few bits": coarse,
    "unwritten": unwritten,
    "a changed input": spoiled,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_faults_are_found(fault: Attend, dtype: torch.dtype) -> None:
    """At least one case fails, by its numbers."""

    def any_case() -> None:
        for case in SMALL:
            check(case, dtype, fault)

    with pytest.raises(AssertionError, match=r"wrong; at|was changed"):
        any_case()
