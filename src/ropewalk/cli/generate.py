"""`ropewalk generate`: continue a prompt, and print the text as it is generated."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from ropewalk.cli.options import TOKENS
from ropewalk.diagnosis.settings import DTYPES
from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from ropewalk.models.prompts import Tokenizer


_DTYPES = f"{', '.join(DTYPES)}; auto is bfloat16 if that is fast"


def generate(
    model: Annotated[
        str,
        typer.Argument(help='A Hugging Face folder, a .gguf file, OWNER/NAME on the Hub, or "tiny".'),
    ],
    prompt: Annotated[str, typer.Argument(help='The text to continue, or "-" for standard input.')],
    max_new_tokens: Annotated[int, TOKENS, typer.Option(help="Most new tokens.", rich_help_panel="Text")] = 100,
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop before this text (repeatable).", rich_help_panel="Text")
    ] = None,
    echo: Annotated[bool, typer.Option(help="Print the prompt first.", rich_help_panel="Text")] = True,
    temperature: Annotated[
        float, typer.Option(help="Sampling temperature; 0: the likeliest token.", min=0.0, rich_help_panel="Sampling")
    ] = 0.0,
    top_k: Annotated[
        int | None, typer.Option(help="Sample among the k likeliest tokens.", min=1, rich_help_panel="Sampling")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample among the likeliest tokens with this total probability.", rich_help_panel="Sampling"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling.", rich_help_panel="Sampling")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help=f"Dtype of the weights: {_DTYPES} [default: as stored, if that is fast].",
            rich_help_panel="Model",
        ),
    ] = None,
) -> None:
    """Continue a prompt, and print the text as it is generated."""
    from ropewalk.checkpoints.sources import find
    from ropewalk.checkpoints.stored_dtype import fast_dtype, stored_dtype
    from ropewalk.models.precision import chosen_dtype
    from ropewalk.readers.adapters import open_reader

    if dtype is not None and dtype not in DTYPES:
        raise RopeError("generate: unknown dtype.", facts={"dtype": dtype}, cure=f"Choose one of {', '.join(DTYPES)}.")
    if stop and not all(stop):
        raise RopeError("generate: --stop must not be empty.", cure="Leave out --stop, or pass a text.")
    text = sys.stdin.read() if prompt == "-" else prompt
    chosen: torch.dtype | None
    if dtype is not None:
        chosen, choice = chosen_dtype(dtype, "cpu")
        if choice is not None:
            typer.echo(f"generate: computed in {str(chosen).removeprefix('torch.')}: {choice}.", err=True)
    else:
        path = find(model)
        fast, sentence = fast_dtype(path)
        chosen = fast or stored_dtype(path)
        if sentence is not None:
            typer.echo(f"generate: {sentence[0].lower()}{sentence[1:]} Pass --dtype to choose.", err=True)
    reader = open_reader(model, dtype=chosen)
    if reader.library != "ropewalk":
        typer.echo(f"generate: computed by {reader.library}.", err=True)
    tokenizer = reader.tokenizer
    if tokenizer is None:
        raise RopeError(
            "generate: the checkpoint has no tokenizer.",
            facts={"model": model},
            cure="Put its tokenizer.json into the same folder.",
        )
    tokens = reader.stream(
        text,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    new = pieces(tokenizer, (token for _, token in tokens))
    _print([text] if echo else [], until(new, stop or []), sys.stdout)


def pieces(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of the tokens, in complete characters."""
    text = tokenizer.stream()
    for token in tokens:
        yield text.push(token)
    yield text.finish()


def until(text: Iterable[str], stops: list[str]) -> Iterator[str]:
    """Yield the text up to the first of `stops`; hold back a piece that may be the beginning of one.

    >>> list(until(["on", "e <", "en", "d> two"], ["<end>"]))
    ['on', 'e ']
    >>> list(until(["one <", "b>"], ["<end>"]))
    ['one ', '<b>']
    """
    held = ""
    for piece in text:
        held += piece
        ends = [at for at in (held.find(stop) for stop in stops) if at >= 0]
        if ends:
            if held[: min(ends)]:
                yield held[: min(ends)]
            return
        keep = max((n for stop in stops for n in range(1, len(stop)) if held.endswith(stop[:n])), default=0)
        ready, held = held[: len(held) - keep], held[len(held) - keep :]
        if ready:
            yield ready
    if held:
        yield held


def _print(first: Iterable[str], text: Iterable[str], out: TextIO) -> None:
    """Print each piece at once, and end the line, also after Ctrl-C."""
    if hasattr(out, "reconfigure"):
        out.reconfigure(errors="replace")  # a terminal that cannot show a character shows "?"
    try:
        for part in (first, text):
            for piece in part:
                out.write(piece)
                out.flush()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        out.write("\n")
        out.flush()
