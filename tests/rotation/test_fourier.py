"""FoPE and MHRoPE: their tables and what `rotate` makes of them, against loops in float64 written out here."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.checkpoints import read_coefficients
from ropewalk.rotation import FourierEmbedding

CONFIG = rw.RopeConfig(16, interleaved=False, theta=10_000.0, max_position_embeddings=64)
KEPT = 3  # 1, 0.316 and 0.1 are above 2 pi / 64 = 0.098


def fope(num_heads: int | None = 2, **options: Any) -> FourierEmbedding:
    """A module whose coefficients are far from the identity."""
    torch.manual_seed(1)
    return FourierEmbedding(CONFIG, num_heads, init_factor=1.0, **options)


def turned(x: np.ndarray, position: int, cos_coef: np.ndarray, sin_coef: np.ndarray, sin_rest: float) -> np.ndarray:
    """One head `[16]` at one position: the sums over frequencies, the rest 1, half-split pairs."""
    frequencies = [10_000.0 ** (-i / 8) for i in range(8) if 10_000.0 ** (-i / 8) > 2 * math.pi / 64]
    out = np.zeros(16)
    for pair in range(8):
        cos, sin = 1.0, sin_rest
        if pair < len(frequencies):
            cos = sum(math.cos(position * f) * cos_coef[i, pair] for i, f in enumerate(frequencies))
            sin = sum(math.sin(position * f) * sin_coef[i, pair] for i, f in enumerate(frequencies))
        out[pair] = x[pair] * cos - x[pair + 8] * sin
        out[pair + 8] = x[pair + 8] * cos + x[pair] * sin
    return out


@pytest.mark.parametrize("backend", [None, "reference"])
@pytest.mark.parametrize("rest", ["ones", "unrotated"])
def test_queries_and_keys_are_turned_by_the_formula(rest, backend):
    """Each key head by its own coefficients, three queries to each key head; tables that are no rotations."""
    module = fope(rest=rest)
    assert len(module.inv_freq) == KEPT
    ids = torch.tensor([[0, 1, 5, 63], [2, 900, 7, 12_345]])
    q, k = torch.randn(2, 4, 6, 16, dtype=torch.float64), torch.randn(2, 4, 2, 16, dtype=torch.float64)
    coefs = [c.detach().double().numpy() for c in (module.cos_coef, module.sin_coef)]
    for x, heads in ((q, 6), (k, None)):
        cos, sin = module(ids, heads)
        assert (cos**2 + sin**2 - 1).abs().max() > 0.1
        found = rw.rotate(x, cos, sin, interleaved=False, backend=backend).detach()
        of_group = x.shape[2] // 2
        for batch, seq, head in np.ndindex(2, 4, x.shape[2]):
            own = [c[head // of_group] for c in coefs]
            right = turned(x[batch, seq, head].numpy(), int(ids[batch, seq]), *own, float(rest == "ones"))
            np.testing.assert_allclose(found[batch, seq, head], right, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_take_tables_that_are_no_rotations(dtype):
    """The chosen backend equals the reference, and gradients of the coefficients are those of the formula."""
    module, ids = fope(), torch.arange(9)
    x = torch.randn(1, 9, 2, 16, dtype=dtype)
    cos, sin = module(ids)
    ours = rw.rotate(x, cos, sin, interleaved=False)
    right = rw.rotate(x.double(), cos.double(), sin.double(), interleaved=False, backend="reference")
    torch.testing.assert_close(ours.double(), right, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.05)
    target = torch.randn(1, 9, 2, 16)
    (ours.float() * target).sum().backward()
    first, second = x.float().chunk(2, -1)
    for_cos, for_sin = (
        (first * target[..., :8] + second * target[..., 8:]),
        (first * target[..., 8:] - second * target[..., :8]),
    )
    angles = ids[:, None].double() * torch.tensor(module.inv_freq, dtype=torch.float64)
    for weight, waves, grads in ((module.cos_coef, angles.cos(), for_cos), (module.sin_coef, angles.sin(), for_sin)):
        right = torch.einsum("tD,bthd->hDd", waves, grads[..., :KEPT].double())
        torch.testing.assert_close(
            weight.grad.double(), right, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=0.05
        )


def test_inverse_is_the_transpose_and_no_inverse():
    """As the docstring says: the tables are no rotations."""
    cos, sin = fope()(torch.arange(5))
    x, y = (torch.randn(1, 5, 2, 16) for _ in "xy")
    there = rw.rotate(x, cos, sin, interleaved=False)
    back = rw.rotate(y, cos, sin, interleaved=False, inverse=True)
    torch.testing.assert_close((there * y).sum(), (x * back).sum())
    assert (rw.rotate(there, cos, sin, interleaved=False, inverse=True) - x).abs().max() > 0.1


@pytest.mark.parametrize(("rest", "factor"), [("ones", 2.0), ("unrotated", 1.0)])
def test_the_two_readings_of_the_other_pairs(rest, factor):
    """With the identity the kept pairs are plain RoPE; the products of the others double where sin is 1."""
    module = fope(None, rest=rest)
    with torch.no_grad():
        module.cos_coef.copy_(torch.eye(KEPT))
        module.sin_coef.copy_(torch.eye(KEPT))
    ids = torch.arange(40)
    cos, sin = module(ids)
    expected = rw.RotaryEmbedding(CONFIG).cos_sin(ids)
    torch.testing.assert_close(cos[0, :, 0, :KEPT], expected[0][:, :KEPT], rtol=0, atol=1e-7)
    torch.testing.assert_close(sin[0, :, 0, :KEPT], expected[1][:, :KEPT], rtol=0, atol=1e-7)
    q, k = torch.zeros(1, 40, 1, 16), torch.zeros(1, 40, 1, 16)
    rest_features = [*range(KEPT, 8), *range(8 + KEPT, 16)]
    q[..., rest_features], k[..., rest_features] = torch.randn(2, 1, 40, 1, 10)
    both = [rw.rotate(x, cos, sin, interleaved=False)[0, :, 0] for x in (q, k)]
    torch.testing.assert_close(both[0] @ both[1].T, factor * (q[0, :, 0] @ k[0, :, 0].T))


def test_a_checkpoint_loads_by_its_names(tmp_path: Path):
    """The tensors of Intern-S1-Pro, from any shard, in 16 bits, stay float32 under a cast."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    stored = {name: torch.randn(2, KEPT, KEPT, dtype=torch.bfloat16) for name in ("cos_coef", "sin_coef")}
    for number, (name, tensor) in enumerate(stored.items()):
        save_file({f"model.language_model.rotary_emb.{name}": tensor}, tmp_path / f"model-{number}.safetensors")
    cos_coef, sin_coef = read_coefficients(tmp_path)
    module = fope()
    module.load_state_dict({"cos_coef": cos_coef, "sin_coef": sin_coef}, assign=True)
    module.to(torch.float16)
    for name, tensor in stored.items():
        weight = getattr(module, name)
        assert weight.dtype == torch.float32
        assert torch.equal(weight, tensor.float())


