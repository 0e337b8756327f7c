"""The reader against our own decoder with the same weights, and a decoder as a model to read."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import ropewalk as rw
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.diagnosis import Protocol
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.models.decoder import Decoder
from ropewalk.models.generation import generate
from ropewalk.readers.adapters import reader_of
from ropewalk.readers.reader import Reader
from ropewalk.readers.transformers import TransformersReader
from ropewalk.rope.scaling import DynamicNTK
from tests.diagnosis.models import ROPE, random_ids, tiny_decoder

METHODS_IN_COMMON = ["plain", "pi", "dynamic", "yarn", "self-extend", "rerope", "dca", "log-n", "drope"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[TransformersReader, Decoder]:
    """A small random Llama of transformers, and our Decoder of the same weights."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    decoder = rw.load(folder, dtype=torch.float32)
    decoder.tokenizer = TextTokenizer.bytes()
    return TransformersReader(model, TextTokenizer.bytes(), "llama"), decoder


@pytest.mark.parametrize("method", METHODS_IN_COMMON)
def test_window_losses_agree(llama: tuple[TransformersReader, Decoder], method: str) -> None:
    """Within 1e-4 nats at every token, under each method, with one forward of the decoder."""
    reader, decoder = llama
    assert reader.positions == decoder.config.positions
    positions, ids = METHODS[method].positions(reader.positions, Reach(32, 128)), random_ids(128)
    other = decoder.with_positions(rope=positions.ropes, extension=positions.extensions)
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(other(ids[None], seq_len=128)[0, :-1], ids[1:], reduction="none")
    assert abs(reader.under(positions).window_losses(ids, chunk=48) - wanted.numpy()).max() < 1e-4


def test_the_doctor_runs_on_either(llama: tuple[TransformersReader, Decoder], tmp_path: Any) -> None:
    """The same methods, the same numbers within 1e-4, and the same answer."""
    text = [("story", "It was the best of times, it was the worst of times. " * 12)]
    both = [
        rw.doctor(
            model,
            target=64,
            text=text,
            methods=["pi,yarn,crop"],
            protocol=Protocol(windows=2),
            state=tmp_path / str(index),
            **given,
        )
        for index, (model, given) in enumerate([(llama[0].model, {"tokenizer": TextTokenizer.bytes()}), (llama[1], {})])
    ]
    assert [list(one.measurement.results) for one in both] == [["plain", "crop", "yarn", "pi"]] * 2
    for name in both[0].measurement.results:
        one, other = (torch.tensor(found.measurement.block_means(name)) for found in both)
        assert float((one - other).abs().max()) < 1e-4
    assert both[0].verdict.action == both[1].verdict.action
    assert all(found.to_json()["environment"]["library"].endswith("LlamaForCausalLM") for found in both)
    with pytest.raises(RopeError, match="applies only to a live model"):
        rw.doctor("tiny", tokenizer=TextTokenizer.bytes())
    assert [audit.to_json() for audit in both[0].audits] == [audit.to_json() for audit in both[1].audits]


def test_a_greedy_continuation_is_the_decoders(llama: tuple[TransformersReader, Decoder]) -> None:
    """The likeliest token after a prefix, and whether a continuation is greedy."""
    reader, decoder = llama
    (greedy,) = generate(decoder, list(range(40)), max_new_tokens=4)
    assert reader.prefix(range(40), seq_len=64).top(1)[0][0] == greedy[0]
    pairs = [(range(40), greedy), (range(40), [(greedy[0] + 1) % 96, *greedy[1:]])]
    assert [matches for _, matches in reader.continuation_log_probs(pairs)] == [True, False]


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_decoder_is_read_as_transformers_llama(interleaved: bool) -> None:
    """With its own weights, half-split if they are interleaved; one that no config describes is refused."""
    rope = dataclasses.replace(ROPE, interleaved=interleaved, scaling=DynamicNTK(2.0))
    model, ids = tiny_decoder(rope), random_ids(40)
    reader: Any = reader_of(model)
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(model(ids[None], seq_len=40)[0, :-1], ids[1:], reduction="none")
    assert abs(reader.window_losses(ids, chunk=7) - wanted.numpy()).max() < 1e-4
    theirs = reader.model.model.layers[0].self_attn.v_proj.weight
    assert theirs.data_ptr() == model.layers[0].self_attn.v_proj.weight.data_ptr()
    for odd in ({"norm": "layernorm"}, {"rope": None}):
        with pytest.raises(RopeError, match="only decoders in Llama's layout"):
            reader_of(tiny_decoder(**odd))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_prefix_stays_as_it_was(dynamic: bool) -> None:
    """Asked twice it gives the same; read on it equals one that was read at once, and its fork does not move."""
    rope = dataclasses.replace(ROPE, scaling=DynamicNTK(1.0)) if dynamic else ROPE
    reader, ids = reader_of(tiny_decoder(rope)), random_ids(60).tolist()
    asked = [ids[50:53], ids[53:54], ids[54:59]]
    prefix = reader.prefix(ids[:30], seq_len=60, chunk=7)
    first, best = prefix.log_probs(asked), prefix.top(2)
    assert prefix.log_probs(asked) == first
    fork = prefix.fork()
    prefix.read(ids[30:50])
    assert (prefix.tokens, fork.tokens) == (50, 30)
    assert fork.log_probs(asked) == pytest.approx(first, abs=1e-6)
    assert fork.top(2) == best
    assert prefix.log_probs(asked) == pytest.approx(reader.prefix(ids[:50], seq_len=60).log_probs(asked), abs=1e-4)
    with pytest.raises(RopeError, match="no tokens to append"):
        reader.prefix([], seq_len=4)
    with pytest.raises(RopeError, match="empty continuation"):
        prefix.log_probs([[]])


def test_what_a_reader_is() -> None:
    """A Decoder becomes one, a reader stays one, anything else is refused with its type."""
    reader = reader_of(tiny_decoder(), "mine")
    assert isinstance(reader, Reader)
    assert reader.name == "mine"
    assert reader_of(reader) is reader
    for other in (torch.nn.Linear(2, 2), 3, None):
        with pytest.raises(RopeError, match=f"cannot be measured[\\s\\S]*{type(other).__name__}"):
            reader_of(other)


def test_the_digest_tells_forms_apart() -> None:
    """Weights and positions count, the name does not."""
    model = tiny_decoder()
    reader = reader_of(model, "one")
    assert reader.digest() == reader_of(tiny_decoder(), "other").digest()
    assert reader.digest() != reader.under(METHODS["pi"].positions(reader.positions, Reach(16, 64))).digest()
    assert reader.trained_length == 16
    assert reader.cache_bytes(3) == 3 * 2 * 2 * 2 * 8 * 4
