"""`ropewalk generate`: streaming, stop texts, Ctrl-C, and errors as messages."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ropewalk.checkpoints.load import load, save
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.cli.generate import _print, generate, pieces, until
from ropewalk.cli.options import with_options
from ropewalk.errors import RopeError
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.models.generation import generate as generate_tokens
from ropewalk.models.precision import chosen_dtype
from ropewalk.rope.config import RopeConfig

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model over bytes: it writes nonsense, and so every kind of broken character."""
    config = DecoderConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        rope=RopeConfig(head_dim=8, interleaved=False),
        initializer_range=0.3,
    )
    path = tmp_path_factory.mktemp("models") / "bytes"
    torch.manual_seed(0)  # another model could write line ends, which the runner changes
    save(Decoder(config), path, tokenizer=TextTokenizer.bytes())
    return path


def test_lengths_may_be_written_with_k(folder: Path) -> None:
    """`--max-new-tokens` is a length in tokens; none at all is refused."""
    assert run(folder, "a", "--max-new-tokens", "0.00390625k").stdout == run(folder, "a", "--max-new-tokens", 4).stdout
    assert "must be" in str(run(folder, "a", "--max-new-tokens", 0).exception)


def run(*arguments: object) -> Any:
    """The command's result; errors other than a clean exit are raised."""
    app = typer.Typer()
    app.command()(with_options(generate))
    return RUNNER.invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)


def test_text_is_what_generate_gives(folder: Path) -> None:
    """The printed continuation is the decoded tokens of `generate`; --no-echo leaves out the prompt."""
    model = load(folder)
    assert model.tokenizer is not None
    [tokens] = generate_tokens(model, "né", max_new_tokens=30)
    expected = model.tokenizer.decode(tokens)
    assert run(folder, "né", "--max-new-tokens", 30).stdout == "né" + expected + "\n"
    assert run(folder, "né", "--max-new-tokens", 30, "--no-echo").stdout == expected + "\n"


def test_auto_says_on_standard_error_what_it_chose(folder: Path) -> None:
    """The text on standard output is that of the dtype by its name."""
    chosen, why = chosen_dtype("auto", "cpu")
    name = str(chosen).removeprefix("torch.")
    auto, named = (run(folder, "x", "--dtype", dtype, "--max-new-tokens", 4) for dtype in ("auto", name))
    assert auto.stdout == named.stdout
    assert auto.stderr == f"generate: computed in {name}: {why}.\n"


def test_sampling_repeats_with_a_seed(folder: Path) -> None:
    """The same seed gives the same text, another one another."""
    options = ("--temperature", 1.0, "--top-k", 50, "--top-p", 0.9, "--max-new-tokens", 16, "--seed")
    first, second, other = (run(folder, "x", *options, seed).stdout for seed in (1, 1, 2))
    assert first == second != other


def test_errors_are_rope_errors(folder: Path, tmp_path: Path) -> None:
    """A missing model, an unknown dtype, an empty stop text, a model without a tokenizer."""
    for arguments, message in (
        ((tmp_path / "nowhere", "x"), "no such file or folder"),
        ((folder, "x", "--dtype", "int8"), "unknown dtype"),
        ((folder, "x", "--stop", ""), "must not be empty"),
    ):
        error = run(*arguments).exception
        assert isinstance(error, RopeError)
        assert message in str(error)
    save(load(folder), tmp_path / "mute")
    model = load(folder)
    model.tokenizer = None
    save(model, tmp_path / "mute")
    assert "no tokenizer" in str(run(tmp_path / "mute", "x").exception)


@given(
    st.lists(st.text("ab<>", max_size=3), max_size=12), st.lists(st.text("ab<>", min_size=1, max_size=3), max_size=3)
)
def test_until_stops_before_the_first_stop_text(text: list[str], stops: list[str]) -> None:
    """However the text is cut into pieces, it ends before the earliest complete stop text."""
    whole = "".join(text)
    ends = [whole.index(stop) + len(stop) for stop in stops if stop in whole]
    shown = "".join(until(text, stops))
    assert whole.startswith(shown)
    if not ends:
        assert shown == whole
    else:
        assert not any(stop in shown for stop in stops)
        assert any(whole[len(shown) :].startswith(stop) for stop in stops)


def test_ctrl_c_ends_the_line() -> None:
    """What was written stays, the line ends, the status is 130."""

    def interrupted() -> Iterator[int]:
        yield 104
        yield 105
        raise KeyboardInterrupt

    out = io.StringIO()
    with pytest.raises(typer.Exit) as stopped:
        _print(["> "], pieces(TextTokenizer.bytes(), interrupted()), out)
    assert out.getvalue() == "> hi\n"
    assert stopped.value.exit_code == 130


def test_a_narrow_terminal_shows_question_marks() -> None:
    """A terminal that cannot show a character gets a replacement, not a traceback."""
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    _print(["né 🦜"], [], terminal)
    terminal.seek(0)
    assert terminal.read() == "n? ?\n"
