"""Each mistake of a caller is named: settings that cannot be, and calls that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk import encodings
from ropewalk.attention.masks import Branches
from ropewalk.models.forward_inputs import ForwardInputs
from ropewalk.models.generation import generate, token_lists
from ropewalk.rope.extensions import DualChunk, Extension, ReRoPE, SelfExtend
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.tokenizer import TextTokenizer
from tests.models.forms import HALF, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LONG, ROPE, TRAINED, make_decoder, make_layer

pytestmark = pytest.mark.rejects
SIZES: dict[str, Any] = {"num_layers": 1, "batch": 2, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM}
LAYER, X, IDS = make_layer(dtype=torch.float32), torch.zeros(2, 5, HIDDEN), torch.tensor([[1, 2, 3]])
INPUTS, ONES = ForwardInputs(X), torch.ones(2, 5)
MODEL = make_decoder(torch.float32, rope=ROPE)
ALIBI = make_decoder(torch.float32, encoding="alibi")
CLASSIFIER, MUTE = (
    rw.TextClassifier(rw.models.TextClassifierConfig(
        vocab_size=50, labels=("a", "b"), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_length=40,
    ))
    for _ in range(2)
)  # fmt: skip
CLASSIFIER.tokenizer = TextTokenizer.bytes()


def attention(**changes: Any) -> rw.Attention:
    return rw.Attention(**{"hidden_size": HIDDEN, "num_attention_heads": HEADS, **changes})


def cache(**changes: Any) -> rw.KVCache:
    return rw.KVCache(**{**SIZES, **changes})


def shape(**changes: Any) -> rw.models.DecoderConfig:
    return replace(MODEL.config, **changes)


def labels(**changes: Any) -> rw.models.TextClassifierConfig:
    return replace(CLASSIFIER.config, **changes)


def used(layer: rw.Attention, **changes: Any) -> rw.KVCache:
    """A cache with the tokens of one call."""
    made = cache(**changes)
    layer(X, cache=made)
    return made


def tokens(seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(2, seq, KV_HEADS, HEAD_DIM), torch.zeros(2, seq, KV_HEADS, HEAD_DIM)


LENGTHS = make_layer(rope=HALF["dynamic"], dtype=torch.float32)
SETTINGS: list[tuple[Callable[[], Any], str]] = [
    (lambda: attention(num_key_value_heads=3), "multiple of `num_key_value_heads`"),
    (lambda: attention(hidden_size=25), "`hidden_size` is not a multiple"),
    (lambda: attention(hidden_size=40, rope=ROPE), "different head_dim"),
    (lambda: attention(sliding_window=0), "`sliding_window` must be a whole number from 1"),
    (lambda: attention(attention_dropout=1.0), "`attention_dropout` must be a probability"),
    *((lambda softcap=softcap: attention(softcap=softcap), "`softcap` must be") for softcap in (0.0, -1.0, torch.inf)),
    (lambda: attention(encoding="alibi", rope=ROPE), "mutually exclusive"),
    (lambda: attention(encoding="xpos", causal=False), "must be causal"),
    (lambda: make_layer(ReRoPE(4), causal=False), "causal attention with a rope"),
    (lambda: cache(batch=0), "`batch` must be a whole number from 1"),
    (lambda: cache(ropes=[None, None]), "one entry per layer"),
    (lambda: cache(extensions=[None, None]), "one entry per layer"),
    *((lambda wrong=wrong: cache(seq_len=wrong), "`seq_len` must be")
      for wrong in (0, 4.0, True, "9", [7, 8], torch.tensor([7, 8]), torch.tensor(7.0))),
    (lambda: cache(ropes=[HALF["dynamic"]]), "`seq_len` is required"),
    (lambda: shape(rope=(ROPE,)), "one entry per layer"),
    (lambda: shape(num_hidden_layers=0), "`num_hidden_layers` must be a whole number"),
    (lambda: shape(head_dim=None, hidden_size=30), "`hidden_size` is not a multiple"),
    (lambda: shape(encoding="alibi"), "mutually exclusive"),
    (lambda: shape(rope=None, encoding="rotary"), "unknown encoding"),
    (lambda: labels(labels=("a",)), "two or more"),
    (lambda: labels(labels=("a", "b", "a")), "two or more different"),
    (lambda: labels(pooling="max"), "unknown `pooling`"),
    (lambda: labels(max_length=0), "at least 1 token"),
    (lambda: labels(dropout=1.0), "below 1"),
    *((lambda wrong=wrong: encodings.T5Bias(*wrong), "num_buckets") for wrong in ((6, 128), (0, 128), (8, 4))),
    *((lambda rope=rope: encodings.XPos(rope).build(encodings.Sizes(32, 4, 8)), "`rope` needs this head_dim, one axis")
      for rope in (rw.RopeConfig(4, interleaved=True), replace(ROPE, axes=(0, 0, 1, 1)), HALF["dynamic"])),
    *((lambda name=name, wrong=wrong: shape(**{name: wrong}), f"`{name}` must be between 0 and 1")
      for name in ("norm_eps", "residual_dropout") for wrong in (-1e-9, 1.0)),
    (lambda: encodings.RelativeBias(max_distance=-1), "max_distance"),
    *((lambda kind=kind, given=given: kind(**given), kind.__name__) for kind, given in (
        (ReRoPE, {"window": 0}), (ReRoPE, {"window": 4, "log_n": 1}), (SelfExtend, {"group": 0, "window": 4}),
        (SelfExtend, {"group": 2, "window": True}), (DualChunk, {"chunk": 8, "trained_length": 8}))),
    (lambda: type("ReRoPE", (Extension,), {"__module__": "elsewhere"}), "an extension with this name exists"),
    *((lambda given=given: Branches(given), "must follow an earlier one") for given in ([], [0], [-1, 1], [-2])),
    (lambda: ModelRopes((ROPE,), (), (None,)), "a tuple `extensions` needs one entry per layer"),
    (lambda: MODEL.with_positions(rope=None, extension=ReRoPE(4)), "no layer of this model has a rope"),
    (lambda: MODEL.with_positions(extension=ReRoPE(4)).with_positions(rope=None), "with a rope over all earlier"),
    (lambda: ALIBI.with_positions(rope=ROPE), "different encoding"),
]  # fmt: skip
CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: LAYER(X[0]), r"must be \[batch, seq, hidden\]"),
    (lambda: LAYER(X.to_sparse()), "(?s)neither sparse nor nested.*document_ids"),
    (lambda: LAYER(torch.nested.nested_tensor([X[0], X[1, :2]], layout=torch.jagged)), "neither sparse nor nested"),
    (lambda: LAYER(X, attention_mask=torch.ones(2, 9).bool()), "`attention_mask` must be bool or integer"),
    (lambda: LAYER(X, document_ids=ONES), "`document_ids` must be integers"),
    (lambda: LAYER(X, document_ids=ONES.long(), cache=cache()), "packed documents do not support a"),
    (lambda: LENGTHS(X, seq_len=torch.tensor([6, 12])), "one number for all rows"),
    (lambda: LENGTHS(X, cache=cache(), seq_len=9), "not made for this layer's rope"),
    (lambda: LAYER(X, cache=cache(ropes=[HALF["dynamic"]], seq_len=9)), "not made for this layer's rope"),
    (lambda: make_layer(causal=False, dtype=torch.float32)(X, cache=cache()), "a cache needs causal attention"),
    (lambda: LAYER(X, cache=cache(num_layers=2)), "(?s)`layer` is required.*layer=i"),
    (lambda: LAYER(X, inputs=ForwardInputs(X, cache=cache(num_layers=2))), "`layer` is required"),
    (lambda: torch.func.jvp(lambda x: LAYER(x, cache=cache()), (X,), (X,)), "forward-mode differentiation would be"),
    *((lambda given=given: LAYER(X, inputs=INPUTS, **given), rf"already built, so `{name}` would be ignored")
      for name, given in (("attention_mask", {"attention_mask": ONES}), ("document_ids", {"document_ids": ONES.long()}),
                          ("position_ids", {"position_ids": torch.arange(5)}), ("seq_len", {"seq_len": 4}),
                          ("cache", {"cache": cache()}),
                          ("position_ids` and `seq_len", {"position_ids": torch.arange(5), "seq_len": 4}))),
    (lambda: LAYER(X, bias=torch.zeros(1, HEADS, 5, 5)), "`bias` requires `inputs`"),
    (lambda: LAYER(X[:, :3], inputs=INPUTS), "built for a different shape"),
    *((lambda layer=layer, ids=ids: layer(X, position_ids=ids), "Attention: `position_ids` must have one position for")
      for layer in (LAYER, *(attention(encoding=name) for name in ("alibi", "sinusoidal")))
      for ids in (torch.arange(4), torch.arange(6), torch.zeros(3, 5).long(), torch.zeros(1, 2, 5).long())),
    (lambda: attention(hidden_size=32, encoding="axial", causal=False)(torch.zeros(2, 6, 32)),
     "(?s)`position_ids` is required: .*grid_positions"),
    (lambda: make_layer(ReRoPE(4), torch.float32)(X, position_ids=torch.arange(5)), "computes positions itself"),
    (lambda: make_layer(ReRoPE(4), torch.float32)(X, cache=cache()), "not made for this layer's rope and extension"),
    (lambda: LAYER(X, cache=cache(extensions=[ReRoPE(4)])), "not made for this layer's rope and extension"),
    (lambda: cache().lay_out(3, 1), "the batch differs from the cache's"),
    (lambda: cache().write(1, *tokens(2), cache().lay_out(2, 2)), "`layer` must be a whole number from 0 to 0"),
    (lambda: cache().write(0, *tokens(3), cache().lay_out(2, 2)), r"keys must be \[batch, seq, kv_heads, head_dim\]"),
    (lambda: cache().lay_out(2, 2, attention_mask=torch.ones(2, 12)), "`attention_mask` must be bool or integer"),
    *((lambda length=length: cache().truncate(length), "`length` must be at least 0") for length in (-1, [1])),
    *((lambda rows=rows: cache().select(rows), "`rows` must be indices") for rows in ([3], torch.tensor([True] * 2))),
    (lambda: MODEL(torch.tensor([1, 2])), r"`input_ids` must be integers \[batch, seq\]"),
    (lambda: MODEL(torch.tensor([[0, 50]])), r"(?s)outside the vocabulary.*highest +50"),
    (lambda: MODEL(IDS, cache=MODEL.new_cache(), seq_len=9), "`seq_len` differs"),
    (lambda: ALIBI(IDS, position_ids=torch.rand(3)), "must be integers"),
    (lambda: ALIBI(IDS, position_ids=torch.arange(3), cache=ALIBI.new_cache()), "is its index in the row"),
    (lambda: make_decoder(encoding=encodings.LearnedAbsolute(2))(IDS), "no vector for this position"),
    (lambda: CLASSIFIER(torch.zeros(2, 0).long()), "without tokens"),
    (lambda: CLASSIFIER(torch.ones(2, 1).long(), attention_mask=torch.tensor([[1], [0]])), "without tokens"),
    (lambda: MUTE.encode("text"), "no tokenizer"),
    (lambda: CLASSIFIER.encode("  \n"), "text is empty"),
    *((lambda value=value: generate(MODEL, [[1]], temperature=value), "`temperature` must be a finite number")
      for value in (-1.0, torch.nan)),
    (lambda: generate(MODEL, [[1]], max_new_tokens=0), "`max_new_tokens` must be a whole number"),
    (lambda: generate(MODEL, [[1]], stop_tokens=[" "]), "`stop_tokens` must be token ids"),
    (lambda: generate(MODEL, [[1]], seq_len=0), "`seq_len` must be a whole number from 1"),
    (lambda: generate(make_decoder(rope=HALF["dynamic"]), [[1, 2]], max_new_tokens=20, seq_len=20),
     r"`seq_len` is less than prompt \+ max_new_tokens"),
    *((lambda prompts=prompts: generate(MODEL, prompts), "a prompt is empty")
      for prompts in ([[1], []], [], torch.zeros(0, dtype=torch.long))),
    (lambda: generate(MODEL, "hello"), "has no tokenizer"),
    *((lambda ids=ids: generate(MODEL, [ids]), "outside the vocabulary") for ids in ([1, 50], [-1, 1])),
    (lambda: generate(MODEL, torch.ones(1, 2)), "a tensor of integers"),
    *((lambda prompts=prompts: generate(MODEL, prompts), "prompts must be texts or lists")
      for prompts in (b"ab", [1.5], [[1.5]], [True], ["a", [1]])),
    (lambda: token_lists("", TextTokenizer(TextTokenizer.bytes().tokenizer), 257), "the prompt is empty"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), [*SETTINGS, *CALLS])
def test_it_is_named(call: Callable[[], Any], message: str) -> None:
    """By a message that names the argument or the rule."""
    with pytest.raises(rw.RopeError, match=message):
        call()


@pytest.mark.parametrize("rope", [HALF["dynamic"], replace(ROPE, scaling=LONG)], ids=["dynamic", "longrope"])
def test_outgrown_and_disagreeing_caches(rope: rw.RopeConfig) -> None:
    """seq_len is required, fixed, and not to be outgrown; a cache of another rope is refused, and none changes."""
    model = make_decoder(torch.float32, rope=rope)
    held = model.new_cache(seq_len=12)
    model(torch.ones(1, TRAINED).long(), cache=held)
    for call, message in (
        (lambda: model(IDS), "depend on the sequence length"),
        (lambda: model.new_cache(), "`seq_len` is required"),
        (lambda: model.layers[0](X), "depend on the sequence length"),
        (lambda: model(IDS, cache=held, seq_len=13), "`seq_len` differs"),
        (lambda: model(IDS, cache=held), "exceeds the `seq_len`"),
        (lambda: MODEL(IDS, cache=held), "made for a different rope"),
    ):
        with pytest.raises(rw.RopeError, match=message):
            call()
    assert held.lengths.tolist() == [TRAINED]


def test_positions_that_do_not_fit_leave_the_layer_as_it_was() -> None:
    """Both are set, or neither."""
    layer = make_layer(ReRoPE(window=4))
    rotary = layer.rotary
    for rope, extension in ((None, ReRoPE(4)), (None, DualChunk(3, 5)), (rw.RopeConfig(4, interleaved=False), None)):
        with pytest.raises(rw.RopeError):
            layer.set_positions(rope, extension)
        assert (layer.rotary, layer.extension) == (rotary, ReRoPE(window=4))
    layer.set_positions(None, None)
    assert (layer.rope, layer.extension) == (None, None)


def test_what_only_looks_wrong() -> None:
    """The least settings, a seq_len as a tensor, a length that no frequency depends on, and a long text."""
    for least in (ReRoPE(window=1, log_n=2), SelfExtend(group=1, window=1)):
        assert least == replace(least)
    assert cache(seq_len=torch.tensor(7)).seq_len == 7
    assert generate(MODEL, [[1, 2]], max_new_tokens=2, seq_len=1) == generate(MODEL, [[1, 2]], max_new_tokens=2)
    longer = {"max_new_tokens": 20, "seq_len": 21}  # the last token is not fed back
    assert len(generate(make_decoder(rope=HALF["dynamic"]), [[0, 49]], **longer)[0]) == 20
    assert CLASSIFIER.encode("x" * 100) == [ord("x")] * 40
    assert (labels(max_length=1).max_length, shape(norm_eps=0.0).norm_eps) == (1, 0.0)
    assert Extension.registry["ReRoPE"] is ReRoPE
