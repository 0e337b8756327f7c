"""The reader of any transformers model, against the model's own full forward."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from ropewalk.attachment import attach, attachment_of
from ropewalk.checkpoints.live_model import PreallocatedLayer, new_cache
from ropewalk.checkpoints.opening import reader_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES as FAMILY_TABLE
from ropewalk.families import Trained
from ropewalk.methods import METHODS, Reach
from ropewalk.tokenizer import TextTokenizer
from tests.checkpoints.prefixes import prefix_of
from tests.checkpoints.random_models import FAMILIES, random_model

CLOSE = 2e-5  # of float32 logits of up to 10; our kernel rounds tanh of a softcap a little differently


def ids_of(tokens: int) -> torch.Tensor:
    """int64 [tokens] below 256."""
    return torch.randint(3, 256, (tokens,), generator=torch.Generator().manual_seed(4))


@torch.no_grad()
def losses_of(model: Any, ids: torch.Tensor) -> Any:
    """Nats of every token but the first, by the model's own forward, in float64."""
    likely = model(ids[None], use_cache=False).logits[0].double().log_softmax(-1)
    return -likely[:-1].gather(-1, ids[1:, None])[:, 0].numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_give_the_losses_of_the_whole_forward(family: str) -> None:
    """Beyond the sliding window and the trained length, whatever the chunk."""
    model, ids = random_model(family), ids_of(50)
    reader, wanted = reader_of(model), losses_of(model, ids)
    assert reader._refused is None
    for chunk, first in ((7, 1), (50, 30), (16, 17)):
        assert abs(reader.window_losses(ids, first=first, chunk=chunk) - wanted[first - 1 :]).max() < CLOSE
    assert reader.positions.num_layers == 2
    assert reader.trained_length == 32


def test_the_cache_is_bounded() -> None:
    """A window's layers hold their window; a full layer holds what was asked for, and nothing twice."""
    reader = Reader(random_model("gemma3_text"))
    per_token = 2 * 2 * 8 * 4
    assert reader.cache_bytes(100) == per_token * (12 + 100)
    cache = new_cache(reader.model.config, 40)
    with torch.inference_mode():
        reader.live.hidden(ids_of(40)[None], cache, 0)
    assert [type(layer) is PreallocatedLayer for layer in cache.layers] == [False, True]
    assert cache.layers[1].keys.untyped_storage().nbytes() == 2 * 40 * 8 * 4
    assert cache.layers[0].keys.shape[-2] == 11


def test_what_it_says_of_itself() -> None:
    """Names, library, parameters, digest: weights and config count; the model is left as it was."""
    model = random_model("phi3")
    reader = Reader(model)
    assert reader.name == "Phi3ForCausalLM"
    assert reader.library.startswith("transformers 5")
    assert reader.library.endswith(", Phi3ForCausalLM")
    assert reader.parameters == model.num_parameters()
    before = reader.digest()
    assert Reader(random_model("phi3"), name="other").digest() == before
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    assert reader.digest() != before
    assert Reader(random_model("phi3", rms_norm_eps=1e-3)).digest() != before
    model.config.vocab_size *= 9  # more than the model has
    assert Reader(model).parameters == reader.parameters


def test_a_model_in_training_is_left_so() -> None:
    """It is read without dropout through a copy that shares its weights."""
    model, ids = random_model("phi3", resid_pdrop=0.5), ids_of(20)
    wanted = Reader(model).window_losses(ids)
    model.train()
    reader = Reader(model)
    assert abs(reader.window_losses(ids) - wanted).max() == 0
    assert model.training
    assert reader.model.lm_head.weight is model.lm_head.weight


