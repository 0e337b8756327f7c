"""Many questions after one text: what each holds, and a reader that knows what lies within its reach."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.models.tokens import Tokenizer
from ropewalk.readers.adapters import reader_of
from ropewalk.readers.reader import QuestionIds
from ropewalk.retrieval.chat import Frame, chat_frame
from ropewalk.retrieval.example import continued
from ropewalk.retrieval.measure import measure_retrieval
from ropewalk.retrieval.names import NAMES
from ropewalk.retrieval.questions import QuestionSet, groups_of, how_many
from ropewalk.retrieval.scoring import candidate_log_probs, score
from ropewalk.retrieval.tasks import make_tasks
from ropewalk.rope.scaling import DynamicNTK
from tests.diagnosis.models import ROPE, under_method
from tests.retrieval.material import TEXT, decoder, tokenizer

MANY = ("numbers", "passkey", "niah_single", "niah_multikey", "niah_multivalue", "vt")
NEEDLES = {
    "numbers": r"The number of (?P<name>\w+) is (?P<value>\d{5})\.",
    "passkey": r"The pass key of (?P<name>\w+) is (?P<value>\d{5})\. Remember it\. (?P=value) is the pass key of "
    r"(?P=name)\.",
    "niah": r"One of the special magic numbers for (?P<name>\w+) is: (?P<value>\d{7})\.",
}
LONG = 6000  # bytes: every task has room for more than one group


def made(name: str, length: int = LONG, seed: int = 0, kit: Tokenizer | None = None, **options: Any) -> QuestionSet:
    """One text of a task with its questions."""
    [task] = make_tasks([name], TEXT[1], **options)
    found = task.make(kit or tokenizer(), length, 0.0, Random(seed))
    assert isinstance(found, QuestionSet)
    return found


def read(ids: Sequence[int], kit: Tokenizer | None = None) -> str:
    return (kit or tokenizer()).decode(list(ids), skip_special=True)


def held(name: str, text: str) -> dict[str, set[str]]:
    """What each name is said to have, read from the text."""
    found: dict[str, set[str]] = {}
    for match in re.finditer(NEEDLES[name.partition("_")[0]], text):
        found.setdefault(match["name"], set()).add(match["value"])
    return found


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("length", [2500, LONG])
def test_a_set_fills_its_length_and_not_more(name: str, length: int) -> None:
    """With the longest question and candidate; the same draws make the same set, and others another one."""
    one, again, other = (made(name, length, seed) for seed in (3, 3, 4))
    longest = max(len(q.input_ids) + max(map(len, q.continuations)) for q in one.questions)
    assert one.tokens == len(one.input_ids) + longest <= length
    assert length - one.tokens < 60
    assert one == again
    assert one.input_ids != other.input_ids


@pytest.mark.parametrize("name", MANY[:5])
def test_each_name_is_asked_for_its_numbers(name: str) -> None:
    """The answers are those that the text says; the others are other names' or numbers that it does not hold."""
    found = made(name)
    text = read(found.input_ids)
    values = held(name, text)
    asked = []
    for question in found.questions:
        said = text + read(question.input_ids)
        asked.append(re.findall(r"(?:number of|key of|numbers? for) (\w+)", said[said.rindex("\n") :])[0])
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
            assert others <= of_text if name != "niah_single" else not any(other in text for other in others)
    assert sorted(asked) == sorted(values)
    for city in values:
        assert len(re.findall(rf"\b{city}\b", text)) == (
            8 // 2 if name == "niah_multivalue" else 1 + (name == "passkey")
        )


