"""Extensions in attention against their papers' relative positions, one query and key at a time, and in every use."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.attention import attend, extensions, remap
from ropewalk.attention.attention import Attention
from ropewalk.attention.extensions import (
    STRING,
    DroPE,
    DualChunk,
    Extension,
    JetLong,
    LaMPE,
    LogN,
    ReRoPE,
    SelfExtend,
    StreamingLLM,
)
from ropewalk.attention.forward_inputs import ForwardInputs
from ropewalk.encodings import ENCODINGS, NoPE, Places, Sizes
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.models.generate import generate
from ropewalk.rope.scaling import DynamicNTK, Linear, LongRoPE, YaRN
from tests.attention.oracle import turn

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
ROPE = rw.RopeConfig(head_dim=HEAD_DIM, interleaved=False)
DYNAMIC = replace(ROPE, scaling=DynamicNTK(1.0), max_position_embeddings=4)
EXTENSIONS: list[Extension] = [
    ReRoPE(window=5),
    ReRoPE(window=7, leak=0.25, log_n=9),
    SelfExtend(group=3, window=6),
    SelfExtend(group=4, window=5, log_n=6),
    DualChunk(chunk=6, trained_length=8),
    DualChunk(chunk=5, trained_length=16, log_n=7),
    StreamingLLM(window=6, sinks=3),
    StreamingLLM(window=9, sinks=0),
    STRING(shift=6, window=2),
    STRING(shift=5, window=5, scale=1.0),
    JetLong(group=3, window=4),
    LaMPE(window=4, mapped=7, length=19),
    LaMPE(window=5, mapped=30, length=11, scale=1.0),
    LogN(trained_length=5),
    DroPE(factor=4.0),
]
REMAPPING = [extension for extension in EXTENSIONS if extension.remaps]


def relative(extension: Extension, m: int, n: int) -> float | None:
    """The paper's relative position of a query at m and a key at n <= m; None where the key is not seen."""
    d = m - n
    match extension:
        case ReRoPE(window=w, leak=leak):
            return d if d < w else w + leak * (d - w)
        case SelfExtend(group=g, window=w):
            return d if d < w else m // g - n // g + w - w // g
        case STRING(shift=s, window=w):
            return d if d < s else d - s + w
        case JetLong(group=g, window=w):
            return d if d < w else m // g - n // g
        case LaMPE(window=w, mapped=mapped, length=length):
            place = [math.floor(i * mapped / (length - 1)) for i in range(max(m, w) + 1)]
            return d if d < w else place[m] - place[n] + w - (place[w] + 1)
        case DualChunk(chunk=s, trained_length=c):
            if m // s == n // s:
                return d
            within = min(s + m % s, c - 1) if m // s - n // s == 1 else c - 1
            return within - n % s
        case StreamingLLM(window=w, sinks=sinks):
            if d < w:
                return d
            # the paper's: positions within the cache, which holds the sinks and the last w tokens
            held = [*range(sinks), *range(max(sinks, m - w + 1), m + 1)]
            return held.index(m) - held.index(n) if n in held else None
    return d


def factor(extension: Extension, m: int) -> float:
    """What the logits of query m are multiplied by."""
    if isinstance(extension, DroPE):
        return 1 + 0.412 * math.log(extension.factor)
    if isinstance(extension, STRING | LaMPE):
        return extension.scale
    length = extension.trained_length if isinstance(extension, LogN) else getattr(extension, "log_n", None)
    return 1.0 if length is None else max(1.0, math.log(m + 1) / math.log(length))


def oracle(layer: Attention, x: np.ndarray, extension: Extension) -> np.ndarray:
    """Output `[seq, hidden]` of one row: each score formed alone, in float64 NumPy."""
    w = {name: value.detach().double().numpy() for name, value in layer.state_dict().items()}
    seq = len(x)
    q, k, v = ((x @ w[f"{name}_proj.weight"].T).reshape(seq, -1, HEAD_DIM) for name in "qkv")
    out = np.zeros((seq, HEADS, HEAD_DIM))
    for head in range(HEADS):
        group = head * KV_HEADS // HEADS
        for m in range(seq):
            scores = np.full(seq, -np.inf)
            for n in range(m + 1):
                d = relative(extension, m, n)
                if d is not None:
                    turned = turn(q[m, head], d, theta=10_000.0, rotary_dim=HEAD_DIM, interleaved=False)
                    scores[n] = turned @ k[n, group] / math.sqrt(HEAD_DIM) * factor(extension, m)
                    if layer.softcap is not None:
                        scores[n] = layer.softcap * math.tanh(scores[n] / layer.softcap)
            sink = w["sinks"][head] if "sinks" in w else -np.inf
            best = max(scores.max(), sink)
            share = np.exp(scores - best)
            out[m, head] = share @ v[:, group] / (share.sum() + np.exp(sink - best))
    return out.reshape(seq, -1) @ w["o_proj.weight"].T


