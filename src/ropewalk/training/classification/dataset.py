"""Labelled texts from CSV files, a validation part with all classes, and batches of similar length."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ropewalk.builtin.texts import decoded
from ropewalk.errors import RopeError

FIELD_LIMIT = 2**27
"""Largest number of characters in a cell: the csv module's own limit, 131,072, is too small for long documents."""


@dataclass(frozen=True)
class Rows:
    """The rows of one CSV file: texts, labels (empty if the file has no label column), and line numbers."""

    path: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]
    lines: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, chosen: Sequence[int]) -> Rows:
        """Return the rows with these indices."""
        labels = tuple(self.labels[i] for i in chosen) if self.labels else ()
        return Rows(self.path, tuple(self.texts[i] for i in chosen), labels, tuple(self.lines[i] for i in chosen))


def read_rows(path: str | Path, *, text_column: str = "text", label_column: str | None = "label") -> Rows:
    """Return the rows of a UTF-8 CSV file with a header line; without labels if `label_column` is None.

    Space around texts and labels is removed, and empty lines are skipped.

    **Raises:** `RopeError`, which contains the file and the line, for a missing file or column, bytes that are not
    UTF-8, malformed CSV, a row with a different number of cells than the header, an empty text or label, and a file
    without rows.
    """
    path = Path(path)
    wanted = [text_column] if label_column is None else [text_column, label_column]
    rows = _cells(path)
    if not rows:
        raise RopeError(
            "classify: the file is empty.", facts={"file": str(path)}, cure="Give a CSV file with a header line."
        )
    (_, header), *body = rows
    missing = [name for name in wanted if name not in header]
    if missing:
        raise RopeError(
            "classify: the CSV file has no such column.",
            facts={"file": str(path), "missing": missing, "columns": header},
            cure="Name the columns: --text-column NAME, --label-column NAME. The first line is the header.",
        )
    if not body:
        raise RopeError(
            "classify: the file has a header and no rows.", facts={"file": str(path)}, cure="Give a file with texts."
        )
    places = [header.index(name) for name in wanted]
    chosen: list[list[str]] = []
    for line, cells in body:
        if len(cells) != len(header):
            raise RopeError(
                "classify: a row has a different number of cells than the header.",
                facts={"file": str(path), "line": line, "cells": len(cells), "columns": header},
                cure='Put quotes around a text with commas: "like this, for example".',
            )
        values = [cells[place].strip() for place in places]
        for name, value in zip(wanted, values, strict=True):
            if not value:
                kind = "text" if name == text_column else "label"
                raise RopeError(
                    f"classify: a {kind} is empty.",
                    facts={"file": str(path), "line": line, "column": name},
                    cure="Fill it in, or leave the row out.",
                )
        chosen.append(values)
    texts = tuple(values[0] for values in chosen)
    labels = () if label_column is None else tuple(values[1] for values in chosen)
    return Rows(str(path), texts, labels, tuple(line for line, _ in body))


def _cells(path: Path) -> list[tuple[int, list[str]]]:
    """Return every row with the number of its last line, without empty lines."""
    limit = csv.field_size_limit(FIELD_LIMIT)
    line = 0
    try:
        reader = csv.reader(io.StringIO(decoded(path, path.read_bytes(), "classify"), newline=""), strict=True)
        rows = []
        for cells in reader:
            line = reader.line_num
            if cells:
                rows.append((line, cells))
        return rows
    except OSError as error:
        raise RopeError(
            "classify: the file cannot be read.",
            facts={"file": str(path), "error": error.strerror},
            cure="Pass the path of a CSV file.",
        ) from error
    except csv.Error as error:
        raise RopeError(
            "classify: the file is not well-formed CSV.",
            facts={"file": str(path), "after line": line, "error": str(error)},
            cure="Close every quote, and double quotes inside a quoted text.",
        ) from error
    finally:
        csv.field_size_limit(limit)


def classes_of(rows: Rows) -> tuple[str, ...]:
    """Return the labels, sorted; raise `RopeError` if there is only one."""
    classes = tuple(sorted(set(rows.labels)))
    if len(classes) < 2:
        raise RopeError(
            "classify: there is only one class, so there is nothing to learn.",
            facts={"file": rows.path, "label": classes[0], "rows": len(rows)},
            cure="Give rows of at least two classes, and check --label-column.",
        )
    return classes