BLOCK = {"rope_type": "default", "fope_init_factor": 0.5, "fope_sep_head": True, "num_inv_freq": None}
TEXT = {"model_type": "interns1_pro_text", "head_dim": 128, "num_key_value_heads": 4, "rope_theta": 5e6,
        "max_position_embeddings": 262_144, "rope_scaling": BLOCK}  # fmt: skip


def test_the_config_of_intern_s1_pro():
    """Its 45 frequencies that turn once within 262,144 tokens; number and heads as the block says."""
    module = FourierEmbedding.from_hf({"model_type": "interns1_pro", "text_config": TEXT})
    assert module.cos_coef.shape == (4, 45, 45)
    assert module.inv_freq[-1] > 2 * math.pi / 262_144 > 5e6 ** (-45 / 64)
    shared = FourierEmbedding.from_hf({**TEXT, "rope_scaling": {**BLOCK, "fope_sep_head": False, "num_inv_freq": 5}})
    assert shared.cos_coef.shape == (5, 5)
    assert shared(torch.arange(3), num_heads=8)[0].shape == (1, 3, 1, 64)


@pytest.mark.parametrize("model_type", ["interns1_pro", "interns1_pro_text"])
def test_a_rope_config_does_not_describe_it(model_type):
    """The error names the class that does."""
    with pytest.raises(rw.RopeError, match=r"FourierEmbedding\.from_hf\(config\)"):
        rw.RopeConfig.from_hf({**TEXT, "model_type": model_type})


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FourierEmbedding(rw.RopeConfig(16, interleaved=False)), "no frequency is used"),
        (lambda: FourierEmbedding(CONFIG, num_inv_freq=9), "no frequency is used"),
        (lambda: FourierEmbedding(CONFIG, 0), "at least 1"),
        (lambda: FourierEmbedding(CONFIG, rest="zeros"), "unknown `rest`"),
        (lambda: fope()(torch.arange(3), num_heads=3), "multiple of the key heads"),
        (lambda: FourierEmbedding.from_hf({**TEXT, "rope_scaling": None}), "has no FoPE"),
        (lambda: FourierEmbedding.from_hf({**TEXT, "head_dim": None}), "a number is missing"),
        (lambda: FourierEmbedding(rw.RopeConfig(16, interleaved=False, scaling=rw.scaling.Linear(2.0))), "no scaling"),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    """Each with its own error."""
    with pytest.raises(rw.RopeError, match=words):
        make()


@pytest.mark.traced
def test_it_is_made_on_meta_and_compiles():
    """After to_empty and reset_parameters it is a new module; a compiler traces it in one graph."""
    with torch.device("meta"):
        made = FourierEmbedding(CONFIG, 2, init_factor=0.0)
    made.to_empty(device="cpu")
    made.reset_parameters()
    assert torch.equal(made.cos_coef, torch.eye(KEPT).expand(2, KEPT, KEPT))
    module, ids = fope(), torch.arange(7)
    compiled = torch.compile(lambda at: module(at, 4), fullgraph=True, backend="eager")
    for ours, right in zip(compiled(ids), module(ids, 4), strict=True):
        torch.testing.assert_close(ours, right)


