"""The keys of config.json that the doctor names: put into the config, they are the ropes that it measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import ropewalk as rw
from ropewalk.attachment.layers import config_form_of, positions_of
from ropewalk.diagnosis.document import at_run_time, config_changes
from ropewalk.diagnosis.run import conclude
from ropewalk.measure.losses import Measurement
from ropewalk.measure.plan import LossProtocol, take_windows
from ropewalk.methods import METHODS, ConfigForm, Reach, settled, trained_length_of
from ropewalk.rope.frequencies import same_rope
from tests.diagnosis.models import ROPE, random_ids, tiny_decoder
from tests.diagnosis.small_runs import measure, protocol
from tests.diagnosis.test_conclude import LOSSES, measured
from tests.readers.random_models import random_model
from tests.rope.models import Model, fixture, transformers_config

transformers = pytest.importorskip("transformers")
SEVERAL = ("gemma_3_1b", "gemma_3_27b", "laguna_s", "olmo_3_1_32b", "deepseek_v4")
SCALED = SEVERAL[1:]  # their full layers were trained with a scaling


def config_of(name: str) -> Any:
    """The decoder's config, as transformers reads it."""
    if name != "deepseek_v4":
        return transformers_config(fixture(name))
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    layers = ["heavily_compressed_attention", "compressed_sparse_attention"]  # none has the block `main`
    return transformers.DeepseekV4Config(
        num_hidden_layers=2, layer_types=layers, rope_scaling=yarn, max_position_embeddings=1024
    )


def under(config: Any, method: str) -> Measurement:
    """What a run of one method on a model with this config holds, but for the losses."""
    own = settled(positions_of(nn.Module(), config), True, "given")
    trained = trained_length_of(own) or 0
    target = 4 * trained if METHODS[method].extends else trained
    return Measurement(
        protocol=LossProtocol.choose(trained_length=trained, target=target, text="novel", windows=1),
        own=own,
        positions={method: METHODS[method].positions(own, Reach(trained, target))},
        same_as={},
        results={},
        config_form=config_form_of(config, config),
    )


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, method) for name in SEVERAL for method in ("plain", "yarn", "pi")]
    + [("gemma_4_e4b", "plain"), ("gemma_3_1b", "dynamic")],
)
def test_a_block_for_each_layer_type(name: str, method: str) -> None:
    """Every block of the config, also one that no layer has; layer by layer the rope that was measured, by `from_hf`
    and, at the trained length, by the rotary module of transformers."""
    config = config_of(name)
    found = under(config, method)
    changes, trained = config_changes(method, found), found.protocol.trained_length
    assert set(changes["rope_parameters"]) == set(config.rope_parameters)
    again = type(config)(**{**config.to_dict(), **changes})
    read = positions_of(nn.Module(), again).ropes
    assert len(read) == len(found.positions[method].ropes) == len(found.config_form.names or ())
    ropes = dict(zip(found.config_form.names or (), zip(read, found.positions[method].ropes, strict=True), strict=True))
    assert len(set(ropes)) == (1 if name == "deepseek_v4" else 2)
    for label, (rope, wanted) in ropes.items():
        assert rope is not None
        assert wanted is not None
        assert same_rope(rope, wanted, [1, trained, trained + 1, 4 * trained])
        theirs, factor = Model(again, label).frequencies()
        ours = rw.inverse_frequencies(wanted, trained)
        torch.testing.assert_close(theirs, ours.inv_freq[0], rtol=1e-6, atol=0)
        assert factor == pytest.approx(ours.attention_factor, rel=1e-9)
    if name in SEVERAL[:-1]:  # and put into the file as it was published, in place of the older key
        fields = fixture(name)
        text = {**fields, **fields.get("text_config", {}), "model_type": config.model_type, **changes}
        text = {key: value for key, value in text.items() if key not in ("text_config", "rope_scaling")}
        for label, (_, wanted) in ropes.items():
            assert wanted is not None
            assert same_rope(rw.RopeConfig.from_hf(text, layer_type=label), wanted, [1, trained, 4 * trained])


@pytest.mark.parametrize(
    ("name", "method"), [("gemma_2_2b", "yarn"), ("gpt_oss_120b", "pi"), *((name, "dynamic") for name in SCALED)]
)
def test_ropes_that_no_config_says(name: str, method: str) -> None:
    """Layers with a window keep their rope and share its block; dynamic NTK on top of a trained scaling has none."""
    found = under(config_of(name), method)
    assert config_changes(method, found)["rope_parameters"] is None
    assert str(at_run_time(method, found)).startswith(f'rw.attach(model, "{method}", target=')
    assert config_changes("plain", under(config_of(name), "plain"))["rope_parameters"] is not None


def test_transformers_computes_what_was_measured() -> None:
    """A Gemma 3 with these keys in its config, and the same weights: the losses are those of the measurement."""
    model = random_model("gemma3_text", vocab_size=64)
    of = LossProtocol.choose(trained_length=32, target=64, block=16, windows=2, text="random")
    found = measure(model, of, ["yarn"])
    changes = config_changes("yarn", found)
    assert changes["max_position_embeddings"] == 64
    assert {label: block["rope_type"] for label, block in changes["rope_parameters"].items()} == {
        "sliding_attention": "default", "full_attention": "yarn"}  # fmt: skip
    other = type(model)(type(model.config)(**{**model.config.to_dict(), **changes})).eval()
    other.load_state_dict(model.state_dict())
    windows = take_windows(random_ids(200).tolist(), of)
    for one, same in ((other, True), (model, False)):
        with torch.no_grad():
            logits = one(input_ids=windows).logits
        losses = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), windows[:, 1:], reduction="none")
        close = losses[:, 31:].mean(1).tolist() == pytest.approx(found.beyond("yarn"), abs=1e-4)
        assert close == same


def test_a_decoder_whose_layers_differ_has_no_block() -> None:
    """Two thetas."""
    thetas = measure(tiny_decoder((ROPE, dataclasses.replace(ROPE, theta=100.0))), protocol(), ["yarn"])
    assert config_changes("yarn", thetas)["rope_parameters"] is None
    assert at_run_time("yarn", thetas) == 'rw.attach(model, "yarn", target=64, trained_length=16)'


def test_the_keys_of_a_composite_model_lie_in_its_part() -> None:
    """Gemma 3 with its tower: `text_config`."""
    config = transformers.Gemma3Config()
    form = config_form_of(config, config.get_text_config())
    assert form.part == "text_config"
    assert set(form.ropes) == {"sliding_attention", "full_attention"}
    plain = measured(LOSSES)
    inside = conclude(dataclasses.replace(plain, config_form=ConfigForm(part="text_config"))).config
    assert inside == {"text_config": conclude(plain).config}
