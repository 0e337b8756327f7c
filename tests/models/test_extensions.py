"""Extensions as settings of layers and models, in caches, and under compilers; test_each_way.py has their numbers."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.encodings import ENCODINGS, NoPE, Places, Sizes
from ropewalk.models.attention import Attention
from ropewalk.models.decoder import Decoder
from ropewalk.rope import extensions
from ropewalk.rope.extensions import DualChunk, Extension, ReRoPE, SelfExtend
from ropewalk.rope.scaling import Linear
from tests.models.forms import (
    EXTENSIONS,
    HALF,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LOGITS,
    REMAPPING,
    ROPE,
    Louder,
    make_decoder,
    make_layer,
)

pytestmark = pytest.mark.usefixtures("small_blocks")
COMPILED = [DualChunk(chunk=6, trained_length=8), Louder()]


def make_model(extension: Extension | None) -> Decoder:
    return make_decoder(rope=ROPE, extension=extension)


# --- as settings of layers and models


RULE_FILE = """
from dataclasses import dataclass

import torch

from ropewalk.rope.extensions import Extension, near_and_far


@dataclass(frozen=True)
class Halved(Extension):
    window: int

    def regions(self):
        near, _ = near_and_far(self.window)
        return (near._replace(query=lambda m: m / 2, key=lambda n: n / 2),)
"""


def test_a_rule_of_the_caller_is_known_everywhere(tmp_path, monkeypatch):
    """A subclass registers itself; models, saved configs and generation accept it."""
    (tmp_path / "halved.py").write_text(RULE_FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(Extension, "registry", dict(Extension.registry))
    importlib.import_module("halved")
    rule = extensions.Halved(window=7)
    model = make_model(None).with_positions(extension=rule)
    for extension in (rule, (None, SelfExtend(group=2, window=4), rule)):
        saved = model.with_positions(extension=None).with_positions(extension=extension)
        rw.save(saved, tmp_path / "m")
        assert rw.load(tmp_path / "m", dtype=torch.float64).config == saved.config
    ids = torch.randint(0, 50, (1, 5))
    slower = model.with_positions(rope=replace(ROPE, scaling=Linear(2.0)), extension=None)
    with torch.no_grad():
        torch.testing.assert_close(model(ids), slower(ids), atol=1e-12, rtol=0)
    del sys.modules["halved"]


@pytest.mark.rejects
def test_a_name_is_taken_once():
    """A second rule of one name would be read in place of the first."""
    with pytest.raises(rw.RopeError, match="an extension with this name exists"):
        type("ReRoPE", (Extension,), {"__module__": "elsewhere"})
    assert Extension.registry["ReRoPE"] is ReRoPE
    with pytest.raises(AttributeError, match="no attribute 'Unknown'"):
        _ = extensions.Unknown


def test_layers_that_cannot_take_it_stay():
    """A layer without a rope or with a sliding window keeps what it has."""
    config = replace(make_model(None).config, rope=(ROPE, None, ROPE), sliding_window=(None, None, 4))
    extended = Decoder(config).with_positions(extension=ReRoPE(window=3))
    assert extended.config.extensions == (ReRoPE(window=3), None, None)
    with pytest.raises(rw.RopeError, match="no layer"):
        Decoder(replace(config, rope=None, sliding_window=None)).with_positions(extension=ReRoPE(window=3))


@pytest.mark.rejects
def test_impossible_settings_are_refused() -> None:
    """The least that is possible is not refused."""
    for kind, settings_ in (
        (ReRoPE, {"window": 0}), (ReRoPE, {"window": 4, "log_n": 1}),
        (SelfExtend, {"group": 0, "window": 4}), (SelfExtend, {"group": 2, "window": True}),
        (DualChunk, {"chunk": 8, "trained_length": 8}),
    ):  # fmt: skip
        with pytest.raises(rw.RopeError, match=kind.__name__):
            kind(**settings_)
    for least in (ReRoPE(window=1, log_n=2), SelfExtend(group=1, window=1)):
        assert least == replace(least)


@pytest.mark.rejects
def test_impossible_uses_are_refused():
    """Positions of one's own, both ways at once, a length for each row."""
    model, ids = make_model(ReRoPE(window=4)), torch.randint(0, 50, (2, 6))
    with pytest.raises(rw.RopeError, match="computes positions itself"):
        model(ids, position_ids=torch.arange(6))
    with pytest.raises(rw.RopeError, match="causal"):
        Attention(32, HEADS, rope=ROPE, causal=False, extension=ReRoPE(window=4))
    with pytest.raises(rw.RopeError, match="one number for all rows"):
        model.with_positions(rope=HALF["dynamic"])(ids, seq_len=torch.tensor([6, 12]))
    with pytest.raises(rw.RopeError, match="with a rope over all earlier tokens"):
        model.with_positions(rope=None)


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