def make_layer(extension: Extension, dtype: torch.dtype = torch.float64, **form: Any) -> Attention:
    torch.manual_seed(1)
    given = {"num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "rope": ROPE, **form}
    layer = Attention(24, HEADS, extension=extension, **given)
    for weight in layer.parameters():
        weight.data.mul_(3)
    if layer.sinks is not None:
        layer.sinks.data += torch.linspace(-1.0, 2.0, HEADS)
    return layer.to(dtype).eval()


def make_model(extension: Extension | None, layers: int = 3) -> Decoder:
    torch.manual_seed(2)
    config = DecoderConfig(
        vocab_size=50, hidden_size=24, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, rope=ROPE, extension=extension,
    )  # fmt: skip
    model = Decoder(config).double().eval()
    for weight in model.parameters():
        weight.data.mul_(5)
    return model


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of a few queries, so that short rows have several."""
    monkeypatch.setattr(remap, "BLOCK", 8)
    monkeypatch.setattr(attend, "OPEN_BLOCK", 5)


@pytest.mark.parametrize("extension", EXTENSIONS, ids=repr)
@pytest.mark.parametrize("grad", [False, True], ids=["fused", "open"])
def test_it_is_the_papers_relative_position(extension, grad):
    """Every score against the formula, by the fused passes and written out."""
    layer, x = make_layer(extension), torch.randn(1, 37, 24, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        found = layer(x)[0].detach()
    np.testing.assert_allclose(found, oracle(layer, x[0].numpy(), extension), atol=1e-12, rtol=0)


@pytest.mark.parametrize("extension", EXTENSIONS, ids=repr)
@pytest.mark.parametrize("form", [{"softcap": 1.5}, {"sinks": True}, {"softcap": 2.0, "sinks": True}], ids=str)
def test_softcap_and_sinks(extension: Extension, form: dict[str, Any]) -> None:
    """With a rule for logits beside it: written out with and without weights, and from a cache."""
    layer, x = make_layer(extension, **form), torch.randn(1, 37, 24, dtype=torch.float64)
    wanted = oracle(layer, x[0].numpy(), extension)
    cache = rw.KVCache(
        num_layers=1, batch=1, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, dtype=x.dtype, extensions=[extension],
        rotated=not extension.remaps,
    )  # fmt: skip
    with torch.no_grad():
        parts = [layer(x[:, begin:end], cache=cache) for begin, end in ((0, 9), (9, 10), (10, 37))]
        for found in (layer(x), layer(x, need_weights=True)[0], torch.cat(parts, 1)):
            np.testing.assert_allclose(found[0], wanted, atol=1e-12, rtol=0)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from([ReRoPE, SelfExtend, DualChunk, StreamingLLM]),
    a=st.integers(1, 20),
    b=st.integers(1, 12),
    seq=st.integers(1, 33),
)
def test_any_sizes(kind: Callable[..., Extension], a: int, b: int, seq: int):
    """Windows longer than the row, groups longer than the window, chunks of one token."""
    made: dict[object, Extension] = {
        ReRoPE: ReRoPE(window=a, leak=1 / b),
        SelfExtend: SelfExtend(group=b, window=a),
        DualChunk: DualChunk(chunk=a, trained_length=a + b),
        StreamingLLM: StreamingLLM(window=a, sinks=b),
    }
    layer, x = make_layer(made[kind]), torch.randn(1, seq, 24, dtype=torch.float64)
    with torch.no_grad():
        found = layer(x)[0]
    np.testing.assert_allclose(found, oracle(layer, x[0].numpy(), made[kind]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("extension", [*EXTENSIONS, None], ids=repr)
def test_token_by_token_is_the_full_forward(extension):
    """Law 9: across every window's and chunk's edge, in one step, in lots, and one by one."""
    model, ids = make_model(extension), torch.randint(0, 50, (2, 41))
    with torch.no_grad():
        full = model(ids)
        for cuts in ([41], [13, 14, 30, 41], list(range(1, 42))):
            cache, parts, start = model.new_cache(2, rotated=False if extension is None else None), [], 0
            cache.step = 7  # so that the room grows, and the tables of its slots with it
            for end in cuts:
                parts.append(model(ids[:, start:end], cache=cache))
                start = end
            torch.testing.assert_close(torch.cat(parts, 1), full, atol=1e-11, rtol=0)


@pytest.mark.parametrize("extension", EXTENSIONS, ids=repr)
def test_rows_of_unequal_length_are_each_their_own(extension):
    """Left-padded, right-padded, in a ragged cache, and packed: each row as if it were alone."""
    model = make_model(extension)
    rows = [torch.randint(0, 50, (1, length)) for length in (29, 11, 20)]
    with torch.no_grad():
        alone = [model(row)[0] for row in rows]
        for left in (True, False):
            ids, mask = torch.zeros(3, 29, dtype=torch.long), torch.zeros(3, 29, dtype=torch.long)
            for at, row in enumerate(rows):
                where = slice(29 - row.shape[1], None) if left else slice(0, row.shape[1])
                ids[at, where], mask[at, where] = row[0], 1
            together = model(ids, attention_mask=mask)
            cache = model.new_cache(3)
            cached = torch.cat(
                [model(ids[:, a:b], attention_mask=mask[:, a:b], cache=cache) for a, b in ((0, 17), (17, 29))], 1
            )
            for at, want in enumerate(alone):
                torch.testing.assert_close(together[at][mask[at].bool()], want, atol=1e-11, rtol=0)
                torch.testing.assert_close(cached[at][mask[at].bool()], want, atol=1e-11, rtol=0)
        documents = torch.cat([torch.full_like(row, at) for at, row in enumerate(rows)], 1)
        packed = model(torch.cat(rows, 1), document_ids=documents)[0]
        torch.testing.assert_close(packed, torch.cat(alone), atol=1e-11, rtol=0)


def test_weights_are_shown():
    """need_weights gives the same output and rows that sum to one."""
    layer, x = make_layer(DualChunk(chunk=6, trained_length=8)), torch.randn(2, 21, 24, dtype=torch.float64)
    with torch.no_grad():
        out, weights = layer(x, need_weights=True)
        torch.testing.assert_close(out, layer(x), atol=1e-12, rtol=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 21, dtype=torch.float64))


def test_gradients_flow():
    """The open form is differentiable: against finite differences."""
    layer = make_layer(SelfExtend(group=2, window=3))
    x = torch.randn(1, 7, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


def test_a_scaled_rope_keeps_its_attention_factor():
    """YaRN's factor reaches every region, also the one whose keys are not rotated."""
    rope = replace(ROPE, scaling=YaRN(4.0, 16))
    layer = Attention(24, HEADS, head_dim=HEAD_DIM, rope=rope, extension=ReRoPE(window=4)).double().eval()
    plain = Attention(24, HEADS, head_dim=HEAD_DIM, rope=rope).double().eval()
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(1, 4, 24, dtype=torch.float64)
    with torch.no_grad():  # within the window it is the plain rope
        torch.testing.assert_close(layer(x), plain(x), atol=1e-13, rtol=0)
        longer = torch.randn(1, 12, 24, dtype=torch.float64)
        fused = layer(longer)
    torch.testing.assert_close(fused, layer(longer).detach(), atol=1e-13, rtol=0)
    weights = layer(longer, need_weights=True)[1][0, :, 11, 0].log()
    near = layer(longer, need_weights=True)[1][0, :, 11, 1].log()
    q, k = (m(longer).view(12, HEADS, HEAD_DIM) for m in (layer.q_proj, layer.k_proj))
    turned = layer.rotary.rotate(q[None, 11:], position_ids=torch.tensor([4]))[0, 0]
    scale = rope_factor = layer.rotary.attention_factor_at(None)
    want = ((turned * (k[0] - k[1])).sum(-1) * scale / math.sqrt(HEAD_DIM)).detach()
    assert rope_factor > 1
    torch.testing.assert_close((weights - near).detach(), want, atol=1e-12, rtol=0)


def test_dropped_tokens_leave_keys_as_if_computed_afresh():
    """After a thousand drops a layer gives what it gives for the tokens that stayed, within 1e-6 in float32."""
    torch.manual_seed(4)
    layer = Attention(24, HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, rope=ROPE).eval()
    cache = rw.KVCache(num_layers=1, batch=1, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, rotated=False)
    tokens = torch.randn(1, 4000, 24)
    stayed: list[int] = []
    with torch.no_grad():
        for step in range(1000):
            new = list(range(4 * step, 4 * step + 4))
            found = layer(tokens[:, new], cache=cache)
            stayed += new
            if step % 100 == 99:
                torch.testing.assert_close(found, layer(tokens[:, stayed])[:, -4:], atol=1e-6, rtol=0)
            if len(stayed) > 300:
                cache.drop(5, sinks=2)
                del stayed[2:7]
    assert cache.lengths.tolist() == [len(stayed)]


def test_a_stream_that_forgets_is_the_stream_that_remembers():
    """Dropping what StreamingLLM does not see changes nothing, in any layer, row by row."""
    streaming = StreamingLLM(window=6, sinks=3)
    model, ids = make_model(streaming), torch.randint(0, 50, (2, 40))
    with torch.no_grad():
        full, cache, parts = model(ids), model.new_cache(2), []
        for step in range(40):
            parts.append(model(ids[:, step : step + 1], cache=cache))
            if step % 3 == 0:
                held = int(cache.lengths[0])
                cache.drop(max(0, held - streaming.retained.total), sinks=3)
        torch.testing.assert_close(torch.cat(parts, 1), full, atol=1e-11, rtol=0)
    assert cache.capacity <= 256


def test_generation_streams_in_bounded_memory(monkeypatch):
    """Greedy tokens are those of the full forward, and the cache never holds more than its lot."""
    from ropewalk.models import generate as module

    monkeypatch.setattr(module, "_FORGET", 4)
    monkeypatch.setattr(module, "_PREFILL", 10)
    model = make_model(StreamingLLM(window=6, sinks=3))
    longest: list[int] = []
    drop = rw.KVCache.drop
    monkeypatch.setattr(
        rw.KVCache, "drop", lambda self, *a, **k: (longest.append(int(self.lengths.max())), drop(self, *a, **k))[1]
    )
    prompt = torch.randint(0, 50, (1, 33)).tolist()[0]
    out = list(prompt)
    with torch.no_grad():
        for _ in range(30):
            out.append(int(model(torch.tensor([out]))[0, -1].argmax()))
    assert generate(model, [prompt], max_new_tokens=30, temperature=0.0)[0][-30:] == out[-30:]
    assert longest
    assert max(longest) <= 9 + 10


@pytest.mark.parametrize("before", [*EXTENSIONS, None], ids=repr)
def test_a_cache_of_another_extension_is_refused(before):
    """What a layer gave under one is in the keys and values of the next: no other goes on, nor does the plain model."""
    ids, base = torch.randint(0, 50, (1, 9)), make_model(None)
    cache = base.with_positions(extension=before).new_cache(rotated=False)
    with torch.no_grad():
        base.with_positions(extension=before)(ids, cache=cache)
        for after in [*EXTENSIONS, None]:
            if after != before:
                with pytest.raises(rw.RopeError, match="under another extension"):
                    base.with_positions(extension=after)(ids[:, :1], cache=cache)
        equal = None if before is None else replace(before)  # the same settings are the same extension
        base.with_positions(extension=equal)(ids[:, :1], cache=cache)
    assert cache.lengths.tolist() == [10]


def test_a_cache_knows_the_extension_of_each_layer():
    """One layer's difference is enough; copies of rows are for the same extensions and ropes alone."""
    base, ids = make_model(None), torch.randint(0, 50, (1, 5))
    mixed = base.with_positions(extension=(None, SelfExtend(group=2, window=4), None))
    cache = mixed.new_cache(2)
    assert cache.extensions == (None, SelfExtend(group=2, window=4), None)
    with pytest.raises(rw.RopeError, match="under another extension"):
        base.with_positions(extension=(None, SelfExtend(group=2, window=5), None))(ids.expand(2, -1), cache=cache)
    for other in (
        base.new_cache(rotated=False),
        base.with_positions(extension=SelfExtend(group=2, window=4)).new_cache(),
        mixed.with_positions(rope=replace(ROPE, theta=20.0)).new_cache(),
    ):
        with pytest.raises(rw.RopeError, match="different models"):
            cache.replace([0], other)
    fresh = mixed.new_cache()
    with torch.no_grad():
        mixed(ids, cache=fresh)
    cache.replace([1], fresh)
    assert cache.lengths.tolist() == [0, 5]


def test_a_layer_alone_asks_for_its_extension():
    """A cache made by hand names them; without names it is for layers without any."""
    sizes = {"num_layers": 1, "batch": 1, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "rotated": False}
    x = torch.randn(1, 3, 24)
    layer, plain = make_layer(ReRoPE(window=4), torch.float32), make_layer(LogN(trained_length=9), torch.float32)
    plain.set_extension(None)
    named, unnamed = rw.KVCache(**sizes, extensions=[ReRoPE(window=4)]), rw.KVCache(**sizes)
    with torch.no_grad():
        layer(x, cache=named)
        plain(x, cache=unnamed)
        for one, cache in ((layer, unnamed), (plain, named)):
            with pytest.raises(rw.RopeError, match="not made for this layer's extension"):
                one(x, cache=cache)
        with pytest.raises(rw.RopeError, match="no such layer"):
            plain(x, cache=unnamed, layer=1)
    with pytest.raises(rw.RopeError, match="one entry per layer"):
        rw.KVCache(**sizes, extensions=[None, None])


@pytest.mark.parametrize("extension", EXTENSIONS, ids=repr)
def test_generation_is_the_full_forward(extension):
    """Greedy decoding of unequal rows under each."""
    model = make_model(extension)
    prompts = [torch.randint(0, 50, (n,)).tolist() for n in (17, 5)]
    found = generate(model, prompts, max_new_tokens=12, temperature=0.0)
    for prompt, tokens in zip(prompts, found, strict=True):
        want = list(prompt)
        with torch.no_grad():
            for _ in range(12):
                want.append(int(model(torch.tensor([want]))[0, -1].argmax()))
        assert tokens[-12:] == want[-12:]


def test_saved_and_loaded(tmp_path):
    """A config with an extension goes through a file of our own form."""
    model = make_model(None).with_positions(extension=(None, SelfExtend(group=2, window=4), LogN(trained_length=9)))
    rw.save(model, tmp_path / "m")
    back = rw.load(tmp_path / "m", dtype=torch.float64)
    assert back.config == model.config
    ids = torch.randint(0, 50, (1, 20))
    with torch.no_grad():
        torch.testing.assert_close(back(ids), model(ids))


RULE_FILE = """
from dataclasses import dataclass

import torch

from ropewalk.attention.extensions.base import Extension, Retained, near_and_far


@dataclass(frozen=True)
class Halved(Extension):
    window: int

    @property
    def retained(self):
        return Retained(0, self.window)

    def regions(self):
        near, _ = near_and_far(self.window)
        return (near._replace(query=lambda m: m / 2, key=lambda n: n / 2),)
"""


def test_a_rule_is_one_file(tmp_path, monkeypatch):
    """A file in the folder is found; models, saved configs and generation know its rule without another line."""
    (tmp_path / "halved.py").write_text(RULE_FILE)
    monkeypatch.setattr(extensions, "__path__", [*extensions.__path__, str(tmp_path)])
    monkeypatch.setattr(Extension, "registry", dict(Extension.registry))
    extensions.discover()
    rule = extensions.Halved(window=7)
    model = make_model(None).with_positions(extension=rule)
    rw.save(model, tmp_path / "m")
    assert rw.load(tmp_path / "m", dtype=torch.float64).config.extension == rule
    assert model.config.retained == extensions.Retained(0, 7)
    assert rw.load(tmp_path / "m", dtype=torch.float64).config.retained.total == 7
    ids = torch.randint(0, 50, (1, 5))
    slower = model.with_positions(rope=replace(ROPE, scaling=Linear(2.0)), extension=None)
    with torch.no_grad():
        torch.testing.assert_close(model(ids), slower(ids), atol=1e-12, rtol=0)
    assert model.with_positions(extension=(rule, rule, None)).config.retained is None
    del extensions.Halved, sys.modules["ropewalk.attention.extensions.halved"]


@pytest.mark.rejects
def test_a_name_is_taken_once():
    """A second rule of one name would be read in place of the first."""
    with pytest.raises(rw.RopeError, match="an extension of this name already"):
        type("ReRoPE", (Extension,), {"__module__": "elsewhere"})
    assert Extension.registry["ReRoPE"] is ReRoPE
    with pytest.raises(AttributeError, match="no attribute 'Unknown'"):
        _ = extensions.Unknown


def test_layers_that_cannot_take_it_stay():
    """A layer without a rope or with a sliding window keeps what it has."""
    config = replace(make_model(None).config, rope=(ROPE, None, ROPE), sliding_window=(None, None, 4))
    extended = Decoder(config).with_positions(extension=ReRoPE(window=3))
    assert extended.config.extensions == (ReRoPE(window=3), None, None)
    assert extended.new_cache().rotated is False
    with pytest.raises(rw.RopeError, match="no layer"):
        Decoder(replace(config, rope=None, sliding_window=None)).with_positions(extension=ReRoPE(window=3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReRoPE(window=0),
        lambda: ReRoPE(window=4, leak=1.5),
        lambda: ReRoPE(window=4, log_n=1),
        lambda: SelfExtend(group=0, window=4),
        lambda: DualChunk(chunk=8, trained_length=8),
        lambda: StreamingLLM(window=True),
        lambda: StreamingLLM(window=3, sinks=-1),
        lambda: LogN(trained_length=1),
        lambda: DroPE(factor=0.5),
        lambda: DroPE(factor=math.nan),
    ],
)
@pytest.mark.rejects
def test_impossible_settings_are_refused(make):
    """Each with its own message."""
    with pytest.raises(rw.RopeError):
        make()


@pytest.mark.rejects
def test_impossible_uses_are_refused():
    """A cache of rotated keys, positions of one's own, both ways at once, lengths for another number of rows."""
    model, ids = make_model(ReRoPE(window=4)), torch.randint(0, 50, (2, 6))
    with pytest.raises(rw.RopeError, match="unrotated"):
        model(ids, cache=model.new_cache(2, rotated=True))
    with pytest.raises(rw.RopeError, match="counts each row's tokens itself"):
        model(ids, position_ids=torch.arange(6))
    with pytest.raises(rw.RopeError, match="causal"):
        Attention(32, HEADS, rope=ROPE, causal=False, extension=ReRoPE(window=4))
    with pytest.raises(rw.RopeError, match="one entry for each row"):
        model.with_positions(rope=DYNAMIC)(ids, seq_len=torch.tensor([6, 12, 18]))
    with pytest.raises(rw.RopeError, match="cannot go alone"):
        model.with_positions(rope=None)
    layer, x = make_layer(ReRoPE(window=4)), torch.zeros(1, 6, 24, dtype=torch.float64)
    with pytest.raises(rw.RopeError, match="would be ignored"):
        layer(x, inputs=ForwardInputs.of(x), position_ids=torch.arange(6))


@pytest.mark.rejects
def test_positions_that_do_not_fit_leave_the_layer_as_it_was() -> None:
    """Both are set, or neither."""
    layer = make_layer(ReRoPE(window=4))
    rotary = layer.rotary
    for rope, extension in ((None, ReRoPE(window=4)), (None, DualChunk(chunk=3, trained_length=5)),
                            (rw.RopeConfig(4, interleaved=False), None)):  # fmt: skip
        with pytest.raises(rw.RopeError):
            layer.set_positions(rope, extension)
        assert (layer.rotary, layer.extension) == (rotary, ReRoPE(window=4))
    layer.set_positions(None, None)
    assert (layer.rope, layer.extension) == (None, None)


def test_ready_inputs_are_as_the_arguments() -> None:
    """Under an extension too: what it remaps is not rotated by the rope's own tables as well."""
    for extension in EXTENSIONS:
        layer, x = make_layer(extension), torch.randn(1, 19, 24, dtype=torch.float64)
        assert torch.equal(layer(x, inputs=ForwardInputs.of(x)), layer(x))


@pytest.mark.parametrize("extension", [LogN(trained_length=5), DroPE(factor=2.0)], ids=repr)
def test_what_remaps_nothing_takes_a_length_for_each_row(extension):
    """Frequencies may follow each row's own length, in a forward and in generation."""
    model = make_model(None).with_positions(rope=DYNAMIC).with_positions(extension=extension)
    ids, lengths = torch.randint(0, 50, (2, 12)), torch.tensor([12, 30])
    with torch.no_grad():
        both = model(ids, seq_len=lengths)
        for row, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(both[row : row + 1], model(ids[row : row + 1], seq_len=length))
    assert len(generate(model, [[1, 2, 3], [4, 5]], max_new_tokens=4, temperature=0.0)) == 2


BY_LENGTH = {
    "dynamic": DYNAMIC,
    "longrope": replace(ROPE, scaling=LongRoPE((1.0, 1.1, 1.2, 1.3), (1.0, 2.0, 3.0, 4.0), 16, factor=4.0)),
    "two factors": replace(
        ROPE, scaling=LongRoPE((1.0,) * 4, (1.0, 2.0, 3.0, 4.0), 16, short_mscale=1.1, long_mscale=1.3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", BY_LENGTH)
@pytest.mark.parametrize("extension", [*REMAPPING, "mixed"], ids=repr)
def test_each_row_has_its_own_length(extension, rule):
    """Frequencies follow each row's own length under remapped positions: padded, in a cache, row by row."""
    of_layers = (extension,) * 3 if extension != "mixed" else (None, DualChunk(chunk=6, trained_length=8), ReRoPE(5))
    model = make_model(None).with_positions(rope=BY_LENGTH[rule], extension=of_layers)
    rows, lengths = [torch.randint(0, 50, (1, length)) for length in (24, 10, 15)], torch.tensor([40, 12, 24])
    with torch.no_grad():
        alone = [model(row, seq_len=int(n))[0] for row, n in zip(rows, lengths, strict=True)]
        ids, mask = torch.zeros(3, 24, dtype=torch.long), torch.zeros(3, 24, dtype=torch.long)
        for at, row in enumerate(rows):
            ids[at, : row.shape[1]], mask[at, : row.shape[1]] = row[0], 1
        together = model(ids, attention_mask=mask, seq_len=lengths)
        cache, parts = model.new_cache(3, seq_len=lengths), []
        cache.step = 7
        for a, b in ((0, 9), (9, 10), (10, 24)):
            parts.append(model(ids[:, a:b], attention_mask=mask[:, a:b], cache=cache))
        cached = torch.cat(parts, 1)
        for at, want in enumerate(alone):
            real = mask[at].bool()
            torch.testing.assert_close(together[at][real], want, atol=1e-11, rtol=0)
            torch.testing.assert_close(cached[at][real], want, atol=1e-11, rtol=0)
        cache.select([2, 0])  # the tables of its slots follow the rows
        more = model(torch.tensor([[7], [8]]), cache=cache)
        for at, (row, new) in enumerate(((2, 7), (0, 8))):
            whole = torch.cat([rows[row], torch.tensor([[new]])], 1)
            torch.testing.assert_close(more[at, 0], model(whole, seq_len=int(lengths[row]))[0, -1], atol=1e-11, rtol=0)
        assert (model(ids, attention_mask=mask, seq_len=40)[1] - together[1]).abs().max() > 1e-3


@pytest.mark.parametrize("rule", ["dynamic", "longrope"])
def test_generation_gives_each_row_its_own_length(rule):
    """Prompts of unequal length under dual chunk attention: each row as it is alone, across LongRoPE's switch."""
    model = make_model(None).with_positions(rope=BY_LENGTH[rule], extension=DualChunk(chunk=6, trained_length=8))
    prompts = [torch.randint(0, 50, (length,)).tolist() for length in (20, 4, 12)]
    together = generate(model, prompts, max_new_tokens=8, temperature=0.0)
    assert together == [generate(model, [prompt], max_new_tokens=8, temperature=0.0)[0] for prompt in prompts]


def test_rows_that_agree_on_a_length_have_one():
    """A tensor of equal lengths is as good as an int."""
    model, ids = make_model(ReRoPE(window=4)).with_positions(rope=DYNAMIC), torch.randint(0, 50, (2, 12))
    with torch.no_grad():
        torch.testing.assert_close(model(ids, seq_len=torch.tensor([20, 20])), model(ids, seq_len=20))


@pytest.mark.traced
@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="torch 2.11 does not see min(8 n, 16 n) = 8 n")
@pytest.mark.parametrize(
    "extension",
    [
        # one of each class but DroPE, which is a scale alone
        pytest.param(each, marks=[pytest.mark.thorough] * (type(each) is type(before) or isinstance(each, DroPE)))
        for before, each in zip([None, *EXTENSIONS], EXTENSIONS, strict=False)
    ],
    ids=repr,
)
def test_one_graph_serves_every_length(extension):
    """Export with the length left open; the graph computes what the eager layer does."""
    layer = make_layer(extension, torch.float32)
    example = torch.randn(1, 12, 24)
    seq = torch.export.Dim("seq", min=2, max=64)
    exported = torch.export.export(layer, (example,), dynamic_shapes={"hidden_states": {1: seq}})
    for length in (5, 12, 40):
        x = torch.randn(1, length, 24)
        with torch.no_grad():
            torch.testing.assert_close(exported.module()(x), layer(x), atol=1e-5, rtol=1e-5)


@pytest.mark.traced
@pytest.mark.parametrize(
    "extension",
    [
        pytest.param(each, marks=[pytest.mark.thorough] * (type(each) is type(before) or isinstance(each, DroPE)))
        for before, each in zip([None, *EXTENSIONS], EXTENSIONS, strict=False)
    ],
    ids=repr,
)
def test_a_compiler_finds_no_break(extension):
    """One graph computes what the eager layer does."""
    torch.compiler.reset()
    layer, x = make_layer(extension, torch.float32), torch.randn(2, 20, 24)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=1e-5)


@pytest.mark.traced
@pytest.mark.thorough
@pytest.mark.parametrize("extension", [None, *EXTENSIONS], ids=repr)
def test_compiled_decoding(extension):
    """One graph for a prefill and one for each token after it, from a static cache: what the eager model gives."""
    torch.compiler.reset()
    model, ids = make_model(extension, layers=1), torch.randint(0, 50, (2, 20))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        cache = model.new_cache(2, capacity=24, static=True)
        compiled(ids[:, :18], cache=cache)
        last = [compiled(ids[:, at : at + 1], cache=cache) for at in (18, 19)]
    torch.testing.assert_close(torch.cat(last, 1), model(ids)[:, -2:], atol=1e-9, rtol=1e-9)


@pytest.mark.rejects
def test_impossible_drops_are_refused():
    """A cache of rotated keys, too many tokens, negative counts, a wrong number of rows."""
    model = make_model(None)
    rotated, cache = model.new_cache(2), model.new_cache(2, rotated=False)
    with torch.no_grad():
        model(torch.randint(0, 50, (2, 6)), cache=cache)
    with pytest.raises(rw.RopeError, match="rotated by the positions"):
        rotated.drop(0)
    for count, sinks in ((7, 0), (3, 4), (-1, 0), ([1, 2, 3], 0), (1.5, 0), (1, -1)):
        with pytest.raises(rw.RopeError, match="drop"):
            cache.drop(count, sinks=sinks)
    cache.drop([2, 0], sinks=1)
    assert cache.lengths.tolist() == [4, 6]
    with pytest.raises(rw.RopeError, match="different models"):
        cache.replace([0], model.new_cache(1))


@pytest.mark.parametrize("extension", [LogN(trained_length=9), DroPE(factor=2.0)], ids=repr)
def test_logits_with_a_bias_are_not_scaled(extension):
    """A scale is defined for q.k alone: encodings that add to scores refuse it, however it comes; others take it."""
    config = replace(make_model(None).config, rope=None)
    for name in ENCODINGS:
        coded, places = replace(config, encoding=name), Places(torch.arange(3), torch.arange(3))
        model = Decoder(coded)
        layer = model.layers[0].self_attn
        adds = (model.encoding or layer.encoding or NoPE().build(Sizes(24, HEADS, HEAD_DIM))).biased(
            torch.zeros(1, 3, 4, 8), places
        )[1]
        if adds is None:
            model.with_positions(extension=extension)
            continue
        for made in (
            lambda coded=coded: Decoder(replace(coded, extension=extension)),
            lambda model=model: model.with_positions(extension=extension),
            lambda layer=layer: layer.set_extension(extension),
            lambda name=name: Attention(24, HEADS, head_dim=HEAD_DIM, encoding=name, extension=extension),
        ):
            with pytest.raises(rw.RopeError, match="adds to scores"):
                made()


@pytest.mark.parametrize("extension", REMAPPING, ids=repr)
def test_encodings_refuse_remapped_positions(extension):
    """There is no rope whose positions could be remapped."""
    config = replace(make_model(None).config, rope=None)
    for name in ENCODINGS:
        with pytest.raises(rw.RopeError, match="remaps the positions of causal attention with a rope"):
            Decoder(replace(config, encoding=name, extension=extension))
        with pytest.raises(rw.RopeError, match="no layer of this model has a rope"):
            Decoder(replace(config, encoding=name)).with_positions(extension=extension)


@pytest.mark.rejects
def test_encodings_that_write_positions_down_refuse_an_unrotated_cache():
    """Their embeddings or keys would keep the old positions."""
    config = replace(make_model(None).config, rope=None, encoding="sinusoidal")
    model = Decoder(config)
    with pytest.raises(rw.RopeError, match="writes positions"):
        model(torch.tensor([[1, 2]]), cache=model.new_cache(rotated=False))
    moved = Decoder(replace(config, encoding="alibi")).eval()
    with torch.no_grad():
        cache = moved.new_cache(rotated=False)
        moved(torch.tensor([[1, 2, 3]]), cache=cache)
        cache.drop(1)
        assert cache.lengths.tolist() == [2]
