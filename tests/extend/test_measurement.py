"""The measurement before and after, its card, and (tuned - untuned) x (full - crop) worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.extend.measurement import Variant, before, card, interaction, measure, record, untuned_crop, verdict
from ropewalk.measure.plan import LossProtocol
from ropewalk.statistics import interval_sentence, mean_and_interval, over_windows
from tests.extend.material import TARGET, TRAINED, checkpoint, reader_under, token_ids

PROTOCOL = LossProtocol.choose(trained_length=8, text="held_out", target=32, windows=2)


def variants() -> list[Variant]:
    """Three models on two windows of sixteen blocks."""
    losses = {"plain": 4.0, "crop": 3.5, "yarn": 3.25}
    return [
        Variant(name=name, blocks=[[loss] * 16, [loss + 1.0] * 16], within=[loss, loss + 1.0],
                beyond=[loss + 0.5 * window for window in range(2)], seconds=1.0)
        for name, loss in losses.items()
    ]  # fmt: skip


def found(**changes: Any) -> dict[str, Any]:
    """A record."""
    block = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    given = {
        "model": "tiny",
        "method": "yarn",
        "protocol": PROTOCOL,
        "variants": variants(),
        "config": {"rope_parameters": block, "max_position_embeddings": 32},
        "tuning": None,
        "environment": {},
    }
    return record(**(given | changes))


def test_table_and_verdict() -> None:
    """Two blocks to a column, means over windows, the paired difference to crop with its interval."""
    written = card(found(), figure="extend.png")
    row = next(line for line in written.splitlines() if line.startswith("| yarn"))
    assert row == "| yarn | " + " | ".join(["3.750"] * 9 + ["3.500"]) + " |"
    assert "-0.250 nats from crop's (95 % interval -0.250 to -0.250)" in written
    assert "![Loss by position](extend.png)" in written
    assert '"max_position_embeddings": 32' in written


def test_intervals_are_those_that_the_protocol_names() -> None:
    """From five windows on the bootstrap, below it Student's t: for blocks as for the verdict."""
    losses = [3.0, 3.1, 3.3, 3.2, 4.9]
    for count in (3, 5):
        protocol = LossProtocol.choose(trained_length=8, text="held_out", target=32, windows=count)
        one = Variant(
            name="plain",
            blocks=[[loss] * 16 for loss in losses[:count]],
            within=losses[:count],
            beyond=None,
            seconds=1.0,
        )
        written = one.to_json()
        assert ("BCa" in interval_sentence(protocol.windows)) == (count == 5)
        assert written["ci_by_block"] == [over_windows(losses[:count])[1]] * 16
        assert (written["ci_by_block"][0] == mean_and_interval(losses[:count])[1]) == (count == 3)
        assert written["loss_by_block"] == pytest.approx([sum(losses[:count]) / count] * 16)


def test_names_are_shown_and_not_obeyed() -> None:
    """A model's name is text, whatever is in it."""
    written = card(found(model="a](http://x)\n# <b>hi"))
    assert "# a\\](http://x) \\# \\<b\\>hi, extended" in written


@pytest.mark.parametrize(
    ("rope_type", "said"),
    [
        ("dynamic", "Use --method ntk"),
        ("longrope", "`short_mscale` and `long_mscale`"),
        ("llama3", "top of config.json"),
        ("proportional", "transformers 5 applies"),
    ],
)
def test_readers_are_told_apart(rope_type: str, said: str) -> None:
    """The card names what vLLM or the converter does differently, and only for rules that were checked."""
    block = {"rope_type": rope_type, "rope_theta": 1e4}
    written = card(found(config={"rope_parameters": block, "max_position_embeddings": 32}))
    assert said in written
    assert ("vLLM" in written) == (rope_type != "proportional")


def test_a_yarn_with_keys_of_its_own_is_not_called_the_same() -> None:
    """vLLM and the converter treat these keys differently."""
    block = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    for keys, same in (({}, True), ({"attention_factor": 1.0}, False), ({"truncate": False}, False)):
        written = card(found(config={"rope_parameters": block | keys, "max_position_embeddings": 32}))
        assert written.count("the same frequencies and temperature.") == 2 * same
        assert ("compare outputs" in written) != same


