"""Engines with one fault of 2026 each: the fault is named; `docs/verify.md` lists them."""

from __future__ import annotations

import dataclasses
from importlib import import_module

import pytest
import torch

import ropewalk as rw
from ropewalk.audit.faults import given
from ropewalk.checkpoints.live_model import PreallocatedLayer
from ropewalk.methods.faulty_rules import FaultyPositions
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import Linear, LongRoPE, YaRN
from ropewalk.tokenizer import TextTokenizer
from ropewalk.verification.golden import Golden
from ropewalk.verification.verify import STEPS, OurSide, Predictions
from tests.checkpoints.prefixes import OurEngine
from tests.verification.conftest import model_of
from tests.verification.test_verify import under

MORE = pytest.mark.thorough


PLAIN = RopeConfig(head_dim=32, interleaved=False, max_position_embeddings=256)
SCALED = dataclasses.replace(PLAIN, scaling=YaRN(4.0, 256), max_position_embeddings=1024)
BETAS = dataclasses.replace(SCALED, scaling=YaRN(4.0, 256, beta_fast=16.0, beta_slow=2.0))
SHORT, LONG = (1.0,) * 16, tuple(1.0 + 0.2 * pair for pair in range(16))
LONGROPE = dataclasses.replace(
    PLAIN, max_position_embeddings=1024, scaling=LongRoPE(short_factor=SHORT, long_factor=LONG,
                                                          original_max_position_embeddings=256),
)  # fmt: skip


def powers(width, count, theta=1e4):
    """theta^(-2i/width), by hand."""
    return [theta ** (-2 * pair / width) for pair in range(count)]


ROPES = {
    "yarn 4": (PLAIN, {"scaling": YaRN(4.0, 256)}),
    "the other pairing": (PLAIN, {"interleaved": True}),
    "pi 2 (linear)": (PLAIN, {"scaling": Linear(2.0)}),
    "theta 1000": (PLAIN, {"theta": 1e3}),
    "yarn by the paper's formula": (SCALED, {"scaling": YaRN(4.0, 256, variant="paper")}),
    "no scaling, theta 100000": (SCALED, {"scaling": None, "theta": 1e5}),
    "no scaling, the other pairing": (SCALED, {"scaling": None, "interleaved": True}),
    "theta 20000": (PLAIN, {"theta": 2e4}),
    "theta 10000": (dataclasses.replace(PLAIN, theta=5e5), {"theta": 1e4}),
    "yarn without its attention factor": (SCALED, {"scaling": YaRN(4.0, 256, attention_factor=1.0)}),
    "yarn with its attention factor twice": (SCALED, {"scaling": YaRN(4.0, 256, attention_factor=1.138629436**2)}),
    "yarn with original_max_position_embeddings 512": (SCALED, {"scaling": YaRN(4.0, 512)}),
    "yarn with original_max_position_embeddings 128": (SCALED, {"scaling": YaRN(4.0, 128)}),
    "yarn 16": (SCALED, {"scaling": YaRN(16.0, 256)}),
    "yarn with beta_fast times 0.5": (SCALED, {"scaling": YaRN(4.0, 256, beta_fast=16.0)}),
    "yarn with default betas": (BETAS, {"scaling": YaRN(4.0, 256)}),
    "the long factors at every length": (LONGROPE, {"scaling": LongRoPE(
        short_factor=LONG, long_factor=LONG, original_max_position_embeddings=256)}),
    "inv_freq in bfloat16": (PLAIN, given(PLAIN, torch.tensor(powers(32, 16)).bfloat16().double().tolist())),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=[MORE] * (n % 3 > 0)) for n, name in enumerate(ROPES)])
def test_a_wrong_rope(name, verify):
    """Named among at most two that fit."""
    expected, fault = ROPES[name]
    rope = dataclasses.replace(expected, **fault) if isinstance(fault, dict) else fault
    model = model_of(expected)
    found = verify(model, OurEngine(model.with_positions(rope=rope)), up_to=256)
    assert found.verdict.kind == "other", found.verdict.sentence
    assert name in found.verdict.applied[:2]


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (FaultyPositions("shifted", 256, 1), "positions one too far after 256"),
        pytest.param(FaultyPositions("shifted", 256, -1), "positions one too few after 256", marks=MORE),
        pytest.param(FaultyPositions("restarted", 512), "positions begun again after 512", marks=MORE),
        (FaultyPositions("held", 512), "positions held at 512"),
        (FaultyPositions("rounded", 256), "positions in bfloat16"),
    ],
)
def test_wrong_positions_of_long_prompts(small, rule, name, verify):
    """Found by prompts beyond the border."""
    found = verify(small, under(small, extension=rule), up_to=640)
    assert (found.verdict.kind, found.verdict.applied[0]) == ("other", name), found.verdict.sentence


