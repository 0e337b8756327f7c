# ruff: noqa: RUF001
"""The quotes and dashes that the training texts of `tiny` get: scripts/typographic.py."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from ropewalk.readers.texts import read_text

SCRIPT = Path(__file__).parents[2] / "scripts" / "typographic.py"
typographic = runpy.run_path(str(SCRIPT))["typographic"]


def straight(text: str) -> str:
    """The text as it would be typed: the inverse of what is tested."""
    for printed, typed in (("“", '"'), ("”", '"'), ("‘", "'"), ("’", "'"), ("—", "--")):
        text = text.replace(printed, typed)
    return text


@pytest.mark.parametrize(
    "printed",
    [
        "“So,” she said—“what is it?”",
        "“He said, ‘No,’ and went.”",
        "‘Dogs’ are dogs’ ‘dogs.’",
        "“‘Tell ’em,’ says he.”",
        "’Tis the ’prentice o’ the ship—’twas in ’29.",
        "(“Oh!”) cried the captain’s men—“Oh!—”",
        "“‘Whose?’ he asked—‘mine?’”\n\n“‘Yes.’”",
        "“I—” he stopped. “You—!”",
        "“‘What runs on\n\n“‘and on?’”",
        "_“Italics,”_ said the mate; “_so_.”",
    ],
)
def test_typed_text_is_printed_as_books_print_it(printed: str) -> None:
    """Straightened and converted, each comes back."""
    assert typographic(straight(printed)) == printed


def test_spaces_after_a_sentence_are_one_and_indents_stay() -> None:
    """As in the text of Moby-Dick."""
    assert typographic("One.  Two.\n    A verse.") == "One. Two.\n    A verse."


def test_moby_dick_straightened_comes_back() -> None:
    """A printed novel as the oracle: of its 7,700 quotes and dashes 5 come back as another mark.

    Two of them stand before ’balmed and ’Hind, elisions that the script does not know.
    """
    text = read_text(None)[1].replace("——", "—")
    back = typographic(straight(text))
    text = typographic(text)  # single spaces
    assert len(back) == len(text)
    marks = [(a, b) for a, b in zip(text, back, strict=True) if a in "“”‘’—" or a != b]
    assert len(marks) > 7_500
    assert sum(a != b for a, b in marks) <= 5
