"""The collator: positions that skip, documents that do not see each other; and windows that depend on their number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import RopeError
from ropewalk.extend.trainer import check_batches
from ropewalk.extend.windows import IGNORED, SkipCollator, TuningWindows

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


@pytest.mark.parametrize("family", FAMILIES)
def test_documents_of_a_window_are_computed_as_if_alone(family: str) -> None:
    """Of three documents in one row, with another row that has padding: the logits of each alone."""
    model = model_of(family)
    ids, lengths = row(21), [8, 9, 4]
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    batch = SkipCollator(target=64)([{"input_ids": ids, "document_ids": documents}, {"input_ids": row(5, 1)}])
    assert "attention_mask" not in batch
    assert batch["labels"][0, [8, 17]].tolist() == [IGNORED, IGNORED]
    assert batch["labels"][1].tolist() == [*row(5, 1).tolist(), *[IGNORED] * 16]
    together, begin = logits(model, batch), 0
    for length in lengths:
        alone = logits(model, {"input_ids": ids[None, begin : begin + length]})
        assert (together[:1, begin : begin + length] - alone).abs().max() < 1e-5 * alone.abs().max()
        begin += length
    alone = logits(model, {"input_ids": row(5, 1)[None]})
    assert (together[1:, :5] - alone).abs().max() < 1e-5 * alone.abs().max()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_packed_documents_is_that_of_each_alone(family: str) -> None:
    """transformers' own loss: the sum over the documents, by their numbers of predictions."""
    model = model_of(family)
    ids = row(20)
    documents = (torch.arange(20) >= 8).long()
    batch = SkipCollator(target=None)([{"input_ids": ids, "document_ids": documents}])
    with torch.no_grad():
        packed = model(**batch).loss
        parts = [model(input_ids=part[None], labels=part[None]).loss * (len(part) - 1) for part in (ids[:8], ids[8:])]
    assert float(packed) == pytest.approx(float(sum(parts)) / 18, rel=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_check_of_a_model_accepts_these_families(family: str) -> None:
    """And it leaves the mode as it was."""
    model = model_of(family).train()
    assert check_batches(model, skips=True, half=False)
    assert model.training


def test_the_check_sees_a_model_that_joins_documents() -> None:
    """One whose masks ignore the positions."""
    model = model_of("Llama")
    plain = model.forward
    model.forward = lambda *args, **options: plain(
        *args, **{**options, "attention_mask": torch.ones_like(options["input_ids"])}
    )
    assert not check_batches(model, skips=False, half=False)


def test_the_check_sees_a_model_that_forgets_before_a_skip() -> None:
    """One that gets no mask takes the jump for a new document: transformers' own rule."""
    model = model_of("Llama")
    plain = model.forward
    model.forward = lambda *args, **options: plain(*args, **{**options, "attention_mask": None})
    with pytest.raises(RopeError, match="ignores the tokens before a skip"):
        check_batches(model, skips=True, half=False)


def test_a_window_longer_than_the_target_is_refused() -> None:
    """There is no room to skip into."""
    with pytest.raises(RopeError, match="longer than the target of skipped positions"):
        SkipCollator(target=4)([{"input_ids": [1, 2, 3, 4, 5]}])


def windows(**changes: Any) -> TuningWindows:
    """Of two documents of bytes."""
    settings: dict[str, Any] = {"count": 40, "length": 16, "seed": 3}
    texts = ["abcdefghij klm " * 9, "0123456789" * 9]
    return TuningWindows(texts, lambda text: list(text.encode()), 0, **(settings | changes))


def test_a_window_depends_only_on_its_number() -> None:
    """Read in another order, by another object and in a longer run, it is the same; another seed has others."""
    first, second = windows(), windows(count=99)
    assert all(torch.equal(first[i]["input_ids"], second[i]["input_ids"]) for i in reversed(range(40)))
    assert any(not torch.equal(first[i]["input_ids"], windows(seed=4)[i]["input_ids"]) for i in range(4))
    assert len(first) == 40


def test_windows_name_their_documents() -> None:
    """Digits belong to the second one; its first token follows the end of the first."""
    spans = 0
    for number in range(40):
        window = windows()[number]
        digits = (window["input_ids"] >= ord("0")) & (window["input_ids"] <= ord("9"))
        spans += bool(digits.any() and not digits.all())
        assert len(window["document_ids"][digits].unique()) <= 2  # the stream joins its end to its beginning
        assert set(window["document_ids"][digits].tolist()).isdisjoint(window["document_ids"][~digits & (window["input_ids"] != 0)].tolist())  # noqa: E501  # fmt: skip
    assert spans


def test_long_windows_have_their_share() -> None:
    """About a third of forty, the same ones each time."""
    made = windows(long_length=32, long_share=0.3)
    lengths = [len(made[i]["input_ids"]) for i in range(40)]
    assert set(lengths) == {16, 32}
    assert made.predicted == sum(lengths)
    assert 4 <= lengths.count(32) <= 22


def test_repeated_blocks_have_their_share() -> None:
    """With all windows changed, far fewer distinct runs of eight tokens occur in a random text."""

    def runs(share: float) -> int:
        text = "".join(chr(97 + int(i) % 26) + (" " if i % 5 == 0 else "") for i in row(600, 5) * 7 + row(600, 6))
        made = TuningWindows([text], lambda t: list(t.encode()), None, count=20, length=96, repeat_share=share)
        return sum(len({tuple(w[i : i + 8].tolist()) for i in range(88)}) for w in (made[n]["input_ids"] for n in range(20)))  # noqa: E501  # fmt: skip

    assert runs(1.0) < 0.95 * runs(0.0)


def test_a_text_shorter_than_a_window_is_refused() -> None:
    """With both numbers."""
    with pytest.raises(RopeError, match="shorter than one window"):
        windows(length=4096)
