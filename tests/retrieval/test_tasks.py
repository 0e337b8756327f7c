"""Examples: within their length, the needle where it was asked for, the answer the only right one."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from ropewalk.retrieval import aggregate, needles
from ropewalk.retrieval.aggregate import CommonWords, VariableTracking, zipf_counts
from ropewalk.retrieval.example import Draft, Example, finish
from ropewalk.retrieval.material import NOISE, Haystack, alike, hide, passage
from ropewalk.retrieval.needles import PASS_KEY, Needles, OneNumber
from ropewalk.retrieval.tasks import TASKS, Task, make_tasks
from tests.retrieval.material import TEXT, WORDS, tokenizer

LONG = 2400  # bytes: every task has room


def task_of(name: str, **options: str) -> Any:
    """A task in the form of one question at the end of its text."""
    return make_tasks([name], TEXT[1], form="one", **options)[0]


def read(kit: TextTokenizer, example: Example) -> str:
    return kit.decode(example.input_ids, skip_special=True)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("length", [1500, LONG, 7001])
def test_an_example_fills_its_length_and_not_more(name: str, length: int) -> None:
    """With the whole answer; what is left is less than one more unit of filler (sentence, word or coded words)."""
    kit = tokenizer()
    for seed in range(3):
        example = task_of(name).make(kit, length, 0.3, Random(seed))
        assert example.tokens <= length
        assert length - example.tokens < 60
        assert len(example.input_ids) + example.new_tokens == example.tokens


@pytest.mark.parametrize("name", TASKS)
def test_the_same_draws_make_the_same_example(name: str) -> None:
    """And others another one."""
    one, two, other = (task_of(name).make(tokenizer(), LONG, 0.5, Random(seed)) for seed in (7, 7, 8))
    assert one == two
    assert one.input_ids != other.input_ids


@pytest.mark.parametrize("name", TASKS)
def test_choices_are_the_answer_and_others_of_its_form(name: str) -> None:
    """As many as the task says, all different, of equal tokens, and what follows the input is a choice's text."""
    kit = tokenizer()
    task = task_of(name)
    example = task.make(kit, LONG, 0.5, Random(1))
    assert len(example.choices) == task.choices == 1 + len(example.distractors)
    assert len(set(example.choices)) == task.choices
    assert example.equal_tokens
    assert not set(example.answers) & set(example.distractors)
    prompt = read(kit, example)
    for ids, text in zip(example.choices, (example.answers[0], *example.distractors), strict=True):
        assert (prompt + kit.decode(ids)).endswith(f" {text}")
        assert list(example.input_ids + ids) == kit.encode(prompt + kit.decode(ids), add_special=False)


@pytest.mark.parametrize("name", ["numbers", "passkey", "niah_single", "niah_multikey", "niah_multivalue"])
@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
def test_the_needle_stands_at_its_depth(name: str, depth: float) -> None:
    """Its position is where its text begins, and its real depth is near the one that was asked for."""
    kit = tokenizer()
    example = task_of(name).make(kit, 7000, depth, Random(3))
    begins = kit.decode(example.input_ids[example.positions[0] :])
    opening = {"numbers": "The number of ", "passkey": "The pass key is"}
    assert begins.startswith(opening.get(name, "One of the special magic numbers for"))
    assert example.answers[0] in begins[:80]
    assert example.depth == pytest.approx(depth, abs=0.08)


def test_a_depth_is_counted_in_tokens_of_filler() -> None:
    """Before the needle, of all filler without the needle."""
    prompt = "Head. aa bb NEEDLE cc dd Tail:"
    draft = Draft(
        prompt=prompt, answers=("7",), distractors=("8",), needles=(prompt.index("NEEDLE"),), needle_length=7,
        filler=(prompt.index("aa"), prompt.index(" Tail") + 1),
    )  # fmt: skip
    example = finish(tokenizer(), draft)
    assert example.positions == (12,)
    assert example.depth == 6 / 12


def test_passkey_holds_its_key_alone() -> None:
    """Twice in the needle, no distractor anywhere, and noise around it."""
    kit = tokenizer()
    example = task_of("passkey").make(kit, LONG, 0.5, Random(5))
    prompt = read(kit, example)
    assert re.findall(r"\d{5}", prompt) == [example.answers[0]] * 2
    assert all(sentence in prompt for sentence in NOISE)
    assert prompt.endswith("What is the pass key? The pass key is")


def test_other_keys_values_are_in_the_text() -> None:
    """So that finding any number is not enough; the asked key's values are the answers, all of them."""
    kit = tokenizer()
    for name, keys, values in (("niah_single", 1, 1), ("niah_multikey", 4, 1), ("niah_multivalue", 2, 4)):
        example = task_of(name).make(kit, LONG, 0.5, Random(5))
        prompt = read(kit, example)
        held = collections.defaultdict(set)
        for key, value in re.findall(r"numbers for (\w+) is: (\d{7})\.", prompt):
            held[key].add(value)
        asked = re.findall(r"for (\w+) mentioned", prompt)[0]
        assert len(held) == keys
        assert held.pop(asked) == set(example.answers)
        assert len(example.answers) == values
        assert len(example.positions) == keys * values
        others = set().union(*held.values())
        assert others == (set(example.distractors) if keys > 1 else set())


