"""CSV files, splits, and batches of like length."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import RopeError
from ropewalk.training.classification.dataset import (
    Rows,
    by_length,
    check_known,
    classes_of,
    epoch_order,
    leave_out,
    pad,
    read_rows,
    split,
)
from tests.training.classification.material import texts, write


def saved(path: Path, content: str | bytes) -> Path:
    """A file with this content."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_what_csv_can_hold_is_read(tmp_path: Path) -> None:
    """A byte-order mark, quoted commas, quotes and line breaks, empty lines, space around, more columns, any order."""
    content = '\ufeffkind,id,words\r\n a ,1,"one, ""two""\nthree"\r\n\r\nb,2,  vier \r\n'
    rows = read_rows(saved(tmp_path / "a.csv", content), text_column="words", label_column="kind")
    assert (rows.texts, rows.labels) == (('one, "two"\nthree', "vier"), ("a", "b"))
    assert rows.lines == (3, 5)
    assert read_rows(tmp_path / "a.csv", text_column="words", label_column=None).labels == ()
    long = saved(tmp_path / "long.csv", "text,label\n" + "x" * 200_000 + ",a\n")
    assert len(read_rows(long).texts[0]) == 200_000
    assert csv.field_size_limit() < 200_000  # the module's own limit is as it was


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8"), min_size=1), st.sampled_from("ab")), min_size=1))
def test_written_by_csv_read_back(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    """Whatever Python's writer writes comes back, but for the space around it."""
    kept = [(text, label) for text, label in rows if text.strip()]
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    write(path, kept)
    if not kept:
        with pytest.raises(RopeError, match="no rows"):
            read_rows(path)
        return
    found = read_rows(path)
    assert list(zip(found.texts, found.labels, strict=True)) == [(text.strip(), label) for text, label in kept]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "file is empty"),
        ("\n\n", "file is empty"),
        ("text,label\n", "a header and no rows"),
        ("text,kind\na,b\n", r"(?s)no such column.*'label'.*\['text', 'kind'\].*--label-column"),
        ("a line of prose\n", "no such column"),
        ("text,label\na,b\nc\n", r"(?s)a different number of cells.*line .*3"),
        ("text,label\na, b, c\n", r"(?s)a different number of cells.*line .*2.*quotes"),
        ("text,label\na,b\n  ,b\n", r"(?s)a text is empty.*line .*3"),
        ("text,label\na,\n", r"(?s)a label is empty.*line .*2"),
        ('text,label\na,b\n"never closed,b\nc,d\n', r"(?s)not well-formed CSV.*after line.*2"),
        ('text,label\n"a"b,c\n', "not well-formed CSV"),
        (b"text,label\ncaf\xe9,a\n", "not UTF-8"),
        ("text,label\nwords,a\n".encode("utf-16"), "is UTF-16"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    """Rule, file, line, cure."""
    path = saved(tmp_path / "rows.csv", content)
    with pytest.raises(RopeError, match=message) as error:
        read_rows(path)
    assert error.value.facts["file"] == str(path)


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    """Both are the system's own words."""
    for path in (tmp_path / "nowhere.csv", tmp_path):
        with pytest.raises(RopeError, match="cannot be read"):
            read_rows(path)


def test_classes_and_labels() -> None:
    """Sorted classes; one alone is refused, and so is a label that training never saw."""
    rows = Rows("f.csv", ("x", "y", "z"), ("b", "a", "b"), (2, 3, 4))
    assert classes_of(rows) == ("a", "b")
    with pytest.raises(RopeError, match="only one class"):
        classes_of(rows.take([0, 2]))
    check_known(rows, ("a", "b"), "train.csv")
    with pytest.raises(RopeError, match=r"(?s)does not occur in the training rows.*line .*2.*'b'.*such labels .*2"):
        check_known(rows, ("a",), "train.csv")


@given(st.lists(st.integers(2, 40), min_size=2, max_size=6), st.floats(0.01, 0.99), st.integers(0, 5))
def test_the_split_has_every_class_in_both_parts(sizes: list[int], fraction: float, seed: int) -> None:
    """Each row once, each class in both, its share as near to the fraction as whole rows can be; the seed decides."""
    labels = [f"c{index}" for index, size in enumerate(sizes) for _ in range(size)]
    rows = Rows("f", tuple(map(str, range(len(labels)))), tuple(labels), tuple(range(len(labels))))
    train, held = split(rows, fraction, seed)
    assert sorted([*train.lines, *held.lines]) == list(rows.lines)
    assert list(train.lines) == sorted(train.lines)
    for index, size in enumerate(sizes):
        count = Counter(held.labels)[f"c{index}"]
        assert 1 <= count < size
        assert abs(count - fraction * size) <= 1.0
    assert split(rows, fraction, seed) == (train, held)


def test_another_seed_is_another_split() -> None:
    """And a class with one row is refused by name."""
    rows = Rows("f", *zip(*texts(60), strict=True), tuple(range(60)))
    assert split(rows, 0.3, 0) != split(rows, 0.3, 1)
    with pytest.raises(RopeError, match=r"(?s)class with one row.*'sail'.*validation_fraction = 0"):
        split(rows.take([0, 1, 2, 3, 5]), 0.3, 0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(1, 17), st.integers(0, 3))
def test_every_text_once(lengths: list[int], batch_size: int, epoch: int) -> None:
    """In batches of one number in every epoch, so that a step's place in it is known."""
    batches = epoch_order(lengths, batch_size, seed=1, epoch=epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert len(batches) == -(-len(lengths) // batch_size)
    assert batches == epoch_order(lengths, batch_size, seed=1, epoch=epoch)
    assert sorted(index for batch in by_length(lengths, batch_size) for index in batch) == list(range(len(lengths)))


def test_epochs_and_seeds_differ_and_lengths_are_alike() -> None:
    """Padding of sorted pools is a small part; in random order it is most."""
    lengths = torch.randint(1, 60, (2000,)).tolist()
    first = epoch_order(lengths, 32, seed=0, epoch=0)
    assert first != epoch_order(lengths, 32, seed=0, epoch=1)
    assert first != epoch_order(lengths, 32, seed=1, epoch=0)
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in first)
    assert padded < 1.1 * sum(lengths)


def test_padding_is_on_the_right_and_masked() -> None:
    """No mask where nothing is padded."""
    ids, mask = pad([[3, 4, 5], [6]])
    assert ids.tolist() == [[3, 4, 5], [6, 0, 0]]
    assert mask is not None
    assert mask.tolist() == [[True] * 3, [True, False, False]]
    assert pad([[1, 2], [3, 4]])[1] is None


def test_tokens_are_left_out_but_never_all() -> None:
    """About the share asked for, the others in their order; one of each text stays however high it is."""
    texts = [torch.randint(9, 99, (int(length),)).tolist() for length in torch.randint(1, 41, (500,))]
    kept = leave_out(texts, 0.3)
    assert abs(sum(map(len, kept)) / sum(map(len, texts)) - 0.7) < 0.02
    for text, rest in zip(texts, kept, strict=True):
        tokens = iter(text)
        assert all(token in tokens for token in rest)  # a subsequence: each is found after the one before
    few = leave_out(texts, 0.999)
    assert {len(text) for text in few} <= {1, 2}
    assert leave_out(texts, 0.0) == texts
    assert leave_out(texts, 0.3) != kept