def check_known(rows: Rows, classes: Sequence[str], trained_on: str) -> None:
    """Raise `RopeError` for labels that do not occur in the training rows."""
    known = set(classes)
    unknown = [(line, label) for line, label in zip(rows.lines, rows.labels, strict=True) if label not in known]
    if unknown:
        line, label = unknown[0]
        raise RopeError(
            "classify: a label does not occur in the training rows.",
            facts={
                "file": rows.path,
                "line": line,
                "label": label,
                "rows with such labels": len(unknown),
                "trained on": trained_on,
            },
            cure="Correct the label, leave the rows out, or train with rows of this class.",
        )


def split(rows: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Split rows into training and validation: `fraction` of each class, at least one row, drawn by `seed`.

    The order is kept. Raises `RopeError` for a class with one row, which cannot be in both parts.
    """
    of_class = defaultdict(list)
    for index, label in enumerate(rows.labels):
        of_class[label].append(index)
    single = [label for label, indices in of_class.items() if len(indices) < 2]
    if single:
        raise RopeError(
            "classify: a class with one row cannot be in training and in validation.",
            facts={"file": rows.path, "labels": single, "line": rows.lines[of_class[single[0]][0]]},
            cure="Add rows of it, leave it out, give --validation FILE, or set validation_fraction = 0.",
        )
    generator = np.random.default_rng(seed)
    held_out: set[int] = set()
    for label in sorted(of_class):
        indices = of_class[label]
        count = min(max(1, round(fraction * len(indices))), len(indices) - 1)
        held_out |= {indices[i] for i in generator.permutation(len(indices))[:count]}
    kept = [index for index in range(len(rows)) if index not in held_out]
    return rows.take(kept), rows.take(sorted(held_out))


def joined(first: Rows, second: Rows) -> Rows:
    """Concatenate the rows of both; the result has the name of the first file."""
    return Rows(first.path, first.texts + second.texts, first.labels + second.labels, first.lines + second.lines)


def balanced_weights(labels: Sequence[str], classes: Sequence[str]) -> list[float]:
    """Return rows / (classes * rows of the class) for each class, so all classes have equal weight in the loss.

    >>> balanced_weights(["a", "b", "b", "b"], ["a", "b"])
    [2.0, 0.6666666666666666]
    """
    counts = Counter(labels)
    return [len(labels) / (len(classes) * counts[name]) for name in classes]


POOL = 32
"""Number of batches that are sorted by length together: padding is rare, and the order is still random."""


def epoch_order(lengths: Sequence[int], batch_size: int, *, seed: int, epoch: int) -> list[list[int]]:
    """Return every index once, in batches of similar length and in random order, determined by seed and epoch.

    >>> sorted(sum(epoch_order([5, 1, 4, 2, 3], 2, seed=0, epoch=0), []))
    [0, 1, 2, 3, 4]
    """
    generator = np.random.default_rng([seed, epoch])
    order, sizes = generator.permutation(len(lengths)), np.asarray(lengths)
    batches: list[list[int]] = []
    for begin in range(0, len(order), POOL * batch_size):
        pool = order[begin : begin + POOL * batch_size]
        pool = pool[np.argsort(sizes[pool], kind="stable")]
        batches += [pool[i : i + batch_size].tolist() for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in generator.permutation(len(batches))]


def by_length(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Return every index once, in batches, the shortest texts first."""
    order = np.argsort(np.asarray(lengths), kind="stable").tolist()
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def pad(texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
    """Return ids and mask, int64 and bool `[batch, longest]`, padded on the right; the mask is None without padding."""
    lengths = torch.tensor([len(text) for text in texts])
    longest = int(lengths.max())
    ids = torch.zeros(len(texts), longest, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
    mask = torch.arange(longest) < lengths[:, None]
    return ids, None if bool(mask.all()) else mask


def leave_out(texts: Sequence[list[int]], probability: float) -> list[list[int]]:
    """Drop each token with this probability, and keep at least one per text."""
    if not probability:
        return list(texts)
    drawn = torch.rand(sum(len(text) for text in texts)).tolist()
    kept_texts, begin = [], 0
    for text in texts:
        chances = drawn[begin : begin + len(text)]
        kept = [token for token, chance in zip(text, chances, strict=True) if chance >= probability]
        kept_texts.append(kept or [text[chances.index(max(chances))]])
        begin += len(text)
    return kept_texts
