"""Tune a model under a method: train it with transformers' Trainer, measure it with the doctor, and write a folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ropewalk.atomic_io import read_json, remove_folder, sha256, whole_folder, write_json
from ropewalk.attachment import Attachment
from ropewalk.attachment.handle import attach_silently
from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.export import COMPANIONS, SHARD_BYTES
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.sources import display_name, find
from ropewalk.diagnosis.document import Diagnosis
from ropewalk.errors import RopeError
from ropewalk.extend.card import card, record
from ropewalk.extend.diagnoses import TUNED, UNTUNED, diagnose
from ropewalk.extend.held_out import refuse_seen
from ropewalk.extend.job import (
    CARD,
    FIGURE,
    RECORD,
    Exported,
    Extended,
    SourceModel,
    WorkFolder,
    check_out,
    export,
    hub_of,
)
from ropewalk.extend.runs import apply
from ropewalk.extend.settings import ApplySettings, TuneSettings, parts_of
from ropewalk.extend.trainer import (
    ADAPTER,
    TrainingStopped,
    adapted,
    check_batches,
    last_checkpoint,
    parts_trained,
    reporting,
    stopping,
    training_arguments,
)
from ropewalk.extend.windows import SkipCollator, TuningWindows
from ropewalk.figures.style import render
from ropewalk.methods import METHODS, Reach, method_named
from ropewalk.models.config import Positions
from ropewalk.models.precision import dtype_named
from ropewalk.models.prompts import Tokenizer
from ropewalk.optional import need
from ropewalk.progress import Progress
from ropewalk.readers.digest import environment_of
from ropewalk.readers.reader import Reader
from ropewalk.readers.tuned import Tuned
from ropewalk.training.settings import Report, on_machine

_SOURCE, _RUN, _SAVED, _RESULT = "source", "run", "saved", "result"
"""Folders of a training: the source if it had to be written, the Trainer's own, its output, and the tuned model."""
WAIT = 0.5  # seconds between two looks of a process at the folder that the first one writes


@dataclass(frozen=True, kw_only=True)
class SourceFolder:
    """A checkpoint for transformers: its folder, its name in reports, and the dtype of its weights."""

    folder: Path
    name: str
    dtype: torch.dtype

    def load(self, dtype: torch.dtype | None, device: str = "cpu") -> tuple[Any, Tokenizer]:
        """Return the model in a dtype (None: the stored one) and its tokenizer; raise `RopeError` without one."""
        from ropewalk.readers.loading import load_live

        model, tokenizer = load_live(self.folder, dtype, device)
        if tokenizer is None:
            raise RopeError(
                "extend: the checkpoint has no tokenizer, so it cannot be tuned on text.",
                facts={"model": self.name},
                cure="Put its tokenizer.json into the folder of the weights.",
            )
        return model, tokenizer


def source_of(model: Any, work: Path, *, first: bool = True) -> SourceFolder:
    """Return a checkpoint for transformers; a model that is not a folder is written into `work` first.

    - `model`: a path or name as for `rw.load`, a model of transformers, a pair (model, tokenizer), or a `Decoder`.
    - `first`: whether this process writes; the others wait for it.
    """
    path = find(model) if isinstance(model, str | os.PathLike) else None
    if path is not None and path.is_dir() and read_json(path / "config.json").get("model_type") != "ropewalk":
        stored = str(read_json(path / "config.json").get("dtype") or _dtype_of_weights(path))
        return SourceFolder(folder=path, name=display_name(str(model), path), dtype=dtype_named(stored))
    folder = work / _SOURCE
    while not first and not (folder / "config.json").is_file():
        time.sleep(WAIT)
    opened = SourceModel.open(model)
    if not (folder / "config.json").is_file():
        trained = opened.reader.trained_length or 0
        reach = Reach(trained, trained)
        export(opened.reader, folder, method="as-is", reach=reach, dtype=opened.stored)
    return SourceFolder(folder=folder, name=opened.name, dtype=opened.stored)


def _dtype_of_weights(folder: Path) -> str:
    """Return the name of the dtype of a checkpoint's first matrix."""
    kit = need("safetensors")
    path = min(folder.glob("*.safetensors"))
    with kit.safe_open(path, framework="pt") as tensors:
        dtype: torch.dtype = tensors.get_tensor(next(iter(tensors.keys()))).dtype
    return str(dtype).removeprefix("torch.")


