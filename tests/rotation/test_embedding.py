"""RotaryEmbedding and apply_rotary_pos_emb: the whole way from positions to rotated queries and keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave

import ropewalk as rw
from ropewalk.rotation import LearnedFrequencies
from tests import oracle


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_apply_rotary_pos_emb(interleaved, dtype):
    """Negative, unsorted and far-apart positions, per row, in every dtype, against the oracle; the input stays."""
    positions = np.array([[0, 5, -3, 10_000_000, 2], [131_071, 1, 0, -999_999, 7]])
    x = torch.randn(2, 5, 3, 16).to(dtype)
    before = x.clone()
    got = rw.apply_rotary_pos_emb(x, torch.from_numpy(positions), theta=5e5, interleaved=interleaved)
    angle = oracle.angles(positions, 5e5, 16).reshape(2, 5, 1, 8)
    expected = oracle.rotate(x.double().numpy(), angle, interleaved=interleaved)
    unit = torch.finfo(dtype).eps if dtype != torch.float64 else 1e-9
    np.testing.assert_allclose(got.double().numpy(), expected, rtol=0, atol=4 * unit + 1e-9)
    assert (got.dtype, got.shape, got.device) == (x.dtype, x.shape, x.device)
    assert torch.equal(x, before)


def test_apply_rotary_pos_emb_default_is_the_papers():
    """Without a word it pairs (0,1), (2,3), ... at theta 10000, for one row of positions as for a batch of them."""
    x, ids = torch.randn(2, 4, 1, 6), torch.tensor([3, 1, 2, 0], dtype=torch.int32)
    got = rw.apply_rotary_pos_emb(x, ids)
    assert torch.equal(got, rw.apply_rotary_pos_emb(x, ids.expand(2, 4), 10000.0, interleaved=True))
    angle = oracle.angles(ids.numpy(), 1e4, 6)[None, :, None]
    np.testing.assert_allclose(got.numpy(), oracle.rotate(x.numpy(), angle, interleaved=True), atol=1e-6)


def test_attention_factor_scales_queries_and_keys_not_tables():
    """YaRN's factor multiplies q and k once each; the tables stay pure rotations (law 11)."""
    config = rw.RopeConfig(16, interleaved=False, scaling=rw.scaling.YaRN(4.0, 64))
    rope, x = rw.RotaryEmbedding(config), torch.randn(1, 5, 2, 16)
    cos, sin = rope.cos_sin(torch.arange(5))
    torch.testing.assert_close(cos**2 + sin**2, torch.ones(5, 8))
    assert rope.attention_factor == pytest.approx(0.1 * np.log(4) + 1)
    q, k = rope(x, x[:, :, :1], position_ids=torch.arange(5))
    torch.testing.assert_close(q.norm(dim=-1), x.norm(dim=-1) * rope.attention_factor)
    assert torch.equal(k, rope.rotate(x[:, :, :1], position_ids=torch.arange(5)))


@pytest.mark.rejects
@pytest.mark.parametrize("seq_len", [None, -5, 0, 70.9, True, "70", [70, 80], torch.tensor([70, 80])])
def test_an_impossible_length_is_refused(seq_len):
    """A length that frequencies depend on is required, a whole number of tokens, and never something else."""
    config = rw.RopeConfig(8, interleaved=True, scaling=rw.scaling.DynamicNTK(2.0), max_position_embeddings=16)
    with pytest.raises(rw.RopeError, match="whole number of tokens"):
        rw.RotaryEmbedding(config).cos_sin(torch.arange(6).expand(1, 6), seq_len)


def test_attention_factor_by_length():
    """Phi-3.5-MoE's two mscales: each side has its own."""
    rule = rw.scaling.LongRoPE((1.0,) * 4, (2.0,) * 4, 16, short_mscale=1.1, long_mscale=1.2)
    rope = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=True, scaling=rule))
    assert [rope.attention_factor_at(n) for n in (16, 17)] == [1.1, 1.2]
    with pytest.raises(rw.RopeError, match="`seq_len` chooses"):
        _ = rope.attention_factor


