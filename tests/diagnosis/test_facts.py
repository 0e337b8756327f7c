"""Facts: where they stand, what they ask, and the exact distribution of what a blind model finds."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.checkpoints.texts import default_texts, novel
from ropewalk.diagnosis.facts import (
    AFTER,
    GROUP,
    KINDS,
    NUMBERS,
    WORDS,
    Filled,
    Found,
    Kind,
    Layout,
    Teller,
    Wording,
    ids_after,
)
from ropewalk.diagnosis.prepare import open_model, schedule_of
from ropewalk.diagnosis.run import prepare
from ropewalk.diagnosis.schedule import Text
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.errors import RopeError

STORY = "The old man went to the sea again. He had no luck, and said so! Did he fish? " * 900


def encode(text: str) -> list[int]:
    """One token for each character."""
    return [ord(letter) for letter in text]


def decode(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def told(trained: int, target: int, *, seed: int = 0, kind: str = "words") -> tuple[Teller, Layout, Filled]:
    teller = Teller(KINDS[kind], encode, decode)
    layout = teller.layout(trained, target)
    return teller, layout, teller.fill(layout, encode(STORY), seed=(seed,))


@settings(max_examples=60, deadline=None)
@given(trained=st.integers(300, 6000), times=st.floats(1.3, 6.0), size=st.integers(3, 40), extra=st.integers(1, 40))
def test_far_facts_lie_beyond_and_near_ones_within(trained: int, times: float, size: int, extra: int) -> None:
    target = int(trained * times)
    least = Layout.least(trained, target, size=size, question=size + extra)
    try:
        layout = Layout.choose(trained, target, size=size, question=size + extra)
        assert target >= least
    except RopeError:
        room = math.ceil(GROUP * size / 0.3) + size + extra <= trained  # for a near group
        assert target < least or not room
        if room:
            assert Layout.choose(trained, least, size=size, question=size + extra).far == GROUP
        return
    places = layout.ranges()
    assert [count % GROUP for *_, count in layout.bands] == [0, 0]
    assert len(places) == sum(count for *_, count in layout.bands)
    for number, (low, high) in enumerate(places):
        assert low < high
        first, last = low, high - 1 + size  # the tokens that a fact may take
        if number < layout.far:
            assert layout.asked_at - last >= trained
        else:
            assert target - first <= trained  # also from the end of the question
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
    if target >= 16 * size * 48:
        assert len(places) * size <= 0.07 * target


@pytest.mark.parametrize("kind", ["words", "numbers"])
def test_a_window_with_facts(kind: str) -> None:
    _, layout, window = told(1200, 4000, kind=kind)
    text = decode(window.ids.tolist())
    assert len(window.ids) == 4000 == len(window.counted)
    covered = np.zeros(4000, dtype=bool)
    for number, fact in enumerate(window.facts):
        said = text[fact.start : fact.end]
        assert fact.name in said
        assert said.endswith(f"{fact.value}.")
        assert not covered[fact.start : fact.end + AFTER].any()
        covered[fact.start : fact.end + AFTER] = True
        question, choices = window.questions[number]
        assert decode(question) + decode(choices[fact.right]) + "." == said
        assert fact.choices[fact.right] == fact.value
        assert len({len(choice) for choice in choices}) == 1
        assert len(question) + max(map(len, choices)) <= layout.target - layout.asked_at
        assert fact.far == (number < layout.far)
        assert layout.asked_at - fact.end >= 1200 or not fact.far
    covered[0] = True
    assert (window.counted == ~covered).all()
    for fact in reversed(window.facts):
        text = text[: fact.start] + text[fact.end :]
    assert STORY.startswith(text)  # the text itself is there, in order
    for group in range(len(window.facts) // GROUP):
        members = [fact for fact in window.facts if fact.group == group]
        assert [fact.right for fact in members] == [0, 1, 2, 3]
        assert len({fact.choices for fact in members}) == 1
        assert len({fact.far for fact in members}) == 1
    assert len({fact.name for fact in window.facts}) == len({fact.value for fact in window.facts}) == len(window.facts)


@pytest.mark.parametrize("kind", KINDS)
def test_no_pair_returns(kind: str) -> None:
    """Nor may one under another assignment of a group's values, which would make the distribution by chance inexact."""
    teller = Teller(KINDS[kind], encode, decode)
    layout, told = teller.layout(1200, 4000), set[tuple[str, str]]()
    for number in range(8):
        earlier = told.copy()
        window = teller.fill(layout, encode(STORY), seed=(number,), told=told)
        assert not {(fact.name, value) for fact in window.facts for value in fact.choices} & earlier