def tuning_positions(positions: Positions, method: str) -> Positions:
    """Return the positions for tuning: those of `method`, but for DroPE without a scale of the logits.

    DroPE is tuned at the trained length, where that scale is 1 (Gelberg et al. 2025, arXiv:2512.12167).
    """
    if METHODS[method].tuned_at_trained_length:
        return replace(positions, extensions=(None,) * len(positions.extensions))
    return positions


def window_of(settings: TuneSettings, reach: Reach) -> tuple[int, bool]:
    """Return the length of a window in tokens, and whether its positions skip; raise `RopeError` if they cannot.

    >>> window_of(TuneSettings(text=("a",), method="dca"), Reach(256, 1024))
    (1024, False)
    """
    method = method_named(settings.method)
    counts = method.in_attention or method.tuned_at_trained_length
    default = reach.target if method.in_attention and not method.tuned_at_trained_length else reach.trained
    window = settings.window or default
    able = not counts and window < reach.target
    if window > reach.target:
        raise RopeError(
            "extend: `window` is longer than the target.",
            facts={"window": window, "target": reach.target},
            cure="Leave out `window`.",
        )
    if settings.skip and not able:
        raise RopeError(
            "extend: positions cannot skip: the method counts tokens, or the windows have the target length.",
            facts={"method": settings.method, "window": window, "target": reach.target},
            cure="Choose a method that scales frequencies and a shorter `window`, or leave out `skip`.",
        )
    return window, able if settings.skip is None else settings.skip


@dataclass(frozen=True, kw_only=True)
class Training:
    """A finished training: the folder of the tuned model, and facts for the record."""

    folder: Path
    adapter: Path | None
    record: Mapping[str, Any]


