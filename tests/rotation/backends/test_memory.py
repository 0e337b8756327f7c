"""Where kernels read and write: any strides, guard bytes around everything, shared memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import ropewalk as rw
from tests.rotation.backends import truth
from tests.rotation.backends.calls import calls, check_call
from tests.rotation.backends.places import Arena

BATCH, SEQ, HEADS, DIM = 2, 5, 4, 8
SHAPE = (BATCH, SEQ, HEADS, DIM)


@given(call=calls())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_call(call, kernels):
    """Whatever the dtype, shape, strides, tables and direction: right, and no byte elsewhere read or written."""
    check_call(call, kernels)


def tables(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.rand(SEQ, DIM // 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 9
    return angle.cos().float().to(device), angle.sin().float().to(device)


def check_turned(y: torch.Tensor, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> None:
    """`y` is `x` (bshd) turned by the tables."""
    rows = (truth.wide(table)[:, None] for table in (cos, sin))
    right, lengths = truth.turn(truth.wide(x), *rows, interleaved=interleaved)
    truth.Allowed(right, truth.slack(lengths, x.dtype), x.dtype).check(y)


def fused(layout: str, device: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The result of one projection, and its queries, keys and values as views, `[batch, seq, heads, head_dim]`."""
    source = torch.Generator().manual_seed(2)
    if layout == "bhsd":
        whole = torch.randn(BATCH, 2 * HEADS, SEQ, DIM, generator=source).to(device)
        return whole, [x.transpose(1, 2) for x in (whole[:, :HEADS], whole[:, HEADS:-1], whole[:, -1:])]
    whole = torch.randn(BATCH, SEQ, 2 * HEADS, DIM, generator=source).to(device)
    return whole, [whole[:, :, :HEADS], whole[:, :, HEADS:-1], whole[:, :, -1:]]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_queries_and_keys_of_one_buffer(layout, interleaved, place):
    """Heads of one projection turn in place, in either order; the values between or after them stay."""
    cos, sin = tables(place.device)
    for first, second in ((0, 1), (1, 0))[: 1 if place.interpreted else 2]:
        whole, parts = fused(layout, place.device)
        before = [part.clone() for part in parts]
        views = [part.transpose(1, 2) for part in parts] if layout == "bhsd" else parts
        rw.rotate_qk(views[first], views[second], cos, sin, interleaved=interleaved, layout=layout, inplace=True,
                     backend=place.backend)  # fmt: skip
        for part, old in zip(parts[:2], before[:2], strict=True):
            check_turned(part, old, cos, sin, interleaved)
        assert truth.same_bits(parts[2], before[2])
        assert whole.isfinite().all()


