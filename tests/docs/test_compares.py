"""The cells of the comparison: the package is called, or its source is read, where the version named is there."""

from __future__ import annotations

import importlib.util
import inspect
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

import ropewalk as rw

PAGE = Path(__file__).parents[2] / "docs" / "compares.md"
if not PAGE.exists():
    pytest.skip("the source distribution has no docs/", allow_module_level=True)
ROWS = [[cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines() if line.startswith("|")]  # fmt: skip
HEADS = ["ropewalk", "transformers", "rotary-embedding-torch", "x-transformers", "flash-attention", "Liger"]
MODULES = {"transformers": "transformers", "rotary-embedding-torch": "rotary_embedding_torch",
           "x-transformers": "x_transformers", "Liger": "liger_kernel"}  # fmt: skip
NAMES = {"Liger": "liger-kernel"}
TABLE = {row[0]: dict(zip(HEADS, row[1:], strict=True)) for row in ROWS[2:]}


def source(head, *files):
    """The text of a package's files, all of them without a name; skips where the version on the page is not there."""
    wanted = next(cell for cell in ROWS[0] if cell.startswith(head)).split(" ")[1]
    try:
        found = version(NAMES.get(head, head))
    except PackageNotFoundError:
        pytest.skip(f"{head} is not installed")
    if found != wanted:
        pytest.skip(f"{head} is {found}, the page speaks of {wanted}")
    [folder] = importlib.util.find_spec(MODULES[head]).submodule_search_locations
    paths = [Path(folder, name) for name in files] or sorted(Path(folder).rglob("*.py"))
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def test_the_page_has_the_columns_and_rows_that_are_tested():
    """A new column or row needs its test."""
    assert [cell.split(" ")[0] for cell in ROWS[0][1:]] == HEADS
    assert set(TABLE) == {
        "pairing of features", "any position for each token", "scaling rules", "reads a published config.json",
        "angles after `.to(torch.bfloat16)`", "rotation of its own on a CPU", "rotation of its own on a GPU",
        "images: axial, M-RoPE", "ReRoPE, Self-Extend, dual chunk attention", "other encodings for comparison",
        "changes a live transformers model", "measures how far a context reaches",
    }  # fmt: skip


def test_ropewalk():
    """Our own column."""
    from ropewalk.attention.extensions import Extension
    from ropewalk.rope.scaling import Scaling

    ours = {row: cells["ropewalk"] for row, cells in TABLE.items()}
    rules = [kind for kind in vars(rw.scaling).values() if inspect.isclass(kind) and issubclass(kind, Scaling)]
    combined = {Scaling, rw.scaling.Stacked, rw.scaling.PerAxis}  # made of other rules
    assert ours["scaling rules"] == str(len(set(rules) - combined))
    others = set(rw.encodings.ENCODINGS) - {"none"}
    assert ours["other encodings for comparison"] == str(len(others))
    rope = rw.RotaryEmbedding(rw.RopeConfig(64, interleaved=False))
    before = rope.cos_sin(torch.tensor([100_003]))
    after = rope.to(torch.bfloat16).cos_sin(torch.tensor([100_003]))
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert {"rerope", "self-extend", "dca"} <= set(__import__("ropewalk.methods").methods.METHODS)
    assert len(Extension.registry) >= 3
    assert set(inspect.signature(rw.rotate).parameters) >= {"interleaved", "interleaved_out"}
    for name in ("grid_positions", "mrope_positions", "attach", "doctor"):
        assert callable(getattr(rw, name))


def test_transformers():
    """Its rules by name, what a cast does to its angles, how its models pair features."""
    text = source("transformers", "modeling_rope_utils.py")
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    assert TABLE["scaling rules"]["transformers"] == str(len(set(ROPE_INIT_FUNCTIONS) - {"default"}))
    ids = torch.tensor([[8_191]])
    rope, x = LlamaRotaryEmbedding(LlamaConfig()), torch.zeros(1)
    exact = rope(x, ids)
    assert float((rope.to(torch.bfloat16)(x, ids)[0] - exact[0]).abs().max()) > 0.1
    assert list(inspect.signature(rope.forward).parameters)[:2] == ["x", "position_ids"]
    assert "config" in text
    assert "x[..., ::2]" in source("transformers", "models/cohere/modeling_cohere.py")
    assert "x[..., : x.shape[-1] // 2]" in source("transformers", "models/llama/modeling_llama.py")
    assert "mrope_section" in source("transformers", "models/qwen2_vl/modeling_qwen2_vl.py")
    assert "alibi" in source("transformers", "models/bloom/modeling_bloom.py")


@pytest.mark.thorough
def test_no_method_in_attention_in_transformers():
    """None of its files names one."""
    assert not re.search(r"self_?extend|dual_?chunk|rerope|streaming_?llm", source("transformers"), re.IGNORECASE)


def test_rotary_embedding_torch():
    """Its source; and it is called where it can be imported."""
    text = source("rotary-embedding-torch")
    assert "'... (d r) -> ... d r'" in text
    assert "interpolate_factor" in text
    assert "theta_rescale_factor" in text
    assert not re.search(
        r"yarn|longrope|llama3|dynamic|position_ids|config\.json|from_pretrained|alibi", text, re.IGNORECASE
    )
    assert not re.search(r"self_?extend|dual_?chunk|rerope|load_inline", text, re.IGNORECASE)
    assert "@triton.jit" in text
    assert "def get_axial_freqs" in text
    assert "use_xpos" in text
    pytest.importorskip("einops")
    from rotary_embedding_torch import RotaryEmbedding

    x = torch.ones(1, 1, 300, 32)
    exact = RotaryEmbedding(32).rotate_queries_or_keys(x)
    assert list(inspect.signature(RotaryEmbedding.rotate_queries_or_keys).parameters)[1:4] == ["t", "seq_dim", "offset"]
    assert float((RotaryEmbedding(32).rotate_queries_or_keys(x.bfloat16()).float() - exact).abs().max()) > 0.1


def test_x_transformers():
    """Its class of rotary embeddings, by its source; its frequencies are a buffer, which a cast rounds."""
    text = source("x-transformers", "x_transformers.py")
    rotary = re.search(r"^class RotaryEmbedding.*?(?=^def rotate_half)", text, re.DOTALL | re.MULTILINE)[0]
    assert "self.register_buffer('inv_freq', inv_freq)" in rotary
    assert "t.type_as(self.inv_freq)" in rotary
    assert "if t.ndim == 1" in rotary
    assert "interpolation_factor" in rotary
    assert "base_rescale_factor" in rotary
    assert "'... (d r) -> ... d r'" in text
    for name in ("alibi_pos_bias", "rel_pos_bias", "rotary_xpos"):
        assert name in text
    everything = source("x-transformers")
    assert not re.search(r"yarn|longrope|llama3|mrope|from_pretrained|config\.json", everything, re.IGNORECASE)
    assert not re.search(r"self_?extend|dual_?chunk|rerope|triton", everything, re.IGNORECASE)


def test_liger():
    """Its kernel takes tables; `position_ids` is not read, and the pairing is half-split."""
    text = source("Liger", "ops/rope.py")
    assert "second_half_q_offsets = first_half_q_offsets + (rd // 2)" in text
    assert not re.search(r"position_ids\W*[\[.*+]", text)
    assert "import triton" in text
    assert "mrope" in source("Liger", "ops/qwen2vl_mrope.py")
    everything = source("Liger")
    assert not re.search(r"yarn|longrope|self_?extend|dual_?chunk|rerope|alibi", everything, re.IGNORECASE)
    assert "apply_rotary_pos_emb = liger_rotary_pos_emb" in everything