@contextmanager
def _without_future_warnings() -> Iterator[None]:
    """Hide FutureWarnings: peft and the Trainer use names of transformers that are deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


@_without_future_warnings()
def train(
    source: SourceFolder, work: Path, settings: TuneSettings, *, report: Report | None = None
) -> tuple[Training | None, Reach]:
    """Train a checkpoint under a method and write the tuned model, with the config of the source, into `work`.

    **Arguments:**
    - `source`: the checkpoint. `work`: the folder of unfinished work; a stopped run in it is resumed.
    - `report`: called with each `training.Event`.

    **Returns:** the training (None on processes other than the first) and the lengths.
    **Raises:** `RopeError` for invalid texts or settings; `TrainingStopped` after a signal.
    """
    from torch.distributed.tensor import DTensor

    from ropewalk.readers.loading import quietly

    kit = need("transformers", "transformers")
    device, precision = on_machine(settings.device, settings.precision)
    parts = parts_of(settings.train)
    half = "full" not in parts and precision == "bfloat16" and int(os.environ.get("WORLD_SIZE", 1)) == 1
    model, tokenizer = source.load(torch.bfloat16 if half and source.dtype == torch.bfloat16 else torch.float32)
    handle = attach_silently(model)
    trained = settings.trained_length or handle.trained_length
    if trained is None:
        raise RopeError(
            "extend: the model's trained length is unknown, and methods need it.",
            facts={"model": source.name},
            cure="Pass --trained-length.",
        )
    reach = Reach(trained, settings.target or 4 * trained)
    own = handle.positions
    handle.detach()
    handle = _attached(model, settings, reach, kernels=device == "cpu")
    if settings.method != "plain" and handle.positions == own:
        raise RopeError(
            "extend: the method changes no layer of the model, so there is nothing to tune.",
            facts={"model": source.name, "method": settings.method, "target": reach.target},
            cure="Choose another method or a longer target; layers with a sliding window are not extended.",
        )
    handle.set_positions(tuning_positions(handle.positions, settings.method))
    handle.saves_config = False
    window, skips = window_of(settings, reach)
    arguments = training_arguments(work / _RUN, settings, window=window, device=device, precision=precision)
    torch.manual_seed(settings.seed)
    wrapped = adapted(model, parts, settings.rank or 16)
    if not check_batches(wrapped, skips=skips, half=arguments.bf16):
        raise RopeError(
            "extend: the model does not separate the documents of one window in attention.",
            facts={"model": type(model).__name__, "attn_implementation": model.config._attn_implementation},
            cure="Pass one --text with all documents.",
        )
    windows = TuningWindows(
        [read_text(path)[1] for path in settings.text],
        tokenizer.encode,
        tokenizer.eos_ids[0] if tokenizer.eos_ids else None,
        count=arguments.max_steps * arguments.train_batch_size * arguments.gradient_accumulation_steps
        * arguments.world_size,
        length=window,
        long_length=reach.target,
        long_share=settings.long_share,
        repeat_share=settings.repeat_share,
        seed=settings.seed,
    )  # fmt: skip
    tokens = windows.predicted
    facts = {
        "parameters": sum(weight.numel() for weight in wrapped.parameters()),
        "vocab_size": tokenizer.vocab_size,
        "train_tokens": windows.tokens,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "began_with_threads": torch.get_num_threads(),
    }
    callback = reporting(report, facts, tokens // arguments.max_steps)
    trainer = kit.Trainer(
        model=wrapped,
        args=arguments,
        train_dataset=windows,
        data_collator=SkipCollator(target=reach.target if skips else None, seed=settings.seed),
        callbacks=[callback],
    )
    for shown in (kit.trainer_callback.PrinterCallback, kit.trainer_callback.ProgressCallback):
        trainer.remove_callback(shown)
    resumed = last_checkpoint(work / _RUN)
    with stopping(callback), _weights_only(), quietly():
        trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
    if trainer.state.global_step < arguments.max_steps:
        raise TrainingStopped(f"stopped after update {trainer.state.global_step} of {arguments.max_steps}; it is saved")
    with quietly():
        trainer.save_model(str(work / _SAVED))
    if not trainer.is_world_process_zero():
        return None, reach
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    record = {
        "window": window,
        "skips": skips,
        "tokens": tokens,
        "text_tokens": windows.tokens,
        "parameters_trained": parts_trained(wrapped),
        "precision": precision,
        "processes": arguments.world_size,
        "sharded": any(isinstance(weight, DTensor) for weight in trainer.model_wrapped.parameters()),
        "threads": torch.get_num_threads(),
        "seconds": sum(one.get("train_runtime", 0.0) for one in trainer.state.log_history),
        "log": log,
    }  # fmt: skip
    del trainer, wrapped, model, handle
    folder = merged(source, work, parts, source.dtype if settings.dtype is None else dtype_named(settings.dtype))
    adapter = work / _SAVED if (work / _SAVED / ADAPTER).is_file() else None
    return Training(folder=folder, adapter=adapter, record=record), reach


def _attached(model: nn.Module, settings: TuneSettings, reach: Reach, *, kernels: bool) -> Attachment:
    """Attach the method, with our attention kernel if the family supports it."""
    how: dict[str, Any] = {"target": reach.target, "trained_length": settings.trained_length}
    if kernels:
        try:
            return attach_silently(model, settings.method, kernels=True, **how)
        except RopeError:
            pass
    return attach_silently(model, settings.method, **how)


@contextmanager
def _weights_only() -> Iterator[None]:
    """Make the Trainer load its checkpoints with `weights_only`, its default; raise for any other value."""
    forced, unforced = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    before = {name: os.environ.pop(name, None) for name in (forced, unforced)}
    os.environ[forced] = "1"
    try:
        yield
    finally:
        os.environ.pop(forced)
        os.environ.update({name: value for name, value in before.items() if value is not None})


@_without_future_warnings()
def merged(source: SourceFolder, work: Path, parts: Sequence[str], dtype: torch.dtype) -> Path:
    """Write the Trainer's output as a checkpoint with the config of the source; return its folder."""
    from ropewalk.readers.loading import load_live, quietly

    if "lora" in parts:
        model, _ = source.load(torch.float32)
        with quietly():
            model = need("peft", extra="tune").PeftModel.from_pretrained(model, work / _SAVED).merge_and_unload()
    else:
        model, _ = load_live(work / _SAVED, torch.float32, "cpu")
    folder = work / _RESULT
    if folder.is_dir():
        remove_folder(folder)
    with whole_folder(folder, frozenset()) as staging:
        with quietly():
            model.to(dtype).save_pretrained(staging, max_shard_size=SHARD_BYTES)
        for name in COMPANIONS:
            if (source.folder / name).is_file():
                shutil.copyfile(source.folder / name, staging / name)
        config = read_json(source.folder / "config.json")
        config.pop("torch_dtype", None)
        write_json(staging / "config.json", {**config, "dtype": str(dtype).removeprefix("torch.")})
    return folder


