"""The settings of `extend.apply` and `extend.tune`.

A field's metadata describe its option: see `ropewalk.cli.options`. This module imports no torch, so that the help can
be shown without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from ropewalk.errors import RopeError
from ropewalk.training.settings import PRECISIONS

PARTS = ("all", "attention", "norms", "embeddings", "lora")
METHOD, MEASURING, TRAINING, OUTPUT, MACHINE = "Method", "Measuring", "Training", "Output", "Machine"
"""The headings of the options."""


def parts_of(train: str) -> tuple[str, ...]:
    """Split `train` at "+" into parts of a model; raise `RopeError` for an unknown or redundant one.

    >>> parts_of("lora+norms+embeddings")
    ('lora', 'norms', 'embeddings')
    """
    parts = tuple(dict.fromkeys(train.split("+")))
    unknown = [part for part in parts if part not in PARTS]
    if unknown or ("all" in parts and len(parts) > 1):
        raise RopeError(
            "extend: `train` names parts of the model, joined by +.",
            facts={"train": train, "known": PARTS},
            cure='For example "all", "norms+embeddings", or "lora+norms+embeddings".',
        )
    return parts


DTYPES = ("float32", "bfloat16", "float16")
_POSITIVE = ("lr", "clip")
_NOT_NEGATIVE = ("weight_decay", "final_lr", "beta1", "beta2")


def setting(description: str, default: Any = MISSING, **metadata: Any) -> Any:
    """Return a dataclass field with metadata for the command line; a field without a default is required."""
    return field(default=default, metadata={"help": description, **metadata})


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """The lengths of an extension, in tokens, and the form in which the model is written.

    **Raises:** `RopeError` for settings that conflict.
    """

    target: int | None = setting(
        "Length wanted, in tokens [default: four times the trained length].", default=None, unit="tokens", group=METHOD
    )
    trained_length: int | None = setting(
        "Trained length in tokens [default: that of the config or of its family].",
        default=None,
        unit="tokens",
        group=METHOD,
    )
    unscaled_tokens: int = setting(
        "Number of first tokens that keep their angles (LongRoPE's n-hat); needs `native`.",
        default=0,
        unit="tokens",
        file=True,
    )
    dtype: str | None = setting(
        "Dtype of the weights written [default: that of the source].", default=None, group=OUTPUT
    )
    native: bool = setting(
        "Write ropewalk's own form: any method, but only ropewalk loads it.", default=False, group=OUTPUT
    )

    def __post_init__(self) -> None:
        if self.dtype not in (None, *DTYPES):
            raise RopeError(
                "extend: unknown dtype.", facts={"dtype": self.dtype}, cure=f"Choose from {', '.join(DTYPES)}."
            )


@dataclass(frozen=True, kw_only=True)
class MethodSettings(OutputSettings):
    """One method and how its effect is measured: by the doctor, on a held-out text."""

    tunes: ClassVar[bool] = False
    method: str = setting("Extension method, by the name that `ropewalk doctor` uses.", default="yarn", group=METHOD)
    measure: bool | None = setting("Measure by the doctor: plain, crop and the method.", default=None, group=MEASURING)
    validation: Path | None = field(
        default=None,
        metadata={"help": "Text to measure on [default: Moby Dick].", "metavar": "FILE", "group": MEASURING},
    )
    windows: int | None = setting("Most windows to measure [default: 16].", default=None, file=True)
    device: str = setting("Device to compute on: auto, cpu, cuda.", default="auto", group=MACHINE)
    seed: int = setting("Seed of the windows that are measured.", default=0, file=True)

    def __post_init__(self) -> None:
        from ropewalk.methods import METHODS, method_named

        super().__post_init__()
        method = method_named(self.method)
        if self.unscaled_tokens and not method.scales_frequencies:
            able = [name for name, other in METHODS.items() if other.scales_frequencies]
            raise RopeError(
                "extend: `unscaled_tokens` works only with methods that scale frequencies.",
                facts={"method": self.method},
                cure=f"Choose from {', '.join(able)}, or leave it out.",
            )
        if self.unscaled_tokens and not self.native:
            raise RopeError(
                "extend: config.json cannot express first tokens that keep their angles.",
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
                "extend: these settings belong to measuring, and would be ignored.",
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

    - `measure` None: only if there is a `validation` text.
    - `length` None: the target. A smaller one is stated as the model's length, with the frequencies of the target.
    - `quantization` None: "f16", or that of a .gguf source.

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


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Settings of further training, by AdamW.

    - `lr` None: 2e-5, or 2e-4 if only adapters, norms or embeddings are trained. YaRN's recipe is 400 steps at 2e-5.
    - `warmup` None: a tenth of the steps, at most 20; then a cosine to `final_lr` * `lr`.
    - `rank` None: 16 if `train` contains "lora"; else a rank is refused.
    - `tokens_per_step` is rounded up to whole batches of `batch_size` windows.
    - `window` None: windows of the target length. Otherwise PoSE (Zhu et al. 2023, arXiv:2309.10400): windows of
      `window` tokens with positions that skip once, so that all distances up to the target occur at the cost of the
      short length.
    - `skip_target` None: the target. If it equals `window`, nothing skips, which is the control.
    - `repeat_share`: blocks of words and of text occur twice in this share of the windows, so that far tokens are
      informative.

    **Raises:** `RopeError` for a setting that is out of range or would be ignored.
    """

    text: tuple[str, ...] = setting(
        "UTF-8 text to tune on; each file is one document.",
        metavar="FILE",
        rest="Further texts, as in --text A B C.",
        group=TRAINING,
    )
    steps: int = setting("Number of updates.", group=TRAINING)
    train: str = setting(
        "Parts to train: all, attention, norms, embeddings, lora; joined by +.", default="all", group=TRAINING
    )
    rank: int | None = setting("Rank of lora's adapters [default: 16].", default=None, file=True)
    batch_size: int = setting("Windows in a batch.", default=1, file=True)
    tokens_per_step: int | None = setting(
        "Tokens of one update [default: one batch].", default=None, unit="tokens", group=TRAINING
    )
    window: int | None = setting(
        "PoSE: tokens of the windows, with positions that skip up to the target [default: the target].",
        default=None,
        unit="tokens",
        group=TRAINING,
    )
    skip_target: int | None = setting(
        "Length that the positions of PoSE's windows skip to [default: the target].",
        default=None,
        unit="tokens",
        file=True,
    )
    repeat_share: float = setting(
        "Share of the windows in which blocks of words and of text occur twice.", default=0.0, file=True
    )
    activation_checkpointing: bool = setting(
        "Activation checkpointing: less memory, about a third more time.", default=True, file=True
    )
    lr: float | None = setting(
        "Peak learning rate [default: 2e-5; 2e-4 without whole matrices].", default=None, group=TRAINING
    )
    final_lr: float = setting("Last learning rate, as a fraction of the peak.", default=0.1, file=True)
    warmup: int | None = setting(
        "Updates before the peak [default: a tenth of them, at most 20].", default=None, file=True
    )
    weight_decay: float = setting("Weight decay of AdamW, on matrices only.", default=0.0, file=True)
    beta1: float = setting("AdamW's beta1.", default=0.9, file=True)
    beta2: float = setting("AdamW's beta2.", default=0.95, file=True)
    clip: float = setting("Largest norm of the gradient.", default=1.0, file=True)
    precision: str = setting("Precision of matrix products: auto, float32, bfloat16.", default="auto", file=True)
    device: str = setting("Device to compute on: auto, cpu, cuda.", default="auto", group=MACHINE)
    seed: int = setting("Seed of windows, order, adapters and dropout.", default=0, file=True)

    def __post_init__(self) -> None:
        parts = parts_of(self.train)
        if not self.text:
            raise RopeError("extend: there is no text to tune on.", cure="Pass --text FILE, once for each file.")
        object.__setattr__(self, "text", tuple(str(path) for path in self.text))
        if self.lr is None:
            object.__setattr__(self, "lr", 2e-5 if {"all", "attention"} & set(parts) else 2e-4)
        if self.warmup is None:
            object.__setattr__(self, "warmup", min(20, self.steps // 10))
        if self.rank is None and "lora" in parts:
            object.__setattr__(self, "rank", 16)
        if self.rank is not None and "lora" not in parts:
            raise RopeError(
                "extend: `rank` is the rank of lora's adapters.",
                facts={"rank": self.rank, "train": self.train},
                cure="Add lora to `train`, or leave out `rank`.",
            )
        check_at_least(
            {name: getattr(self, name) for name in ("steps", "rank", "batch_size", "tokens_per_step")}, least=1
        )
        check_at_least({"warmup": self.warmup, "seed": self.seed}, least=0)
        check_at_least({"skip_target": self.skip_target}, least=2)
        if self.skip_target is not None and self.window is None:
            raise RopeError(
                "extend: `skip_target` is the length that the positions of short windows skip to.",
                facts={"skip_target": self.skip_target},
                cure="Set `window` too, or leave out `skip_target`.",
            )
        if not 0.0 <= self.repeat_share <= 1.0:
            raise RopeError(
                "extend: `repeat_share` must lie between 0 and 1.",
                facts={"repeat_share": self.repeat_share},
                cure="It is a share of the windows.",
            )
        for name in (*_POSITIVE, *_NOT_NEGATIVE):
            value = getattr(self, name)
            if not (math.isfinite(value) and (value > 0 or (value == 0 and name in _NOT_NEGATIVE))):
                raise RopeError(
                    f"extend: `{name}` must be a finite number "
                    + ("above 0." if name in _POSITIVE else "of at least 0."),
                    facts={name: value},
                    cure="Leave it out for the default.",
                )
        if self.precision not in PRECISIONS:
            raise RopeError(
                "extend: unknown `precision`.",
                facts={"precision": self.precision, "known": PRECISIONS},
                cure="Pass one of these.",
            )


def _in_file(name: str) -> Any:
    """Return a field of `MethodSettings` that `extend tune` takes only from a settings file."""
    shared = MethodSettings.__dataclass_fields__[name]
    return field(default=shared.default, metadata={"help": shared.metadata["help"], "file": True})


@dataclass(frozen=True, kw_only=True)
class TuneSettings(TrainingSettings, MethodSettings):
    """Settings of `extend.tune`: one method, and training at the target length.

    - `measure` None: yes. `windows` belongs to measuring; the validation loss in the log is of `validation` too.
    - `checkpoint_every`: also the updates between validations. It changes no result, and neither does `log_every`.

    >>> TuneSettings(text=("a.txt",), steps=400, train="lora+norms").lr
    0.0002
    """

    tunes: ClassVar[bool] = True
    measure: bool | None = _in_file("measure")
    dtype: str | None = _in_file("dtype")
    native: bool = _in_file("native")
    log_every: int = setting("Updates between lines of the log.", default=10, file=True)
    checkpoint_every: int | None = setting(
        "Updates between checkpoints [default: a twentieth of the run].", default=None, file=True
    )

    def __post_init__(self) -> None:
        TrainingSettings.__post_init__(self)
        MethodSettings.__post_init__(self)


def check_at_least(values: Mapping[str, int | None], *, least: int) -> None:
    """Raise `RopeError` for the first value below `least`; None passes."""
    for name, value in values.items():
        if value is not None and value < least:
            raise RopeError(
                f"extend: `{name}` must be at least {least}.", facts={name: value}, cure=f"Set it to {least} or more."
            )