@pytest.mark.parametrize("way", ["bfloat16", "float16", "meta", "default dtype", "autocast"])
def test_nothing_spoils_the_tables(way):
    """Casts, construction on the meta device, other default dtypes and autocast: the same bits."""
    config = rw.RopeConfig(64, interleaved=False, scaling=rw.scaling.Llama3(8.0, 1.0, 4.0, 8192), theta=5e5)
    rope, ids = rw.RotaryEmbedding(config), torch.arange(4096)
    right = rope.cos_sin(ids)
    assert not list(rope.state_dict())
    if way == "meta":
        with torch.device("meta"):
            model = torch.nn.Sequential(rw.RotaryEmbedding(config), torch.nn.Linear(2, 2))
        found = model.to_empty(device="cpu")[0].cos_sin(ids)
    elif way == "default dtype":
        torch.set_default_dtype(torch.bfloat16)
        try:
            found = rope.cos_sin(ids)
        finally:
            torch.set_default_dtype(torch.float32)
    elif way == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            found = rope.cos_sin(ids)
    else:
        found = torch.nn.Sequential(rope).to(getattr(torch, way))[0].cos_sin(ids)
    assert right[0].dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rw.apply_rotary_pos_emb(torch.zeros(1, 2, 1, 7), torch.arange(2)), "must be even"),
        (
            lambda: rw.apply_rotary_pos_emb(torch.zeros(1, 2, 1, 8), torch.arange(3)),
            "`x` has 2 tokens but `position_ids` has 3",
        ),
        (
            lambda: rw.apply_rotary_pos_emb(torch.zeros(1, 2, 3, 8), torch.arange(3)),
            r"(?s)^apply_rotary_pos_emb: `x` has 2 tokens but `position_ids` has 3.*x\.transpose\(1, 2\)",
        ),
        (lambda: rw.apply_rotary_pos_emb(torch.zeros(1, 2, 1, 8), torch.ones(2).bool()), "cumsum"),
        (lambda: rw.apply_rotary_pos_emb(torch.zeros(1, 2, 1, 8), torch.tensor(2)), "wrong shape"),
        (lambda: rw.apply_rotary_pos_emb(torch.zeros(1, 2, 8), torch.arange(2)), r"(?s)dimensions.*x\.unsqueeze\(2\)"),
        (lambda: rw.apply_rotary_pos_emb(torch.tensor(1.0), torch.arange(2)), "number of dimensions"),
        (lambda: rw.apply_rotary_pos_emb([[1.0]], torch.arange(2)), "is not a tensor"),
        (lambda: rw.apply_rotary_pos_emb(torch.zeros(1, 2, 1, 8), [0, 1]), r"(?s)must be a tensor.*torch\.as_tensor"),
    ],
)
def test_bad_input(call, message):
    """The one-call function refuses what the paper does not define."""
    with pytest.raises(rw.RopeError, match=message):
        call()


def rope_of(**changes):
    return rw.RotaryEmbedding(rw.RopeConfig(8, **{"interleaved": False, **changes}))


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd"])
def test_positions_may_be_the_third_argument_or_left_out(layout):
    """Left out, they are `offset`, `offset` + 1, ...; M-RoPE's are those of text."""
    rope, q = rope_of(), torch.randn(2, 5, 4, 8)
    q, k = {"bshd": (q, q[:, :, :2]), "bhsd": (q.transpose(1, 2), q.transpose(1, 2)[:, :2]), "thd": (q[0], q[1])}[
        layout
    ]
    for offset in (0, 7, 10_000_000):
        ids = torch.arange(offset, offset + 5)
        expected = rope(q, k, position_ids=ids, layout=layout)
        text = rope_of(axes=(0, 1, 2, 0))(q, k, offset=offset, layout=layout)
        for got in (rope(q, k, ids, layout=layout), rope(q, k, offset=offset, layout=layout), text):
            assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        assert torch.equal(rope.rotate(q, offset=offset, layout=layout), expected[0])
        assert torch.equal(rope.rotate(q, ids, layout=layout), expected[0])


