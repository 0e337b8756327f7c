"""Generation: every token is what a fresh start would give, whatever batch, cache or chunk it came through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from ropewalk.models import generation as module
from ropewalk.models.decoder import Decoder
from ropewalk.models.generation import draws_of, generate, sample, token_lists
from ropewalk.rope.scaling import DynamicNTK, LongRoPE
from ropewalk.tokenizer import TextTokenizer
from tests.models.forms import ROPE, TRAINED, VOCAB, make_decoder

PHIMOE = LongRoPE((1.0,) * 4, (2.0, 5.0, 9.0, 9.0), TRAINED, short_mscale=1.1, long_mscale=1.3)
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [2, 7], [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21], [30]]


def make(scaling: Any = None, **changes: Any) -> Decoder:
    """A small decoder whose greedy tokens vary; its scaling acts beyond 16 tokens."""
    given = {"num_hidden_layers": 2, "tie_word_embeddings": False, **changes}
    return make_decoder(torch.float32, rope=replace(ROPE, scaling=scaling), **given)


@torch.no_grad()
def fresh_start(model: Decoder, prompt: list[int], count: int, final: int) -> list[int]:
    """Greedy tokens without any cache: a full forward per token."""
    tokens = list(prompt)
    for _ in range(count):
        logits = model(torch.tensor([tokens]), seq_len=final)
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("chunk", [3, 1024])
@pytest.mark.parametrize("scaling", [None, PHIMOE, DynamicNTK(2.0)])
def test_batches_equal_fresh_starts(scaling: Any, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unequal prompts together, also in chunks: frequencies are those of the longest prompt + max_new_tokens."""
    monkeypatch.setattr(module, "_PREFILL", chunk)
    model, final = make(scaling), max(map(len, PROMPTS)) + 18
    wanted = [fresh_start(model, prompt, 18, final=final) for prompt in PROMPTS]
    assert len({tuple(w[-9:]) for w in wanted}) > 1
    assert generate(model, PROMPTS, max_new_tokens=18) == wanted
    assert [generate(model, [prompt], max_new_tokens=18, seq_len=final)[0] for prompt in PROMPTS] == wanted
    fixed = [fresh_start(model, prompt, 18, final=60) for prompt in PROMPTS]
    assert generate(model, PROMPTS, max_new_tokens=18, seq_len=60) == fixed


def test_stop_tokens_end_a_row_alone() -> None:
    """A row ends before its stop token; the others go on as they would."""
    model = make()
    whole = generate(model, PROMPTS, max_new_tokens=20)
    stop = whole[0][4]
    wanted = [row[: row.index(stop)] if stop in row else row for row in whole]
    assert generate(model, PROMPTS, max_new_tokens=20, stop_tokens=[stop]) == wanted
    assert len({len(row) for row in wanted}) > 1
    assert generate(model, PROMPTS, max_new_tokens=20, stop_tokens=range(VOCAB)) == [[]] * 4


def test_sampling_is_seeded_per_row() -> None:
    """A seed repeats a draw, another changes it, and a row's draw does not hang on the rows that end before it."""
    model = make()
    how: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0}
    first = generate(model, PROMPTS, seed=1, **how)
    assert generate(model, PROMPTS, seed=1, **how) == first
    assert generate(model, PROMPTS, seed=2, **how) != first
    assert generate(model, PROMPTS[:1], seed=1, **how) == first[:1]
    stop = first[0][2]
    stopped = generate(model, PROMPTS, seed=1, stop_tokens=[stop], **how)
    assert stopped == [row[: row.index(stop)] if stop in row else row for row in first]
    same = generate(model, [[3, 1]] * 3, seed=1, **how)
    assert len({tuple(row) for row in same}) == 3
    torch.manual_seed(9)
    drawn = generate(model, PROMPTS, **how)
    torch.manual_seed(9)
    assert generate(model, PROMPTS, **how) == drawn


def test_sampling_follows_the_probabilities() -> None:
    """Draws that are spread evenly give softmax(logits / temperature)."""

    class Fixed(Random):
        def __init__(self, number: float) -> None:
            self.number = number

        def random(self) -> float:
            return self.number

    count, logits = 1000, torch.randn(VOCAB, generator=torch.Generator().manual_seed(1))
    even = [Fixed((n + 0.5) / count) for n in range(count)]
    wanted = (logits / 0.8).softmax(-1)
    got = torch.bincount(torch.tensor(sample(logits.expand(count, -1), even, temperature=0.8)), minlength=VOCAB) / count
    assert ((got - wanted).abs() <= 1.01 / count).all()
    assert sorted(sample(torch.zeros(2, 2), even[:: count - 1], temperature=1.0)) == [0, 1]
    assert sample(torch.zeros(1, 1), even[:1], temperature=1.0) == [0]
    numbers = [draw.random() for draw in draws_of(3, count)]
    assert abs(sum(numbers) / count - 0.5) < 5 / (12 * count) ** 0.5