def test_every_chain_is_asked_for() -> None:
    """Solved by reading the statements; the others are the ends of other chains."""
    found = made("vt")
    text = read(found.input_ids)
    values: dict[str, str] = {}
    for variable, source in re.findall(r"VAR (\w{5}) = (?:VAR )?(\w{5})\.", text):
        values[variable] = source if source.isdecimal() else values[source]
    asked = []
    for question in found.questions:
        said = text + read(question.input_ids)
        asked.append(re.findall(r"assigned the value (\d{5}) in the text", said)[-1])
        by_candidate = dict(zip(question.candidates, map(read, question.continuations), strict=True))
        [one] = question.wanted
        assert values[by_candidate[one.answer].strip()] == asked[-1]
        assert all(values[by_candidate[number].strip()] != asked[-1] for number in one.others)
        assert f" VAR {by_candidate[one.answer].strip()}." not in text  # the end of the chain
        begins = read([*found.input_ids, *question.input_ids][-one.distance :])
        assert re.match(rf"VAR \w{{5}} = {asked[-1]}\.", begins)  # the first statement, without which none is solved
        assert one.depth is None
    assert sorted(asked) == sorted(set(values.values()))


@pytest.mark.parametrize("name", MANY[:5])
def test_depths_are_even_and_distances_are_those_of_the_needles(name: str) -> None:
    """From one needle to the next about as much text, all over it; each needle begins so many tokens back."""
    found = made(name)
    wanted = [(question, one) for question in found.questions for one in question.wanted]
    for question, one in wanted:
        ids = [*found.input_ids, *question.input_ids]
        match = re.match(NEEDLES[name.partition("_")[0]], read(ids[-one.distance :]))
        assert match is not None
        answer = question.continuations[question.candidates.index(one.answer)]
        assert match["value"] == read(answer).strip()
        begins, head = len(ids) - one.distance, len(read(ids).partition("\n")[0]) if name != "numbers" else 0
        assert one.depth == pytest.approx((begins - head) / (len(found.input_ids) - head), abs=0.05)
    depths = sorted(one.depth for _, one in wanted)
    for place, depth in enumerate(depths):
        assert depth == pytest.approx((place + 0.5) / len(depths), abs=0.5 / len(depths) + 0.06)


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("trained", [True, False])
def test_tokens_are_those_of_the_whole_text(name: str, trained: bool) -> None:
    """Of the text, a question and a candidate together: with a trained tokenizer, and with one token for each byte."""
    kit = load("tiny").tokenizer if trained else tokenizer()
    assert kit is not None
    found = made(name, 2000, kit=kit)
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
    assert {len(made(name).questions[0].candidates) for name in MANY} == {12}
    assert {len(one.others) for one in made("niah_single").questions[0].wanted} == {6}
    assert len(made("niah_multivalue").questions) % 3 == 0
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
    with pytest.raises(RopeError, match="holds the names"):
        task.make(tokenizer(), LONG, 0.0, Random(0))
    assert len(made("numbers", haystack="noise").questions) == 24


TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<|model|>\n{% endif %}"
)


@pytest.mark.parametrize("name", MANY)
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


class KnowingPrefix:
    """Knows the number of a city where its needle lies in the last `reach` tokens of the text and the question.

    There the answer has log-probability 0 and all others -10. Beyond its reach the answer has -20 and all others -5; of
    a needle that it was not given to read it knows nothing: a number of its own for each city and number.
    """

    def __init__(self, ids: Sequence[int], reach: int) -> None:
        self.ids, self.reach = list(ids), reach
        self.needles = held("numbers", read(ids))

    def ask(self, questions: Sequence[QuestionIds]) -> list[list[float]]:
        return [self._answer(read([*self.ids, *question]), of) for question, of in questions]

    def _answer(self, text: str, continuations: Sequence[Sequence[int]]) -> list[float]:
        [name] = re.findall(r"\nThe number of (\w+) is$", text.rstrip())
        numbers = [read(ids).strip() for ids in continuations]
        if name not in self.needles:
            return [-Random(f"{name} {number}").uniform(5, 9) for number in numbers]
        knows = held("numbers", text[-self.reach :]).get(name) == self.needles[name]
        right, wrong = (0.0, -10.0) if knows else (-20.0, -5.0)
        return [right if {number} == self.needles[name] else wrong for number in numbers]


class KnowingReader:
    """Has nothing but a reach."""

    def __init__(self, reach: int) -> None:
        self.reach = reach

    def digest(self) -> str:
        return f"knows {self.reach}"

    def prefix(self, input_ids: Sequence[int], **more: Any) -> KnowingPrefix:
        return KnowingPrefix(input_ids, self.reach)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 2600), st.integers(0, 99))
