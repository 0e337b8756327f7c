"""Hidden numbers: what each text contains, its questions and candidates, and where the needles are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from ropewalk.measure import TASKS
from ropewalk.measure import questions as module
from ropewalk.measure.haystack import NOISE, Haystack, hide, passage
from ropewalk.measure.questions import (
    NAMES,
    PASS_KEYS,
    Frame,
    HiddenNumbers,
    QuestionSet,
    alike,
    chat_frame,
    continued,
    groups_of,
    how_many,
    make_tasks,
)
from ropewalk.models.prompts import Tokenizer
from tests.measure.material import TEXT, WORDS, tokenizer

NEEDLES = {
    "numbers": r"The number of (?P<name>\w+) is (?P<value>\d{5})\.",
    "passkey": r"The pass key of (?P<name>\w+) is (?P<value>\d{5})\. Remember it\. (?P=value) is the pass key of "
    r"(?P=name)\.",
}
LONG = 6000  # bytes: both tasks have more than one group


def made(name: str, length: int = LONG, seed: int = 0, kit: Tokenizer | None = None, **options: Any) -> QuestionSet:
    """One text of a task with its questions."""
    [task] = make_tasks([name], TEXT[1], **options)
    return task.make(kit or tokenizer(), length, Random(seed))


def read(ids: Sequence[int], kit: Tokenizer | None = None) -> str:
    return (kit or tokenizer()).decode(list(ids), skip_special=True)


def held(name: str, text: str) -> dict[str, set[str]]:
    """What each name is said to have, read from the text."""
    found: dict[str, set[str]] = {}
    for match in re.finditer(NEEDLES[name], text):
        found.setdefault(match["name"], set()).add(match["value"])
    return found


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("length", [2500, LONG])
def test_a_set_fills_its_length_and_not_more(name: str, length: int) -> None:
    """With the longest question and candidate; the same draws make the same set, and others another one."""
    one, again, other = (made(name, length, seed) for seed in (3, 3, 4))
    longest = max(len(q.input_ids) + max(map(len, q.continuations)) for q in one.questions)
    assert one.tokens == len(one.input_ids) + longest <= length
    assert length - one.tokens < 60
    assert one == again
    assert one.input_ids != other.input_ids


@pytest.mark.parametrize("name", TASKS)
def test_each_name_is_asked_for_its_numbers(name: str) -> None:
    """The answers are those that the text says; the others are other names' or numbers that it does not hold."""
    found = made(name)
    text = read(found.input_ids)
    values = held(name, text)
    asked = []
    for question in found.questions:
        said = text + read(question.input_ids)
        asked.append(re.findall(r"(?:number of|key of) (\w+)", said[said.rindex("\n") :])[0])
        by_candidate = dict(zip(question.candidates, map(read, question.continuations), strict=True))
        assert len(set(by_candidate.values())) == len(by_candidate)
        assert len({len(ids) for ids in question.continuations}) == 1
        answers = {by_candidate[one.answer].strip() for one in question.wanted}
        assert answers == values[asked[-1]]
        for one in question.wanted:
            others = {by_candidate[number].strip() for number in one.others}
            of_text = set().union(*(of for other, of in values.items() if other != asked[-1]))
            assert others
            assert not others & answers
            assert others <= of_text
    assert sorted(asked) == sorted(values)
    for city in values:
        assert len(re.findall(rf"\b{city}\b", text)) == 1 + (name == "passkey")


@pytest.mark.parametrize("name", TASKS)
def test_depths_are_even_and_distances_are_those_of_the_needles(name: str) -> None:
    """From one needle to the next about as much text, all over it; each needle begins so many tokens back."""
    found = made(name)
    wanted = [(question, one) for question in found.questions for one in question.wanted]
    for question, one in wanted:
        ids = [*found.input_ids, *question.input_ids]
        match = re.match(NEEDLES[name], read(ids[-one.distance :]))
        assert match is not None
        answer = question.continuations[question.candidates.index(one.answer)]
        assert match["value"] == read(answer).strip()
        begins, head = len(ids) - one.distance, len(read(ids).partition("\n")[0]) if name != "numbers" else 0
        assert one.depth == pytest.approx((begins - head) / (len(found.input_ids) - head), abs=0.05)
    depths = sorted(one.depth for _, one in wanted)
    for place, depth in enumerate(depths):
        assert depth == pytest.approx((place + 0.5) / len(depths), abs=0.5 / len(depths) + 0.06)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("trained", [True, False])
