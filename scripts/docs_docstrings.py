"""Prepare docstrings for mkdocstrings: Markdown, with examples as blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Griffe extension that fences every `>>>` example; the rest of our docstrings is Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Convert the docstring of each loaded object."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """Return a docstring with examples as blocks of code and an empty line before its first list.

    >>> print(as_markdown("Adds.\\n\\n>>> 1 + 1\\n2").replace("`" * 3, "~~~"))
    Adds.
    <BLANKLINE>
    <BLANKLINE>
    ~~~pycon
    >>> 1 + 1
    2
    ~~~
    """
    lines, out, inside = docstring.splitlines(), [], False
    for index, line in enumerate(lines):
        if line.startswith(">>>") and not inside:
            out += ["", "```pycon"]
            inside = True
        if inside and not line.strip() and not any(later.startswith(">>>") for later in lines[index + 1 : index + 2]):
            out.append("```")
            inside = False
        out.append(line)
    text = "\n".join([*out, "```"] if inside else out)
    return re.sub(r"([^\n])\n(- )", lambda found: f"{found[1]}\n\n{found[2]}", text, count=1)