def test_variables_are_found_by_following_the_chain() -> None:
    """Solved by reading the statements; the distractors end chains of other values, and no value comes too late."""
    kit = tokenizer()
    for seed in range(20):
        example = task_of("vt").make(kit, 1400, 0.0, Random(seed))
        prompt = read(kit, example)
        asked = re.findall(r"assigned the value (\d{5}) in", prompt)[0]
        values: dict[str, str] = {}
        for name, source in re.findall(r"VAR (\w{5}) = (?:VAR )?(\w{5})\.", prompt):
            values[name] = source if source.isdecimal() else values[source]
        assert {name for name, value in values.items() if value == asked} == set(example.answers)
        assert prompt.count(example.answers[0]) == 1  # the end of the chain: no statement leads on from it
        assert all(values[name] != asked and prompt.count(name) == 1 for name in example.distractors)


def shortest(name: str, rng_seed: int = 0) -> tuple[int, Example]:
    """The first length, in steps of 30, into which the task's example fits."""
    for length in range(600, 2400, 30):
        try:
            return length, task_of(name).make(tokenizer(), length, 0.0, Random(rng_seed))
        except RopeError:
            continue
    pytest.fail("it never fits")


def test_chains_are_mixed_where_there_is_no_filler() -> None:
    """Where no unit of filler fits all statements meet: they must not stand chain by chain."""
    mixed = 0
    for seed in range(2):
        example = VariableTracking(Haystack(("x" * 1500,))).make(tokenizer(), 1400, 0.0, Random(seed))
        root: dict[str, str] = {}
        order = []
        for name, source in re.findall(r"VAR (\w{5}) = (?:VAR )?(\w{5})\.", read(tokenizer(), example)):
            root[name] = source if source.isdecimal() else root[source]
            order.append(root[name])
        runs = 1 + sum(one != two for one, two in itertools.pairwise(order))
        mixed += runs > len(set(order))
    assert mixed == 2


def test_common_words_are_the_most_common() -> None:
    """Counted in the list; every other word stands there once."""
    kit = tokenizer()
    example = task_of("cwe").make(kit, LONG, 0.0, Random(2))
    counts = collections.Counter(re.findall(r"\d+\. (\w+)", read(kit, example)))
    assert {word for word, count in counts.items() if count == 5} == set(example.answers)
    assert set(counts.values()) == {1, 5}
    assert set(example.distractors) < set(counts)


@pytest.mark.parametrize("length", [None, LONG])
def test_frequent_words_are_the_most_frequent(length: int | None) -> None:
    """Counted in the coded text, also at the shortest length; distractors are rarer than the rarest answer."""
    kit = tokenizer()
    example = shortest("fwe")[1] if length is None else task_of("fwe").make(kit, length, 0.0, Random(2))
    body = read(kit, example).split("\n")[1]
    counts = collections.Counter(body.split())
    assert counts.pop("....") > max(counts.values())
    assert {word for word, _ in counts.most_common(3)} == set(example.answers)
    least = min(counts[word] for word in example.answers)
    assert all(0 < counts[word] < least for word in example.distractors)


@pytest.mark.parametrize("total", [60, 61, 75, 100, 333, 1000, 20_000])
def test_the_third_word_stands_out(total: int) -> None:
    """For every number of words that an example may have; the counts add up to no more than is planned for."""
    counts = zipf_counts(total)
    assert counts == sorted(counts, reverse=True)
    assert counts[3] > counts[4]
    assert sum(counts) <= total


def test_what_does_not_fit_is_refused() -> None:
    """With the number of tokens that it needs."""
    with pytest.raises(RopeError, match=r"`passkey` does not fit[\s\S]*tokens needed"):
        task_of("passkey").make(tokenizer(), 100, 0.5, Random(0))
    with pytest.raises(RopeError, match="too few different words for `cwe`"):
        task_of("cwe").make(tokenizer(), 20_000, 0.5, Random(0))
    with pytest.raises(RopeError, match="too few different words"):
        make_tasks(["niah_multikey"], "only a few words here", form="one")[0].make(tokenizer(), LONG, 0.5, Random(0))
    for names, options, message in [
        (["needle"], {}, "unknown task"),
        (["vt"], {"haystack": "hay"}, "unknown haystack"),
        (["vt"], {"form": "some"}, "unknown form"),
    ]:
        with pytest.raises(RopeError, match=message):
            make_tasks(names, TEXT[1], **options)
    with pytest.raises(RopeError, match="holds no words"):
        make_tasks(["passkey"], " \n")