def test_found_is_what_lies_within_reach(reach: int, seed: int) -> None:
    """Each answer, by its distance; in any order of the questions."""
    asked = made("numbers", 2500, seed)
    reader: Any = KnowingReader(reach)
    answers = score(reader, tokenizer(), asked, scoring="choice")
    assert len(answers) == 12
    for answer in answers:
        assert answer.found == answer.raw == (answer.distance is not None and answer.distance <= reach)
    order = list(asked.questions)
    random.Random(seed).shuffle(order)
    mixed = score(reader, tokenizer(), dataclasses.replace(asked, questions=tuple(order)), scoring="choice")
    assert set(mixed) == set(answers)
    assert len(mixed) == len(answers)


def test_accuracy_ends_where_reach_does() -> None:
    """By distance and by depth, in rows and curves; what crop does not read it does not find, whatever its reach."""
    readers: Any = {"far": KnowingReader(10_000), "near": KnowingReader(2000), "crop": KnowingReader(10_000)}
    found = measure_retrieval(
        readers, tokenizer(), lengths=[4000], samples=4, text=TEXT, crop={"crop": 1000}, trained_length=1000
    )
    answers = {
        method: [one for texts in of_method.values() for text in texts for one in text]
        for method, of_method in found.answers.items()
    }
    for method, reach in (("far", 4000), ("near", 2000)):
        assert [one.found for one in answers[method]] == [(one.distance or 0) <= reach for one in answers[method]]
        for row in found.details()["by_distance"]:
            if row["method"] == method:
                low, high = row["distances"]
                inside = [one.found for one in answers[method] if low <= (one.distance or 0) < high]
                assert (row["asked"], row["found"]) == (len(inside), sum(inside))
                assert len(inside) >= 20
    unread = [one.found for one in answers["crop"] if (one.distance or 0) > 1000]
    assert all(one.found for one in answers["crop"] if (one.distance or 0) < 950)
    assert sum(unread) / len(unread) < 0.3
    for row in found.rows():
        low, high = row["depths"]
        inside = [one.found for one in answers[row["method"]] if low <= (one.depth or 0) < high]
        assert (row["asked"], row["found"]) == (len(inside), sum(inside))
        assert (len(inside) >= 20, row["texts"], row["depth"]) == (True, 4, (low + high) / 2)
    assert len(found.rows()) == 3 * 2
    assert [found.effective_length(name) for name in ("far", "near")] == [4000, None]


def by_full_forward(model: Decoder, asked: QuestionSet, seq_len: int) -> list[list[float]]:
    """Each question and candidate as a single prompt in a forward of its own, without a cache."""
    found = []
    for question in asked.questions:
        row = []
        for continuation in question.continuations:
            ids = [*asked.input_ids, *question.input_ids, *continuation]
            with torch.no_grad():
                likely = model(torch.tensor([ids]), seq_len=seq_len)[0].double().log_softmax(-1)
            start = len(ids) - len(continuation) - 1
            row.append(sum(float(likely[start + n, token]) for n, token in enumerate(continuation)))
        found.append(row)
    return found


@pytest.mark.parametrize("method", ["plain", "dynamic", "dca", "streaming", "window"])
def test_log_probs_are_those_of_single_prompts(method: str) -> None:
    """At the same length, that of the text with the longest question and candidate; also where it is cropped."""
    model = decoder(ROPE)
    if method == "window":
        model = decoder(ROPE, sliding_window=(24, None))
    elif method == "dynamic":
        model = decoder(dataclasses.replace(ROPE, scaling=DynamicNTK(1.0)))
    elif method != "plain":
        model = under_method(model, method, trained=16, target=512)
    for asked in (made("numbers", 400), made("numbers", 400).cropped(150)):
        found = candidate_log_probs(reader_of(model), asked, chunk=64)
        for one, other in zip(found, by_full_forward(model, asked, asked.tokens), strict=True):
            assert one == pytest.approx(other, abs=2e-4)
