"""The verdict in words: every action, what would settle what is open, and the texts for which it holds."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest

from ropewalk.diagnosis.rules import Evidence, LossTable
from ropewalk.diagnosis.verdict import Verdict
from ropewalk.diagnosis.wording import RunFacts, decide, next_step
from tests.diagnosis.made_tables import MadeCopies, made
from tests.diagnosis.test_rules import BROKEN, NO, YES

EVERY = {
    "unfit": (made({**BROKEN, "yarn": -0.1}, fit=1.0), YES),
    "keep": (made({"plain": -0.1, "yarn": -0.3}), YES),
    "keep to a stretch": (made({"plain": (0.0, 0.5, 0.5), "yarn": 0.5}, windows=2), NO),
    "extend by loss": (made({**BROKEN, "yarn": -0.1}), NO),
    "extend by copies": (made({**BROKEN, "yarn": 0.05}), YES),
    "extend to a stretch": (made({**BROKEN, "yarn": (-0.1, 0.05, 0.05)}, windows=2), MadeCopies({"yarn": (1, 0.1, 1)})),
    "cut": (made({**BROKEN, "yarn": 0.05, "ntk": 0.5}), NO),
    "undecided": (made({**BROKEN, "yarn": -0.05}, spread=0.5), NO),
    "undecided by copies": (made({**BROKEN, "yarn": 0.05}), MadeCopies({"yarn": 0.1})),
    "not measured": (made({**BROKEN, "yarn": 0.05}), None),
}


@pytest.mark.parametrize("name", EVERY)
def test_every_sentence(name: str) -> None:
    """No sign before a zero, no "uses", each term explained where it first stands, and short sentences."""
    found = decide(*EVERY[name])
    text = found.sentence
    assert found.action == name.split(" ")[0].replace("not", "undecided")
    assert not re.search(r"-0\.000\b|\+0\.000\b|differs by|\buses?\b|None|nan|\{|\}", text)
    assert text.endswith(".")
    assert ".." not in text
    if "loss" in text:
        assert re.search(r"[Ll]oss[^.:;]{0,40} \((how badly|repeat)", text) or "(how badly" in text.split("loss", 2)[1]
    for term, explained in (
        ("crop", "given only the last 256 tokens|last 256 tokens \\(crop\\)"),
        ("copies", "repeat"),
    ):
        if re.search(rf"\b{term}\b", text) and "not measured" not in name:
            assert re.search(explained, text), (term, text)
    if "(0." in text:
        assert "Numbers in brackets are 98 % intervals." in text
    assert all(len(one.split()) <= 45 for one in re.split(r"(?<=[.;:]) ", text)), text


def test_what_decided_is_said() -> None:
    """Loss or copies, with the numbers; what is not shown; what it costs."""
    by_copies = decide(*EVERY["extend by copies"]).sentence
    assert by_copies.startswith("Extend with yarn to 1,024 tokens. Copies decide: it repeats passages")
    assert "worse by 0.050 (" in by_copies
    assert "A method that copies may be worse by up to 0.10." in by_copies
    by_loss = decide(*EVERY["extend by loss"]).sentence
    assert "Loss decides" in by_loss
    assert "better by 0.100 (" in by_loss
    assert "does not copy" in by_loss
    part = decide(*EVERY["extend to a stretch"])
    assert part.headline == "Extend with yarn to 512 tokens; 1,024 is not shown."
    assert (
        "Still open: whether yarn copies, that is, repeats passages that it read 512 to 768 tokens before."
        in part.sentence
    )
    cut = decide(*EVERY["cut"]).sentence
    assert "yarn has no lower loss than crop (worse by 0.050 (" in cut
    assert "ntk has a higher loss than crop: worse by 0.500 (" in cut
    assert "copies would decide, and they were not measured" in decide(*EVERY["not measured"]).headline
    mute = decide(EVERY["not measured"][0], MadeCopies(can_copy=False))
    assert "copies too little even within its trained length" in mute.headline
    dear = decide(made({**BROKEN, "yarn": -0.1}, within={"yarn": 0.2}), YES).sentence
    assert "yarn costs too much within the trained length: worse by 0.200 (" in dear
    unfit = decide(*EVERY["unfit"]).sentence
    assert "Use a text of the kind that the model was trained on." in unfit
    assert decide(*EVERY["unfit"], RunFacts(vocab_size=50_000)).sentence == unfit
    guessing = decide(*EVERY["unfit"], RunFacts(vocab_size=20)).sentence
    assert "Guessing has a loss of 2.996, so the weights are untrained or damaged." in guessing
    assert "its loss (how badly it predicts the text) is 3.000 nats per token, worse by 1.000 (" in unfit
    assert "is not shown to predict" in decide(made(BROKEN, fit=0.001)).sentence


def of_two_texts(other: float) -> LossTable:
    """Four windows of two texts: yarn is better than crop by 0.1 in one, and worse or better in the other."""
    table = made({**BROKEN, "yarn": -0.1}, windows=8, texts=(0, 1) * 4)
    rows = np.array(table.losses["yarn"])
    rows[1::2, 8:] += other
    return dataclasses.replace(table, losses={**table.losses, "yarn": rows.tolist()})


def test_one_text_says_nothing_of_others() -> None:
    """Several do, where the same is shown between them."""
    novel = RunFacts(texts=("novel",))
    one = decide(made({**BROKEN, "yarn": -0.1}), NO, novel)
    assert "This holds for novel (1 window of 1,024 tokens); no other text was read." in one.sentence
    alike = decide(of_two_texts(0.0), NO)
    assert "so it holds for texts like these 2 (8 windows of 1,024 tokens)" in alike.sentence
    differing = decide(of_two_texts(0.09), NO)
    assert (differing.action, differing.method) == ("extend", "yarn")
    assert "This holds for the 2 texts that were read" in differing.sentence
    undecided = decide(OPEN, NO, novel)
    assert undecided.action == "undecided"
    assert "This is about novel (2 windows of 1,024 tokens)." in undecided.sentence
    overlap = decide(dataclasses.replace(made({**BROKEN, "yarn": -0.1}, windows=2), share=0.75), NO)
    assert "(2 windows of 1,024 tokens, which overlap)" in overlap.sentence


def asked(**given: object) -> str:
    """A command of a longer run, as a test reads it."""
    return " ".join(f"{name}={value}" for name, value in given.items() if value is not None)


OPEN = made({**BROKEN, "yarn": -0.02}, spread=0.03, windows=2)


def test_what_would_settle_it() -> None:
    """Windows up to a planned look, the time from the run's own, the command, and the same in words.

    A run of at most 16 windows is continued. More windows are placed anew, so all of them take time.
    """
    found = decide(OPEN, NO, RunFacts(available=50, planned=2, seconds=16.0, more=asked))
    assert found.next is not None
    needed = found.next.windows
    assert needed > 16
    assert found.next.seconds == pytest.approx(8.0 * needed)
    assert "more here" not in found.next.sentence
    sooner = decide(made({**BROKEN, "yarn": -0.02}, spread=0.02, windows=2), NO, RunFacts(seconds=16.0, more=asked))
    assert sooner.next is not None
    assert 2 < sooner.next.windows <= 16
    assert sooner.next.seconds == pytest.approx(8.0 * (sooner.next.windows - 2))
    assert "more here." in sooner.next.sentence
    assert found.next.command == f"windows={needed}"
    assert found.sentence.endswith(found.next.sentence)
    assert f"About {needed} windows would settle it, which takes about" in found.next.sentence
    assert next_step(found, "tiny", 1024) == found.next.command
    stopped = decide(OPEN, NO, RunFacts(available=50, planned=16, seconds=160.0, stopped="minutes", more=asked))
    assert stopped.next is not None
    assert stopped.next.command == f"windows={needed} minutes={math.ceil(1.3 * 80 * needed / 60)}"


def test_a_text_that_is_too_short_asks_for_more() -> None:
    """One that holds a window, with the texts that come with the package; those have none to offer."""
    one = made({**BROKEN, "yarn": -0.05}, spread=0.5)
    found = decide(one, NO, RunFacts(texts=("novel",), available=1, planned=1, more=asked))
    assert found.next is not None
    assert "the text holds 1 window of this length: give more text with --text" in found.next.sentence
    assert found.next.command == "default_texts=True windows=4"
    own = decide(one, NO, RunFacts(texts=("a", "b"), available=1, planned=1, more=asked, default_texts=True))
    assert own.next is not None
    assert "these texts hold 1 window" in own.next.sentence
    assert own.next.command is None


def test_what_no_number_of_windows_settles() -> None:
    """A difference at the margin itself."""
    found = decide(made({**BROKEN, "yarn": 0.0}, spread=0.03, windows=2), NO, RunFacts(more=asked))
    assert (found.action, found.next) == ("undecided", None)
    assert "too small for any number of windows" in found.sentence


def test_evidence_is_complete() -> None:
    """Every comparison of the rules: fit, plain's stretches, and of each method gain, cost, crop, stretches, copies."""
    found = decide(made({**BROKEN, "yarn": -0.1}), YES)
    names = [(one.name, one.method, one.where) for one in found.evidence]
    assert len(names) == len(set(names)) == 1 + 3 + (3 + 3 * 3)
    assert Evidence(made(BROKEN), YES).fit == decide(made(BROKEN), YES).evidence[0]


@pytest.mark.parametrize("action", ["keep", "cut", "unfit"])
def test_no_command_where_there_is_nothing_to_run(action: str) -> None:
    """Neither to extend nor to measure."""
    assert next_step(Verdict(action=action), "tiny", 1024) is None  # type: ignore[arg-type]
