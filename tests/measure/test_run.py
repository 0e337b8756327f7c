"""The run: what is due, what is shared, and how it is summed."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from ropewalk.diagnosis.document import at_run_time, config_changes, turning
from ropewalk.errors import RopeError
from ropewalk.families import Trained
from ropewalk.measure.plan import LossProtocol, required_trained_length, take_windows
from ropewalk.methods import METHODS
from ropewalk.readers.adapters import reader_of
from ropewalk.rope.scaling import NTK, YaRN
from tests.diagnosis.models import ROPE, random_ids, tiny_decoder, under_method, window_losses
from tests.diagnosis.small_runs import EXTENSIONS, IN_ATTENTION, ledger_at, measure, planned, protocol, ran


def test_every_method_is_measured_once() -> None:
    """What a config can hold, and crop; dynamic has ntk's frequencies at this length and shares its numbers."""
    found = measure(tiny_decoder(), protocol())
    assert list(found.results) == ["plain", *EXTENSIONS, "crop"]
    assert found.same_as == {"dynamic": "ntk", "abf": "plain"}  # theta 10,000 suffices for 64 tokens
    assert found.results["dynamic"] is not None
    assert found.block_means("dynamic") == found.block_means("ntk")


def test_block_means_are_the_means_of_the_losses() -> None:
    """Blocks by predicted position, the first one short by one, none over the trained length; and the parts' means."""
    model, of = tiny_decoder(), protocol(block=24)
    found = measure(model, of)
    for index, ids in enumerate(take_windows(random_ids(200).tolist(), of)):
        losses = window_losses(model.with_positions(rope=found.positions["yarn"].ropes), ids)
        by_hand = [losses[:15].mean(), losses[15:39].mean(), losses[39:].mean()]
        assert found.block_means("yarn")[index] == pytest.approx(by_hand)
        assert found.within("yarn")[index] == pytest.approx(losses[:15].mean())
        assert found.beyond("yarn")[index] == pytest.approx(losses[15:].mean())  # type: ignore[index]


def test_crop_equals_plain_within_and_not_beyond() -> None:
    """The first trained length of crop is plain's."""
    found = measure(tiny_decoder(), protocol())
    assert found.within("crop") == found.within("plain")
    assert found.beyond("crop") != found.beyond("plain")


def test_a_scaling_in_the_checkpoint_is_measured_as_is_and_removed_elsewhere() -> None:
    """plain is the rope at its trained length; the checkpoint's own YaRN x4, for inference, is the method yarn."""
    scaled = dataclasses.replace(ROPE, scaling=YaRN(4.0, 16), max_position_embeddings=64, trained=Trained(False))
    model = tiny_decoder(scaled)
    assert required_trained_length(reader_of(model).positions, None) == 16
    found = measure(model, protocol())
    assert found.same_as == {"yarn": "as-is", "dynamic": "ntk", "abf": "plain"}
    unscaled = measure(tiny_decoder(ROPE), protocol())
    assert found.block_means("plain") == unscaled.block_means("plain")
    assert found.block_means("yarn") == unscaled.block_means("yarn")


def test_a_scaling_that_the_model_was_trained_with_is_plain() -> None:
    """Its trained length is the long one, it is measured as it is, and the methods act on top of it."""
    scaled = dataclasses.replace(ROPE, scaling=YaRN(4.0, 4), max_position_embeddings=16, trained=Trained(True))
    model = tiny_decoder(scaled)
    assert required_trained_length(reader_of(model).positions, None) == 16
    found = measure(model, protocol())
    assert "as-is" not in found.results
    ids = take_windows(random_ids(200).tolist(), protocol())[0]
    assert found.within("plain")[0] == pytest.approx(window_losses(model, ids)[:15].mean())
    block = config_changes("yarn", found)
    assert (block["rope_parameters"]["rope_type"], block["max_position_embeddings"]) == ("longrope", 64)
    assert config_changes("plain", found) == {"rope_parameters": scaled.to_hf(), "max_position_embeddings": 16}
    assert config_changes("dynamic", found)["rope_parameters"] is None
    assert str(at_run_time("dynamic", found)).startswith('rw.attach(model, "dynamic"')
    assert turning("plain", found)["inv_freq"] == turning("plain", found)["inv_freq_unscaled"]


def test_a_scaling_of_which_nothing_is_known_is_not_guessed() -> None:
    """Only the doctor can say; what a person states about the length it takes."""
    scaled = dataclasses.replace(ROPE, scaling=YaRN(4.0, 16), max_position_embeddings=64)
    with pytest.raises(RopeError, match=r"(?s)not known whether.*with it +64.*without it +16.*ropewalk doctor"):
        required_trained_length(reader_of(tiny_decoder(scaled)).positions, None)


def test_layers_without_rope_and_short_windows_keep_what_they_have() -> None:
    """Only the full layer is extended."""
    model = tiny_decoder((ROPE, None, ROPE), num_hidden_layers=3, sliding_window=(8, None, None))
    ropes = planned(model, protocol(), ["ntk"]).positions["ntk"].ropes
    assert ropes == (ROPE, None, dataclasses.replace(ROPE, scaling=NTK(4.0)))


def test_plain_is_always_measured() -> None:
    """Differences are paired to it; the order is METHODS', not the caller's."""
    assert list(measure(tiny_decoder(), protocol(), ["crop", "yarn"]).results) == ["plain", "yarn", "crop"]


