"""The model card: what was done and found, names letter by letter, and how others read each kind of block."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ropewalk.extend.card import card
from ropewalk.extend.outcome import Variant, record
from ropewalk.measure.plan import Protocol
from ropewalk.statistics import interval_sentence, mean_and_interval, over_windows

PROTOCOL = Protocol.choose(trained_length=8, text="held_out", target=32, windows=2)


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
        protocol = Protocol.choose(trained_length=8, text="held_out", target=32, windows=count)
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
        ("dynamic", "Export --method ntk"),
        ("longrope", "`short_mscale` and `long_mscale`"),
        ("llama3", "top of config.json"),
        ("proportional", "transformers 5 reads"),
    ],
)
def test_readers_are_told_apart(rope_type: str, said: str) -> None:
    """What would go wrong elsewhere is said where it would."""
    block = {"rope_type": rope_type, "rope_theta": 1e4}
    written = card(found(config={"rope_parameters": block, "max_position_embeddings": 32}))
    assert said in written
    assert ("vLLM" in written) == (rope_type != "proportional")


def test_a_yarn_with_keys_of_its_own_is_not_called_the_same() -> None:
    """Another temperature than the rule's is read differently elsewhere."""
    block = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    for keys, same in (({}, True), ({"attention_factor": 1.0}, False), ({"truncate": False}, False)):
        written = card(found(config={"rope_parameters": block | keys, "max_position_embeddings": 32}))
        assert ("the original length: the same" in written) == same
        assert ("compare outputs" in written) != same


def test_the_record_is_json_and_one_window_has_no_interval() -> None:
    """NaN and tuples are gone; the verdict of a single window is its mean."""
    single = [Variant(name=v.name, blocks=v.blocks[:1], within=v.within[:1], beyond=v.beyond[:1], seconds=1.0)
              for v in variants()]  # fmt: skip
    written = json.loads(json.dumps(found(variants=single), allow_nan=False))
    assert written["verdict"]["method_minus_crop_beyond"] == {"nats": -0.25, "ci": None}
    assert "interval" not in card(written).split("nats from crop")[1].splitlines()[0]
