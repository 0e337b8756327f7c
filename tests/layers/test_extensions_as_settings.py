"""Extensions as settings of layers and models: saved, found by file, refused where they cannot be."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import replace

import pytest
import torch

import ropewalk as rw
from ropewalk.encodings import ENCODINGS, NoPE, Places, Sizes
from ropewalk.layers.attention import Attention
from ropewalk.layers.decoder import Decoder
from ropewalk.layers.forward_inputs import ForwardInputs
from ropewalk.rope import extensions
from ropewalk.rope.extensions import (
    DroPE,
    DualChunk,
    Extension,
    LogN,
    ReRoPE,
    SelfExtend,
)
from ropewalk.rope.scaling import Linear
from tests.layers.extension_material import (
    DYNAMIC,
    EXTENSIONS,
    HEAD_DIM,
    HEADS,
    REMAPPING,
    ROPE,
    make_layer,
    make_model,
)

pytestmark = pytest.mark.usefixtures("small_blocks")


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
    rw.save(model, tmp_path / "m")
    assert rw.load(tmp_path / "m", dtype=torch.float64).config.extension == rule
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


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReRoPE(window=0),
        lambda: ReRoPE(window=4, leak=1.5),
        lambda: ReRoPE(window=4, log_n=1),
        lambda: SelfExtend(group=0, window=4),
        lambda: DualChunk(chunk=8, trained_length=8),
        lambda: SelfExtend(group=2, window=True),
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
    """Positions of one's own, both ways at once, lengths for another number of rows."""
    model, ids = make_model(ReRoPE(window=4)), torch.randint(0, 50, (2, 6))
    with pytest.raises(rw.RopeError, match="computes positions itself"):
        model(ids, position_ids=torch.arange(6))
    with pytest.raises(rw.RopeError, match="causal"):
        Attention(32, HEADS, rope=ROPE, causal=False, extension=ReRoPE(window=4))
    with pytest.raises(rw.RopeError, match="one entry for each row"):
        model.with_positions(rope=DYNAMIC)(ids, seq_len=torch.tensor([6, 12, 18]))
    with pytest.raises(rw.RopeError, match="cannot be removed"):
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


@pytest.mark.parametrize("extension", [LogN(trained_length=9), DroPE(factor=2.0)], ids=repr)
def test_logits_with_a_bias_are_not_scaled(extension):
    """A scale is defined for q.k alone: encodings that add to scores refuse it, however it comes; others take it."""
    config = replace(make_model(None).config, rope=None)
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
        with pytest.raises(rw.RopeError, match="needs causal attention with a rope"):
            Decoder(replace(config, encoding=name, extension=extension))
        with pytest.raises(rw.RopeError, match="no layer of this model has a rope"):
            Decoder(replace(config, encoding=name)).with_positions(extension=extension)