AXIAL = {"axes": (0, 0, 1, 1), "axes_restart": True}
SHIFTED = {
    "plain": {}, "interleaved": {"interleaved": True}, "partial": {"rotary_dim": 4},
    "yarn": {"scaling": rw.scaling.YaRN(4.0, 64)}, "llama3": {"scaling": rw.scaling.Llama3(8.0, 1.0, 4.0, 64)},
    "mrope": {"axes": (0, 1, 1, 2)}, "axial": AXIAL, "blocks": {**AXIAL, "axis_blocks": True},
    "dynamic": {"scaling": rw.scaling.DynamicNTK(2.0), "max_position_embeddings": 16},
    "longrope": {"scaling": rw.scaling.LongRoPE((1.0,) * 4, (2.0, 3.0, 4.0, 5.0), 16, factor=4.0)},
}  # fmt: skip


@given(st.sampled_from(sorted(SHIFTED)), st.sampled_from(["bshd", "bhsd", "thd"]), st.booleans(), st.data())
def test_shifted_keys_are_those_of_the_new_positions(name, layout, inplace, data):
    """shift(rotate(k, p), d) is the oracle's rotation by p + d, for each form of d; shifts add up, and -d undoes d."""
    config = rope_of(**SHIFTED[name]).config
    rope, axes, batch = rw.RotaryEmbedding(config), config.num_axes, 1 if layout == "thd" else 2
    several = () if axes == 1 else (axes,)
    forms = [(5,), (1,)] if layout == "thd" else [(5,), (1,), (2, 5), (2, 1), (1, 5)]
    if config.axes_restart or data.draw(st.booleans()):
        shape = (*data.draw(st.sampled_from(forms)), *several)
        count = int(np.prod(shape))
        delta = torch.tensor(data.draw(st.lists(st.integers(-500, 500), min_size=count, max_size=count))).view(shape)
        added = delta if len(shape) - len(several) == 2 else delta[None]
    else:
        delta = data.draw(st.integers(-500, 500))
        added = delta
    length = {"seq_len": data.draw(st.sampled_from([8, 40]))} if config.needs_seq_len else {}
    positions = torch.randint(0, 10_000, (batch, 5, *several))
    keys = torch.randn(batch, 5, 3, 8, dtype=torch.float64)

    frequencies = rw.inverse_frequencies(config, **length)
    moved = (positions + added).reshape(batch, 5, axes).double()
    angle = (moved @ frequencies.inv_freq)[:, :, None].numpy()
    blocks = [(0, slice(0, 4)), (1, slice(4, 8))] if config.axis_blocks else [(None, slice(0, 8))]
    expected = np.concatenate([
        oracle.rotate(keys[..., part].numpy(), angle if axis is None else angle[..., 2 * axis : 2 * axis + 2],
                      interleaved=config.interleaved, scale=frequencies.attention_factor)
        for axis, part in blocks
    ], -1)  # fmt: skip

    def laid_out(x):
        return {"bshd": x, "bhsd": x.transpose(1, 2), "thd": x[0]}[layout].clone()

    ids = positions[0] if layout == "thd" else positions
    cached = rope.rotate(laid_out(keys), ids, layout=layout, **length)
    before = cached.clone()
    got = rope.shift(cached, delta, layout=layout, inplace=inplace, **length)
    torch.testing.assert_close(got, laid_out(torch.from_numpy(expected)), rtol=0, atol=1e-10)
    assert (got is cached) if inplace else torch.equal(cached, before)
    torch.testing.assert_close(rope.shift(got, -delta, layout=layout, **length), before, rtol=0, atol=1e-10)
    twice = rope.shift(rope.shift(before, delta, layout=layout, **length), delta, layout=layout, **length)
    torch.testing.assert_close(twice, rope.shift(before, 2 * delta, layout=layout, **length), rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_shifted_keys_in_other_dtypes(dtype):
    """One more rounding, also in the last features of a wider head, and with gradients."""
    rope, keys = rope_of(scaling=rw.scaling.YaRN(4.0, 64)), torch.randn(2, 5, 3, 12).to(dtype).requires_grad_()
    got = rope.shift(rope.rotate(keys, offset=1000, rotary_offset=4), -370, rotary_offset=4)
    torch.testing.assert_close(
        got, rope.rotate(keys, offset=630, rotary_offset=4), rtol=0, atol=24 * torch.finfo(dtype).eps
    )
    got.sum().backward()
    assert keys.grad is not None


@pytest.mark.rejects
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k: rope_of()(q, k, 3), r"position_ids  3\n.*offset=3"),
        (lambda q, k: rope_of().cos_sin(3), r"torch\.arange\(3\), for position 3 torch\.tensor\(\[3\]\)"),
        *((lambda q, k, dtype=dtype: rope_of().cos_sin(torch.arange(6), dtype=dtype), "tables are float32 or float64")
          for dtype in (torch.float16, torch.bfloat16, torch.int32)),
        *((lambda q, k, shape=shape: rope_of(axes=(0, 1, 2, 0)).cos_sin(torch.zeros(shape).long()), r"movedim\(0, -1\)")
          for shape in ((9,), (9, 2), (2, 9), (3, 9), (3, 2, 9))),  # Hugging Face's axes come first, and have a cure
        (lambda q, k: rope_of().rotate(torch.zeros(1, 8, 4, 128)), r"`x` must have .*`head_dim`.*rotary_dim=\.\.\."),
        *((lambda q, k, ids=ids: rope_of()(q, k[..., :4], ids), "`k` must have the config's `head_dim`")
          for ids in (None, torch.zeros(1, 5).long(), torch.zeros(2, 5).long())),
        (lambda q, k: rope_of().shift(k, 2.5), "`delta` must be a whole number"),
        (lambda q, k: rope_of().shift(k, torch.arange(4)), r"`delta` must be .*int64\[4\].*\[batch, 1\]"),
        (lambda q, k: rope_of().shift(k[0], torch.zeros(1, 5).long(), layout="thd"), "`delta` must be a whole number"),
        *((lambda q, k, delta=delta: rope_of().shift(k, delta), "`delta` must be a whole number")
          for delta in (torch.zeros(3, 5).long(), torch.tensor(3), torch.zeros(1, 2, 5).long())),
        (lambda q, k: rope_of().shift(k, torch.ones(5).bfloat16()), "`delta` must be integers, or float32"),
        (lambda q, k: rope_of(**AXIAL).shift(k, 3), r"\[1, axes\]"),
        (lambda q, k: rope_of(scaling=rw.scaling.LongRoPE((1.0,) * 4, (2.0,) * 4, 16)).shift(k, 3), "on the seq"),
        (lambda q, k: rope_of().shift([1.0], 3), "`keys` must be a tensor"),
        (lambda q, k: rope_of()(q, k, torch.arange(7)), "`q` has 5 tokens but `position_ids` has 7.*Pass one position"),
        (lambda q, k: rope_of()(q, k[:, :3], torch.arange(5)), "`k` has 3 tokens but `position_ids` has 5"),
        *((lambda q, k, several=several: rope_of(**several)(q, k, torch.zeros(3, 5, *[2] * bool(several)).long()),
           "batch of `position_ids` is neither 1") for several in ({}, {"axes": (0, 1, 0, 1)})),
        (lambda q, k: rope_of(axes=(0, 1, 0, 1))(q, k, torch.zeros(7, 2).long()), "`position_ids` has 7"),
        (lambda q, k: rope_of().rotate(q, layout=["bshd"]), "unknown layout"),
        (lambda q, k: rope_of().rotate(q, torch.arange(4)), '`x` has 5 tokens but `position_ids` has 4.*layout="bhsd"'),
        (lambda q, k: rope_of()(q, k[:, :2].transpose(1, 2)), '`k` has 4 tokens but `position_ids` has 5'),
        (lambda q, k: rope_of()(*(x.transpose(1, 2) for x in (q, k[:, :, :2]))), 'If `k` is .*layout="bhsd"'),
        (lambda q, k: rope_of().rotate(q, torch.arange(5), layout="bhsd"), 'If `x` is .batch, seq.*layout="bshd"'),
        (lambda q, k: rope_of().rotate(q[0], torch.arange(5)[None], layout="thd"), r"position_ids\[0\]"),
        (lambda q, k: rope_of().rotate(q, torch.arange(5), offset=2), "mutually exclusive"),
        (lambda q, k: rope_of().rotate(q, offset=2.0), "must be a whole number"),
        (lambda q, k: rope_of().rotate(q, offset=torch.tensor([1, 2])), r"position_ids \[batch, seq\]"),
        (lambda q, k: rope_of().rotate(q[0]), "wrong number of dimensions"),
        (lambda q, k: rope_of().rotate(q, layout="sbhd"), r"transposed view costs nothing.*transpose\(0, 1\)"),
        (lambda q, k: rope_of(axes=(0, 0, 1, 1), axes_restart=True)(q, k), "(?s)is required: .*grid_positions"),
        (lambda q, k: rope_of()(q, [1.0]), "`k` must be a tensor"),
        (lambda q, k: rope_of()(q.to_sparse(), k), r"(?s)neither sparse.*sparse_coo.*x\.to_dense"),
        (lambda q, k: rope_of()(q, k.to_sparse()), "neither sparse"),
        (lambda q, k: rope_of().rotate(torch.nested.nested_tensor([q[0], q[1, :3]]), torch.arange(5)), "nor nested"),
        (
            lambda q, k: rope_of().rotate(torch.nested.nested_tensor([q[0], q[1, :3]], layout=torch.jagged)),
            r"(?s)nested.*positions_from\(x\.offsets\(\)\)",
        ),
    ],
)  # fmt: skip
def test_messages_name_what_was_passed(call, message):
    """ModelRopes, the layout, the offset: what the user wrote, not the tables made of it."""
    with pytest.raises(rw.RopeError, match=f"(?s){message}") as caught:
        call(torch.zeros(2, 5, 4, 8), torch.zeros(2, 5, 4, 8))
    assert "`cos`" not in str(caught.value)