def test_the_facts_of_runs(tmp_path: Path) -> None:
    """The same command has the same; another text or seed has others. No pair returns, and no window overlaps."""
    parts = [[("part", novel(start, 16_000))] for start in (100_000, 100_000, 130_000)]
    opened = open_model("tiny", DoctorSettings(target=512, text=parts[0], state=tmp_path))

    def facts_of(part: list[tuple[str, str]], seed: int = 0) -> tuple[list[tuple[str, str]], list[int]]:
        settings = dataclasses.replace(opened.settings, seed=seed)
        texts = Text.encode(part, opened.reader.tokenizer)
        schedule = schedule_of(dataclasses.replace(opened, settings=settings, texts=texts), 512, 3)
        starts = sorted(window.start for window in schedule.windows)
        return [(fact.name, fact.value) for one in schedule.filled for fact in one.facts], starts

    (one, starts), (same, _), (other, _) = map(facts_of, parts)
    seeded, _ = facts_of(parts[0], seed=1)
    assert len(starts) == 8
    assert all(later - first >= 512 for first, later in itertools.pairwise(starts))
    assert one == same
    assert len({*one}) == len(one)
    assert len({*one} & {*other}) <= 0.05 * len(one)
    assert len({*one} & {*seeded}) <= 0.05 * len(one)


def test_texts_of_several_languages(tmp_path: Path) -> None:
    """Each window is told in its text's language, under one layout."""
    texts = [("story", STORY[:20_000]), ("Geschichte", TEXTS["german"][0][:20_000])]
    run = prepare("tiny", DoctorSettings(target=1024, text=texts, state=tmp_path), progress=False)
    names = [{*Kind.of(run.opened.teller.kind.name, language).names} for language in ("english", "german")]
    for window in run.schedule.windows:
        assert {fact.name for fact in window.facts} <= names[window.text]
        assert len(window.facts) == len(run.schedule.windows[0].facts)


def test_names_of_the_text_are_not_used() -> None:
    teller = Teller(WORDS, encode, decode)
    layout = teller.layout(1200, 4000)
    body = "Lisbon apple and Oslo river. " * 200
    window = teller.fill(layout, encode(body), seed=(0,))
    assert not {fact.name for fact in window.facts} & {"Lisbon", "Oslo"}
    assert not {fact.value for fact in window.facts} & {"apple", "river"}