def tune(
    model: Any,
    out: str | os.PathLike[str],
    settings: TuneSettings,
    *,
    overwrite: bool = False,
    restart: bool = False,
    report: Report | None = None,
    progress: Progress | None = None,
) -> Extended | None:
    """Apply an extension method to a checkpoint, train it with transformers' Trainer, measure it, and write a folder.

    **Arguments:**
    - `model`: a path or name as for `rw.load`, a model of transformers, a pair (model, tokenizer), or a `Decoder`; it
      does not change.
    - `out`: the folder; it appears when it is complete. `overwrite`: replace an earlier export.
    - `settings`: see `TuneSettings`. `restart`: discard a stopped run next to `out`.
    - `report`: called with each `training.Event`. `progress`: of the measurement.

    Under `accelerate launch` or `torchrun`, every process calls this; the first one measures and writes. Unfinished
    work is kept in the folder `out` + ".tuning", and the same call resumes it. After Ctrl-C or SIGTERM, a checkpoint is
    written first.

    **Returns:** an `Extended`; None on processes other than the first.
    **Raises:** `RopeError` for settings that conflict with the model, for a held-out text that shares passages with the
    tuning texts, for a stopped run with other settings next to `out`, and if a loss is not finite; `TrainingStopped`, a
    KeyboardInterrupt, after a signal.
    """
    need("transformers", "transformers")
    if "lora" in settings.train:
        need("peft", extra="tune")
    path = model if isinstance(model, str | os.PathLike) else None
    place = check_out(out, source=path, overwrite=overwrite)
    for text in settings.text:
        read_text(text)  # raises before anything is loaded
    if path is not None:
        _refuse_seen(find(path), settings)
    work, first = WorkFolder(place), int(os.environ.get("RANK", 0)) == 0
    with work.claimed(_recipe(path, settings), restart=restart) if first else nullcontext():
        source = source_of(model, work.trainer, first=first)
        if path is None:
            _refuse_seen(source.folder, settings)
        done, reach = train(source, work.trainer, settings, report=report)
        if done is None:
            return None
        device, _ = on_machine(settings.device, "float32")
        before, after = (
            SourceModel.open(folder, settings.trained_length).in_float32(device)
            for folder in (source.folder, done.folder)
        )
        diagnoses: dict[str, Diagnosis] = {}
        if settings.measures:
            both = Tuned(before.reader, after.reader)
            for name, reader in ((UNTUNED, before.reader), (TUNED, both)):
                diagnoses[name] = _diagnosed(reader, settings, reach, work.losses, progress)
        return _written(source, done, after, place, settings, reach, diagnoses, overwrite=overwrite)


_NEUTRAL = (
    "measure", "validation", "windows", "device", "dtype", "keep_adapter", "gguf", "log_every", "checkpoint_every",
)  # fmt: skip
MINUTES = 15.0  # of a diagnosis; then it has at least one window


def _recipe(model: str | os.PathLike[str] | None, settings: TuneSettings) -> dict[str, Any]:
    """Return the inputs of a tuning as JSON: settings, checksums of the texts, and sizes and heads of the files."""
    plain = {name: value for name, value in asdict(settings).items() if name not in _NEUTRAL}
    plain["text"] = [Path(path).name for path in settings.text]
    plain["trainer"] = settings.trainer_fields()
    sums = [sha256(path) for path in settings.text]
    files: list[Any] = []
    if model is not None:
        folder = find(model)
        weights = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
        files = [[path.name, path.stat().st_size, _head(path)] for path in weights]
    recipe: dict[str, Any] = json.loads(json.dumps({**plain, "sha256": sums, "files": files}))
    return recipe


def _head(path: Path) -> str:
    """Return a checksum of the first megabyte of a file."""
    with path.open("rb") as stream:
        return hashlib.sha256(stream.read(2**20)).hexdigest()[:16]


def _refuse_seen(checkpoint: Path, settings: TuneSettings) -> None:
    """Raise `RopeError` if the text to measure on shares passages with the texts to tune on."""
    from ropewalk.checkpoints.gguf import gguf_tokenizer
    from ropewalk.checkpoints.tokenizer import TextTokenizer

    if not settings.measures and settings.validation is None:
        return
    if checkpoint.is_dir() and not (checkpoint / "tokenizer.json").is_file():
        return  # transformers converts its tokenizer
    in_folder = checkpoint.is_dir()
    tokenizer = TextTokenizer.from_folder(checkpoint) if in_folder else gguf_tokenizer(GGUFFile(checkpoint))
    if tokenizer is not None:
        refuse_seen(read_text(settings.validation), [(path, read_text(path)[1]) for path in settings.text], tokenizer)


def _diagnosed(
    reader: Reader, settings: TuneSettings, reach: Reach, state: Path, progress: Progress | None
) -> Diagnosis:
    """Return the doctor's diagnosis within `MINUTES`, or else of one window."""
    how: dict[str, Any] = {"method": settings.method, "reach": reach, "text": settings.validation, "state": state}
    how |= {"seed": settings.seed, "progress": progress}
    try:
        return diagnose(reader, windows=settings.windows, minutes=None if settings.windows else MINUTES, **how)
    except RopeError as error:
        if settings.windows or "minutes" not in error.rule:
            raise
        return diagnose(reader, windows=1, minutes=None, **how)