@pytest.mark.rejects
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_positions_of_16_bits_are_refused(dtype):
    """bfloat16 has no 257: wherever positions enter, they are integers or float32 and wider (law 5)."""
    x, ids = torch.zeros(1, 3, 2, 8), torch.arange(3).to(dtype)
    config = rw.RopeConfig(8, interleaved=False, max_position_embeddings=64)
    calls = {
        "cos_sin": lambda: rope_of().cos_sin(ids),
        "forward": lambda: rope_of()(x, x, ids),
        "rotate": lambda: rope_of().rotate(x, ids),
        "apply": lambda: rw.apply_rotary_pos_emb(x, ids),
        "learned": lambda: LearnedFrequencies(config).cos_sin(ids),
        "attention": lambda: rw.Attention(16, 2, rope=config)(x.view(1, 3, 16), position_ids=ids),
        "bias": lambda: rw.Attention(16, 2, encoding="alibi")(x.view(1, 3, 16), position_ids=ids),
    }
    for call in calls.values():
        with pytest.raises(rw.RopeError, match="must be integers"):
            call()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.float32, torch.float64])
def test_other_positions_are_exact(dtype):
    """Narrow integers contain what they contain."""
    got = rope_of().rotate(torch.ones(1, 3, 2, 8), torch.tensor([0, 127, 3]).to(dtype))
    assert torch.equal(got, rope_of().rotate(torch.ones(1, 3, 2, 8), torch.tensor([0, 127, 3])))


