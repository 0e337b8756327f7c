"""`ropewalk doctor`: how far a checkpoint's context reaches, and what would extend it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from ropewalk.context.doctor import Plan
    from ropewalk.context.state import State

_DTYPES = ("float32", "bfloat16", "float16", "float64")


def doctor(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help='A Hugging Face folder, a .gguf file, or "tiny".')] = "tiny",
    target: Annotated[int | None, typer.Option(help="The length wanted, in tokens [default: 4x trained].")] = None,
    trained_length: Annotated[int | None, typer.Option(help="Tokens trained, where the config is silent.")] = None,
    text: Annotated[
        list[Path] | None, typer.Option(help="A UTF-8 text, plain or gzipped; repeatable [default: Moby Dick].")
    ] = None,
    start_char: Annotated[int, typer.Option(help="Begin each text at this character.")] = 0,
    block: Annotated[int | None, typer.Option(help="Tokens of a block [default: a quarter of trained].")] = None,
    windows: Annotated[int | None, typer.Option(help="Windows of each text [default: up to 16].")] = None,
    stride: Annotated[int | None, typer.Option(help="Crop's stride [default: a quarter of trained].")] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            "--method",
            help="Names with commas, or all: those in attention as well [default: those that a config can hold, crop].",
        ),
    ] = None,
    unscaled_tokens: Annotated[
        int, typer.Option(help="First tokens that keep their angles under changed frequencies (LongRoPE's n-hat).")
    ] = 0,
    retrieval: Annotated[
        str | None,
        typer.Option(help="Also ask for what lies far back: all, or passkey,niah_single,...; hours on long lengths."),
    ] = None,
    retrieval_lengths: Annotated[
        str | None, typer.Option(help="Its lengths, with commas [default: from half the trained length to the target].")
    ] = None,
    retrieval_samples: Annotated[int, typer.Option(help="Its examples for each task, length and depth.")] = 10,
    scoring: Annotated[str, typer.Option(help="choice (log-probability against distractors) or generate.")] = "choice",
    seed: Annotated[int, typer.Option(help="Draws the windows' places and the examples.")] = 0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every number to this file.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write index.html and figures into this folder.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the same run was stopped.")] = False,
    state: Annotated[Path | None, typer.Option(help="Where results are kept [default: the user's cache].")] = None,
    chunk: Annotated[int, typer.Option(help="Tokens of one forward: memory against speed.")] = 1024,
    workers: Annotated[
        int | None, typer.Option(help="Windows at one time [default: as cores and memory allow].")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
) -> None:
    """Measure how far a checkpoint's context really reaches, and what would extend it."""
    from rich.console import Console

    from ropewalk.cli.command_line import command_line, environment_of, given_options, refuse_ignored
    from ropewalk.cli.doctor_retrieval import asked as asked_retrieval
    from ropewalk.cli.doctor_retrieval import check_tasks
    from ropewalk.cli.doctor_retrieval import measure as measure_retrieval
    from ropewalk.cli.doctor_retrieval import show as show_retrieval
    from ropewalk.cli.tables import difference_tables, loss_tables, print_inspection
    from ropewalk.context.doctor import plan, run, take_windows, trained_length_of
    from ropewalk.context.methods import EXTENSIONS, named_methods
    from ropewalk.context.output import check_writable, finite
    from ropewalk.context.protocol import Protocol
    from ropewalk.context.report import answer_lines, at_run_time, config_changes, document, shared_sentences
    from ropewalk.context.retrieval.summary import sentences
    from ropewalk.context.sources import read_source, read_text
    from ropewalk.context.state import State, default_path, fingerprint
    from ropewalk.context.workers import fitting_workers

    console, given = Console(), given_options(context)
    named_methods(methods)
    of_retrieval = ("retrieval_lengths", "retrieval_samples", "scoring")
    refuse_ignored("doctor", given, of_retrieval, retrieval is not None, "--retrieval", "add --retrieval all")
    if retrieval is not None:
        check_tasks(retrieval)
    if json_file is not None:
        check_writable(json_file)
    if report is not None:
        from ropewalk.report.write import check_folder, write_report

        check_folder(report)
    found = read_source(model)
    decoder = _load(model, dtype, device)
    paths: list[Path | None] = [*text] if text else [None]
    texts = [read_text(path) for path in paths]
    tokens = [decoder.tokenizer.encode(contents[max(start_char, 0) :]) for _, contents in texts]
    protocol = Protocol.choose(
        trained_length=trained_length_of(decoder, trained_length),
        text=[name for name, _ in texts],
        target=target,
        block=block,
        windows=windows,
        stride=stride,
        start_char=start_char,
        seed=seed,
        unscaled_tokens=unscaled_tokens,
        tokens=min(map(len, tokens)),
    )
    audits = found.audits(trained_length=protocol.trained_length, target=protocol.target)
    findings = found.findings(protocol.target)
    print_inspection(console, found.name, audits, findings)
    chosen = take_windows(tokens, protocol)
    key = fingerprint(decoder, chosen, protocol)
    kept = State(state or default_path(key), key)
    taken_up = kept.resume() if resume else kept.begin()
    work = plan(decoder, protocol, methods, kept)
    refuse_ignored("doctor", given, ["stride"], "crop" in work.methods, "crop", "add crop to --methods")
    scaled = any(name in EXTENSIONS for name in work.methods)
    what = "methods that change frequencies"
    refuse_ignored("doctor", given, ["unscaled_tokens"], scaled, what, "add one of them to --methods")
    told = " and ".join(name for name, _ in texts), "\n".join(contents[start_char:] for _, contents in texts)
    console.print(f"\n{protocol.sentence()}", markup=False, highlight=False)
    if taken_up:
        console.print(f"Resumed: {taken_up} measurements were there already.", highlight=False)
    retrieving = None
    if retrieval is not None:
        retrieving = asked_retrieval(
            decoder,
            work,
            tasks=retrieval,
            lengths=retrieval_lengths,
            samples=retrieval_samples,
            scoring=scoring,
            text=told,
        )
    at_once = fitting_workers(decoder, protocol.target, len(work.jobs)) if workers is None else workers
    with _stoppable(kept, work), _progress(work) as (begin, advance):
        measurement = run(decoder, chosen, work, kept, chunk=chunk, workers=at_once, begin=begin, advance=advance)
    console.print()
    for table in (*loss_tables(measurement, console), *difference_tables(measurement, console)):
        console.print(table)
    answer = measurement.recommendation()
    for line in (*shared_sentences(measurement), *answer_lines(answer)):
        console.print(line, markup=False, highlight=False)
    call = None if answer.method is None else at_run_time(answer.method, measurement)
    if call is not None:
        console.print(
            f"No config can hold {answer.method}: at run time, {call}.", markup=False, highlight=False, soft_wrap=True
        )
    elif answer.method not in (None, "plain"):
        pasted = json.dumps(config_changes(answer.method, measurement), indent=2)
        console.print(f"For the checkpoint's config.json:\n{pasted}", markup=False, highlight=False, soft_wrap=True)
    found_back = None
    if retrieving is not None:
        with _stopping("The examples so far are kept"):
            found_back = measure_retrieval(
                decoder,
                work,
                retrieving,
                text=told,
                state=None if kept.path is None else kept.path.with_suffix(".retrieval.json"),
                resume=resume,
                chunk=chunk,
            )
        show_retrieval(console, found_back)
    environment = {**environment_of(device, decoder), "dtype": dtype, "chunk": chunk}
    environment["command"] = command_line(context, leave_out=("json_file", "report", "resume", "state"))
    written = document(found.name, measurement, audits, findings, environment=environment)
    if found_back is not None:
        written["retrieval"] = finite({**found_back.to_json(), "summary": list(sentences(found_back))})
    if json_file is not None:
        _write(json_file, json.dumps(written, indent=1, allow_nan=False) + "\n")
    if report is not None:
        console.print(f"Report: {write_report(report, written)}", markup=False, highlight=False, soft_wrap=True)