class Decodes(OurEngine):
    """An engine that applies a rule only where it generates."""

    def __init__(self, model, rule):
        super().__init__(model)
        self.rule, self.moved = rule, Predictions(self.reader).under

    def _steps(self, input_ids, tokens):
        own = self.reader.positions
        rules = (self.rule(len(input_ids)),) * own.num_layers
        return OurEngine(self.moved(dataclasses.replace(own, extensions=rules)))._steps(input_ids, tokens)


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (lambda tokens: FaultyPositions("shifted", tokens, 1), "positions one too far in decoding"),
        (lambda tokens: FaultyPositions("shifted", tokens, -1), "positions one too few in decoding"),
        (lambda tokens: FaultyPositions("shifted", tokens, -tokens), "positions begun again in decoding"),
        (lambda tokens: FaultyPositions("held", tokens), "positions held in decoding"),
        (lambda tokens: FaultyPositions("held", tokens + 1), "positions held after the first generated token"),
    ],
)
def test_wrong_positions_of_generated_tokens(small, rule, name, verify):
    """Right in every prompt, wrong from the first or the second generated token on."""
    found = verify(small, Decodes(small, rule))
    assert (found.verdict.kind, found.verdict.applied) == ("other", (name,)), found.verdict.sentence


@pytest.mark.parametrize("start", [1, pytest.param(STEPS - 1, marks=MORE)])
def test_wrong_positions_from_a_later_generated_token_on(start, verify):
    """No hypothesis says so: the verdict is that the answers after generated tokens are missed."""
    model = rw.load("tiny").float()
    found = verify(model, Decodes(model, lambda tokens: FaultyPositions("shifted", tokens + start, 1)), up_to=96)
    assert found.verdict.kind == "none", found.verdict.sentence
    assert "misses the answers after generated tokens" in str(found)


def test_wrong_positions_of_a_token_generated_after_chunks(small, verify):
    """Right in every prompt, and in decoding after prompts of one chunk of 512 tokens."""
    engine = Decodes(small, lambda tokens: FaultyPositions("shifted", tokens, -512 if tokens > 512 else 0))
    found = verify(small, engine, up_to=540)
    assert found.verdict.kind == "none", found.verdict.sentence
    assert "misses the answers after tokens generated after long prompts" in str(found)


class Coarse(OurEngine):
    """An engine with keys and values in few bits, in blocks of 32 features: a benign difference."""

    def __init__(self, model, levels):
        super().__init__(model)
        self.levels = levels

    def ask(self, input_ids):
        update = PreallocatedLayer.update

        def coarse(x):
            blocks = x.unflatten(-1, (-1, 32))
            step = blocks.abs().amax(-1, keepdim=True) / self.levels
            return ((blocks / step).round() * step).flatten(-2)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                PreallocatedLayer, "update", lambda layer, k, v, *_, **more: update(layer, coarse(k), coarse(v))
            )
            return super().ask(input_ids)


@pytest.mark.parametrize("levels", [127, 7])
def test_a_quantised_cache_is_no_other_rope(levels, verify):
    """8 bits are as expected; 4 bits may be undecided, with the noise as the reason."""
    model = rw.load("tiny").float()
    found = verify(model, Coarse(model, levels))
    assert found.verdict.kind == "as expected" or (levels == 7 and "engine with less noise than" in str(found))


# families that transformers computes

transformers = pytest.importorskip("transformers")
from ropewalk.checkpoints.reader import Reader
from ropewalk.verification.adapters import TransformersEngine
from tests.attachment.families import small_model

MSCALE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 256,
          "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip


def golden_of(model, **options):
    """The golden predictions of a transformers model with bytes for tokens."""
    return Golden.of(OurSide(Reader(model, TextTokenizer.bytes(), "small"), **options))


