"""The settings of `extend.apply` and `extend.tune`.

A field's metadata describe its option; see `ropewalk.cli.options`. This module does not import torch, so the help is
quick.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from ropewalk.errors import RopeError
from ropewalk.training.settings import PRECISIONS, check_choice, check_numbers

PARTS = ("full", "lora", "norms", "embeddings")
METHOD, MEASURING, TRAINING, OUTPUT, MACHINE = "Method", "Measuring", "Training", "Output", "Machine"
"""The headings of the options."""


def parts_of(train: str) -> tuple[str, ...]:
    """Split `train` at "+" into parts of a model; raise `RopeError` for an unknown or redundant one.

    >>> parts_of("lora+norms+embeddings")
    ('lora', 'norms', 'embeddings')
    """
    parts = tuple(dict.fromkeys(train.split("+")))
    unknown = [part for part in parts if part not in PARTS]
    if unknown or ("full" in parts and len(parts) > 1):
        raise RopeError(
            "extend: `train` must be parts of the model, joined by +.",
            facts={"train": train, "known": PARTS},
            cure='For example "full", "lora+norms", or "lora+norms+embeddings".',
        )
    return parts


DTYPES = ("float32", "bfloat16", "float16")


def setting(description: str, default: Any = MISSING, **metadata: Any) -> Any:
    """Return a dataclass field with metadata for the command line; a field without a default is required."""
    return field(default=default, metadata={"help": description, **metadata})


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """The lengths of an extension, in tokens, and the form of the output.

    **Raises:** `RopeError` for settings that conflict.
    """

    target: int | None = setting(
        "Desired length in tokens [default: four times the trained length].", default=None, unit="tokens", group=METHOD
    )
    trained_length: int | None = setting(
        "Trained length in tokens [default: from the config or its family].",
        default=None,
        unit="tokens",
        group=METHOD,
    )
    unscaled_tokens: int = setting(
        "Number of leading tokens left unscaled (LongRoPE's n-hat); needs `native`.",
        default=0,
        unit="tokens",
        file=True,
    )
    dtype: str | None = setting("Dtype of the written weights [default: as in the source].", default=None, group=OUTPUT)
    native: bool = setting(
        "Write ropewalk's own form, which supports all methods, but which only ropewalk loads.",
        default=False,
        group=OUTPUT,
    )

    def __post_init__(self) -> None:
        if self.dtype not in (None, *DTYPES):
            raise RopeError(
                "extend: unknown dtype.", facts={"dtype": self.dtype}, cure=f"Choose from {', '.join(DTYPES)}."
            )


@dataclass(frozen=True, kw_only=True)
class MethodSettings(OutputSettings):
    """One method, and settings of the doctor's measurement of its effect on a held-out text."""

    tunes: ClassVar[bool] = False
    method: str = setting("Extension method, with the name used by `ropewalk doctor`.", default="yarn", group=METHOD)
    measure: bool | None = setting("Measure plain, crop and the method.", default=None, group=MEASURING)
    validation: Path | None = field(
        default=None,
        metadata={"help": "Text to measure on [default: Moby-Dick].", "metavar": "FILE", "group": MEASURING},
    )
    windows: int | None = setting("Most windows to measure [default: 16].", default=None, file=True)
    device: str = setting("Device to compute on: auto, cpu, cuda.", default="auto", group=MACHINE)
    seed: int = setting("Seed of the measured windows.", default=0, file=True)

    def __post_init__(self) -> None:
        from ropewalk.methods import METHODS, method_named

        super().__post_init__()
        method = method_named(self.method)
        if self.unscaled_tokens and not method.scales_frequencies:
            able = [name for name, other in METHODS.items() if other.scales_frequencies]
            raise RopeError(
                "extend: `unscaled_tokens` works only with methods that scale frequencies.",
                facts={"method": self.method},
                cure=f"Choose from {', '.join(able)}, or leave out `unscaled_tokens`.",
            )
        if self.unscaled_tokens and not self.native:
            raise RopeError(
                "extend: config.json cannot express unscaled first tokens.",
                facts={"unscaled_tokens": self.unscaled_tokens},
                cure="Set `native` to write a folder that only ropewalk loads, or leave out `unscaled_tokens`.",
            )
        if self.measures:
            return
        fields = type(self).__dataclass_fields__
        names = ("windows", *(() if self.tunes else ("validation", "seed")))
        unused = {name: getattr(self, name) for name in names if getattr(self, name) != fields[name].default}
        if unused:
            raise RopeError(
                "extend: these settings apply only to measuring, and would be ignored.",
                facts=unused,
                cure="Set `measure` (--measure), or leave these settings out.",
            )

    @property
    def measures(self) -> bool:
        """Return whether the doctor measures."""
        return self.tunes or self.validation is not None if self.measure is None else self.measure


