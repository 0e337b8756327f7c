"""The registry of extension methods: each is described once."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.families import Trained
from ropewalk.methods import METHODS, Method, Reach, chosen_methods, method_named, named_methods
from ropewalk.methods.faulty_rules import FaultyPositions, ScaledLogits
from ropewalk.methods.ropes import main_rope, settled, settled_by_length, unsettled
from ropewalk.methods.table import METHOD_TABLE
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import DualChunk, LaMPE
from ropewalk.rope.frequencies import inverse_frequencies
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import Linear, Llama3, LongRoPE, Proportional, Stacked, YaRN
from tests.diagnosis.models import random_ids, tiny_decoder
from tests.rope.models import fixture

ROPE = RopeConfig(64, interleaved=False, max_position_embeddings=256)
FOUR = ModelRopes((ROPE, ROPE, None, ROPE), (None,) * 4, (None, 256, None, 512))
REACH = Reach(256, 1024)


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_every_method_is_described(method: Method) -> None:
    """What it changes and costs, and whether a config can say it or why not and what comes closest."""
    assert method.changes.endswith(".")
    assert method.costs
    assert (method.config is None) == bool(method.not_in_config)
    assert METHODS[method.nearest].config is not None
    assert (method.scaling is None) or (method.extension is None)


def test_numbers_of_the_releases() -> None:
    """Llama 3.1's own scaling; LaMPE's 512 and 1,536 of 4,096 tokens; the authors' chunks; groups as small as fits."""
    reach = Reach(4096, 32_768)
    own = RopeConfig.from_hf(fixture("llama_3_1_8b")).scaling
    assert method_named("llama3").rope(ROPE, Reach(8192, 65_536)).scaling == own
    rules = {name: METHODS[name].extension(reach) for name in ("lampe", "dca", "self-extend")}  # type: ignore[misc]
    assert rules["lampe"] == LaMPE(512, 1536, 32_768)
    assert rules["dca"] == DualChunk(3072, 4096)
    last, first = torch.tensor(32_767), torch.tensor(0)
    groups = (dataclasses.replace(rules["self-extend"], group=rules["self-extend"].group - less) for less in (0, 1))
    fits, exceeds = (int(far.query(last) - far.key(first)) for _, far in (rule.regions() for rule in groups))
    assert fits <= 4096 * 2 / 3 < exceeds


def test_rounded_positions_are_those_of_bfloat16() -> None:
    """Every whole number up to 256; beyond, only those with as many binary digits."""
    ids = torch.arange(5000)
    assert torch.equal(FaultyPositions("rounded", 256).position(ids), ids.bfloat16().long())


def test_no_two_methods_look_alike() -> None:
    """They are told apart without colour; no two rows have one name."""
    looks = {(method.look.line, method.look.marker) for method in METHOD_TABLE}
    assert len(looks) == len({method.name for method in METHOD_TABLE}) == len(METHOD_TABLE) == len(METHODS)


def test_layers_that_never_see_further_keep_their_rope() -> None:
    """A window within the trained length stays plain; a longer one and full attention are scaled; NoPE stays NoPE."""
    found = method_named("pi").positions(FOUR, REACH)
    assert [rope and rope.scaling for rope in found.ropes] == [Linear(4.0), None, None, Linear(4.0)]
    assert found.extensions == (None,) * 4
    assert found.sliding_windows == FOUR.sliding_windows


def test_extensions_in_attention_reach_the_layers_that_can_take_them() -> None:
    """One that remaps positions needs full attention; one that scales logits serves long windows as well."""
    remapping = method_named("dca").positions(FOUR, REACH).extensions
    scaling = dataclasses.replace(method_named("dca"), extension=lambda reach: ScaledLogits(2.0))
    assert [one is not None for one in remapping] == [True, False, False, False]
    assert scaling.positions(FOUR, REACH).extensions == (ScaledLogits(2.0), None, None, ScaledLogits(2.0))


def test_as_is_keeps_scaling_and_extensions() -> None:
    """Every other method removes them first."""
    scaled = dataclasses.replace(ROPE, scaling=Linear(2.0))
    own = ModelRopes((scaled,), (ScaledLogits(2.0),), (None,))
    assert method_named("as-is").positions(own, REACH) == own
    assert method_named("plain").positions(own, REACH) == ModelRopes((ROPE,), (None,), (None,))