def test_logits_with_a_bias_are_not_scaled():
    """A scale is defined for q.k alone: encodings that add to scores refuse it, however it comes; others take it."""
    extension, config = Louder(), replace(make_model(None).config, rope=None)
    for name in ENCODINGS:
        model = Decoder(replace(config, encoding=name))
        layer = model.layers[0].self_attn
        encoding = layer.position_encoding or NoPE().build(Sizes(24, HEADS, HEAD_DIM))
        places = Places(torch.arange(3), torch.arange(3))
        assert (encoding.biased(torch.zeros(1, 3, 4, 8), places)[1] is None) != encoding.adds_to_scores
        if not encoding.adds_to_scores:
            model.with_positions(extension=extension)
            continue
        for made in (
            lambda name=name: Decoder(replace(config, encoding=name, extension=extension)),
            lambda model=model: model.with_positions(extension=extension),
            lambda layer=layer: layer.set_positions(layer.rope, extension),
            lambda name=name: Attention(24, HEADS, head_dim=HEAD_DIM, encoding=name, extension=extension),
        ):
            with pytest.raises(rw.RopeError, match="adds to scores"):
                made()
    for name in ENCODINGS:  # there is no rope whose positions could be remapped
        with pytest.raises(rw.RopeError, match="needs causal attention with a rope"):
            Decoder(replace(config, encoding=name, extension=REMAPPING[0]))
        with pytest.raises(rw.RopeError, match="no layer of this model has a rope"):
            Decoder(replace(config, encoding=name)).with_positions(extension=REMAPPING[0])


# --- in caches


@pytest.mark.parametrize("before", [EXTENSIONS[0], EXTENSIONS[-1], None], ids=repr)
def test_a_cache_of_another_extension_is_refused(before):
    """What a layer gave under one is in the keys and values of the next: no other goes on, nor does the plain model."""
    ids, base = torch.randint(0, 50, (1, 9)), make_model(None)
    cache = base.with_positions(extension=before).new_cache()
    with torch.no_grad():
        base.with_positions(extension=before)(ids, cache=cache)
        for after in [*EXTENSIONS, None]:
            if after != before:
                with pytest.raises(rw.RopeError, match="a different extension"):
                    base.with_positions(extension=after)(ids[:, :1], cache=cache)
        equal = None if before is None else replace(before)  # the same settings are the same extension
        base.with_positions(extension=equal)(ids[:, :1], cache=cache)
    assert cache.lengths.tolist() == [10]


def test_a_layer_alone_asks_for_its_extension():
    """A cache made by hand names them; without names it is for layers without any."""
    sizes = {"num_layers": 1, "batch": 1, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM}
    x = torch.randn(1, 3, 24)
    layer, plain = make_layer(ReRoPE(window=4), torch.float32), make_layer(Louder(), torch.float32)
    plain.set_positions(plain.rope, None)
    named, unnamed = rw.KVCache(**sizes, extensions=[ReRoPE(window=4)]), rw.KVCache(**sizes)
    with torch.no_grad():
        layer(x, cache=named)
        plain(x, cache=unnamed)
        for one, cache in ((layer, unnamed), (plain, named)):
            with pytest.raises(rw.RopeError, match="not made for this layer's extension"):
                one(x, cache=cache)


# --- under export and a compiler


@pytest.mark.traced
@pytest.mark.skipif(torch.__version__.startswith("2.11."), reason="torch 2.11 does not see min(8 n, 16 n) = 8 n")
@pytest.mark.parametrize("extension", COMPILED, ids=repr)
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
    ("extension", "form"),
    [(None, LOGITS["both"]), *((each, {}) for each in COMPILED)],
    ids=repr,
)
def test_a_compiler_finds_no_break(extension: Extension | None, form: dict[str, Any]) -> None:
    """One graph computes what the eager layer does."""
    torch.compiler.reset()
    layer, x = make_layer(extension, torch.float32, **form), torch.randn(2, 20, 24)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), atol=1e-5, rtol=1e-5)
