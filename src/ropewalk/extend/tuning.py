"""Tune a model under a method: transformers' Trainer trains it, the doctor measures it, and a folder is written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ropewalk.atomic_io import read_json, remove_folder, whole_folder, write_json
from ropewalk.attachment import Attachment, attach
from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.export import COMPANIONS, SHARD_BYTES
from ropewalk.checkpoints.sources import display_name, find
from ropewalk.errors import RopeError
from ropewalk.extend.settings import TuneSettings, parts_of
from ropewalk.extend.trainer import (
    ADAPTER,
    Stopped,
    adapted,
    check_batches,
    last_checkpoint,
    parts_trained,
    reporting,
    stopping,
    training_arguments,
)
from ropewalk.extend.windows import SkipCollator, TuningWindows
from ropewalk.methods import METHODS, Reach, method_named
from ropewalk.models.config import Positions
from ropewalk.models.precision import dtype_named
from ropewalk.models.prompts import Tokenizer
from ropewalk.optional import need
from ropewalk.training.settings import Report, on_machine

MARKER, TRAINER, TRAINED, TUNED, SOURCE = "tuning.json", "trainer", "trained", "tuned", "source"
"""Of a folder of unfinished work: what is computed; the Trainer's folder; what it saved; the model; the source."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A checkpoint that transformers loads: its folder, its name in reports, and the dtype that it stores."""

    folder: Path
    name: str
    dtype: torch.dtype

    def load(self, dtype: torch.dtype | None, device: str = "cpu") -> tuple[Any, Tokenizer]:
        """Return the model in a dtype (None: the stored one) and its tokenizer; raise `RopeError` without one."""
        from ropewalk.readers.loading import load_live

        model, tokenizer = load_live(self.folder, dtype, device)
        if tokenizer is None:
            raise RopeError(
                "extend: the checkpoint has no tokenizer, so no text can be tuned on.",
                facts={"model": self.name},
                cure="Put its tokenizer.json into the folder of the weights.",
            )
        return model, tokenizer


def source_of(model: Any, work: Path) -> Source:
    """Return a checkpoint for transformers: a folder as it is; anything else is written into `work` first.

    `model`: a path or name that `rw.load` takes, a model of transformers, a pair (model, tokenizer), or a `Decoder`.
    """
    from ropewalk.readers.adapters import open_reader, reader_of

    path = find(model) if isinstance(model, str | os.PathLike) else None
    if path is not None and path.is_dir() and read_json(path / "config.json").get("model_type") != "ropewalk":
        stored = str(read_json(path / "config.json").get("dtype") or _dtype_of_weights(path))
        return Source(folder=path, name=display_name(str(model), path), dtype=dtype_named(stored))
    folder = work / SOURCE
    reader = reader_of(model) if path is None else open_reader(path)
    if not (folder / "config.json").is_file():
        from ropewalk.extend.tunable import tunable

        with whole_folder(folder, frozenset()) as staging:
            writable = tunable(reader)
            fields: dict[str, Any] = {}
            if hasattr(writable, "check_writable"):
                written = writable.write_checkpoint(
                    staging, rope_fields=fields, length=0, dtype=reader.dtype, shard_bytes=SHARD_BYTES
                )
            else:
                from ropewalk.extend.job import hub_of

                trained = reader.trained_length or 0
                hub = hub_of(writable, "as-is", Reach(trained, trained))
                assert hub is not None, "a decoder of ours"
                written = writable.write_checkpoint(
                    staging,
                    rope_fields=hub.fields(),
                    length=hub.max_position_embeddings,
                    dtype=reader.dtype,
                    shard_bytes=SHARD_BYTES,
                )
            write_json(staging / "config.json", written)
    return Source(folder=folder, name=reader.name, dtype=reader.dtype)


def _dtype_of_weights(folder: Path) -> str:
    """Return the name of the dtype of a checkpoint's first matrix."""
    kit = need("safetensors")
    path = min(folder.glob("*.safetensors"))
    with kit.safe_open(path, framework="pt") as tensors:
        dtype: torch.dtype = tensors.get_tensor(next(iter(tensors.keys()))).dtype
    return str(dtype).removeprefix("torch.")


def tuning_positions(positions: Positions, method: str) -> Positions:
    """Return the positions for tuning: those of `method`, except that DroPE has no scale of its logits.

    DroPE is tuned at the trained length, where that scale is 1 (Gelberg et al. 2025, arXiv:2512.12167).
    """
    if METHODS[method].tuned_at_trained_length:
        return replace(positions, extensions=(None,) * len(positions.extensions))
    return positions


def window_of(settings: TuneSettings, reach: Reach) -> tuple[int, bool]:
    """Return the tokens of a window and whether its positions skip; raise `RopeError` if they cannot.

    >>> window_of(TuneSettings(text=("a",), method="dca"), Reach(256, 1024))
    (1024, False)
    """
    method = method_named(settings.method)
    counts = method.in_attention or method.tuned_at_trained_length
    default = reach.target if method.in_attention else reach.trained
    window = settings.window or default
    able = not counts and window < reach.target
    if window > reach.target:
        raise RopeError(
            "extend: `window` is longer than the target.",
            facts={"window": window, "target": reach.target},
            cure="Leave `window` out.",
        )
    if settings.skip and not able:
        raise RopeError(
            "extend: positions cannot skip: the method counts tokens, or the windows have the target length.",
            facts={"method": settings.method, "window": window, "target": reach.target},
            cure="Choose a method that scales frequencies and a shorter `window`, or leave `skip` out.",
        )
    return window, able if settings.skip is None else settings.skip


