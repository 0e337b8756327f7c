"""A classifier on a language model: its states are transformers' own, its pooling a loop's, and padding is unseen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from ropewalk import Decoder, RopeConfig, RopeError
from ropewalk.models.checkpoint_classifier import (
    CheckpointClassifier,
    CheckpointClassifierConfig,
    DecoderBody,
    encode,
    lengths_of,
    pool,
)
from ropewalk.models.config import DecoderConfig
from ropewalk.rope import scaling

LENGTHS = [7, 3, 1]


def decoder(**changes) -> Decoder:
    """Three layers, large enough in their weights that positions and order matter."""
    torch.manual_seed(0)
    rope = RopeConfig(head_dim=8, interleaved=False, max_position_embeddings=32)
    return Decoder(DecoderConfig(**{
        "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rope": rope, "initializer_range": 0.3,
    } | changes)).eval()  # fmt: skip


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Three texts, padded on the right with a token that is a real one elsewhere."""
    torch.manual_seed(1)
    return torch.randint(50, (3, 7)), torch.arange(7) < torch.tensor(LENGTHS)[:, None]


def classifier(body: nn.Module, pooling: str = "mean+last", layer: int = 2) -> CheckpointClassifier:
    """Random head and standardisation."""
    features = 32 * (1 + ("+" in pooling))
    config = CheckpointClassifierConfig(
        labels=("a", "b", "c"),
        layer=layer,
        pooling=pooling,
        max_length=9,
        features=features,
        checkpoint="x",
        digest="y",
    )
    model = CheckpointClassifier(config, body)
    with torch.no_grad():
        model.center.normal_()
        model.spread.uniform_(0.5, 2.0)
    return model.eval()


def test_the_states_of_a_layer_are_transformers_own(tmp_path) -> None:
    """Hidden states by transformers' Llama, through the final norm; the cut model gives the same."""
    from transformers import LlamaForCausalLM

    from ropewalk.checkpoints.load import save
    from ropewalk.readers.live.body import LiveBody

    model, (ids, mask) = decoder(), batch()
    save(model, tmp_path / "model")
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "model").eval()
    body, lengths = DecoderBody(model), mask.sum(1)
    with torch.no_grad():
        model.norm.weight.uniform_(0.5, 2.0)
        hidden = theirs.model(ids, attention_mask=mask.long(), output_hidden_states=True).hidden_states
        live = LiveBody(theirs).states(ids, lengths, [2, 1])
        for place, layer in enumerate((2, 1)):
            unit = hidden[layer] / hidden[layer].pow(2).mean(-1, keepdim=True).sqrt()
            both = body.states(ids, lengths, [2, 1])[place]
            [alone] = body.cut(layer).states(ids, lengths, [layer])
            torch.testing.assert_close(alone, both, atol=0, rtol=0)
            torch.testing.assert_close(both[mask], (unit * model.norm.weight)[mask], atol=2e-4, rtol=1e-3)
            torch.testing.assert_close(live[place][mask], unit[mask], atol=1e-5, rtol=1e-5)
    short = body.cut(2)
    assert len(short.decoder.layers) == short.decoder.config.num_hidden_layers == 2
    assert short.decoder.layers[1].mlp.up_proj.weight is model.layers[1].mlp.up_proj.weight
    assert len(model.layers) == 3
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("pooling", ["mean", "last", "mean+last"])
def test_logits_are_what_a_loop_gives(pooling: str) -> None:
    """One text at a time, pooled in float64 by numpy; padding and the other rows change nothing."""
    model, (ids, mask) = classifier(DecoderBody(decoder()), pooling), batch()
    with torch.no_grad():
        found = model(ids, attention_mask=mask)
        for row, length in enumerate(LENGTHS):
            short = model.body.cut(2).decoder
            states = short.hidden_states(ids[row : row + 1, :length])[0].double().numpy()
            parts = {"mean": [states.mean(0)], "last": [states[-1]], "mean+last": [states.mean(0), states[-1]]}
            x = (np.concatenate(parts[pooling]) - model.center.double().numpy()) / model.spread.double().numpy()
            wanted = model.classifier.weight.double().numpy() @ x + model.classifier.bias.double().numpy()
            np.testing.assert_allclose(found[row].double().numpy(), wanted, atol=1e-4)


def test_frequencies_that_depend_on_length_are_each_texts_own() -> None:
    """Dynamic NTK beyond its length: in a batch a short text has its own frequencies."""
    rope = RopeConfig(head_dim=8, interleaved=False, max_position_embeddings=4, scaling=scaling.DynamicNTK(factor=2.0))
    model, (ids, mask) = classifier(DecoderBody(decoder(rope=rope))), batch()
    with torch.no_grad():
        found = model(ids, attention_mask=mask)
        alone = torch.cat([model(ids[row : row + 1, :length]) for row, length in enumerate(LENGTHS)])
    torch.testing.assert_close(found, alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mask", [[[0, 1, 1]], [[1, 0, 1]], [[0, 0, 0]]])
def test_padding_elsewhere_is_refused(mask: list[list[int]]) -> None:
    """A causal model would see it."""
    with pytest.raises(RopeError, match="padded on the right"):
        lengths_of(torch.zeros(1, 3, dtype=torch.int64), torch.tensor(mask))


def test_what_is_padded_is_not_pooled() -> None:
    """Not even where it is not a number."""
    states = torch.tensor([[[1.0], [2.0], [float("nan")]]])
    assert pool(states, torch.tensor([2]), "mean+last").tolist() == [[1.5, 2.0]]


def test_bad_configs_and_texts_are_refused() -> None:
    """An unknown pooling, a model without a tokenizer, an empty text."""
    from ropewalk.checkpoints.tokenizer import TextTokenizer

    with pytest.raises(RopeError, match="unknown `pooling`"):
        classifier(DecoderBody(decoder()), "max")
    with pytest.raises(RopeError, match="no tokenizer"):
        encode(None, "a", 9)
    with pytest.raises(RopeError, match="the text is empty"):
        encode(TextTokenizer.bytes(), " ", 9)
    assert encode(TextTokenizer.bytes(), " abcd ", 3) == [97, 98, 99]