LLAMA3 = Llama3(8.0, 1.0, 4.0, 256)
BELONGS = dataclasses.replace(ROPE, scaling=LLAMA3, max_position_embeddings=2048, trained=Trained(True))


def test_a_scaling_that_the_model_was_trained_with_stays() -> None:
    """plain is the model as it is; every other method acts on the frequencies as they are, in sliding layers none."""
    positions, reach = ModelRopes((BELONGS, BELONGS), (None, None), (None, 512)), Reach(2048, 8192)
    assert BELONGS.trained_length == 2048
    assert method_named("plain").positions(positions, reach) == positions
    assert method_named("dca").positions(positions, reach).ropes == positions.ropes
    assert method_named("crop").positions(positions, reach).ropes == positions.ropes
    found = method_named("yarn").positions(positions, reach).ropes
    assert found == (dataclasses.replace(BELONGS, scaling=Stacked(LLAMA3, YaRN(4.0, 2048))), BELONGS)
    assert method_named("pi").rope(found[0], reach).scaling == Stacked(LLAMA3, Linear(4.0))  # type: ignore[arg-type]
    assert "as-is" not in chosen_methods(None, positions, reach)
    assert chosen_methods(None, positions, Reach(2048, 2048)) == ("plain",)


def test_a_scaling_for_inference_is_removed() -> None:
    """Whether it is known to be one, or nothing is known."""
    for trained in (None, Trained(False)):
        rope = dataclasses.replace(BELONGS, trained=trained)
        assert rope.trained_length == 256
        assert method_named("plain").rope(rope, REACH).scaling is None
        assert method_named("pi").rope(rope, REACH).scaling == Linear(4.0)
        assert "as-is" in chosen_methods(None, ModelRopes((rope,), (None,), (None,)), REACH)


def test_abf_keeps_the_sum_of_the_models_own_cosines_positive() -> None:
    """Up to the target, with the model's own divisors below, and by no larger theta than it takes."""
    rule = method_named("abf").rope(BELONGS, Reach(2048, 8192)).scaling
    assert isinstance(rule, Stacked)
    plain = 1e4 ** (-np.arange(0, 64, 2) / 64)
    own = inverse_frequencies(BELONGS).inv_freq[0].numpy() / plain

    def positive(theta: float) -> bool:
        turns = np.outer(np.arange(1, 8192), theta ** (-np.arange(0, 64, 2) / 64) * own)
        return bool((np.cos(turns).sum(1) >= 0).all())

    theta = rule.by.theta  # type: ignore[attr-defined]
    assert positive(theta)
    assert theta == 1e4 or not positive(theta / 1.006)


def test_dynamic_ntk_starts_where_the_model_was_trained_to() -> None:
    """Within it nothing changes; at the target it is NTK by their ratio, on the model's own."""
    reach = Reach(2048, 8192)
    rope = method_named("dynamic").rope(BELONGS, reach)
    own, ntk = inverse_frequencies(BELONGS).inv_freq, inverse_frequencies(method_named("ntk").rope(BELONGS, reach))
    torch.testing.assert_close(inverse_frequencies(rope, 2048).inv_freq, own, rtol=1e-12, atol=0)
    torch.testing.assert_close(inverse_frequencies(rope, 8192).inv_freq, ntk.inv_freq, rtol=1e-12, atol=0)


def test_longrope_keeps_its_factor_when_the_stated_length_changes() -> None:
    """It is read from max_position_embeddings: the one that the model was trained with is written out."""
    own = LongRoPE((1.0,) * 32, (2.0,) * 32, 256)
    rope = dataclasses.replace(ROPE, scaling=own, max_position_embeddings=2048, trained=Trained(True))
    pi = method_named("pi").rope(rope, Reach(1024, 8192))  # a trained length of the caller's
    expected = inverse_frequencies(rope, 2048).attention_factor
    assert expected > 1.17
    assert inverse_frequencies(pi, 8192).attention_factor == expected


