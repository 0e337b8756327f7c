"""Examples: within their length, the needle where it was asked for, the answer the only right one."""

from __future__ import annotations

import collections
import itertools
import re
from random import Random

import pytest

from ropewalk.context.retrieval.aggregate import VariableTracking, zipf_counts
from ropewalk.context.retrieval.example import Draft, Example, finish
from ropewalk.context.retrieval.material import NOISE, Haystack, alike, hide
from ropewalk.context.retrieval.tasks import TASKS, Task, make_tasks
from ropewalk.errors import RopeError
from ropewalk.models.checkpoint import load
from ropewalk.models.tokenizer import TextTokenizer
from tests.context.retrieval.material import TEXT, WORDS, tokenizer

LONG = 2400  # bytes: every task has room


def task_of(name: str, **options: str) -> Task:
    return make_tasks([name], TEXT[1], **options)[0]


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


@pytest.mark.parametrize("name", ["passkey", "niah_single", "niah_multikey", "niah_multivalue"])
@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
def test_the_needle_stands_at_its_depth(name: str, depth: float) -> None:
    """Its position is where its text begins, and its real depth is near the one that was asked for."""
    kit = tokenizer()
    example = task_of(name).make(kit, 7000, depth, Random(3))
    begins = kit.decode(example.input_ids[example.positions[0] :])
    assert begins.startswith("The pass key is" if name == "passkey" else "One of the special magic numbers for")
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
        example = VariableTracking(Haystack(("x" * 5000,))).make(tokenizer(), LONG, 0.0, Random(seed))
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
        make_tasks(["niah_multikey"], "only a few words here")[0].make(tokenizer(), LONG, 0.5, Random(0))
    for names, options, message in [
        (["needle"], {}, "unknown task"),
        (["vt"], {"haystack": "hay"}, "unknown haystack"),
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


def test_needles_never_split_a_sentence() -> None:
    """They go to the nearest end of one."""
    placed = hide(["a", "b", "c.", "d", "e", "f.", "g", "h"], [(0.5, "X."), (0.9, "Y.")])
    assert placed.text == "a b c. X. d e f. g h Y."
    assert [placed.text[start] for start in placed.starts] == ["X", "Y"]
    assert Haystack(("a.", "b.")).take(1, 3) == ["b.", "a.", "b."]


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
        example = make_tasks([name], TEXT[1])[0].make(kit, 700, 0.5, Random(4))
        for ids in example.choices:
            whole = [*example.input_ids, *ids]
            assert kit.encode(kit.decode(whole)) == whole