def partial_model(fraction):
    """A small Phi that rotates this fraction of its heads of 32."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": fraction}
    shape = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    own = {"rope_parameters": rope, "partial_rotary_factor": fraction}
    return small_model("phi", vocab_size=260, max_position_embeddings=256, **shape, **own)


def test_a_wrong_part_of_the_head():
    """The whole head rotates, or the part with the exponents of the whole."""
    golden = golden_of(partial_model(0.5), up_to=128)
    assert golden.check(TransformersEngine(partial_model(0.5))).verdict.kind == "as expected"
    found = golden.check(TransformersEngine(partial_model(1.0)))
    assert (found.verdict.kind, found.verdict.applied[0]) == ("other", "partial factor ignored")
    reader = Reader(partial_model(0.5), TextTokenizer.bytes(), "small")
    wrong = given(reader.positions.ropes[0], powers(32, 8))
    found = golden.check(TransformersEngine(reader.under(reader.positions.with_rope(wrong)).model))
    assert (found.verdict.kind, found.verdict.applied[0]) == ("other", "theta's exponents over the whole head")


@pytest.mark.parametrize(
    ("name", "on"),
    [
        ("the full layers' rope on all layers", (1, 1)),
        ("the sliding layers' rope on all layers", (0, 0)),
        ("the ropes of full and sliding layers exchanged", (1, 0)),
    ],
)
def test_ropes_of_the_wrong_layers(name, on):
    """Gemma 3 has a rope for its sliding layers and one for its full layers."""
    model = small_model("gemma3_text", vocab_size=260, max_position_embeddings=256, sliding_window=64)
    reader = Reader(model, TextTokenizer.bytes(), "small")
    sliding, full = (
        next(rope for rope, window in zip(reader.positions.ropes, reader.positions.sliding_windows, strict=True)
             if (window is None) == wanted)
        for wanted in (False, True)
    )  # fmt: skip
    wrong = tuple((sliding, full)[on[int(window is None)]] for window in reader.positions.sliding_windows)
    found = golden_of(model, up_to=128).check(TransformersEngine(reader.under(reader.positions.with_rope(wrong)).model))
    assert (found.verdict.kind, found.verdict.applied) == ("other", (name,)), found.verdict.sentence


@MORE
def test_sliding_layers_that_are_scaled():
    """Scaling on full layers alone is expected; an engine puts it on all."""
    model = small_model("gemma3_text", vocab_size=260, max_position_embeddings=256, sliding_window=64)
    reader = Reader(model, TextTokenizer.bytes(), "small")
    layers = list(zip(reader.positions.ropes, reader.positions.sliding_windows, strict=True))
    scaled = [dataclasses.replace(rope, scaling=YaRN(4.0, 256), max_position_embeddings=1024) for rope, _ in layers]
    full = tuple(own if window else new for (own, window), new in zip(layers, scaled, strict=True))
    right, wrong = (reader.under(reader.positions.with_rope(ropes)) for ropes in (full, tuple(scaled)))
    golden = Golden.of(OurSide(right, up_to=128, trained_length=256))
    assert golden.check(TransformersEngine(right.model)).verdict.kind == "as expected"
    assert golden.check(TransformersEngine(wrong.model)).verdict.applied == ("scaling on all layers",)


@pytest.mark.parametrize(("family", "other"), [("phi3", "glm4"), ("glm4", "phi3")])
@MORE
def test_the_other_pairing_of_a_foreign_family(family, other, monkeypatch):
    """Our attention rotates for the hypothesis; the engine is transformers with the rotation of another family."""
    model = small_model(family, vocab_size=260, max_position_embeddings=256)
    golden = golden_of(model, up_to=128)
    assert golden.left_out == ()
    assert golden.check(TransformersEngine(model)).verdict.kind == "as expected"
    here, there = (f"transformers.models.{name}.modeling_{name}" for name in (family, other))
    monkeypatch.setattr(f"{here}.apply_rotary_pos_emb", import_module(there).apply_rotary_pos_emb)
    found = golden.check(TransformersEngine(model))
    assert (found.verdict.kind, found.verdict.applied) == ("other", ("the other pairing",))


@pytest.mark.parametrize(
    ("power", "name"),
    [(-1, "yarn without mscale in the softmax"), (1, "yarn with mscale twice in the softmax")],
)
@MORE
def test_mscale_of_the_softmax(power, name):
    """DeepSeek-V3 multiplies the scale of its softmax by mscale squared; its tables have no factor."""
    model = small_model("deepseek_v3", vocab_size=260, max_position_embeddings=1024, rope_parameters=MSCALE)
    golden = golden_of(model, up_to=128)
    assert golden.check(TransformersEngine(model)).verdict.kind == "as expected"
    for module in model.modules():
        if hasattr(module, "scaling") and hasattr(module, "q_lora_rank"):
            module.scaling *= (0.1 * torch.tensor(4.0).log().item() + 1.0) ** (2 * power)
    found = golden.check(TransformersEngine(model))
    assert (found.verdict.kind, found.verdict.applied) == ("other", (name,)), found.verdict.sentence
