"""Questions after a live model's prefix, many in one forward, against the model's own whole forwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ropewalk.attachment import attach
from ropewalk.attention.masks import TokenLayout
from ropewalk.checkpoints.live_model import Prefix, QuestionIds, likeliest
from ropewalk.checkpoints.reader import Reader
from ropewalk.methods import METHODS, Reach
from tests.checkpoints.prefixes import prefix_of, read
from tests.checkpoints.random_models import random_model

IDS = torch.randint(3, 256, (120,), generator=torch.Generator().manual_seed(4)).tolist()
TEXT, LENGTH = IDS[:45], 64
QUESTIONS: list[QuestionIds] = [
    (IDS[50:55], [IDS[60:64], [*IDS[60:63], 7], IDS[70:71], [*IDS[60:62], 9, 9]]),  # three of them begin alike
    (IDS[80:82], [IDS[60:64], IDS[90:92]]),
    (IDS[110:118], [IDS[72:73]]),
]
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True, "sliding_window": 12}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": SLIDING,
    "qwen3": {"head_dim": 8, **SLIDING},
    "mistral": {"sliding_window": 12},
    "smollm3": {"no_rope_layers": [1, 0], "sliding_window": None},
    "gemma3_text": {},
    "gpt_oss": {},
    "deepseek_v3": {},
}


@torch.no_grad()
def alone(model: Any) -> list[float]:
    """Each question and continuation as one text, in one forward without a cache."""
    found = []
    for question, continuations in QUESTIONS:
        start = len(TEXT) + len(question) - 1
        for continuation in continuations:
            logits = model(torch.tensor([[*TEXT, *question, *continuation]]), use_cache=False).logits[0]
            likely = logits.double().log_softmax(-1)
            found.append(sum(float(likely[start + n, token]) for n, token in enumerate(continuation)))
    return found


def flat(found: list[list[float]]) -> list[float]:
    return [value for row in found for value in row]


def asked(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> tuple[Prefix, list[float], int]:
    """The prefix, its answers, and the number of forwards that they took."""
    prefix, forwards = prefix_of(reader, TEXT, seq_len=LENGTH, chunk=7), []
    with monkeypatch.context() as patched:
        hidden = prefix.live.hidden
        patched.setattr(prefix.live, "hidden", lambda *given: forwards.append(given) or hidden(*given))
        found = flat(prefix.ask(QUESTIONS))
    return prefix, found, len(forwards)


@pytest.mark.parametrize(
    ("family", "kernels"), [*((family, True) for family in FAMILIES), ("llama", False), ("gemma3_text", False)]
)
def test_answers_are_those_of_whole_forwards(family: str, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one forward, beyond the window and the trained length, by our kernel and by masks; the prefix stays."""
    model = random_model(family, **FAMILIES[family])
    reader = Reader(model)
    assert reader.live.branches
    if not kernels:
        monkeypatch.setattr("ropewalk.attachment.live_attention.LayerAttention._by_kernel", lambda *_: None)
    prefix, found, forwards = asked(reader, monkeypatch)
    assert forwards == 1
    assert found == pytest.approx(alone(model), abs=1e-4)
    monkeypatch.setattr("ropewalk.checkpoints.live_model.ASK_TOKENS", 10)
    monkeypatch.setattr("ropewalk.checkpoints.live_model.LOGITS", 2 * 257)
    again, few, forwards = asked(reader, monkeypatch)
    assert forwards > 1
    assert few == pytest.approx(found, abs=1e-4)
    for each in (prefix, again):
        assert flat(each.ask(QUESTIONS[::-1])) == pytest.approx(flat([*map(list, each.ask(QUESTIONS)[::-1])]), abs=1e-4)
        read(each, IDS[50:53])
        assert flat(each.ask([(IDS[53:55], QUESTIONS[0][1])])) == pytest.approx(found[:4], abs=1e-4)


@pytest.mark.parametrize("method", ["dca", "self-extend", "rerope", "yarn", "dynamic"])
def test_so_they_are_under_methods(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In attention and in frequencies, at twice the trained length."""
    model = random_model("llama")
    own = Reader(model)
    reader = own.under(METHODS[method].positions(own.positions, Reach(32, LENGTH)))
    _, found, forwards = asked(reader, monkeypatch)
    assert forwards == 1
    handle = attach(model, method, target=LENGTH)
    handle.seq_len = LENGTH
    assert found == pytest.approx(alone(model), abs=1e-4)


def test_layers_that_cannot_branch_are_asked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recurrent layers, and a model for which the check of the constructor disagrees."""
    model = random_model(
        "qwen3_next", head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8,
        linear_value_head_dim=8, num_experts=0, layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    reader = Reader(model)
    assert not reader.live.branches
    _, found, forwards = asked(reader, monkeypatch)
    assert forwards == 2 + 2 + 1  # lines from a root to a leaf
    assert found == pytest.approx(alone(model), abs=1e-4)
    model = random_model("gpt_oss")
    with monkeypatch.context() as patched:
        patched.setattr(TokenLayout, "position_ids", lambda layout: torch.arange(layout.start, layout.total))
        reader = Reader(model)
    assert not reader.live.branches
    assert asked(reader, monkeypatch)[1] == pytest.approx(alone(model), abs=1e-4)


def test_what_begins_alike_is_read_once() -> None:
    """The tokens that go through the model: the question's, and of each continuation all but the last."""
    seen: list[int] = []
    prefix = prefix_of(Reader(random_model("llama")), TEXT, seq_len=LENGTH)
    embedding = prefix.live.model.get_input_embeddings()
    embedding.register_forward_hook(lambda _, inputs, out: seen.append(inputs[0].shape[1]))
    first = prefix.ask(QUESTIONS[:1])
    assert seen == [5 + 3 + 1]  # 60..62 of two, and one more third token
    kept = prefix.cache.layers[0]._buffers
    prefix.ask(QUESTIONS)
    assert prefix.cache.layers[0]._buffers is kept
    assert prefix.ask(QUESTIONS[:1]) == first
    assert prefix.tokens == len(TEXT)


@pytest.mark.parametrize("chunk", [1024, 10])
@torch.no_grad()
def test_the_likeliest_tokens_after_several_lengths(chunk: int) -> None:
    """In one pass, and in chunks of which some hold no length that is asked for and one holds two."""
    model, lengths = random_model("llama"), [1, 16, 20, 40]
    tops = Reader(model).top_after(IDS[:40], lengths, count=5, seq_len=40, chunk=chunk)
    likely = model(torch.tensor([IDS[:40]])).logits[0].log_softmax(-1)
    for length, top in zip(lengths, tops, strict=True):
        wanted = likeliest(likely[length - 1], 5)
        assert [token for token, _ in top] == [token for token, _ in wanted]
        assert [nats for _, nats in top] == pytest.approx([nats for _, nats in wanted], abs=1e-4)