def _written(
    source: SourceFolder,
    done: Training,
    after: SourceModel,
    place: Path,
    settings: TuneSettings,
    reach: Reach,
    diagnoses: Mapping[str, Diagnosis],
    *,
    overwrite: bool,
) -> Extended:
    """Write the folder, with the method in config.json or, if it cannot express it, with the call on the card."""
    tuning = {"settings": {**asdict(settings), "text": [Path(path).name for path in settings.text]}, **done.record}
    tuning["settings"] |= {"trainer": settings.trainer_fields(), "validation": str(settings.validation or "") or None}
    records: list[dict[str, Any]] = []

    def more_files(exported: Exported) -> dict[str, str | bytes]:
        document = record(
            model=source.name,
            method=settings.method,
            config=exported.config,
            environment=environment_of(str(after.reader.device), after.reader.parameters),
            diagnoses=diagnoses,
            tuning=tuning,
        )
        records.append(document)
        files: dict[str, str | bytes] = {RECORD: json.dumps(document, indent=1, allow_nan=False) + "\n"}
        if diagnoses and find_spec("matplotlib"):
            files[FIGURE] = render(diagnoses[TUNED].figure("loss"), "png")
        figure = FIGURE if FIGURE in files else None
        return {**files, CARD: card(document, diagnoses, figure=figure, numbers=RECORD, call=call)}

    method = METHODS[settings.method]
    adapted = after.reader.under(method.positions(after.reader.positions, reach))
    try:
        hub_of(adapted, settings.method, reach)
        expressible = True
    except RopeError:
        expressible = False
    call = None if expressible and not settings.keep_adapter else _call(source, place, settings, reach)
    if call is None:
        dtype = after.stored
        exported = export(
            adapted, place, method=settings.method, reach=reach, source=done.folder, dtype=dtype, overwrite=overwrite,
            more_files=more_files,
        )  # fmt: skip
    else:
        exported = _copied(done, place, settings, more_files, overwrite=overwrite, dtype=after.stored)
    if settings.gguf is not None:
        file = place / f"{place.name}.gguf"
        as_it_is = ApplySettings(method="as-is", trained_length=reach.target, quantization=settings.gguf)
        apply(place, file, as_it_is, overwrite=True)
    return Extended(exported=exported, record=records[0], diagnoses=diagnoses, call=call)


def _copied(
    done: Training,
    place: Path,
    settings: TuneSettings,
    more_files: Callable[[Exported], Mapping[str, str | bytes]],
    *,
    overwrite: bool,
    dtype: torch.dtype,
) -> Exported:
    """Write the adapter, or the tuned weights with the config of the source."""
    keeps = settings.keep_adapter and done.adapter is not None
    names = {path.name for path in place.iterdir()} if place.is_dir() else set()
    with whole_folder(place, frozenset(names) if overwrite else frozenset()) as staging:
        wanted = ("adapter_config.json", ADAPTER) if keeps else ()
        origin = done.adapter if keeps and done.adapter is not None else done.folder
        for path in origin.iterdir():
            if path.is_file() and (path.name in wanted or not keeps):
                shutil.copyfile(path, staging / path.name)
        for name in ("tokenizer.json", "tokenizer_config.json") if keeps else ():
            if (done.folder / name).is_file():
                shutil.copyfile(done.folder / name, staging / name)
        config = read_json(done.folder / "config.json")
        exported = Exported(folder=place, config=config, rope=None, dtype=dtype)
        for name, content in more_files(exported).items():
            (staging / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return exported


def _call(source: SourceFolder, place: Path, settings: TuneSettings, reach: Reach) -> str:
    """Return the Python lines that load the model and apply the method."""
    loads = ["from transformers import AutoModelForCausalLM", "import ropewalk as rw", ""]
    base = source.name if settings.keep_adapter else place.name
    lines = [*loads, f'model = AutoModelForCausalLM.from_pretrained("{base}")']
    if settings.keep_adapter:
        lines = ["from peft import PeftModel", *lines, f'model = PeftModel.from_pretrained(model, "{place.name}")']
    length = f", trained_length={reach.trained}" if settings.trained_length else ""
    return "\n".join([*lines, f'rw.attach(model, "{settings.method}", target={reach.target}{length})'])
