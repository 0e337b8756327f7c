"""The command `ropewalk verify`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropewalk.cli.options import command_line, path, tokens, write_record
from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.verification.fit import Verification
    from ropewalk.verification.golden import Golden

SHOWN = 12  # rows of the table; --json contains all


def verify(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help='The checkpoint: a Hugging Face folder, a .gguf file, or "tiny". Not needed with --golden.',
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="A server's URL, or one to start with the checkpoint: transformers, llama.cpp, mlx, onnx, vllm "
            "(vllm@PYTHON: in the Python of a different environment)."
        ),
    ] = None,
    golden: Annotated[Path | None, path("Check the engine with the predictions of this file, without a model.")] = None,
    write: Annotated[
        Path | None, path("Write the model's predictions to this file for --golden, without an engine.")
    ] = None,
    expect: Annotated[
        str | None, typer.Option(help='Expected rope: "plain", "yarn:4", or a JSON block [default: from the config].')
    ] = None,
    up_to: Annotated[
        int | None, tokens("Longest prompt of the verdict, in tokens [default: the trained length, at most 1k].")
    ] = None,
    max_tokens: Annotated[int, tokens("Longest prompt to send, in tokens.")] = 4096,
    text: Annotated[Path | None, path("UTF-8 file for prompts [default: a novel].")] = None,
    wait: Annotated[
        float, typer.Option(help="Seconds to wait for a server that is not reached yet, or that is loading.", min=0.0)
    ] = 3.0,
    served_name: Annotated[
        str | None, typer.Option(help="The model's name on the server [default: the first in its list].")
    ] = None,
    trained_length: Annotated[int | None, tokens("Trained length in tokens [default: from the config].")] = None,
    device: Annotated[
        str, typer.Option(help="Device of our side: cpu, cuda, ...; auto spreads the layers over all devices.")
    ] = "cpu",
    state: Annotated[
        Path | None, path("Folder to save our own predictions for the next check [default: the user's cache].")
    ] = None,
    json_file: Annotated[Path | None, path("Write all results to this file.", "--json")] = None,
) -> None:
    """Determine which rotary embedding an engine applies to a model.

    Sends a few prompts for one token each, and compares the log-probabilities with our own under each hypothesis. The
    exit status is 0 as expected, 1 other than expected, 2 invalid option or file, 3 undecided, 4 not reached, 5 refused
    by the server, 6 still loading. The variable OPENAI_API_KEY may contain a key.
    --write only writes our predictions to a file; --golden checks engines with this file, without the weights.
    """
    from ropewalk.atomic_io import check_output
    from ropewalk.progress import plain_console, shown
    from ropewalk.verification.golden import Golden, write_golden

    for file in (write, json_file):
        if file is not None:
            check_output(file)
    predicting: dict[str, Any] = {
        "expect": expect, "up_to": up_to, "text": text, "trained_length": trained_length, "state": state or _cache(),
        "device": device,
    }  # fmt: skip
    try:
        check_modes(model, engine, golden, write)
        with shown("verify", lines=True) as progress:
            asking: dict[str, Any] = {
                "served_name": served_name, "wait": wait, "max_tokens": max_tokens, "progress": progress,
            }  # fmt: skip
            if write is not None:
                begun = time.monotonic()
                written = write_golden(str(model), write, progress=progress, **predicting)
                seconds = time.monotonic() - begun
            elif golden is not None:
                verification = Golden.read(golden).check(engine, model=model, **asking)
            else:
                from ropewalk.verification.verify import verify as run

                verification = run(model, engine, **predicting, **asking)
    except BaseException as error:
        write_record(json_file, failed(error))  # else the record of an earlier run would be taken for this one's
        raise
    if write is not None:
        plain_console().print(_written(written, write, seconds))
        return
    print_verification(plain_console(), verification)
    if (needs := verification.verdict.needs_tokens) is not None:
        longer = {"up_to": needs} if golden is None and needs > verification.verdict.up_to else {}
        print(f"Next: {command_line(context, changed=longer | {'max_tokens': max(max_tokens, needs)})}")
    write_record(json_file, verification.to_json())
    raise typer.Exit(verification.exit_status)


def failed(error: BaseException) -> dict[str, Any]:
    """Return the record of a run without a verdict, in the form of `Verification.to_json`."""
    sentence, status = f"No verdict: {type(error).__name__}.", None
    if isinstance(error, RopeError):
        sentence, status = f"No verdict: {error.rule} {error.cure}", error.exit_status
    verdict = {"kind": "failed", "sentence": " ".join(sentence.split()), "exit_status": status}
    return {"generator": "ropewalk", "kind": "verification", "verdict": verdict}


def check_modes(model: str | None, engine: str | None, golden: Path | None, write: Path | None) -> None:
    """Raise `RopeError` unless the options select one of the three uses."""
    rules = {
        "--write needs a model, and excludes --engine and --golden.": write and (model is None or engine or golden),
        "pass an engine to check as --engine, or a file to write as --write.": write is None and engine is None,
        "pass a model, or a file of golden predictions as --golden.": model is None and golden is None,
    }
    for rule in (rule for rule, broken in rules.items() if broken):
        raise RopeError(
            f"verify: {rule}",
            facts={"model": model, "engine": engine, "golden": golden, "write": write},
            cure="Run ropewalk verify MODEL --engine URL, MODEL --write FILE, or --golden FILE --engine URL.",
        )


def _written(golden: Golden, path: Path, seconds: float) -> str:
    """Return a sentence about a golden file."""
    prompts = {(question["passage"], question["length"]) for question in golden.document["questions"]}
    longest = max((length for _, length in prompts), default=0)
    return (
        f"{path}: {golden.model}, expected {golden.expected}; {len(golden.all)} hypotheses, "
        f"{len(prompts)} prompts of up to {longest:,} tokens, "
        f"{path.stat().st_size / 1000:,.0f} kB, {seconds:,.0f} s."
    )


def _cache() -> Path | None:
    """Return a folder of the user's cache; None if it is not writable, as in some containers."""
    from ropewalk.ledger import cache_folder

    folder = cache_folder("verify", "")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def print_verification(console: Console, verification: Verification) -> None:
    """Print the verdict, a table of the best hypotheses, and the cost."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{verification.model} in {verification.engine}: {verification.verdict.sentence}", style="bold"))
    table = Table("hypothesis", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in ("misfit (nats)", "lean", "prompts"):
        table.add_column(head, justify="right", no_wrap=True)
    for one in [one for one in verification.hypotheses if one.misfit is not None][:SHOWN]:
        lean = "" if one.lean is None else f"{one.lean:+.2f} ±{one.lean_half or 0.0:.2f}"
        table.add_row(one.name, f"{one.misfit:.4f}", lean, str(one.questions))
    if table.rows:
        console.print(table)
    noise = "" if verification.noise is None else f" Its error after a single token is {verification.noise:.4f} nats"
    if noise and verification.residual is not None:
        noise += f", in all prompts {verification.residual:.4f}"
        noise += f"; the same prompt twice, {verification.repeated or 0.0:.4f}"
    cost = f"{verification.requests} requests, {verification.seconds:.0f} s."
    console.print(Text(f"Tokens: {verification.tokenisation}.{noise}. {cost}"))