def test_whether_a_scaling_belongs_to_the_model_can_be_open() -> None:
    """A stated length settles it where the two readings differ in length."""
    yarn = dataclasses.replace(ROPE, scaling=YaRN(4.0, 256), max_position_embeddings=1024)
    positions = ModelRopes((None, yarn, ROPE), (None,) * 3, (None,) * 3)
    assert unsettled(positions) is yarn
    assert main_rope((ROPE, None, yarn)) is yarn  # the longest reach, else the first
    assert main_rope((None, ROPE, BELONGS.unscaled())) is ROPE
    assert unsettled(ModelRopes((ROPE, BELONGS), (None,) * 2, (None,) * 2)) is None
    assert unsettled(settled(positions, True, "somebody")) is None
    assert [rope and rope.trained_length for rope in settled(positions, True, "").ropes] == [None, 1024, 256]
    known = [settled_by_length(positions, length).ropes[1] for length in (256, 257, None)]
    assert [rope and rope.scaling_is_trained for rope in known] == [False, True, None]
    equal = ModelRopes((dataclasses.replace(ROPE, scaling=Linear(4.0)),), (None,), (None,))
    assert settled_by_length(equal, 256) is equal
    still = dataclasses.replace(ROPE, scaling=Proportional(0.5))  # no length scaling
    assert unsettled(ModelRopes((still,), (None,), (None,))) is None


def test_what_cannot_be_applied_is_refused() -> None:
    """A target within the trained length, a rope whose slow pairs stand still, an unknown name."""
    with pytest.raises(RopeError, match="`yarn` needs a target beyond the trained length"):
        method_named("yarn").positions(FOUR, Reach(256, 256))
    with pytest.raises(RopeError, match="`dca` needs a target"):
        method_named("dca").positions(FOUR, Reach(256, 256))
    with pytest.raises(RopeError, match="pairs do not rotate"):
        method_named("pi").rope(dataclasses.replace(ROPE, scaling=Proportional(0.5)), REACH)
    with pytest.raises(RopeError, match="unknown method"):
        method_named("jarn")
    with pytest.raises(RopeError, match="unknown method"):
        named_methods(["yarn,jarn"])
    with pytest.raises(RopeError, match="`target` must be a whole number from 1"):
        Reach(256, 0)


def test_the_methods_of_a_run() -> None:
    """By default the common ones that a config can hold, and crop; all adds every other that needs no tuning."""

    def chosen(*asked: str, reach: Reach = REACH, positions: ModelRopes = FOUR) -> tuple[str, ...]:
        return chosen_methods(list(asked) or None, positions, reach)

    frequencies = ("pi", "ntk", "dynamic", "yarn", "llama3", "abf", "resonance")
    assert chosen() == ("plain", *frequencies, "crop")
    attention = ("rerope", "self-extend", "lampe", "dca")
    assert chosen("all") == ("plain", *frequencies, *attention, "crop")
    assert chosen("crop,yarn") == ("plain", "yarn", "crop")
    assert chosen(reach=Reach(256, 256)) == ("plain",)
    scaled = dataclasses.replace(ROPE, scaling=Linear(2.0))
    assert chosen(positions=ModelRopes((scaled,), (None,), (None,)))[:2] == ("plain", "as-is")
    proportional = dataclasses.replace(ROPE, scaling=Proportional(0.5))
    assert chosen(positions=ModelRopes((proportional,), (None,), (None,))) == ("plain", "crop")


@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if method.equal_below(Reach(16, 64)) and not method.crops]
)
@torch.no_grad()
def test_what_a_method_says_of_its_first_tokens_is_true(name: str) -> None:
    """Rows below `equal_below` have plain's logits in any text, and soon after it they have others."""
    model, ids, reach = tiny_decoder().double(), random_ids(64)[None], Reach(16, 64)
    positions = METHODS[name].positions(model.config.positions, reach)
    other = model.with_positions(rope=positions.ropes, extension=positions.extensions)
    apart, count = (model(ids) - other(ids))[0].abs().amax(-1), METHODS[name].equal_below(reach)
    assert apart[:count].max() < 2e-6
    assert apart[count : count + 6].max() > 1e-4