@dataclass(frozen=True, kw_only=True)
class Training:
    """A finished training: the folder of the tuned model, and what is recorded of it."""

    folder: Path
    adapter: Path | None
    record: Mapping[str, Any]


def train(
    source: Source, work: Path, settings: TuneSettings, *, report: Report | None = None
) -> tuple[Training | None, Reach]:
    """Train a checkpoint under a method and write the tuned model, with the config of the source, into `work`.

    **Arguments:**
    - `source`: the checkpoint. `work`: the folder of unfinished work; a stopped run in it goes on.
    - `report`: called with each `training.Event`.

    **Returns:** the training (None on processes other than the first) and the lengths.
    **Raises:** `RopeError` for texts or settings that do not fit; `Stopped` after a signal.
    """
    kit = need("transformers", "transformers")
    device, precision = on_machine(settings.device, settings.precision)
    parts = parts_of(settings.train)
    half = "full" not in parts and precision == "bfloat16" and int(os.environ.get("WORLD_SIZE", 1)) == 1
    model, tokenizer = source.load(torch.bfloat16 if half and source.dtype == torch.bfloat16 else torch.float32)
    handle = attach(model)
    trained = settings.trained_length or handle.trained_length
    if trained is None:
        raise RopeError(
            "extend: the trained length of the model is unknown, and methods start from it.",
            facts={"model": source.name},
            cure="Pass --trained-length.",
        )
    reach = Reach(trained, settings.target or 4 * trained)
    handle.detach()
    handle = _attached(model, settings, reach, kernels=device == "cpu")
    handle.set_positions(tuning_positions(handle.positions, settings.method))
    handle.saves_config = False
    window, skips = window_of(settings, reach)
    arguments = training_arguments(work / TRAINER, settings, window=window, device=device, precision=precision)
    torch.manual_seed(settings.seed)
    wrapped = adapted(model, parts, settings.rank or 16)
    if not check_batches(wrapped, skips=skips, half=arguments.bf16):
        raise RopeError(
            "extend: this model does not separate the documents of one window, so they would see each other.",
            facts={"model": type(model).__name__, "attn_implementation": model.config._attn_implementation},
            cure="Pass one --text that contains everything.",
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
    per_update = len(windows) // arguments.max_steps * window
    facts = {
        "parameters": sum(weight.numel() for weight in wrapped.parameters()),
        "vocab_size": tokenizer.vocab_size,
        "train_tokens": windows.tokens,
        "precision": precision,
        "threads": torch.get_num_threads(),
        "began_with_threads": torch.get_num_threads(),
    }
    callback = reporting(report, facts, per_update)
    trainer = kit.Trainer(
        model=wrapped,
        args=arguments,
        train_dataset=windows,
        data_collator=SkipCollator(target=reach.target if skips else None, seed=settings.seed),
        callbacks=[callback],
    )
    for shown in (kit.trainer_callback.PrinterCallback, kit.trainer_callback.ProgressCallback):
        trainer.remove_callback(shown)
    resumed = last_checkpoint(work / TRAINER)
    with stopping(callback), _weights_only():
        trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))
    if trainer.state.global_step < arguments.max_steps:
        raise Stopped(f"stopped after update {trainer.state.global_step} of {arguments.max_steps}; it is saved")
    trainer.save_model(str(work / TRAINED))
    if not trainer.is_world_process_zero():
        return None, reach
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    record = {
        "window": window,
        "skips": skips,
        "tokens": arguments.max_steps * per_update,
        "text_tokens": windows.tokens,
        "parameters_trained": parts_trained(wrapped),
        "precision": precision,
        "processes": arguments.world_size,
        "threads": torch.get_num_threads(),
        "seconds": sum(one.get("train_runtime", 0.0) for one in trainer.state.log_history),
        "log": log,
    }  # fmt: skip
    del trainer, wrapped, model, handle
    folder = merged(source, work, parts, source.dtype if settings.dtype is None else dtype_named(settings.dtype))
    adapter = work / TRAINED if (work / TRAINED / ADAPTER).is_file() else None
    return Training(folder=folder, adapter=adapter, record=record), reach


def _attached(model: nn.Module, settings: TuneSettings, reach: Reach, *, kernels: bool) -> Attachment:
    """Attach the method, with our attention kernel if the family supports it."""
    how: dict[str, Any] = {"target": reach.target, "trained_length": settings.trained_length}
    if kernels:
        try:
            return attach(model, settings.method, kernels=True, **how)
        except RopeError:
            pass
    return attach(model, settings.method, **how)


@contextmanager
def _weights_only() -> Iterator[None]:
    """Let the Trainer read its checkpoints with `weights_only`, which is its default; refuse anything else."""
    forced, unforced = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    before = {name: os.environ.pop(name, None) for name in (forced, unforced)}
    os.environ[forced] = "1"
    try:
        yield
    finally:
        os.environ.pop(forced)
        os.environ.update({name: value for name, value in before.items() if value is not None})


def merged(source: Source, work: Path, parts: Sequence[str], dtype: torch.dtype) -> Path:
    """Write what the Trainer saved as a checkpoint with the config of the source; return its folder."""
    from ropewalk.readers.loading import load_live, quietly

    if "lora" in parts:
        model, _ = source.load(torch.float32)
        with quietly():
            model = need("peft", extra="tune").PeftModel.from_pretrained(model, work / TRAINED).merge_and_unload()
    else:
        model, _ = load_live(work / TRAINED, torch.float32, "cpu")
    folder = work / TUNED
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