def test_no_tokens():
    """Nothing to rotate, with one axis or several, is no error."""
    for axes, shape in ((None, (0,)), ((0, 0, 1, 1), (0, 2)), ((0, 1, 2, 0), (2, 0, 3))):
        x = torch.zeros(2, 0, 4, 8)
        assert rope_of(axes=axes).rotate(x, torch.zeros(shape, dtype=torch.int64)).shape == x.shape


# --- a window inside the head, and half-split inside each axis's own features


ROPE = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=True))
IDS = torch.tensor([0, 7, 300])
AXES = rw.positions.axes_from_sections([2, 2])
VISION = rw.RopeConfig(8, interleaved=False, axes=AXES, axes_restart=True, axis_blocks=True)
PLACES = torch.tensor([[0, 3], [2, 1], [9, 5]])


def some(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def test_deepseek_in_one_call():
    """Multi-head latent attention: queries turn at their end, and the shared key is that part alone; then halves."""
    q, k = some(2, 3, 4, 12).float(), some(2, 3, 1, 8).float()
    of_both = ROPE(q, k, position_ids=IDS, rotary_offset=(4, 0))
    parts = of_both[0][..., 4:], of_both[1]
    halves = [rw.convert_pairing(x, to="half") for x in parts]
    found = torch.cat([of_both[0][..., :4], halves[0]], -1), halves[1]
    cos, sin = (torch.cat([table, table], -1)[None] for table in ROPE.cos_sin(IDS))
    heads_first = q[..., 4:].transpose(1, 2), k.transpose(1, 2)
    of_q, of_k = (x.transpose(1, 2) for x in apply_rotary_pos_emb_interleave(*heads_first, cos, sin))
    torch.testing.assert_close(found[0], torch.cat([q[..., :4], of_q], -1), atol=1e-6, rtol=0)
    torch.testing.assert_close(found[1], of_k, atol=1e-6, rtol=0)


def test_blocks_are_each_axis_alone():
    """Each axis turns its own features, half-split, as if they were a head by themselves."""
    rope, x = rw.RotaryEmbedding(VISION), some(1, 3, 2, 8)
    found = rope.rotate(x, position_ids=PLACES)
    one = rw.RotaryEmbedding(rw.RopeConfig(4, interleaved=False))
    alone = [one.rotate(part, position_ids=PLACES[:, axis]) for axis, part in enumerate(x.split(4, -1))]
    torch.testing.assert_close(found, torch.cat(alone, -1), atol=1e-14, rtol=0)
    both = rope(x, x[:, :, :1], PLACES)
    assert torch.equal(both[0], found)
    assert torch.equal(both[1], found[:, :, :1])
    place = torch.empty_like(x)
    assert torch.equal(rope.rotate(x, PLACES, out=place), found)
    assert torch.equal(place, found)
    copy = x.clone()
    assert rope.rotate(copy, PLACES, inplace=True) is copy
    assert torch.equal(copy, found)
    learned = rw.rotation.LearnedFrequencies(VISION, mixed=False)
    torch.testing.assert_close(learned(x, x, PLACES)[0], found, atol=1e-6, rtol=0)
    with pytest.raises(rw.RopeError, match="paired by themselves"):
        rw.Attention(16, 2, rope=VISION)
    assert hash(VISION) != hash(rw.RopeConfig(8, interleaved=False, axes=AXES, axes_restart=True))
    assert rw.RopeConfig(8, interleaved=False, axes=AXES, axes_restart=True) != VISION
    whole = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=False, axes=AXES, axes_restart=True))
    assert not torch.allclose(whole.rotate(x, position_ids=PLACES), found)


@pytest.mark.rejects
@pytest.mark.parametrize(
    "changes", [{"interleaved": True}, {"axes": None, "axes_restart": False}, {"axes": (0, 1, 0, 1)}]
)
def test_blocks_refused(changes):
    """Blocks need half-split pairs of several axes, each in a row."""
    fields = {"interleaved": False, "axes": AXES, "axes_restart": True, "axis_blocks": True, **changes}
    with pytest.raises(rw.RopeError, match="`axis_blocks` needs half-split pairs"):
        rw.RopeConfig(8, **fields)
