"""Commands that are printed to be pasted into a shell: every word arrives as one argument, and nothing else runs."""

from __future__ import annotations

import os
import shlex
from pathlib import Path


def shell_command(*words: str | Path) -> str:
    r"""Return a command line for bash, zsh and other shells with `$'...'`.

    A `Path` is never read as an option. Line breaks and other characters that are not printable become escapes.

    >>> print(shell_command("vllm", "serve", Path("-my model")), shell_command("ls", "two\nlines"))
    vllm serve './-my model' ls $'two\nlines'
    """
    return " ".join(
        _quoted(f"./{word}" if isinstance(word, Path) and str(word)[0] == "-" else str(word)) for word in words
    )


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    named = {"\n": r"\n", "\\": r"\\", "'": r"\'"}
    escaped = (one if one.isprintable() else "".join(rf"\x{byte:02x}" for byte in os.fsencode(one)) for one in word)
    return "$'" + "".join(named.get(one, shown) for one, shown in zip(word, escaped, strict=True)) + "'"