def test_the_record_is_json_and_one_window_has_no_interval() -> None:
    """NaN and tuples are gone; the verdict of a single window is its mean."""
    single = [Variant(name=v.name, blocks=v.blocks[:1], within=v.within[:1], beyond=v.beyond[:1], seconds=1.0)
              for v in variants()]  # fmt: skip
    written = json.loads(json.dumps(found(variants=single), allow_nan=False))
    assert written["verdict"]["method_minus_crop_beyond"] == {"nats": -0.25, "ci": None}
    assert "interval" not in card(written).split("nats from crop")[1].splitlines()[0]


NAMES = ("plain", "crop", "yarn", "yarn crop", "tuned", "tuned crop")
T_OF_3 = 3.1824463052842624  # 97.5 % of Student's t with 3 degrees of freedom, from a printed table


def with_losses(**beyond: list[float]) -> list[Variant]:
    """One variant for each list of losses by window."""
    return [
        Variant(name=name.replace("_", " "), blocks=[[x] for x in losses], within=losses, beyond=losses, seconds=1.0)
        for name, losses in beyond.items()
    ]


def synthetic(*, text: float, far: float, windows: int = 4) -> list[Variant]:
    """Losses where tuning lowers every loss by `text`, and by `far` more where distant tokens are read.

    Windows differ by whole nats; the tuned model's own noise is 0, 0.03, 0.06 and 0.09.
    """
    of_window = np.arange(windows) * 1.0
    noise = of_window * 0.03
    full, crop = 3.0 + of_window, 3.2 + 2 * of_window  # the gain of far tokens itself differs between windows
    return with_losses(
        plain=(9.0 + of_window).tolist(),
        crop=(1.0 - 5 * of_window).tolist(),  # of other frequencies: it must not matter
        yarn=full.tolist(),
        yarn_crop=crop.tolist(),
        tuned=(full - text - far + noise).tolist(),
        tuned_crop=(crop - text).tolist(),
    )


@pytest.mark.parametrize(("text", "far"), [(0.5, 0.0), (0.5, 0.2), (0.0, -0.1)])
def test_what_was_learned_of_the_text_cancels(text: float, far: float) -> None:
    """By hand, with Student's t: the noise 0, 0.03, 0.06, 0.09 has mean 0.045 and deviation 0.03 sqrt(5/3)."""
    found = verdict(synthetic(text=text, far=far), "yarn")["interaction_beyond"]
    half = T_OF_3 * 0.03 * math.sqrt(5 / 3) / 2
    assert found["nats"] == pytest.approx(0.045 - far)
    assert found["ci"] == pytest.approx((0.045 - far - half, 0.045 - far + half))


def test_it_is_paired_by_window() -> None:
    """Windows in another order for one of the four give another interval, and lists of two lengths are refused."""
    one, other = [1.0, 2.0, 4.0], [1.5, 2.5, 4.5]
    mean, interval = interaction(one, other, other, one)
    assert (mean, interval) == (-1.0, (-1.0, -1.0))
    again = interaction(one[::-1], other, other, one)
    assert again[0] == pytest.approx(-1.0)
    assert again[1] is not None
    assert again[1][1] > 0
    with pytest.raises(ValueError, match=r"shape|broadcast"):
        interaction(one, other, other, one[:2])


def test_a_model_without_its_own_crop_has_no_interaction() -> None:
    """Another method's crop does not take its place; with the method `plain` crop is its own."""
    every = synthetic(text=0.1, far=0.1)
    assert "interaction_beyond" not in verdict([v for v in every if v.name != "yarn crop"], "yarn")
    assert "interaction_beyond" not in verdict([v for v in every if v.name != "tuned crop"], "yarn")
    plain = verdict([v for v in every if not v.name.startswith("yarn")], "plain")
    by_hand = [(t - tc) - (p - c) for t, tc, p, c in zip(*(
        next(v.beyond for v in every if v.name == name) for name in ("tuned", "tuned crop", "plain", "crop")
    ), strict=True)]  # fmt: skip
    assert plain["interaction_beyond"]["nats"] == pytest.approx(sum(by_hand) / 4)