# --- MHRoPE: heads that each follow one axis

CONFIG_BY_HEAD = rw.RopeConfig(16, interleaved=False, theta=5e6)
HEADS = (0, 1, 1, 2, None)


def pictures() -> torch.Tensor:
    """Positions of text, an image, and text: three axes that differ."""
    ids, _ = rw.positions.mrope_positions(torch.tensor([[0, 0, *([1] * 6), 0, 0]]), images=[(1, 4, 6)])
    return ids


def turned_of_by_head(x: np.ndarray, position: np.ndarray, axis: int | None) -> np.ndarray:
    """One head `[16]`: every pair turns by its axis's coordinate times its own frequency of the whole ladder."""
    out = x.copy()
    for pair in range(8 if axis is not None else 0):
        angle = float(position[axis]) * 5e6 ** (-pair / 8)
        out[pair] = x[pair] * math.cos(angle) - x[pair + 8] * math.sin(angle)
        out[pair + 8] = x[pair + 8] * math.cos(angle) + x[pair] * math.sin(angle)
    return out


@pytest.mark.parametrize("queries", [None, 15])
def test_each_head_follows_its_axis(queries):
    """Key heads by their axes, three queries with each; the last key head does not turn."""
    ids = pictures()
    assert (ids[0, :, 0] != ids[0, :, 1]).any()
    x = torch.randn(1, ids.shape[1], queries or 5, 16, dtype=torch.float64)
    rope = rw.RotaryEmbedding(CONFIG_BY_HEAD)
    cos, sin = rope.cos_sin_by_head(ids, HEADS, num_heads=queries, dtype=torch.float64)
    found = rw.rotate(x, cos, sin, interleaved=False)
    for seq, head in np.ndindex(x.shape[1], x.shape[2]):
        axis = HEADS[head // 3 if queries else head]
        right = turned_of_by_head(x[0, seq, head].numpy(), ids[0, seq].numpy(), axis)
        np.testing.assert_allclose(found[0, seq, head], right, rtol=0, atol=1e-12)


def test_text_is_plain_rope():
    """Where the axes agree every head is the text model's, with its scaling and its lengths."""
    config = rw.RopeConfig(16, interleaved=True, scaling=rw.scaling.DynamicNTK(4.0), max_position_embeddings=8)
    rope, ids = rw.RotaryEmbedding(config), torch.arange(30)
    cos, sin = rope.cos_sin_by_head(ids[:, None].expand(30, 3), rw.positions.axes_from_sections([2, 3, 3]), seq_len=30)
    expected = rope.cos_sin(ids, 30)
    for table, right in zip((cos, sin), expected, strict=True):
        assert table.shape == (1, 30, 8, 8)
        assert torch.equal(table, right[None, :, None].expand_as(table))


def test_it_is_the_product_with_a_matrix_for_each_head():
    """The same angles from learned frequencies that start with each head's row of the ladder and are zero elsewhere."""
    axes = rw.RopeConfig(16, interleaved=False, theta=5e6, axes=(0, 1, 2, 0, 1, 2, 0, 0))
    learned = rw.rotation.LearnedFrequencies(axes, num_heads=5, mixed=False)
    with torch.no_grad():
        learned.freqs.zero_()
        for head, axis in enumerate(HEADS):
            if axis is not None:
                learned.freqs[head, axis] = rw.inverse_frequencies(CONFIG_BY_HEAD).inv_freq[0].float()
    ids = pictures()
    for dense, by_head in zip(
        learned(ids), rw.RotaryEmbedding(CONFIG_BY_HEAD).cos_sin_by_head(ids, HEADS), strict=True
    ):
        torch.testing.assert_close(dense, by_head, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("positions", "heads", "options", "words"),
    [
        (torch.zeros(4, 3), (0, 3), {}, "an axis of the positions"),
        (torch.zeros(4, 3), (), {}, "an axis of the positions"),
        (torch.zeros(4), (0,), {}, "an axis of the positions"),
        (torch.zeros(4, 3), (0, 1), {"num_heads": 3}, "multiple of the key heads"),
        (torch.zeros(4, 3), (0, 1), {"num_heads": 0}, "multiple of the key heads"),
    ],
)
@pytest.mark.rejects
def test_what_does_not_fit_is_refused(positions, heads, options, words):
    """Axes that are not there, and queries that no key head serves."""
    with pytest.raises(rw.RopeError, match=words):
        rw.RotaryEmbedding(CONFIG_BY_HEAD).cos_sin_by_head(positions, heads, **options)


@pytest.mark.traced
def test_it_compiles():
    """In one graph, with the numbers of the eager call."""
    rope, ids = rw.RotaryEmbedding(CONFIG_BY_HEAD), pictures()
    compiled = torch.compile(lambda at: rope.cos_sin_by_head(at, HEADS, num_heads=10), fullgraph=True, backend="eager")
    for ours, right in zip(compiled(ids), rope.cos_sin_by_head(ids, HEADS, num_heads=10), strict=True):
        torch.testing.assert_close(ours, right, rtol=0, atol=1e-7)
