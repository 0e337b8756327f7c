"""Arguments of a wrong type, for every public function and constructor of `layers`: `RopeError` names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk import encodings
from ropewalk.attention.masks import Branches
from ropewalk.models import training
from ropewalk.models.config import DecoderConfig, TextClassifierConfig
from ropewalk.rope.values import checked
from ropewalk.tokenizer import TextTokenizer

SIZES = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
CACHE = {"num_layers": 1, "batch": 1, "num_key_value_heads": 2, "head_dim": 4}
ROPE = rw.RopeConfig(4, interleaved=False)
MODEL = rw.Decoder(DecoderConfig(**SIZES))
CLASSIFIER = rw.TextClassifier(TextClassifierConfig(**SIZES, labels=("a", "b")))
LINE, BYTES, IDS = torch.nn.Linear(1, 1), TextTokenizer.bytes(), torch.tensor([[1, 2]])
CLASSIFIER.tokenizer = BYTES
DOCUMENTS = {"documents": [range(9)], "length": 3}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "Attention": (rw.Attention, {"hidden_size": 8, "num_attention_heads": 2}),
    "set_positions": (rw.Attention(8, 2).set_positions, {"rope": ROPE, "extension": None}),
    "Attention.forward": (rw.Attention(8, 2).forward, {"hidden_states": torch.ones(1, 2, 8)}),
    "KVCache": (rw.KVCache, CACHE),
    "truncate": (rw.KVCache(**CACHE).truncate, {"length": 1}),
    "select": (rw.KVCache(**CACHE).select, {"rows": [0]}),
    "lay_out": (rw.KVCache(**CACHE).lay_out, {"batch": 1, "seq": 1}),
    "DecoderConfig": (DecoderConfig, SIZES),
    "Decoder": (rw.Decoder, {"config": MODEL.config}),
    "Decoder.forward": (MODEL.forward, {"input_ids": IDS}),
    "new_cache": (MODEL.new_cache, {}),
    "with_positions": (MODEL.with_positions, {}),
    "generate": (rw.generate, {"model": MODEL, "prompts": [[1]], "max_new_tokens": 1}),
    "TextClassifierConfig": (TextClassifierConfig, {**SIZES, "labels": ("a", "b")}),
    "TextClassifier": (rw.TextClassifier, {"config": CLASSIFIER.config}),
    "TextClassifier.forward": (CLASSIFIER.forward, {"input_ids": IDS}),
    "encode": (CLASSIFIER.encode, {"text": "a"}),
    "TextTokenizer": (TextTokenizer, {"tokenizer": BYTES.tokenizer}),
    **{name: (getattr(BYTES, name), {"text": "a"}) for name in ("encode", "encode_prompt")},
    "decode": (BYTES.decode, {"ids": [97]}),
    "fit": (training.fit, {"model": LINE, "loss": lambda step: LINE(torch.ones(1)).sum(), "steps": 1}),
    "learning_rate": (training.learning_rate, {"step": 0, "peak": 1.0, "warmup": 1, "steps": 3, "final": 0.1}),
    "split_text": (training.split_text, {"text": "a", "fraction": 0.5}),
    "held_out_windows": (training.held_out_windows, {**DOCUMENTS, "limit": 2}),
    "TextWindows": (training.TextWindows, {**DOCUMENTS, "seed": 0}),
    "loss_by_position": (training.loss_by_position, {"model": MODEL, "windows": torch.ones(1, 3).long()}),
    "next_token_loss": (training.next_token_loss, {"model": MODEL, "batch": training.Batch(IDS, IDS)}),
    "Branches": (lambda parents: Branches(parents), {"parents": [-1]}),
    "resolve": (encodings.resolve, {"encoding": "alibi", "head_dim": 4}),
    **{name: (config, {}) for name, config in encodings.ENCODINGS.items()},
}
JUNK = [None, "dca", b"x", 3.5, object(), [1.0], {}, ["a"], float("nan"), True, -1, torch.ones(2), ROPE]


def refusal(function: Callable[..., Any], given: dict[str, Any]) -> str | None:
    """The message, or None if the call is accepted."""
    try:
        function(**given)
    except rw.RopeError as error:
        return str(error)
    return None


@pytest.mark.rejects
@pytest.mark.parametrize("name", CALLS)
def test_the_argument_is_named(name: str) -> None:
    """Each argument in turn; what fits is accepted, and `fit` may find a loss that is not finite."""
    function, given = CALLS[name]
    function(**given)
    for argument in inspect.signature(function).parameters:
        for value in JUNK:
            LINE.reset_parameters()
            found = refusal(function, {**given, argument: value})
            assert found is None or argument in found or "the loss is not finite" in found, (argument, value)


def test_a_checked_function_is_the_function() -> None:
    """Name, signature and defaults stay; a missing argument is Python's own error; the types are spelled out."""

    @checked
    def scaled(x: rw.RopeConfig | tuple[float, ...] | None, by: Unknown = 2) -> object:  # type: ignore[name-defined]
        return x, by

    assert str(inspect.signature(scaled)).startswith("(x: 'rw.RopeConfig")
    assert scaled(None) == (None, 2)
    with pytest.raises(rw.RopeError, match=r"scaled: `x` must be of type RopeConfig \| tuple\[float, \.\.\.\] \| None"):
        scaled("a")
    with pytest.raises(TypeError, match="missing"):
        scaled()