@pytest.mark.parametrize(
    ("far", "said"),
    [(0.5, "Tuning taught it to use them."), (0.0, "does not show"), (-0.5, "Tuning helped less")],
)
def test_the_card_says_what_the_interval_does(far: float, said: str) -> None:
    """Below zero, across it, above it; the numbers are the record's."""
    document = _record(synthetic(text=0.5, far=far))
    written = card(document, numbers="extend.json")
    claim = document["verdict"]["interaction_beyond"]
    assert said in written
    assert f"by {claim['nats']:+.3f} nats (95 % interval {claim['ci'][0]:+.3f} to {claim['ci'][1]:+.3f})" in written


def test_mending_what_the_method_broke_is_not_use() -> None:
    """The interaction is below zero, but fresh windows still read better: both crops lie far below."""
    lower = [
        replace(v, beyond=[x - 20 for x in v.beyond or []]) if v.name.endswith(" crop") else v
        for v in synthetic(text=0.5, far=0.5)
    ]
    document = _record(lower)
    assert document["verdict"]["interaction_beyond"]["ci"][1] < 0
    assert document["verdict"]["tuned_minus_its_crop_beyond"]["ci"][0] > 0
    written = card(document)
    assert "is not shown to gain from them" in written
    assert "taught it to use" not in written


def test_one_window_shows_nothing() -> None:
    """No interval, no claim."""
    single = [
        replace(v, blocks=v.blocks[:1], within=v.within[:1], beyond=(v.beyond or [])[:1])
        for v in synthetic(text=0.5, far=0.5)
    ]
    written = card(_record(single))
    assert "does not show" in written
    assert "by -0.500 nats more" in written


def _record(of: list[Variant]) -> dict[str, Any]:
    protocol = LossProtocol.choose(trained_length=8, text="held_out", target=32, windows=4)
    one = [replace(variant, blocks=[row * 16 for row in variant.blocks]) for variant in of]
    return record(model="m", method="yarn", protocol=protocol, variants=one, config={"rope_parameters": None},
                  tuning=None, environment={})  # fmt: skip


@pytest.mark.parametrize("method", ["yarn", "dynamic"])
def test_the_methods_crop_reads_fresh_windows_at_the_targets_frequencies(tmp_path: Path, method: str) -> None:
    """Each token's loss is that of one forward of its fresh window by the model under the method, at the frequencies of
    the target: for dynamic NTK they are not those of the window's own length, and not plain's for any."""
    source = reader_under(checkpoint(tmp_path / "source"), "plain")
    protocol = LossProtocol.choose(trained_length=TRAINED, text="t", target=TARGET, windows=1)
    ids = token_ids(TARGET)
    adapted = reader_under(source.module, method)
    losses = {v.name: v for v in measure(source, ids, *before(source, protocol, method), tmp_path / "a", progress=None)}
    for variant in measure(adapted, ids, *untuned_crop(adapted, protocol, method), tmp_path / "a", progress=None):
        losses[variant.name] = variant
    assert list(losses) == ["plain", "crop", method, f"{method} crop"]
    found = losses[f"{method} crop"].beyond
    assert found is not None
    expected, at_own_length = (_fresh_windows(adapted.module, ids, seq_len) for seq_len in (TARGET, TRAINED))
    assert found[0] == pytest.approx(expected, abs=1e-5)
    assert (abs(found[0] - at_own_length) > 1e-3) == (method == "dynamic")
    crop = losses["crop"].beyond
    assert crop is not None
    assert abs(crop[0] - found[0]) > 1e-3


def _fresh_windows(model: Any, ids: torch.Tensor, seq_len: int) -> float:
    """The mean loss beyond the trained length, each stride of 4 tokens at the end of a fresh window of 16."""
    sums = []
    with torch.no_grad():
        for scored in range(TRAINED, TARGET, TRAINED // 4):
            end = scored + TRAINED // 4
            window = ids[:, end - TRAINED : end]
            logits = model(window, seq_len=seq_len).double()
            logs = torch.log_softmax(logits[0, :-1], -1).gather(1, window[0, 1:, None])
            sums += (-logs[-(TRAINED // 4) :, 0]).tolist()
    return sum(sums) / len(sums)