@dataclass(frozen=True, kw_only=True)
class ApplySettings(MethodSettings):
    """Settings of `extend.apply`: one method, with unchanged weights.

    - `measure`: None: only if there is a `validation` text.
    - `length`: the stated length; None: the target. The frequencies are always those of the target.
    - `quantization`: None: "f16", or as in a .gguf source.

    >>> ApplySettings(method="ntk", target=32768).measures
    False
    """

    length: int | None = setting(
        "Length to state in the config, if it is less than the target [default: the target].",
        default=None,
        unit="tokens",
        group=METHOD,
    )
    quantization: Literal["f32", "f16", "q8_0"] | None = setting(
        "Form of the matrices in a .gguf file [default: f16; blocks of a .gguf source are copied].",
        default=None,
        group=OUTPUT,
    )


def _in_file(name: str) -> Any:
    """Return a field of `MethodSettings` that `extend tune` takes only from a settings file."""
    shared = MethodSettings.__dataclass_fields__[name]
    return field(default=shared.default, metadata={"help": shared.metadata["help"], "file": True})


@dataclass(frozen=True, kw_only=True)
class TuneSettings(MethodSettings):
    """Settings of `extend.tune`: one method, and further training under it with transformers' Trainer.

    - `train`: "lora+norms", "full", or any of lora, norms and embeddings joined by "+".
    - `window`: None: the trained length, or the target for a method in attention, which counts tokens and cannot skip.
    - `skip`: whether the positions of a window skip once, so all distances up to the target occur at the cost of the
      window (PoSE; Zhu et al. 2023, arXiv:2309.10400). None: for methods of frequencies in windows below the target.
    - `long_share`: the share of windows with the target length and no skip.
    - `repeat_share`: the share of windows with repeated blocks of words and of text, which make distant tokens
      informative.
    - `lr`: None: 2e-4, or 2e-5 for "full". `warmup`: None: a tenth of the updates, at most 20; then a cosine to
      `final_lr` * `lr`. `rank`: None: 16.
    - `tokens_per_step`: rounded up to whole batches of `batch_size` windows on every process.
    - `trainer`: a JSON or TOML file, or a mapping, with fields of transformers' `TrainingArguments` to replace ours:
      `report_to`, `deepspeed`, `fsdp`, `optim`, ...
    - `keep_adapter`: write the adapter, not the merged model. `gguf`: also write a GGUF file in this form.
    - `measure`: None: yes. `windows` and `validation` apply only to measuring.
    - `checkpoint_every`, `log_every`: do not change the result.

    **Raises:** `RopeError` for a setting that is out of range or would be ignored.

    >>> TuneSettings(text=("a.txt",)).lr
    0.0002
    """

    tunes: ClassVar[bool] = True
    text: tuple[str, ...] = setting(
        "UTF-8 text to tune on; each file is one document.",
        metavar="FILE",
        rest="Further texts, as in --text A B C.",
        group=TRAINING,
    )
    steps: int = setting("Number of updates.", default=100, group=TRAINING)
    train: str = setting(
        'Parts to train: "full", or lora, norms and embeddings joined by +.', default="lora+norms", group=TRAINING
    )
    window: int | None = setting(
        "Tokens of a window [default: the trained length].", default=None, unit="tokens", group=TRAINING
    )
    tokens_per_step: int | None = setting(
        "Tokens of one update [default: one batch].", default=None, unit="tokens", file=True
    )
    lr: float | None = setting("Peak learning rate [default: 2e-4; 2e-5 for full].", default=None, group=TRAINING)
    trainer: Path | Mapping[str, Any] | None = field(
        default=None,
        metadata={
            "help": "JSON or TOML file with fields of transformers' TrainingArguments.",
            "metavar": "FILE",
            "type": Path,
            "group": TRAINING,
        },
    )
    keep_adapter: bool = setting("Write the adapter instead of a merged model.", default=False, group=OUTPUT)
    gguf: Literal["f32", "f16", "q8_0"] | None = setting(
        "Also write a GGUF file, with matrices in this form.", default=None, file=True
    )
    rank: int | None = setting("Rank of lora's adapters [default: 16].", default=None, file=True)
    skip: bool | None = setting(
        "Skip positions of a window, up to the target [default: if the method supports it].", default=None, file=True
    )
    long_share: float = setting("Share of windows with the target length.", default=0.0, file=True)
    repeat_share: float = setting("Share of windows with repeated blocks of words and of text.", default=0.0, file=True)
    batch_size: int = setting("Windows in a batch of one process.", default=1, file=True)
    activation_checkpointing: bool = setting(
        "Gradient checkpointing: less memory, about a third more time.", default=True, file=True
    )
    final_lr: float = setting("Last learning rate, as a fraction of the peak.", default=0.1, file=True)
    warmup: int | None = setting(
        "Updates before the peak [default: a tenth of them, at most 20].", default=None, file=True
    )
    weight_decay: float = setting("Weight decay of AdamW.", default=0.0, file=True)
    beta1: float = setting("AdamW's beta1.", default=0.9, file=True)
    beta2: float = setting("AdamW's beta2.", default=0.95, file=True)
    clip: float = setting("Largest norm of the gradient.", default=1.0, file=True)
    precision: str = setting("Precision of matrix products: auto, float32, bfloat16.", default="auto", file=True)
    seed: int = setting("Seed of windows, adapters and dropout.", default=0, file=True)
    dtype: str | None = _in_file("dtype")
    measure: bool | None = _in_file("measure")
    device: str = _in_file("device")
    native: bool = field(default=False, metadata={"help": "Not for tuning.", "command_line": False})
    unscaled_tokens: int = field(default=0, metadata={"help": "Not for tuning.", "command_line": False})
    log_every: int = setting("Updates between lines of the log.", default=1, file=True)
    checkpoint_every: int | None = setting(
        "Updates between checkpoints [default: a fifth of the run, at most 50].", default=None, file=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = parts_of(self.train)
        if not self.text:
            raise RopeError("extend: `text` is empty.", cure="Pass --text FILE, once for each file.")
        object.__setattr__(self, "text", tuple(str(path) for path in self.text))
        if self.lr is None:
            object.__setattr__(self, "lr", 2e-5 if "full" in parts else 2e-4)
        if self.warmup is None:
            object.__setattr__(self, "warmup", min(20, self.steps // 10))
        if self.rank is not None and "lora" not in parts:
            raise RopeError(
                "extend: `rank` applies only to lora's adapters.",
                facts={"rank": self.rank, "train": self.train},
                cure="Add lora to `train`, or leave out `rank`.",
            )
        if self.keep_adapter and ("lora" not in parts or self.gguf is not None):
            raise RopeError(
                "extend: --keep-adapter needs lora and excludes --gguf, which writes the merged model.",
                facts={"train": self.train, "gguf": self.gguf},
                cure="Leave out --keep-adapter or --gguf.",
            )
        if self.native or self.unscaled_tokens:
            raise RopeError(
                "extend: a tuned model is written for transformers, so `native` and `unscaled_tokens` do not apply.",
                facts={"native": self.native, "unscaled_tokens": self.unscaled_tokens},
                cure="Leave them out.",
            )
        positive = ("steps", "rank", "batch_size", "tokens_per_step", "log_every", "checkpoint_every")
        check_numbers(
            "extend",
            self,
            least=dict.fromkeys(positive, 1) | {"warmup": 0, "seed": 0, "window": 2},
            positive=("lr", "clip"),
            fractions=("beta1", "beta2"),
            ratios=("long_share", "repeat_share", "final_lr", "weight_decay"),
        )
        check_choice("extend", "precision", self.precision, PRECISIONS)
        self.trainer_fields()

    def trainer_fields(self) -> dict[str, Any]:
        """Return the content of `trainer`; raise `RopeError` if it cannot be read."""
        if self.trainer is None or isinstance(self.trainer, Mapping):
            return _without_ours(dict(self.trainer or {}))
        path = Path(self.trainer)
        try:
            text = path.read_text(encoding="utf-8")
            content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
            content = dict(content)
        except (OSError, ValueError, TypeError) as error:
            raise RopeError(
                "extend: the file of --trainer cannot be read.",
                facts={"file": str(path), "error": str(error)},
                cure='Write JSON, for example {"report_to": "tensorboard"}, or TOML.',
            ) from error
        return _without_ours(content)


def _without_ours(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields of the Trainer; raise `RopeError` for those that other settings determine."""
    ours = [name for name in ("output_dir", "max_steps", "remove_unused_columns") if name in fields]
    if ours:
        raise RopeError(
            "extend: other settings determine these fields of the Trainer.",
            facts={"fields": ours},
            cure="Leave them out; the number of updates is --steps.",
        )
    return fields