def test_its_tokenizer() -> None:
    """Of transformers, of tokenizers or ours; the original keeps its truncation; one without a fast form is refused."""
    ours = TextTokenizer.bytes()
    fast = PreTrainedTokenizerFast(tokenizer_object=ours.tokenizer, eos_token="<|endoftext|>", truncation_side="left")
    fast.backend_tokenizer.enable_truncation(3)
    model = random_model("phi3")
    for given in (fast, ours, ours.tokenizer):
        reader = reader_of((model, given), "mine")
        assert reader.name == "mine"
        assert reader.tokenizer is not None
        assert reader.tokenizer.encode("A whale") == list(b"A whale")
        assert reader.tokenizer.eos_ids == (256,)
    assert fast.backend_tokenizer.truncation is not None
    with pytest.raises(RopeError, match="no fast form"):
        reader_of((model, object()))
    assert reader_of(model).tokenizer is None


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No causal language model; and no rotation that is known."""
    tiny = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    for model in (
        BertModel(BertConfig(**tiny)),
        T5ForConditionalGeneration(T5Config(d_model=16, num_layers=1, d_ff=8)),
    ):
        with pytest.raises(RopeError, match=r"only causal language models|no rotary embedding"):
            Reader(model)
    model = random_model("phi3")
    reader = Reader(model)
    monkeypatch.delitem(FAMILY_TABLE, "phi3")
    with pytest.raises(RopeError, match="never guessed"):
        Reader(model)
    with pytest.raises(RopeError, match="at least two"):
        reader.window_losses(ids_of(1))


def test_a_head_that_disagrees_is_noticed() -> None:
    """Logits that do not follow from the last hidden states alone: the check of six tokens refuses them."""
    model = random_model("phi3")
    own = type(model)

    class Odd(own):  # type: ignore[misc,valid-type]
        def forward(self, input_ids: Any = None, **given: Any) -> Any:
            out = super().forward(input_ids=input_ids, **given)
            out.logits = out.logits * (1.0 if input_ids is None else 1.5)
            return out

    model.__class__ = Odd
    with pytest.raises(RopeError, match="logits differ from its own forward"):
        Reader(model)


def test_methods_are_put_into_a_live_model() -> None:
    """Under a method the losses are those of a model whose config says it; the model itself stays as it was."""
    model, ids = random_model("gemma3_text"), ids_of(60)
    reader, reach = Reader(model), Reach(32, 128)
    plain = reader.window_losses(ids)
    under = reader.under(METHODS["yarn"].positions(reader.positions, reach))
    block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1_000_000.0}
    own = {"sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}, "full_attention": block}
    stated = random_model("gemma3_text", rope_parameters=own, max_position_embeddings=128)
    stated.load_state_dict(model.state_dict())
    wanted = losses_of(stated, ids)
    assert abs(under.window_losses(ids, chunk=16) - wanted).max() < CLOSE
    assert abs(wanted - plain).max() > 100 * CLOSE
    assert abs(reader.window_losses(ids) - plain).max() == 0
    assert reader.under(reader.positions) is reader
    known = reader.positions.mapped(lambda rope: replace(rope, trained=Trained(True)))
    assert {rope.trained for rope in reader.under(known).positions.present_ropes} == {Trained(True)}
    assert attachment_of(model) is None
    assert under.digest() != reader.digest()
    assert under.model.lm_head.weight is model.lm_head.weight


def test_frequencies_that_depend_on_the_length_are_those_of_the_window() -> None:
    """LongRoPE's short list and its long one, whatever the chunk, and from several threads at one time."""
    block = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 4.0, 5.0],
             "rope_theta": 10_000.0, "original_max_position_embeddings": 16, "factor": 2.0}  # fmt: skip
    model = random_model("phi3", rope_parameters=block, original_max_position_embeddings=16)
    reader, windows = Reader(model), [ids_of(12), ids_of(30)]
    wanted = [losses_of(model, ids) for ids in windows]
    assert reader.positions.needs_seq_len
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda ids: reader.window_losses(ids, chunk=5), windows * 6))
    assert max(abs(one - wanted[at % 2]).max() for at, one in enumerate(found)) < CLOSE
    short = reader.window_losses(windows[1], seq_len=12, chunk=5)
    assert abs(short - wanted[1]).max() > 100 * CLOSE


def test_a_model_whose_rotation_cannot_be_replaced_is_measured_as_it_is() -> None:
    """GPT-J's attention looks its tables up: plain works, and a method is refused with the reason."""
    shape = {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4, "max_position_embeddings": 64}
    reader = Reader(random_model("gptj", **shape))
    assert reader.under(METHODS["plain"].positions(reader.positions, Reach(64, 64))) is reader
    with pytest.raises(RopeError, match="only the unchanged model can be measured"):
        reader.under(METHODS["pi"].positions(reader.positions, Reach(64, 256)))


def test_an_attached_model_is_read_as_it_stands() -> None:
    """Its method is the reader's own positions."""
    model, ids = random_model("gemma3_text"), ids_of(40)
    with attach(model, "pi", target=128) as handle:
        reader = Reader(model)
        assert reader.positions == handle.positions
        wanted = losses_of(model, ids)
    assert abs(reader.window_losses(ids) - wanted).max() < CLOSE


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "gpt_oss", "mixtral"])
def test_methods_in_attention_are_the_same_whatever_the_chunk(family: str) -> None:
    """The model's own cache holds unrotated keys; with and without a window, sinks or a soft cap."""
    reader, ids = Reader(random_model(family)), ids_of(60)
    under = reader.under(METHODS["self-extend"].positions(reader.positions, Reach(32, 128)))
    whole = under.window_losses(ids, chunk=60)
    assert abs(under.window_losses(ids, chunk=13) - whole).max() < CLOSE
    assert abs(reader.window_losses(ids) - whole).max() > 100 * CLOSE
    prefix, asked = prefix_of(under, ids[:49].tolist(), seq_len=60, chunk=20), [([int(ids[49])], [ids[50:53].tolist()])]
    assert prefix.ask(asked)[0] == pytest.approx([-whole[49:52].sum()], abs=4 * CLOSE)