TURN = "<|im_start|>user\nWhy did the old man go out again?<|im_end|>\n<|im_start|>assistant\nTo fish.<|im_end|>\n"
TEXTS = {
    "english": (STORY, ".!?"),
    "german": ("Der alte Mann ist nicht auf dem Meer, und die Fische sind mit sich allein. " * 900, "."),
    "french": ("Le vieil homme est dans la barque et les poissons ne viennent pas. " * 900, "."),
    "spanish": ("El viejo y los peces del mar se van con las olas, pero una no. " * 900, "."),
    "chinese": ("老人又去海边了。他没有运气。他也这样说。" * 3000, "。"),
    "code": ("def fish(sea):\n    return [one for one in sea if one.size > 3]\n\n\n" * 900, ")]:\n3"),
    "chat": (TURN * 600, "\n"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("language", TEXTS)
def test_facts_are_put_as_the_text_is(language: str, kind: str) -> None:
    """In its language, between its sentences, lines or turns; asked as they are told, or in a turn of the user."""
    story, ends = TEXTS[language]
    wording = Wording.of(story)
    assert wording.language == (language if language != "chat" else "english")
    assert (wording.chat is not None) == (language == "chat")
    teller = Teller(KINDS[kind], encode, decode, (Wording(), wording))
    layout = teller.layout(2000, 9000)
    window = teller.fill(layout, encode(story), seed=(0,), wording=wording)
    text, places = decode(window.ids.tolist()), 0
    assert len(window.facts) == len({fact.name for fact in window.facts}) == len(layout.ranges())
    for fact, (question, choices) in zip(window.facts, window.questions, strict=True):
        said, asked = text[fact.start : fact.end], decode(question)
        assert fact.told == said.strip()
        assert fact.value in decode(choices[fact.right])
        assert len(question) + max(map(len, choices)) <= layout.target - layout.asked_at
        assert len({len(choice) for choice in choices}) == 1
        if language == "chat":
            assert said.startswith("<|im_start|>user\n")
            assert said.endswith(".<|im_end|>\n")
            assert asked.startswith("<|im_start|>user\nW")
            assert "?<|im_end|>\n<|im_start|>assistant\n" in asked
        else:
            assert said.startswith(asked)
        assert fact.name in asked
        places += text[fact.start - 1] in ends
    assert places >= 0.8 * len(window.facts)
    if language in ("german", "french", "spanish", "chinese"):
        english = Teller(KINDS[kind], encode, decode).fill(layout, encode(story), seed=(0,))
        assert len({fact.name for fact in window.facts} & {fact.name for fact in english.facts}) < 20


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("De oude man is niet op zee, en het is een mooie dag van de week. " * 50, "english"),  # Dutch
        ("Quel ramo del lago di Como, che volge a mezzogiorno, tra due catene di monti, " * 50, "english"),
        ("Uma noite destas, vindo da cidade, encontrei um rapaz aqui do bairro, que eu conheço. " * 50, "english"),
        ("En un lloc de la Manxa, el nom del qual no vull recordar, vivia un gentilhome de llança. " * 50, "english"),
        ("吾輩は猫である。名前はまだ無い。" * 50, "english"),  # Japanese
        (TURN + STORY[:2000], "english"),  # a single turn is no chat
        ("{};\n" * 7000 + TEXTS["german"][0][:22_000] + "{};\n" * 7000, "german"),  # its middle tells
        ("", "english"),
        *((text, "code" if "python" in name else "english") for name, text in default_texts()),
    ],
)
def test_other_languages_get_english(text: str, language: str) -> None:
    assert Wording.of(text) == (language, None)


def test_a_tokenizer_that_adds_a_beginning() -> None:
    """SentencePiece tokenizers put a space, and some a bos, before a text; inside a text there is none."""

    def with_bos(text: str) -> list[int]:
        return [1, ord(" "), *encode(text)]

    assert decode(ids_after(with_bos, " 482")) == " 482"


@pytest.mark.parametrize(("target", "far", "near"), [(4000, 16, 8), (10_000, 32, 12), (16_384, 48, 20)])
def test_facts_are_six_percent_of_a_window(target: int, far: int, near: int) -> None:
    """7 of 10 are far ones; at least 16 and 8, at most 48 and 20. Within the trained length all are near."""
    for trained, of_far in ((target // 2, far), (target, 0)):
        layout = Layout.choose(trained, target, size=12, question=12)
        assert (layout.far, [count for *_, count in layout.bands]) == (of_far, [of_far, near])


def test_too_short() -> None:
    with pytest.raises(RopeError, match="too few tokens for facts"):
        Layout.choose(1000, 1040, size=12, question=12)
    with pytest.raises(RopeError, match="too few names"):
        Teller(NUMBERS, lambda text: [0] * (int.from_bytes(text.encode(), "little") % 997), decode)


@pytest.mark.parametrize("habit", ["uniform", "first", "latest", "copies"])
def test_a_blind_model_exceeds_chance_no_more_often_than_stated(habit: str) -> None:
    """Whatever its habits: it knows the questions and the choices, but not which name has which value."""
    random, level, runs, over, shares = np.random.default_rng(3), 0.01, 1000, 0, []
    for _ in range(runs):
        groups = []
        for _ in range(6):
            if habit == "uniform":
                answers = random.integers(0, 4, 4)
            elif habit == "first":
                answers = np.zeros(4, dtype=int)
            elif habit == "latest":
                answers = np.full(4, random.integers(0, 4))
            else:  # all questions of a window get one answer or another
                answers = np.array([0, 1, 2, 3]) if random.random() < 0.5 else np.array([1, 1, 1, 0])
            truth = random.permutation(4)
            groups.append([int(np.flatnonzero(truth == answer)[0]) for answer in answers])
        found = Found.of(groups, confidence=0.995)
        over += found.exceeds_chance(level)
        shares.append(found.share)
    assert abs(np.mean(shares) - 0.25) < 0.02
    assert over <= level * runs + 3 * np.sqrt(level * runs)