def _load(model: str, dtype: str, device: str) -> Any:
    """The model with its tokenizer, on its device; the checks that only the command line needs."""
    import torch

    from ropewalk.models.checkpoint import load

    if dtype not in _DTYPES:
        raise RopeError("doctor: unknown dtype.", facts={"dtype": dtype}, cure=f"Choose from {', '.join(_DTYPES)}.")
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).item()  # also refuses "meta", which holds no numbers
    except (RuntimeError, AssertionError) as error:
        raise RopeError(
            "doctor: this device cannot be used.",
            facts={"device": device, "error": str(error)},
            cure="Try --device cpu.",
        ) from error
    decoder = load(model, dtype=getattr(torch, dtype))
    if decoder.tokenizer is None:
        raise RopeError(
            "doctor: the checkpoint has no tokenizer, so a text cannot be measured.",
            facts={"model": model},
            cure="Put its tokenizer.json beside the weights.",
        )
    return decoder.to(place)


@contextmanager
def _stopping(said: str) -> Iterator[None]:
    """Ctrl-C ends the run with status 130 and a word."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(f"\nStopped. {said}; run the same command with --resume to go on.\n")
        raise typer.Exit(130) from None


@contextmanager
def _stoppable(kept: State, work: Plan) -> Iterator[None]:
    """Ctrl-C ends the run with status 130 and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        due = sum((job.method, job.window) not in kept.results for job in work.jobs)
        sys.stderr.write(
            f"\nStopped: {len(kept.results)} measurements are kept, {due} are due. "
            "Run the same command with --resume to go on.\n"
        )
        raise typer.Exit(130) from None


@contextmanager
def _progress(work: Plan) -> Iterator[tuple[Any, Any]]:
    """Callbacks that show the step and the tokens done: a bar on a terminal, a line for each step elsewhere."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console, total, count = Console(stderr=True), sum(job.tokens for job in work.jobs), len(work.jobs)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    done = 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def begin(job: Any) -> None:
            nonlocal done
            done += 1
            step = f"[{done}/{count}] {job.method}, window {job.window + 1} of {work.protocol.total_windows}"
            bar.update(task, description=step.replace("[", r"\["))
            if not console.is_terminal:
                sys.stderr.write(f"{step} ({job.tokens:,} tokens)\n")

        def advance(tokens: int) -> None:
            bar.advance(task, tokens)

        yield begin, advance


def _write(path: Path, content: str | bytes) -> None:
    from ropewalk.context.output import write_whole

    write_whole(path, content)
