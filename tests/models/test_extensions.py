"""Extensions as settings of layers and models, in caches, and under compilers; test_each_way.py has their numbers."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.attention.masks import SlotTables, TokenLayout
from ropewalk.attention.remap import Remap
from ropewalk.encodings import ENCODINGS, NoPE, Places, Sizes
from ropewalk.models.decoder import Decoder
from ropewalk.rope import extensions
from ropewalk.rope.extensions import DualChunk, Extension, ReRoPE, SelfExtend
from ropewalk.rope.scaling import Linear
from tests.models.forms import EXTENSIONS, HALF, LOGITS, REMAPPING, ROPE, Louder, make_decoder, make_layer

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


def test_layers_that_cannot_take_it_stay():
    """A layer without a rope or with a sliding window keeps what it has."""
    config = replace(make_model(None).config, rope=(ROPE, None, ROPE), sliding_window=(None, None, 4))
    extended = Decoder(config).with_positions(extension=ReRoPE(window=3))
    assert extended.config.extensions == (ReRoPE(window=3), None, None)
    with pytest.raises(rw.RopeError, match="no layer"):
        Decoder(replace(config, rope=None, sliding_window=None)).with_positions(extension=ReRoPE(window=3))


@pytest.mark.parametrize("name", ENCODINGS)
def test_logits_with_a_bias_are_not_scaled(name: str) -> None:
    """A scale is defined for q.k alone: encodings that add to scores refuse it; none has a rope to remap."""
    model = make_decoder(encoding=name)
    encoding = model.layers[0].self_attn.position_encoding or NoPE().build(Sizes(24, 4, 8))
    _, bias = encoding.biased(torch.zeros(1, 3, 4, 8).double(), Places(torch.arange(3), torch.arange(3)))
    assert (bias is None) != encoding.adds_to_scores
    with pytest.raises(rw.RopeError, match="adds to scores") if encoding.adds_to_scores else nullcontext():
        Decoder(replace(model.config, extension=Louder()))
    with pytest.raises(rw.RopeError, match="adds to scores") if encoding.adds_to_scores else nullcontext():
        model.with_positions(extension=Louder())
    with pytest.raises(rw.RopeError, match="needs causal attention with a rope"):
        Decoder(replace(model.config, extension=REMAPPING[0]))
    with pytest.raises(rw.RopeError, match="no layer of this model has a rope"):
        model.with_positions(extension=REMAPPING[0])


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


def test_kept_tables_are_those_of_the_length() -> None:
    """A live model's cache grows, and its frequencies may change with it: keys turn as without a store of tables."""
    rotary, stored, keys = rw.RotaryEmbedding(HALF["dynamic"]), SlotTables(), torch.randn(1, 2, 30, 8).double()
    for total, seq_len in ((17, 20), (17, 20), (17, 40), (30, 40)):
        turned = []
        for slots in (stored, None):
            layout = TokenLayout(1, 1, keys.device, total, total - 1, total, cached=True, slot_tables=slots)
            remap = Remap(rotary, ReRoPE(4), layout, None, seq_len, keys.dtype)
            turned.append(remap.rotated_keys(keys[:, :, :total], 0))
        assert torch.equal(*turned)


# --- under export and a compiler


@pytest.mark.traced
@pytest.mark.parametrize("form", [LOGITS["both"], *({"extension": each} for each in COMPILED)], ids=repr)
def test_one_graph_serves_every_length(form: dict[str, Any]) -> None:
    """A compiler finds no break; an export with the length left open computes what the eager layer does."""
    torch.compiler.reset()
    layer, x = make_layer(dtype=torch.float32, **form), torch.randn(2, 12, 24)
    graphs = {12: torch.compile(layer, backend="eager", fullgraph=True)}
    # torch 2.11 does not see min(8 n, 16 n) = 8 n
    if "extension" in form and not torch.__version__.startswith("2.11."):
        shapes = {"hidden_states": {1: torch.export.Dim("seq", min=2, max=64)}}
        exported = torch.export.export(layer, (x,), dynamic_shapes=shapes).module()
        graphs |= dict.fromkeys((5, 13, 40), exported)
    for length, graph in graphs.items():
        x = torch.randn(2, length, 24)
        with torch.no_grad():
            torch.testing.assert_close(graph(x), layer(x), atol=1e-5, rtol=1e-5)