def test_within_the_trained_length_only_plain_applies() -> None:
    """Nothing to extend: an extension asked for by name is refused."""
    model, of = tiny_decoder(), protocol(target=12, block=4)
    found = measure(model, of)
    assert list(found.results) == ["plain"]
    for name, message in [
        ("yarn", "needs a target beyond the trained length"),
        ("crop", "only if the target exceeds the trained"),
    ]:
        with pytest.raises(RopeError, match=message):
            planned(model, of, [name])


def test_an_unknown_method_is_refused() -> None:
    """The message lists the known ones."""
    with pytest.raises(RopeError, match=r"unknown method[\s\S]*plain, as-is, pi,[\s\S]*p-rope, cope,[\s\S]*crop"):
        planned(tiny_decoder(), protocol(), ["alibi"])


def test_a_model_without_rope_is_refused() -> None:
    """There is nothing to extend."""
    with pytest.raises(RopeError, match="no rotary embedding in any layer"):
        required_trained_length(tiny_decoder(None).config.positions, 16)


def test_a_silent_trained_length_must_be_given() -> None:
    """And what is given counts, whatever the config says."""
    silent = tiny_decoder(dataclasses.replace(ROPE, max_position_embeddings=None))
    with pytest.raises(RopeError, match="--trained-length"):
        required_trained_length(reader_of(silent).positions, None)
    assert required_trained_length(reader_of(silent).positions, 32) == 32
    assert required_trained_length(reader_of(tiny_decoder()).positions, 32) == 32


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    """Broken weights are named, not averaged."""
    model = tiny_decoder()
    with torch.no_grad():
        model.norm.weight.fill_(math.nan)
    with pytest.raises(RopeError, match=r"a loss is not a finite number|logits differ from its own forward"):
        measure(model, protocol())


def test_methods_by_name_by_comma_and_all() -> None:
    """Names in any form, in one order; all adds every other that needs no tuning."""

    def chosen(*asked: str) -> tuple[str, ...]:
        return planned(tiny_decoder(), protocol(), list(asked)).methods

    assert chosen("crop", "yarn,pi") == ("plain", "pi", "yarn", "crop")
    others = ("mrrope", "rerope", "self-extend", "string", "lampe", "jet-long", "dca", "log-n")
    assert chosen("all") == ("plain", *EXTENSIONS, *others, "crop")
    assert chosen("all", "drope", "p-rope", "cope") == tuple(name for name in METHODS if name != "as-is")


def test_methods_in_attention_are_measured_as_they_run() -> None:
    """Each one's losses are those of the model that `applied` gives, in one full forward."""
    model, of = tiny_decoder(), protocol()
    found = measure(model, of, ["all,drope,p-rope"])
    windows = take_windows(random_ids(200).tolist(), of)
    for name in ("p-rope", *IN_ATTENTION):
        other = under_method(model, name, trained=16, target=64)
        with torch.no_grad():
            logits = other(windows)
        losses = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), windows[:, 1:], reduction="none")
        want = [row[15:].mean().item() for row in losses]
        assert found.beyond(name) == pytest.approx(want, abs=1e-4)
        assert name == "p-rope" or any(found.positions[name].extensions)
    assert found.positions["drope"].ropes == (None, None)
    last = {round(sum(row[15] for row in found.block_means(name)), 6) for name in ("plain", *IN_ATTENTION)}
    assert len(last) == 1 + len(IN_ATTENTION)


def test_layers_with_short_windows_stay_out_of_attention_methods() -> None:
    """They never see further than they were trained to."""
    model = tiny_decoder(sliding_window=(None, 8))
    for name in IN_ATTENTION:
        config = under_method(model, name, trained=16, target=64).config
        assert config.extensions[0] is not None
        assert config.extensions[1] is None
        assert config.ropes[1] == ROPE


def test_within_the_trained_length_no_method_in_attention_applies() -> None:
    """As those on frequencies."""
    with pytest.raises(RopeError, match="`dca` needs a target beyond"):
        planned(tiny_decoder(), protocol(target=16), ["dca"])
    assert planned(tiny_decoder(), protocol(target=16), ["all"]).methods == ("plain",)


def test_windows_of_several_texts_come_from_each() -> None:
    """In turn, each at its own places, and the same again under the same seed."""
    of = LossProtocol.choose(trained_length=16, windows=4, text=["a", "b"], seed=3)
    texts = [list(range(300)), list(range(1000, 1200))]
    windows = take_windows(texts, of)
    assert windows.shape == (4, 64)
    assert (windows[::2] < 300).all()
    assert (windows[1::2] >= 1000).all()
    assert torch.equal(windows, take_windows(texts, of))
    again = LossProtocol.choose(trained_length=16, windows=4, text=["a", "b"], seed=4)
    assert not torch.equal(windows, take_windows(texts, again))
    found = ran(reader_of(tiny_decoder()), windows % 50, planned(tiny_decoder(), of, ["pi"]), ledger_at(None))
    assert len(found.within("pi")) == 4
    with pytest.raises(RopeError, match=r"too short[\s\S]*'a': 100, 'b': 60"):
        take_windows([texts[0][:100], texts[1][:60]], of)


def test_a_models_own_extension_is_measured_as_is() -> None:
    """What was extended in attention is measured as it is, beside its plain self."""
    from ropewalk.attention.extensions import ReRoPE

    extended = tiny_decoder().with_positions(extension=ReRoPE(window=8))
    work = planned(extended, protocol())
    assert work.methods[:2] == ("plain", "as-is")
    assert work.positions["as-is"].extensions == (ReRoPE(window=8),) * 2
    assert work.positions["plain"].extensions == (None, None)