OVERLAPPING = {
    "the same": lambda whole: (whole, whole),
    "one head in common": lambda whole: (whole[:, :, :HEADS], whole[:, :, HEADS - 1 : -1]),
    "half of the features": lambda whole: (whole[..., :DIM], whole[..., DIM // 2 : DIM // 2 + DIM]),
    "one token later": lambda whole: (whole[:, :-1], whole[:, 1:]),
    "one sequence later": lambda whole: (
        whole[:1], whole.view(-1)[1:].as_strided((1, SEQ, 1, 2 * DIM), whole.stride(), SEQ)),
}  # fmt: skip


@pytest.mark.parametrize("parts", OVERLAPPING.values(), ids=OVERLAPPING)
def test_shared_elements_are_refused(parts, place):
    """In place, what queries and keys share would turn twice: refused, and nothing touched; new tensors are right."""
    q, k = parts(torch.randn(BATCH, SEQ, 2 * HEADS, 2 * DIM, device=place.device))
    before, k_before = q.clone(), k.clone()
    angle = torch.rand(q.shape[1], q.shape[-1] // 2, device=q.device)
    cos, sin = angle.cos(), angle.sin()
    with pytest.raises(rw.RopeError, match="share memory"):
        rw.rotate_qk(q, k, cos, sin, interleaved=True, inplace=True, backend=place.backend)
    assert truth.same_bits(q, before)
    assert truth.same_bits(k, k_before)
    q_turned, k_turned = rw.rotate_qk(q, k, cos, sin, interleaved=True, backend=place.backend)
    check_turned(q_turned, before, cos, sin, True)
    check_turned(k_turned, k_before, cos, sin, True)


UNFOLDED = {
    "tokens": (SEQ * HEADS * DIM, DIM, DIM, 1),
    "heads": (SEQ * HEADS * DIM, HEADS * DIM, DIM - 1, 1),
    "features": (SEQ * HEADS * DIM, HEADS * DIM, DIM, 0),
    "batch": (DIM, HEADS * DIM, DIM, 1),
    "expanded batch": (0, HEADS * DIM, DIM, 1),
    "expanded tokens": (SEQ * HEADS * DIM, 0, DIM, 1),
    "expanded heads": (SEQ * HEADS * DIM, HEADS * DIM, 0, 1),
    "far apart, but together again": (130, 128, 8, 1),
}


@pytest.mark.parametrize("given", [False, True], ids=["in place", "out"])
@pytest.mark.parametrize("strides", UNFOLDED.values(), ids=UNFOLDED)
def test_self_overlapping_targets_are_refused(strides, given, place):
    """A view by expand, unfold or as_strided with elements in common: refused before anything changes."""
    memory = torch.randn(2000, device=place.device)
    before, target = memory.clone(), memory.as_strided(SHAPE, strides)
    cos, sin = tables(place.device)
    options = {"out": target} if given else {"inplace": True}
    with pytest.raises(rw.RopeError, match="expanded tensor, or one that overlaps itself"):
        rw.rotate(target.clone() if given else target, cos, sin, interleaved=True, backend=place.backend, **options)
    with pytest.raises(rw.RopeError, match="expanded tensor, or one that overlaps itself"):
        rw.rotate_qk(before.as_strided(SHAPE, strides).clone(), target, cos, sin, interleaved=True,
                     backend=place.backend, inplace=True)  # fmt: skip
    assert truth.same_bits(memory, before)


@pytest.mark.parametrize("given", [False, True], ids=["in place", "out"])
def test_interlaced_targets_without_common_elements(given, place):
    """Strides that do not nest, and yet no two elements at one address: right, and nothing else written."""
    memory = torch.randn(2000, device=place.device)
    cos, sin = tables(place.device)
    # sequences in the gaps between tokens; heads at 0, 2, 4, 6 and the next sequence's at 3, 5, 7, 9
    for strides in ((192, 128, 8, 1), (3, 20, 2, 100)):
        target = memory.as_strided(SHAPE, strides)
        x, before = target.clone(), memory.clone()
        rw.rotate(x if given else target, cos, sin, interleaved=True, backend=place.backend,
                  **({"out": target} if given else {"inplace": True}))  # fmt: skip
        check_turned(target, x, cos, sin, True)
        target.copy_(x)
        assert truth.same_bits(memory, before)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shift", [-DIM * HEADS, -DIM, -3, -1, 0, 1, 2, DIM, DIM * HEADS, DIM * HEADS * SEQ])
def test_out_over_the_input(shift, interleaved, place):
    """`out` may lie over the input, wherever: the result is that of the input as it was."""
    room = 2 * DIM * HEADS * SEQ
    arena = Arena((room + BATCH * SEQ * HEADS * DIM + room,), torch.float32, place.device)
    x, out = (arena.x.as_strided(SHAPE, (SEQ * HEADS * DIM, HEADS * DIM, DIM, 1), arena.x.storage_offset() + start)
              for start in (room, room + shift))  # fmt: skip
    x.copy_(torch.randn(SHAPE, generator=torch.Generator().manual_seed(3)))
    before = x.clone()
    cos, sin = tables(place.device)
    assert rw.rotate(x, cos, sin, interleaved=interleaved, out=out, backend=place.backend) is out
    check_turned(out, before, cos, sin, interleaved)
    beyond = torch.ones_like(arena.x, dtype=torch.bool)
    for tensor in (x, out):
        beyond.as_strided(SHAPE, tensor.stride(), tensor.storage_offset() - arena.x.storage_offset()).fill_(False)
    assert arena.x[beyond].isnan().all()
    assert arena.around_is_untouched()