def test_the_haystack_can_be_chosen() -> None:
    """Noise for the needles, text for the passkey."""
    kit = tokenizer()
    assert NOISE[1] in read(kit, task_of("niah_single", haystack="noise").make(kit, LONG, 0.5, Random(0)))
    prose = read(kit, task_of("passkey", haystack="text").make(kit, LONG, 0.5, Random(0)))
    assert NOISE[1] not in prose
    assert sum(word in prose for word in WORDS) > 100


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
def test_the_depth_is_the_one_asked_for_in_any_text(kind: str) -> None:
    """Without stops, with others, and where no space stands for long: within 7 % of a short filler, which is full."""
    kit = tokenizer()
    for depth, length in itertools.product((0.0, 0.25, 0.5, 0.75, 1.0), (1000, 2000)):
        example = OneNumber("passkey", passage(TEXTS[kind]), PASS_KEY).make(kit, length, depth, Random(length))
        assert example.depth == pytest.approx(depth, abs=0.07)
        assert length - example.tokens < 60
        assert example.answers[0] in kit.decode(example.input_ids[example.positions[0] :])[:40]


def test_what_has_no_spaces_keeps_none() -> None:
    """A text of such a script is filled in as it stands, with spaces around the needle alone, between sentences."""
    text = TEXTS["no spaces"]
    example = OneNumber("passkey", passage(text), PASS_KEY).make(tokenizer(), LONG, 0.5, Random(0))
    before, key, after = re.split(r" The pass key is (\d+)\. .* pass key\. ", read(tokenizer(), example).split("\n")[1])
    assert key == example.answers[0]
    assert len(before) > 100
    assert before.endswith("\u3002")
    assert before + after in text + text


def test_words_of_the_question_are_no_answers() -> None:
    """They stand in it more often than in the list, whatever the text holds."""
    told = {"following", "hidden", "magic", "memorize", "numbers", "quiz", "special", "text", "will"}  # with needles
    asked = (*sorted(told), "above", "appear", "below", "common", "list", "more", "most", "often", "others", "words")
    kit = tokenizer()
    for seed in range(4):
        rng = Random(seed)
        tasks: list[Task] = [
            Needles("niah", passage(TEXT[1]), (*asked, *WORDS[:6]), keys=keys, values=values)
            for keys, values in ((1, 1), (4, 1), (2, 4))
        ]
        for task in tasks:
            keys = re.findall(r"numbers for (\w+) is", read(kit, task.make(kit, 1500, 0.5, rng)))
            assert keys
            assert not set(keys) & told
        example = CommonWords((*asked, *WORDS[:300])).make(kit, 900, None, rng)
        listed = re.findall(r"\d+\. (\w+)", read(kit, example))
        question = set(re.findall(r"[a-z]+", re.sub(r"\d+\. \w+", "", read(kit, example)).lower()))
        assert {"words", "common", "list"} < question
        assert not set(listed) & question


@pytest.mark.parametrize("name", ["passkey", "niah_single", "niah_multikey", "vt"])
def test_numbers_that_the_filler_holds_are_drawn_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a log a distractor, or the answer itself, would stand beside the needle; without any other it is refused."""

    def few(rng: Random, digits: int) -> str:
        return str(10 ** (digits - 1) + rng.randrange(60))

    monkeypatch.setattr(needles, "number", few)
    monkeypatch.setattr(aggregate, "number", few)
    makers: dict[str, Callable[[Haystack], Task]] = {
        "passkey": lambda haystack: OneNumber("passkey", haystack, PASS_KEY),
        "niah_single": lambda haystack: Needles(name, haystack, tuple(WORDS)),
        "niah_multikey": lambda haystack: Needles(name, haystack, tuple(WORDS), keys=4),
        "vt": VariableTracking,
    }
    kit, digits = tokenizer(), 7 if name.startswith("niah") else 5
    every = [f"x{10 ** (digits - 1) + number}y" for number in range(60)]
    for seed in range(5):
        example = makers[name](Haystack(tuple(every[::2]))).make(kit, LONG, 0.5, Random(seed))
        prompt = read(kit, example)
        assert sum(number in prompt for number in every) == 30
        drawn = set(re.findall(rf"\b\d{{{digits}}}\b", prompt)) | ({*example.distractors} if name != "vt" else set())
        assert len(drawn) >= 4
        assert not any(f"x{number}y" in every[::2] for number in drawn)
    with pytest.raises(RopeError, match=r"holds the numbers[\s\S]*take the noise"):
        makers[name](Haystack(tuple(every))).make(kit, LONG, 0.5, Random(0))


def test_texts_of_equal_tokens_are_preferred_not_required() -> None:
    """With bytes a length is a number of tokens."""
    draws = iter(["aa", "b", "cc", "aa", "d", "ee"] * 20)
    assert alike(tokenizer(), 3, lambda: next(draws)) == ["aa", "cc", "ee"]
    draws = iter(["aa", "b", "ccc"] * 80)
    assert alike(tokenizer(), 3, lambda: next(draws)) == ["aa", "b", "ccc"]


def test_tokens_are_those_of_the_whole_text() -> None:
    """With a trained tokenizer: putting a choice after the input gives what tokenising all of it gives."""
    kit = load("tiny").tokenizer
    assert kit is not None
    for name in TASKS:
        example = task_of(name).make(kit, 700, 0.5, Random(4))
        for ids in example.choices:
            whole = [*example.input_ids, *ids]
            assert kit.encode(kit.decode(whole)) == whole
