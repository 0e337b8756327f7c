"""The collator: positions that skip once, padding, and what transformers computes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import RopeError
from ropewalk.layers.training import IGNORED, SkipCollator

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3, "pad_token_id": None,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {"head_dim": 8},
    "Gemma3": {"head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "Mistral": {"sliding_window": 9},
    "Phi3": {},
    "Olmo2": {},
}


def model_of(family: str) -> Any:
    """A random model in float32."""
    torch.manual_seed(2)
    sizes = {**SIZES, **FAMILIES[family]}
    sizes["num_hidden_layers"] = len(sizes.get("layer_types", "123"))
    text = "Text" if family == "Gemma3" else ""
    config = getattr(transformers, f"{family}{text}Config")(**sizes)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def logits(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """`[rows, seq, vocab]`."""
    with torch.no_grad():
        found: torch.Tensor = model(**{name: x for name, x in batch.items() if name != "labels"}).logits
    return found


def row(tokens: int, seed: int = 0) -> torch.Tensor:
    """Random token ids."""
    return torch.randint(0, 97, (tokens,), generator=torch.Generator().manual_seed(seed))


def test_shorter_rows_are_padded_on_the_right() -> None:
    """With their own ids, labels that are not predicted, and a mask; given labels are kept."""
    rows = [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9], "labels": [-100, 9]}]
    batch = SkipCollator(target=None, pad_token_id=1)(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 1]]
    assert batch["labels"].tolist() == [[5, 6, 7], [-100, 9, IGNORED]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2], [0, 1, 2]]


@given(tokens=st.integers(2, 40), more=st.integers(0, 60), seed=st.integers(0, 99))
def test_positions_skip_once_and_stay_below_the_target(tokens: int, more: int, seed: int) -> None:
    """They begin at 0, increase by one except at most once, and depend on nothing but tokens and seed."""
    collate = SkipCollator(target=tokens + more, seed=seed)
    batch = collate([{"input_ids": row(tokens, seed)}])
    positions = batch["position_ids"][0]
    steps = positions.diff()
    assert positions[0] == 0
    assert positions[-1] < tokens + more
    assert int((steps != 1).sum()) <= 1
    assert bool((steps >= 1).all())
    assert torch.equal(positions, collate([{"input_ids": row(tokens, seed).tolist()}])["position_ids"][0])
    assert torch.equal(batch["labels"], batch["input_ids"])


def test_every_distance_below_the_target_occurs() -> None:
    """Over 400 rows of 8 tokens, all distances from 1 to 63."""
    found = set()
    for number in range(400):
        positions = SkipCollator(target=64)([{"input_ids": row(8, number)}])["position_ids"][0]
        found |= set((positions[:, None] - positions).flatten().tolist())
    assert set(range(1, 64)) <= found


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_after_a_skip_see_those_before_it(family: str) -> None:
    """The logits are those of the same positions under a mask that is written out."""
    model = model_of(family)
    batch = SkipCollator(target=64, seed=1)([{"input_ids": row(12)}])
    positions = batch["position_ids"][0]
    assert positions[-1] > 11
    tokens = torch.arange(12)
    seen = tokens <= tokens[:, None]
    kinds = {"full_attention": seen}
    window = getattr(model.config, "sliding_window", None)
    if window:
        kinds["sliding_attention"] = seen & (tokens > tokens[:, None] - window)
    masks = {name: mask[None, None] for name, mask in kinds.items()}
    if family == "Mistral":
        masks = {"full_attention": masks["sliding_attention"]}
    given = masks if family == "Gemma3" else masks["full_attention"]
    with torch.no_grad():
        expected = model(input_ids=batch["input_ids"], position_ids=batch["position_ids"], attention_mask=given).logits
    assert (logits(model, batch) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_a_window_longer_than_the_target_is_refused() -> None:
    """There is no room to skip into."""
    with pytest.raises(RopeError, match="longer than the target of skipped positions"):
        SkipCollator(target=4)([{"input_ids": [1, 2, 3, 4, 5]}])