def test_tokens_are_those_of_the_whole_text(name: str, trained: bool) -> None:
    """Of the text, a question and a candidate together: with a trained tokenizer, and with one token for each byte."""
    kit = load("tiny").tokenizer if trained else tokenizer()
    assert kit is not None
    found = made(name, 1200, kit=kit)
    for question in found.questions:
        for ids in question.continuations:
            whole = [*found.input_ids, *question.input_ids, *ids]
            assert kit.encode(read(whole, kit)) == whole


class MarkedTokenizer(TextTokenizer):
    """Puts a mark before every text, as SentencePiece does, and joins a stop with the line break behind it."""

    MARK, JOINED = 255, 254  # bytes that no UTF-8 text holds

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        ids, joined = super().encode(text), []
        for token in ids:
            if token == ord("\n") and joined and joined[-1] == ord("."):
                joined[-1] = self.JOINED
            else:
                joined.append(token)
        return [self.MARK, *joined]


def test_the_end_of_a_text_is_tokenised_as_in_the_text() -> None:
    """Also where every text begins with a mark, and where a text's last tokens are joined with what follows."""
    kit = MarkedTokenizer(tokenizer().tokenizer)
    text = "A line.\n" + "some words and more. " * 40
    for end, tails in (("", ["\nthe first", "\nthe second"]), ("\n", ["a", "b c"]), ("\nQuestion: is", [" 1", " 22"])):
        ids = kit.encode(text + end)
        kept, rows = continued(kit, text + end, ids, tails)
        for tail, row in zip(tails, rows, strict=True):
            assert ids[:kept] + row == kit.encode(text + end + tail)
        assert max(map(len, rows)) < 30


def test_candidates_are_as_many_at_every_length() -> None:
    """As many as the shortest has room for, in groups that are spread over the whole text."""
    for length in (700, 2000, LONG):
        found = made("numbers", length, shortest=700)
        assert {1 + len(one.others) for question in found.questions for one in question.wanted} == {4}
    assert len(found.questions) > 24
    assert {len(made(name).questions[0].candidates) for name in TASKS} == {12}
    assert sorted(number for group in groups_of(24, 12) for number in group) == list(range(24))
    for length in range(100, 40_000, 997):
        for tokens in (9, 13, 40):
            try:
                count = how_many(length, tokens, task="x")
            except RopeError:
                assert length < 8 * tokens
                continue
            assert 4 <= count <= 96
            assert count < 12 or count % 12 == 0
            assert count * tokens <= max(length / 6, 4 * tokens)


def test_names_are_none_that_the_text_holds() -> None:
    """Each is no part of another; enough of them are in no book of the package; a text with all of them is refused."""
    assert len(set(NAMES)) == len(NAMES) > 400
    every = " ".join(NAMES)
    assert all(every.count(name) == 1 for name in NAMES)
    moby = read_text(None)[1]
    assert sum(name not in moby for name in NAMES) > 4 * 96
    text = " ".join(name for name in NAMES if name not in ("Oslo", "Lima", "Bern")) + " and so on. " * 30
    [task] = make_tasks(["numbers"], text)
    with pytest.raises(RopeError, match="contains too many of the names"):
        task.make(tokenizer(), LONG, Random(0))
    assert len(made("numbers", haystack="noise").questions) == 24


TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<|model|>\n{% endif %}"
)


@pytest.mark.parametrize("name", TASKS)
def test_a_chat_frames_the_text_and_the_questions(name: str) -> None:
    """By the checkpoint's own template; the question is asked, and the answer begun."""
    kit = tokenizer()
    kit.chat_template = TEMPLATE
    frame = chat_frame(kit)
    assert frame == Frame("<|endoftext|><|user|>\n", "<end>\n<|model|>\n")
    found = made(name, frame=frame)
    for question in found.questions:
        ids = [*found.input_ids, *question.input_ids, *question.continuations[0]]
        said = kit.decode(ids)
        assert said.startswith("<|endoftext|><|user|>\n")
        assert ids.count(256) == 1
        asked, lead = said.split("<end>\n<|model|>\n")
        assert asked.endswith(("?", "Answer:"))
        assert re.search(r" (is|are|are:) \w+$", lead)
    for template, message in (
        (None, "no chat template"),
        ("{{ x.y }}", "cannot frame"),
        ("{{ messages[0].content * 2 }}", "frame"),
    ):
        kit.chat_template = template
        with pytest.raises(RopeError, match=message):
            chat_frame(kit)
    kit.chat_template = "{{ raise_exception('only two messages') }}"
    with pytest.raises(RopeError, match="only two messages"):
        chat_frame(kit)


