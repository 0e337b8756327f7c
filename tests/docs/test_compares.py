"""Cells of the comparison: these tests call a package if the version that the page names is installed."""

from __future__ import annotations

import inspect
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

import ropewalk as rw

PAGE = Path(__file__).parents[2] / "docs" / "use.md"
if not PAGE.exists():
    pytest.skip("the source distribution has no docs/", allow_module_level=True)
SECTION = PAGE.read_text().partition("## How it compares")[2]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")]
        for line in SECTION.splitlines() if line.startswith("|")]  # fmt: skip
HEADS = ["ropewalk", "transformers", "rotary-embedding-torch", "x-transformers", "flash-attention", "Liger"]
TABLE = {row[0]: dict(zip(HEADS, row[1:], strict=True)) for row in ROWS[2:]}


def needs(package):
    """Skip a test unless the version of a package on the page is installed."""
    wanted = next(cell for cell in ROWS[0] if cell.startswith(package)).split(" ")[1]
    try:
        installed = version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    if installed != wanted:
        pytest.skip(f"{package} is {installed}, and the page is about {wanted}")


def test_ropewalk():
    """Check our own column."""
    from ropewalk.rope.extensions import Extension
    from ropewalk.rope.scaling import Scaling

    ours = {row: cells["ropewalk"] for row, cells in TABLE.items()}
    rules = [kind for kind in vars(rw.scaling).values() if inspect.isclass(kind) and issubclass(kind, Scaling)]
    combined = {Scaling, rw.scaling.Stacked, rw.scaling.LeRoPE}  # made of other rules
    assert ours["scaling rules"] == str(len(set(rules) - combined))
    others = set(rw.encodings.ENCODINGS) - {"none"}
    assert ours["other encodings for comparison"] == str(len(others))
    rope = rw.RotaryEmbedding(rw.RopeConfig(64, interleaved=False))
    before = rope.cos_sin(torch.tensor([100_003]))
    after = rope.to(torch.bfloat16).cos_sin(torch.tensor([100_003]))
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert {"rerope", "self-extend", "dca"} <= set(__import__("ropewalk.methods").methods.METHODS)
    assert len(Extension.registry) >= 3
    assert set(inspect.signature(rw.rotate).parameters) >= {"interleaved"}
    assert all(map(callable, (rw.positions.grid_positions, rw.positions.mrope_positions, rw.attach, rw.doctor)))


def test_transformers():
    """Check its rules by name, the effect of a cast on its angles, and the pairing of its models."""
    needs("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    assert TABLE["scaling rules"]["transformers"] == str(len(set(ROPE_INIT_FUNCTIONS) - {"default"}))
    ids = torch.tensor([[8_191]])
    rope, x = LlamaRotaryEmbedding(LlamaConfig()), torch.zeros(1)
    exact = rope(x, ids)
    assert float((rope.to(torch.bfloat16)(x, ids)[0] - exact[0]).abs().max()) > 0.1
    assert list(inspect.signature(rope.forward).parameters)[:2] == ["x", "position_ids"]


@torch.no_grad()
def test_the_tasks_in_rotary_embedding_torch():
    """Its calls for tasks 1 to 5 and 7 return what ours return."""
    needs("rotary-embedding-torch")
    pytest.importorskip("einops")
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

    def ours(**kwargs):
        rope = rw.RotaryEmbedding(rw.RopeConfig(16, interleaved=True, rotary_dim=8, theta=500.0, **kwargs))
        return rope.rotate(x, position_ids=positions, layout="bhsd")

    x, positions = torch.randn(2, 3, 5, 16), torch.arange(5) + 7
    partial = RotaryEmbedding(dim=8, theta=500.0)
    torch.testing.assert_close(partial.rotate_queries_or_keys(x, offset=7), ours())
    ntk = RotaryEmbedding(dim=8, theta=500.0, theta_rescale_factor=2.0)
    torch.testing.assert_close(ntk.rotate_queries_or_keys(x, offset=7), ours(scaling=rw.scaling.NTK(2.0)))
    linear = RotaryEmbedding(dim=8, theta=500.0, interpolate_factor=2.0)
    positions = torch.arange(5)
    torch.testing.assert_close(linear.rotate_queries_or_keys(x), ours(scaling=rw.scaling.Linear(2.0)))
    positions = torch.tensor([0, 1, 2, 0, 1])  # packed
    torch.testing.assert_close(apply_rotary_emb(partial(positions.float()), x), ours())
    given = RotaryEmbedding(dim=8, custom_freqs=partial.freqs / 2)
    torch.testing.assert_close(apply_rotary_emb(given(positions.float()), x), ours(scaling=rw.scaling.Linear(2.0)))
    assert partial.get_axial_freqs(3, 4).shape == (3, 4, 16)
