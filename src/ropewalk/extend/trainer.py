"""Train a transformers model under a method with transformers' Trainer: parts, arguments and callbacks."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attachment.layers import belongs_to, text_config_of
from ropewalk.errors import RopeError
from ropewalk.extend.settings import TuneSettings
from ropewalk.extend.windows import SkipCollator
from ropewalk.optional import need
from ropewalk.training.settings import Event, Report

ADAPTER = "adapter_model.safetensors"
_STATE = "trainer_state.json"  # the last file of a checkpoint
_CHECKED = 12  # tokens of each part in `check_batches`


def adapted(model: nn.Module, parts: tuple[str, ...], rank: int) -> nn.Module:
    """Prepare the model to train only these parts, in float32; with "lora", wrap it in peft's model.

    - `parts`: see `extend.settings.parts_of`. Every linear layer of the attention gets an adapter of `rank` with weight
      2. Its output is initially zero; torch's generator draws the other matrix.

    **Raises:** `RopeError` for a model without such parts, and if peft is missing.
    **Sources:** Hu et al. 2021, arXiv:2106.09685; Chen et al. 2023, arXiv:2309.12307 (LongLoRA, which also trains
    norms and embeddings).
    """
    model_type = text_config_of(model).model_type
    linear = {
        f"{name}.{inner}" if inner else name
        for name, module in model.named_modules()
        if "Attention" in type(module).__name__ and belongs_to(module, model_type)
        for inner, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    }
    norms = {name for name, module in model.named_modules() if "Norm" in type(module).__name__ and _has_own(module)}
    tables = [model.get_input_embeddings(), model.get_output_embeddings()]  # type: ignore[operator]
    embeddings = {name for name, module in model.named_modules() if any(module is table for table in tables)}
    chosen = {"lora": linear, "norms": norms, "embeddings": embeddings}
    lacking = [part for part in parts if part in chosen and not chosen[part]]
    if lacking:
        raise RopeError(
            "extend: the model has no such parts.",
            facts={"model": type(model).__name__, "parts": lacking},
            cure="Pass --train full.",
        )
    kept = norms if "norms" in parts else set()
    kept = kept | (embeddings if "embeddings" in parts else set())
    if "lora" in parts:
        kit = need("peft", extra="tune")
        tied = bool(getattr(model.config, "tie_word_embeddings", False)) and "embeddings" in parts
        model = kit.get_peft_model(
            model,
            kit.LoraConfig(
                r=rank,
                lora_alpha=2 * rank,
                target_modules=_suffixes(model, linear),
                modules_to_save=_suffixes(model, kept) or None,
                bias="none",
                task_type="CAUSAL_LM",
                **({"ensure_weight_tying": True} if tied else {}),
            ),
        )
    elif "full" not in parts:
        for name, weight in model.named_parameters():
            weight.requires_grad_(name.rpartition(".")[0] in kept)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    return model


def _has_own(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _suffixes(model: nn.Module, names: set[str]) -> list[str]:
    """Return the last parts of the names if they name no other module, else the names."""
    last = {name.rpartition(".")[2] for name in names}
    alike = {name for name, module in model.named_modules() if name.endswith(tuple(last)) and _has_own(module)}
    return sorted(last if alike <= names else names)


@torch.no_grad()
def check_batches(model: nn.Module, *, skips: bool, half: bool) -> bool:
    """Check the model on two small collated batches; return whether it separates documents.

    - A row with a skip, if `skips`: a token after the skip must depend on the first token of the row.
    - A row of two documents: the second must have the same logits as without the first; else False is returned.

    **Raises:** `RopeError` if the model ignores the tokens before a skip.
    """
    device, blind = model.get_input_embeddings().weight.device, False  # type: ignore[operator]
    vocab = int(text_config_of(model).vocab_size)
    ids = (torch.arange(2 * _CHECKED) * 7 + 5) % vocab
    documents = (torch.arange(2 * _CHECKED) >= _CHECKED).long()
    other = ids.clone()
    other[0] = (ids[0] + 1) % vocab
    skipping = SkipCollator(target=8 * _CHECKED)

    def logits(row: Mapping[str, Any]) -> Tensor:
        batch = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in row.items() if name != "labels"}
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            found: Tensor = model(**{"use_cache": False, **batch}).logits[0].float()
        return found

    was_training = model.training
    model.eval()
    try:
        if skips:
            batch = skipping([{"input_ids": ids}])
            blind = torch.equal(logits(batch)[-1], logits({**batch, "input_ids": other[None]})[-1])
        packed = logits(SkipCollator(target=None)([{"input_ids": ids, "document_ids": documents}]))[_CHECKED:]
        alone = logits(SkipCollator(target=None)([{"input_ids": ids[_CHECKED:]}]))
    finally:
        model.train(was_training)
    if blind and getattr(text_config_of(model), "sliding_window", None) is None:
        raise RopeError(
            "extend: the model ignores the tokens before a skip of the positions, so skipping has no effect.",
            facts={"model": type(model).__name__, "attn_implementation": text_config_of(model)._attn_implementation},
            cure="Set `skip = false` in the file of --settings, with --window at the target.",
        )
    size = max(1.0, float(alone.abs().max()))
    return float((packed - alone).abs().max()) <= (0.05 if half else 1e-3) * size


def training_arguments(folder: Path, settings: TuneSettings, *, window: int, device: str, precision: str) -> Any:
    """Return transformers' `TrainingArguments` from the settings; the fields of `settings.trainer` replace ours."""
    kit = need("transformers", "transformers")
    processes = int(os.environ.get("WORLD_SIZE", 1))
    every = settings.checkpoint_every or max(1, min(50, settings.steps // 5))
    batch = settings.batch_size * window * processes
    known = kit.TrainingArguments.__dataclass_fields__
    checkpointing = "activation" if "activation_checkpointing" in known else "gradient"  # its name before 5.2x
    fields: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": settings.steps,
        "per_device_train_batch_size": settings.batch_size,
        "gradient_accumulation_steps": -(-(settings.tokens_per_step or batch) // batch),
        "learning_rate": settings.lr,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": settings.final_lr},
        "warmup_steps": settings.warmup,
        "weight_decay": settings.weight_decay,
        "adam_beta1": settings.beta1,
        "adam_beta2": settings.beta2,
        "max_grad_norm": settings.clip,
        "optim": "adamw_torch",
        "bf16": precision == "bfloat16",
        f"{checkpointing}_checkpointing": settings.activation_checkpointing,
        f"{checkpointing}_checkpointing_kwargs": {"use_reentrant": False},
        "logging_steps": settings.log_every,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,
        "save_steps": every,
        "save_total_limit": 2,
        "seed": settings.seed,
        "report_to": "none",
        "remove_unused_columns": False,
        "train_sampling_strategy": "sequential",  # `TuningWindows` are in a random order
        "use_cpu": device == "cpu",
        "dataloader_pin_memory": device != "cpu",
        "disable_tqdm": True,
        "ddp_find_unused_parameters": False,
        "ddp_timeout": 4 * 3600,
    }
    given = settings.trainer_fields()
    try:
        arguments = kit.TrainingArguments(**{**fields, **given})
        _shard_on_cpu(arguments)
        return arguments
    except (TypeError, ValueError, ImportError) as error:
        raise RopeError(
            "extend: transformers rejects these arguments of its Trainer.",
            facts={"trainer": given, "error": str(error).strip()[:400]},
            cure="Write only fields of transformers.TrainingArguments into the file of --trainer.",
        ) from error


def _shard_on_cpu(arguments: Any) -> None:
    """Make accelerate shard with FSDP on CPUs, too; by default it replicates the model there."""
    asked = arguments.fsdp or os.environ.get("ACCELERATE_USE_FSDP") == "true"
    if asked and arguments.device.type == "cpu" and arguments.world_size > 1:
        kit = need("accelerate", "transformers")
        kit.PartialState().distributed_type = kit.DistributedType.MULTI_GPU


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of a Trainer; None if there is none."""
    complete = []
    for path in folder.glob("checkpoint-*"):
        number = path.name.rpartition("-")[2]
        try:
            json.loads((path / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # the process was killed while it wrote
        if number.isdigit():
            complete.append((int(number), path))
    return max(complete)[1] if complete else None


class TrainingStopped(KeyboardInterrupt):
    """Raised after Ctrl-C or SIGTERM, when the checkpoint has been written."""


def reporting(report: Report | None, facts: Mapping[str, Any], tokens_per_update: int) -> Any:
    """Return a `TrainerCallback` that reports the run as `training.Event`, checks losses, and stops at a signal.

    The first Ctrl-C or SIGTERM ends the run after the current update, with a checkpoint; a second Ctrl-C ends it at
    once. A loss or gradient that is not finite raises `RopeError`.
    """
    kit = need("transformers")

    class Reporting(kit.TrainerCallback):  # type: ignore[misc, name-defined, unused-ignore]
        stopped = False
        began = time.monotonic()
        first = 0

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.began, self.first = time.monotonic(), state.global_step
            self._say("start", state, {**facts, "device": str(args.device)})

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._say("step", state, {})
            if self.stopped:
                control.should_save = control.should_training_stop = True

        def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:
            if "loss" not in logs:
                return
            wrong = {name: logs[name] for name in ("loss", "grad_norm") if not math.isfinite(float(logs.get(name, 0)))}
            if wrong:
                raise RopeError(
                    "extend: the loss or a gradient is not finite.",
                    facts={"step": state.global_step, **wrong},
                    cure="Lower --lr, or pass --precision float32. The last checkpoint is kept.",
                )
            seconds = max(time.monotonic() - self.began, 1e-9)
            speed = (state.global_step - self.first) * tokens_per_update / seconds
            self._say(
                "log",
                state,
                {"loss": float(logs["loss"]), "lr": logs.get("learning_rate", 0.0), "tokens_per_second": speed},
            )

        def _say(self, kind: str, state: Any, of_event: dict[str, Any]) -> None:
            if report is not None and state.is_world_process_zero:
                report(Event(kind, state.global_step, state.max_steps, of_event))

    return Reporting()


@contextmanager
def stopping(callback: Any) -> Iterator[None]:
    """On the first SIGINT or SIGTERM in the block, set `callback.stopped`; on the second, raise KeyboardInterrupt."""

    def stop(number: int, frame: FrameType | None) -> None:
        if callback.stopped:
            raise KeyboardInterrupt
        callback.stopped = True

    kept: dict[int, Any] = {}
    try:
        for number in (int(signal.SIGINT), int(signal.SIGTERM)):
            kept[number] = signal.signal(number, stop)
    except ValueError:
        pass  # not the main thread: Ctrl-C goes elsewhere
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def parts_trained(model: nn.Module) -> int:
    """Return the number of parameters that require gradients."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