def test_a_training_model_is_left_training() -> None:
    """Dropout is off while generating, and the model is left as it was."""
    model = make(attention_dropout=0.5, residual_dropout=0.5)
    wanted = generate(model, PROMPTS, max_new_tokens=6)
    model.train()
    assert generate(model, PROMPTS, max_new_tokens=6) == wanted
    assert all(each.training for each in model.modules())


def test_prompts_of_every_form() -> None:
    """A tensor, one list, several lists and texts are the same prompts."""
    ids, tokenizer = list(b"bcd"), TextTokenizer.bytes()
    for form in ([ids], ids, torch.tensor(ids), torch.tensor([ids], dtype=torch.uint8), "bcd", ["bcd"]):
        assert token_lists(form, tokenizer, 257) == [ids]
    assert token_lists(torch.tensor([ids] * 2), None, 257) == token_lists(["bcd"] * 2, tokenizer, 257) == [ids] * 2
    model = make()
    assert generate(model, [3, 1], max_new_tokens=3) == generate(model, torch.tensor([[3, 1]]), max_new_tokens=3)


def kit(template: str = "$A") -> TextTokenizer:
    """Bytes, with what a checkpoint puts around every text; E, <|endoftext|>, begins and ends one."""
    from tokenizers.processors import TemplateProcessing

    tokenizer = TextTokenizer.bytes()
    tokenizer.tokenizer.post_processor = TemplateProcessing(
        single=template.replace("E", "<|endoftext|>"), special_tokens=[("<|endoftext|>", 256)]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("template", "text", "ids"),
    [
        ("$A", "", [256]), ("$A", "x<|endoftext|>", [120, 256]), ("E $A E", "xy", [256, 120, 121]),
        ("E $A E", "<|endoftext|>xy", [256, 120, 121]), ("$A E", "xy", [120, 121]),
    ],
)  # fmt: skip
def test_prompt_tokens(template: str, text: str, ids: list[int]) -> None:
    """Tokens that belong before a text are put there once, not those that belong after it; an empty one begins anew."""
    assert token_lists(text, kit(template), 257) == [ids]


def test_a_text_begins_and_ends_as_its_tokenizer_says() -> None:
    """bos is read before it and eos ends it, unless `stop_tokens` says otherwise; ids are taken as they are."""
    model = make(vocab_size=257)
    model.tokenizer = kit("E $A")
    plain = generate(model, [list(b"abc")], max_new_tokens=20)
    begun = generate(model, [[256, *b"abc"]], max_new_tokens=20)
    assert plain != begun
    assert generate(model, "abc", max_new_tokens=20) == begun
    at = next(n for n, token in enumerate(begun[0]) if token < 256 and n > 2)
    model.tokenizer = TextTokenizer(kit("E $A").tokenizer, bos_id=256, eos_ids=(begun[0][at],))
    ended = [begun[0][: begun[0].index(begun[0][at])]]
    assert generate(model, "abc", max_new_tokens=20) == generate(model, ["abc"], max_new_tokens=20) == ended
    assert generate(model, "abc", max_new_tokens=20, stop_tokens=()) == begun
    assert generate(model, [[256, *b"abc"]], max_new_tokens=20) == begun


@pytest.mark.parametrize("temperature", [1e-310, 5e-324, 1e-30])
def test_the_smallest_temperature_takes_the_likeliest(temperature: float) -> None:
    """Logits over a subnormal temperature overflow, and inf - inf is NaN; the draw must be greedy's all the same."""
    logits = torch.randn(30, VOCAB, generator=torch.Generator().manual_seed(2))
    greedy = sample(logits, draws_of(0, 30))
    assert sample(logits, draws_of(0, 30), temperature=temperature) == greedy


@pytest.mark.traced
@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_generates_uncompiled(in_place: bool) -> None:
    """A cache that grows would be a graph for each length; the tokens are those of the model."""
    model, graphs = make(), []
    wanted = generate(model, PROMPTS, max_new_tokens=6)

    def backend(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph

    if in_place:
        model.compile(backend=backend)
    compiled = model if in_place else torch.compile(model, backend=backend)
    assert generate(compiled, PROMPTS, max_new_tokens=6) == wanted
    assert not graphs
    compiled(torch.tensor(PROMPTS[:1]))
    assert graphs
