# ruff: noqa: RUF001
"""Write straight quotes and double hyphens as printed books have them, for make_tiny.py and make_texts.py.

The novels that `tiny` is trained on are typed with " ' and --, the text that it is measured on is printed with
“ ” ‘ ’ and —. A double quote opens before a word that begins, and closes otherwise. A single quote opens where it could
open and a closing one follows in the same paragraph, and is an apostrophe otherwise; known elisions ('em, 'tis) are
apostrophes. Two hyphens or more become one dash, and two spaces or more within a line one.
"""

from __future__ import annotations

import re

ELISIONS = (
    "em un um ud ull ll ve re s d t m tis twas twere twould twill twixt tother till cause cute prentice prentices "
    "ere bout gainst mongst midst neath round stead scuse spose special pon"
)
_ELISION = re.compile(rf"(?:{'|'.join(ELISIONS.split())}|\d\d)\b", re.IGNORECASE)
_CLOSES = re.compile(r"(?<=[^\s—(\[“‘])'(?![^\W_])")
_OPENS_AFTER = re.compile(r"[\s—(\[“‘_*-]")


def typographic(text: str) -> str:
    """The text with typographic quotes, dashes and single spaces.

    >>> typographic('''"'Tis so--'what is,' said he, 'the dogs' bone?'"  "Ask 'em."''')
    '“’Tis so—‘what is,’ said he, ‘the dogs’ bone?’” “Ask ’em.”'
    """
    text = re.sub(r"-{2,}", "—", text)
    text = re.sub(r"(?<=\S)  +(?=\S)", " ", text)
    return "".join(_paragraph(part) for part in re.split(r"(\n\s*\n)", text))


def _paragraph(text: str) -> str:
    """One paragraph, double quotes first: they tell where single ones stand."""
    text = "".join(_double(text, at) if mark == '"' else mark for at, mark in enumerate(text))
    parts: list[str] = []
    for at, mark in enumerate(text):
        if mark == "'":
            parts.append("‘" if _single_opens(text, at, parts[-1] if parts else " ") else "’")
        else:
            parts.append(mark)
    return "".join(parts)


def _double(text: str, at: int) -> str:
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    begins = not before or bool(_OPENS_AFTER.match(before)) or (before == "'" and text[at - 2 : at - 1].isspace())
    return "“" if begins and after and not after.isspace() else "”"


def _single_opens(text: str, at: int, before: str) -> bool:
    after = text[at + 1 : at + 2]
    if not _OPENS_AFTER.match(before) or not after or after.isspace() or _ELISION.match(text, at + 1):
        return False
    first = not text[:at].strip(" \n“—")  # a quotation of several paragraphs opens anew in each
    return first or _CLOSES.search(text, at + 1) is not None
