"""`ropewalk extend`: a checkpoint that reads further, as a folder that transformers loads."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from ropewalk.models.decoder import Decoder


def extend(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help='A Hugging Face folder, a .gguf file, or "tiny".')],
    out: Annotated[Path | None, typer.Option(help="The folder to write; --search needs none.")] = None,
    more: Annotated[list[Path] | None, typer.Argument(help="More texts: --text A B C.", metavar="FILE")] = None,
    target: Annotated[int | None, typer.Option(help="The length wanted, in tokens [default: 4x trained].")] = None,
    method: Annotated[str, typer.Option(help="What is done to the frequencies; the doctor's names.")] = "yarn",
    trained_length: Annotated[int | None, typer.Option(help="Tokens trained, where the config is silent.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the weights written [default: as the source].")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what an export wrote to --out.")] = False,
    native: Annotated[bool, typer.Option("--native", help="ropewalk's own form: every method; ropewalk alone reads it."
        )] = False,
    steps: Annotated[int | None, typer.Option(help="Tune: so many updates at the target length.")] = None,
    search: Annotated[bool, typer.Option("--search", help="Search the factors, from every method, on --text.")] = False,
    budget: Annotated[int | None, typer.Option(help="Evaluations of the search [default: 200].")] = None,
    minutes: Annotated[float | None, typer.Option(help="Of evaluations; with --budget, what ends first.")] = None,
    monotone: Annotated[bool, typer.Option("--monotone", help="Divisors never fall towards slower pairs.")] = False,
    answers: Annotated[str | None, typer.Option(help="Search on answers of retrieval tasks: passkey,niah_single,..."
        )] = None,
    unscaled_tokens: Annotated[int, typer.Option(help="First tokens that keep their angles (LongRoPE's n-hat)."
        )] = 0,
    search_windows: Annotated[int | None, typer.Option(help="Windows (examples) for each evaluation [default: 4 (10)]."
        )] = None,
    search_record: Annotated[Path | None, typer.Option(help="Write the search's numbers here, its figure beside it."
        )] = None,
    text: Annotated[list[Path] | None, typer.Option(help="UTF-8 text to tune or search on.", metavar="FILE...")] = None,
    train: Annotated[str, typer.Option(help="What is tuned: all, attention, norms, embeddings, lora; with + between."
        )] = "all",
    rank: Annotated[int, typer.Option(help="Of lora's adapters.")] = 16,
    batch_size: Annotated[int, typer.Option(help="Windows at a time.")] = 1,
    tokens_per_step: Annotated[int | None, typer.Option(help="Of an update [default: one batch].")] = None,
    recompute: Annotated[bool, typer.Option(help="Activations anew in the backward pass: less memory.")] = True,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate [default: 2e-5; 2e-4 for lora].")] = None,
    final_lr: Annotated[float, typer.Option(help="Last learning rate, as a part of the peak.")] = 0.1,
    warmup: Annotated[int | None, typer.Option(help="Updates to the peak [default: a tenth, at most 20].")] = None,
    weight_decay: Annotated[float, typer.Option(help="AdamW's, on matrices only.")] = 0.0,
    clip: Annotated[float, typer.Option(help="Largest norm of the gradient.")] = 1.0,
    precision: Annotated[str, typer.Option(help="Of products in tuning: auto, float32, bfloat16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of windows, order, adapters and dropout.")] = 0,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away the stopped run beside --out.")] = False,
    log_every: Annotated[int, typer.Option(help="Updates between lines of the log.")] = 10,
    checkpoint_every: Annotated[int | None, typer.Option(help="Updates [default: a twentieth of the run].")] = None,
    measure: Annotated[bool | None, typer.Option(help="Loss by position, before and after [default: if tuned]."
        )] = None,
    validation: Annotated[Path | None, typer.Option(help="Text to measure on [default: Moby Dick].")] = None,
    start_char: Annotated[int, typer.Option(help="Begin it at this character.")] = 0,
    windows: Annotated[int | None, typer.Option(help="Windows of it [default: up to 16].")] = None,
    block: Annotated[int | None, typer.Option(help="Tokens of a block [default: a quarter of trained].")] = None,
) -> None:  # fmt: skip
    """Extend a checkpoint's context and write it as a Hugging Face folder.

    Without --steps the method is applied as it is. With it the model is then trained on --text at the target length;
    stopped, the same command goes on. The folder appears when all of it is done, with README.md, and extend.json where
    something was tuned or measured. With --search the method is one divisor for each pair and an attention factor,
    found on --text and held against every method on --validation.
    """
    import torch
    from rich.console import Console

    from ropewalk.cli.command_line import environment_of, given_options
    from ropewalk.cli.extend_folder import WorkFolder
    from ropewalk.cli.extend_job import ExtendJob
    from ropewalk.cli.extend_options import check_options
    from ropewalk.context.doctor import trained_length_of
    from ropewalk.context.methods import applied
    from ropewalk.context.output import check_writable
    from ropewalk.context.state import model_digest
    from ropewalk.extend.export import DTYPES, check_out, export, hub_of
    from ropewalk.extend.tune import TuneSettings, tuning_form, tuning_length
    from ropewalk.models.checkpoint import load
    from ropewalk.models.extras import need
    from ropewalk.training import Housekeeping
    from ropewalk.training.settings import on_machine

    given = locals()
    console = Console(highlight=False)
    if dtype not in (None, *DTYPES):
        raise RopeError("extend: unknown dtype.", facts={"dtype": dtype}, cure=f"Choose from {', '.join(DTYPES)}.")
    texts = [*(text or []), *(more or [])]
    if bool(texts) != (steps is not None or search):
        raise RopeError(
            "extend: tuning needs both --steps and --text, and --search needs --text.",
            facts={"steps": steps, "search": search, "text": [str(path) for path in texts]},
            cure="Pass both, or neither to apply the method as it is.",
        )
    check_options(given_options(context), given)
    if search:
        need("cma", extra="search")
    if steps is not None and "lora" in train:
        need("peft", extra="tune")
    works = steps is not None or measure or (measure is None and validation is not None)
    if search_record is not None:
        check_writable(search_record)
    if out is not None:
        check_out(out, source=model, overwrite=overwrite)
        if works:
            WorkFolder(out).check(tunes=steps is not None, restart=restart)
    place, _ = on_machine(device, precision)
    source = load(model)
    stored = source.embed_tokens.weight.dtype
    trained = trained_length_of(source, trained_length)
    length = 4 * trained if target is None else target
    searched = None
    if search:
        from ropewalk.cli.extend_search import METHOD, run_search, write_record

        source = source.to(device=place, dtype=torch.float32)
        searched = run_search(
            console,
            source,
            name=model,
            texts=texts,
            validation=validation,
            trained_length=trained,
            target=length,
            search_windows=search_windows,
            windows=windows,
            start_char=start_char,
            budget=budget,
            minutes=minutes,
            monotone=monotone,
            unscaled_tokens=unscaled_tokens,
            answers=answers,
            seed=seed,
            restart=restart,
            environment=environment_of(place, source),
        )
        method = given["method"] = METHOD
        if search_record is not None:
            write_record(searched, search_record)
            console.print(f"extend: wrote {search_record}", markup=False, soft_wrap=True)
    if out is None:
        return

    def under_method() -> Decoder:
        if searched is not None:
            return searched.result.apply(source)
        return applied(source, method, trained_length=trained, target=length, unscaled_tokens=unscaled_tokens)

    adapted = under_method()
    if not native:
        hub_of(adapted, method, trained_length=trained, target=length)  # refused before the work, not after it
    job = ExtendJob(model, out, source, method, trained, length, place, unscaled_tokens=unscaled_tokens)
    if works:
        source = job.in_float32()
        adapted = under_method()
        if measure is not False:
            job.prepare_measurement(validation, start_char, windows, block, seed)
    settings = None
    if steps is not None:
        names = {field.name for field in dataclasses.fields(TuneSettings)}
        own = {"text", "validation", "trained_length", "target", "lr"}
        settings = TuneSettings(
            **{name: value for name, value in given.items() if name in names - own},
            source=model_digest(tuning_form(adapted, method)),
            text=tuple(map(str, texts)),
            validation=() if validation is None or validation.suffix == ".gz" else (str(validation),),
            trained_length=trained,
            target=tuning_length(method, trained_length=trained, target=length),
            lr=lr or 0.0,
        )
        job.check_unseen(texts, validation)
    if works:
        job.work.claim(settings, restart=restart)
    keeping = Housekeeping(log_every=log_every, validate_every=checkpoint_every, checkpoint_every=checkpoint_every)
    try:
        final = job.go(adapted, settings, keeping, restart=restart)
    except KeyboardInterrupt as stop:
        typer.echo(f"extend: {str(stop) or 'stopped'}. The same command goes on from there.", err=True)
        raise typer.Exit(130) from None
    found = export(
        final.to("cpu"),
        out,
        method=method,
        trained_length=trained,
        target=length,
        source=model,
        dtype=stored if dtype is None else getattr(torch, dtype),
        overwrite=overwrite,
        native=native,
        further=lambda found: {**job.files(found), **({} if searched is None else searched.files())},
    )
    job.work.remove()
    job.tell(console, found)
