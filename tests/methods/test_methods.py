"""The registry of extension methods: each is one file, described once."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from ropewalk.attention.extensions import LogN
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Method, Reach, chosen_methods, method_named, named_methods
from ropewalk.methods.registry import discover
from ropewalk.models.positions import Positions
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import Linear, Proportional

ROPE = RopeConfig(64, interleaved=False, max_position_embeddings=256)
FOUR = Positions((ROPE, ROPE, None, ROPE), (None,) * 4, (None, 128, None, 512))
REACH = Reach(256, 1024)


def test_the_order_of_tables() -> None:
    """The order decides ties, so it does not change unnoticed."""
    assert list(METHODS) == [
        "plain", "as-is", "pi", "ntk", "dynamic", "yarn", "llama3", "abf", "resonance", "p-rope", "rerope",
        "self-extend", "dca", "log-n", "streaming", "drope", "crop",
    ]  # fmt: skip


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_every_method_is_described(method: Method) -> None:
    """What it changes and costs, and whether a config can say it or why not and what comes closest."""
    assert method.changes.endswith(".")
    assert method.costs
    assert (method.config is None) == bool(method.not_in_config)
    assert METHODS[method.nearest].config is not None
    assert method.forgets >= method.crops
    assert (method.scaling is None) or (method.extension is None)


def test_no_two_methods_look_alike() -> None:
    """They are told apart without colour."""
    looks = {(method.look.line, method.look.marker) for method in METHODS.values()}
    assert len(looks) == len(METHODS)


def test_a_new_method_is_one_file(tmp_path, monkeypatch) -> None:
    """A module with a METHOD in the folder is found, with nothing else changed; a second of its name is refused."""
    package = tmp_path / "own_methods"
    package.mkdir()
    (package / "__init__.py").write_text("")
    code = (
        "from ropewalk.methods.method import NO_COST, Look, Method\n"
        "from ropewalk.rope.scaling import Linear\n"
        "METHOD = Method(name='half', order=7, changes='Halves.', costs=NO_COST, config='linear',\n"
        "                scaling=lambda rope, reach: Linear(2.0), look=Look('#000000'))\n"
    )
    (package / "half.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = discover("own_methods", [str(package)])
    assert found["half"].rope(ROPE, REACH).scaling == Linear(2.0)
    (package / "again.py").write_text(code)
    with pytest.raises(RopeError, match="two methods have the same `name`"):
        discover("own_methods", [str(package)])
    for name in [name for name in sys.modules if name.startswith("own_methods")]:
        del sys.modules[name]


def test_layers_that_never_see_further_keep_their_rope() -> None:
    """A window within the trained length stays plain; a longer one and full attention are scaled; NoPE stays NoPE."""
    found = method_named("pi").positions(FOUR, REACH)
    assert [rope and rope.scaling for rope in found.ropes] == [Linear(4.0), None, None, Linear(4.0)]
    assert found.extensions == (None,) * 4
    assert found.sliding_windows == FOUR.sliding_windows


def test_extensions_in_attention_reach_the_layers_that_can_take_them() -> None:
    """One that remaps positions needs full attention; one that scales logits serves long windows as well."""
    remapping = method_named("dca").positions(FOUR, REACH).extensions
    scaling = method_named("log-n").positions(FOUR, REACH).extensions
    assert [one is not None for one in remapping] == [True, False, False, False]
    assert scaling == (LogN(256), None, None, LogN(256))
    assert method_named("drope").positions(FOUR, REACH).ropes == (None, ROPE_PLAIN, None, None)


ROPE_PLAIN = dataclasses.replace(ROPE, scaling=None)


def test_as_is_keeps_scaling_and_extensions() -> None:
    """Every other method removes them first."""
    scaled = dataclasses.replace(ROPE, scaling=Linear(2.0))
    own = Positions((scaled,), (LogN(256),), (None,))
    assert method_named("as-is").positions(own, REACH) == own
    assert method_named("plain").positions(own, REACH) == Positions((ROPE,), (None,), (None,))


def test_what_cannot_be_applied_is_refused() -> None:
    """A target within the trained length, a rope whose slow pairs stand still, an unknown name."""
    with pytest.raises(RopeError, match="`yarn` extends, but the target is within the trained length"):
        method_named("yarn").positions(FOUR, Reach(256, 256))
    with pytest.raises(RopeError, match="`dca` extends, but"):
        method_named("dca").positions(FOUR, Reach(256, 256))
    with pytest.raises(RopeError, match="cannot be combined with a proportional rope"):
        method_named("pi").rope(dataclasses.replace(ROPE, scaling=Proportional(0.5)), REACH)
    with pytest.raises(RopeError, match="unknown method"):
        method_named("jarn")
    with pytest.raises(RopeError, match="unknown method"):
        named_methods(["yarn,jarn"])
    with pytest.raises(RopeError, match="`target` must be a whole number of at least 1"):
        Reach(256, 0)


def test_the_methods_of_a_run() -> None:
    """By default those that a config can hold, and crop; all adds those in attention that need no tuning."""

    def chosen(*asked: str, reach: Reach = REACH, positions: Positions = FOUR) -> tuple[str, ...]:
        return chosen_methods(list(asked) or None, positions, reach)

    frequencies = ("pi", "ntk", "dynamic", "yarn", "llama3", "abf", "resonance")
    assert chosen() == ("plain", *frequencies, "crop")
    assert chosen("all") == ("plain", *frequencies, "rerope", "self-extend", "dca", "log-n", "streaming", "crop")
    assert chosen("crop,yarn") == ("plain", "yarn", "crop")
    assert chosen(reach=Reach(256, 256)) == ("plain",)
    scaled = dataclasses.replace(ROPE, scaling=Linear(2.0))
    assert chosen(positions=Positions((scaled,), (None,), (None,)))[:2] == ("plain", "as-is")
    proportional = dataclasses.replace(ROPE, scaling=Proportional(0.5))
    assert chosen(positions=Positions((proportional,), (None,), (None,))) == ("plain", "crop")