def test_what_does_not_fit_is_refused() -> None:
    """With the number of tokens that it needs; unknown names and texts without words as well."""
    with pytest.raises(RopeError, match=r"`passkey` does not fit[\s\S]*tokens needed"):
        made("passkey", 100)
    for names, options, message in [
        (["vt"], {}, "unknown task"),
        (["numbers"], {"haystack": "hay"}, "unknown haystack"),
    ]:
        with pytest.raises(RopeError, match=message):
            make_tasks(names, TEXT[1], **options)  # type: ignore[arg-type]
    with pytest.raises(RopeError, match="contains no words"):
        make_tasks(["passkey"], " \n")


def test_the_haystack_can_be_chosen() -> None:
    """Noise for the numbers, text for the pass keys."""
    assert NOISE[1] in read(made("numbers", 2400, haystack="noise").input_ids)
    prose = read(made("passkey", 2400, haystack="text").input_ids)
    assert NOISE[1] not in prose
    assert sum(word in prose for word in WORDS) > 50


def test_needles_go_to_the_end_of_a_sentence_that_is_near() -> None:
    """Within a twentieth of the filler; else to the nearest end of a word, so that the depth is the one asked for."""
    units = [f"{index:03d}" + "." * (index in (49, 97)) for index in range(100)]
    placed = hide(units, [(0.46, "X."), (0.94, "Y."), (0.25, "Z."), (0.26, "first"), (0.26, "second")])
    assert placed.text.index("X.") == placed.starts[0]
    for near in ("049. X. 050", "097. Y. 098", "024 Z. 025", "025 first second 026"):
        assert f" {near} " in placed.text
    assert hide(["a", "b"], [(0.0, "X."), (1.0, "Y.")]).text == "X. a b Y."
    assert Haystack(("a.", "b.")).take(1, 3) == ["b.", "a.", "b."]


TEXTS = {
    "no stops": " ".join(WORDS),
    "verse": "\n".join(" ".join(WORDS[start : start + 7]) for start in range(0, len(WORDS), 7)),
    "no spaces": "".join(chr(0x4E00 + index) + "\u3002" * (index % 40 == 39) for index in range(900)),
    "one word": "".join(WORDS),
    "table": "\n".join(";".join(WORDS[start : start + 20]) for start in range(0, len(WORDS), 20)),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_depths_are_even_in_any_text(kind: str) -> None:
    """Without stops, with others, and where no space stands for long: near its place, in a filler that is full."""
    for length in (1500, 3000):
        found = HiddenNumbers("passkey", passage(TEXTS[kind]), PASS_KEYS).make(tokenizer(), length, Random(length))
        assert length - found.tokens < 60
        depths = sorted(one.depth for question in found.questions for one in question.wanted)
        for place, depth in enumerate(depths):
            assert depth == pytest.approx((place + 0.5) / len(depths), abs=0.5 / len(depths) + 0.1)


def test_what_has_no_spaces_keeps_none() -> None:
    """A text of such a script is filled in as it stands, with spaces around the needles only, between sentences."""
    text = TEXTS["no spaces"]
    found = HiddenNumbers("passkey", passage(text), PASS_KEYS).make(tokenizer(), 3000, Random(0))
    parts = re.split(r" ?The pass key of \w+ is \d+\. .*? pass key of \w+\. ?", read(found.input_ids).split("\n")[1])
    assert "".join(parts) in text + text
    assert all(part.endswith("\u3002") for part in parts[1:-1] if part)


def test_numbers_that_the_filler_holds_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a log a number of the text would be a second answer; if all are in the text, it is refused."""
    monkeypatch.setattr(module, "number", lambda rng, digits: str(10 ** (digits - 1) + rng.randrange(60)))
    every = [f"x{10_000 + number}y" for number in range(60)]
    for seed in range(5):
        task = HiddenNumbers("passkey", Haystack(tuple(every[::2])), PASS_KEYS)
        drawn = set(re.findall(r"key of \w+ is (\d+)", read(task.make(tokenizer(), 2400, Random(seed)).input_ids)))
        assert len(drawn) >= 4
        assert not any(f"x{number}y" in every[::2] for number in drawn)
    with pytest.raises(RopeError, match=r"contains too many of the numbers[\s\S]*haystack \"noise\""):
        HiddenNumbers("passkey", Haystack(tuple(every)), PASS_KEYS).make(tokenizer(), 2400, Random(0))


def test_texts_of_equal_tokens_are_preferred_not_required() -> None:
    """With bytes a length is a number of tokens."""
    draws = iter(["aa", "b", "cc", "aa", "d", "ee"] * 20)
    assert alike(tokenizer(), 3, lambda: next(draws)) == ["aa", "cc", "ee"]
    draws = iter(["aa", "b", "ccc"] * 80)
    assert alike(tokenizer(), 3, lambda: next(draws)) == ["aa", "b", "ccc"]
