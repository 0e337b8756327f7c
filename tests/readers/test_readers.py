"""Both adapters of the protocol: the same weights give the same numbers, and the doctor runs on each."""

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
from ropewalk.readers.decoder import DecoderReader
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
    """Within 1e-4 nats at every token, under each method that both can be put under."""
    theirs, decoder = llama
    ours, reach = reader_of(decoder), Reach(32, 128)
    positions = METHODS[method].positions(theirs.positions, reach)
    assert positions == METHODS[method].positions(ours.positions, reach)
    ids = random_ids(128)
    one, other = (reader.under(positions).window_losses(ids, chunk=48) for reader in (theirs, ours))
    assert abs(one - other).max() < 1e-4


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
    libraries = [found.to_json()["environment"]["library"] for found in both]
    assert libraries[0].endswith("LlamaForCausalLM")
    assert libraries[1] == "ropewalk"
    with pytest.raises(RopeError, match="applies only to a live model"):
        rw.doctor("tiny", tokenizer=TextTokenizer.bytes())
    assert [audit.to_json() for audit in both[0].audits] == [audit.to_json() for audit in both[1].audits]


def test_prefixes_agree(llama: tuple[TransformersReader, Decoder]) -> None:
    """Continuations and the likeliest tokens after the same prefix."""
    theirs, decoder = llama
    prefixes = [reader.prefix(range(40), seq_len=64) for reader in (theirs, reader_of(decoder))]
    one, other = (prefix.log_probs([(5, 6, 7), (9,), (1, 2)]) for prefix in prefixes)
    assert one == pytest.approx(other, abs=1e-4)
    tops = [prefix.top(3) for prefix in prefixes]
    assert [token for token, _ in tops[0]] == [token for token, _ in tops[1]]
    (greedy,) = generate(decoder, list(range(40)), max_new_tokens=4)
    pairs = [(range(40), greedy), (range(40), [(greedy[0] + 1) % 96, *greedy[1:]]), ((3, 4), (5,))]
    likely = [reader.continuation_log_probs(pairs) for reader in (theirs, reader_of(decoder))]
    assert [total for total, _ in likely[0]] == pytest.approx([total for total, _ in likely[1]], abs=1e-4)
    assert [matches for _, matches in likely[0]] == [matches for _, matches in likely[1]]
    assert [matches for _, matches in likely[0]][:2] == [True, False]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_prefix_stays_as_it_was(dynamic: bool) -> None:
    """Asked twice it gives the same; read on it equals one that was read at once, and its fork does not move."""
    rope = dataclasses.replace(ROPE, scaling=DynamicNTK(1.0)) if dynamic else ROPE
    reader, ids = DecoderReader(tiny_decoder(rope)), random_ids(60).tolist()
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
        with pytest.raises(RopeError, match=f"no adapter supports this model[\\s\\S]*{type(other).__name__}"):
            reader_of(other)


def test_the_digest_tells_forms_apart() -> None:
    """Weights and positions count, the name does not."""
    model = tiny_decoder()
    reader = DecoderReader(model, "one")
    assert reader.digest() == DecoderReader(tiny_decoder(), "other").digest()
    assert reader.digest() != reader.under(METHODS["pi"].positions(reader.positions, Reach(16, 64))).digest()
    assert reader.trained_length == 16
    assert reader.cache_bytes(3) == 3 * 2 * 2 * 2 * 8 * 4
