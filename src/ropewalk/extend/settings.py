"""The settings of `extend.apply`, `extend.tune` and `extend.search`; a field's `help` describes its option.

The module imports no torch, so that the help can be shown without it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from ropewalk.errors import RopeError
from ropewalk.extend.parts import parts_of
from ropewalk.training.settings import PRECISIONS

DTYPES = ("float32", "bfloat16", "float16")
TEXTS = {"metavar": "FILE", "rest": "Further texts, as in --text A B C."}  # how the command line takes several files
_POSITIVE = ("lr", "clip")
_NOT_NEGATIVE = ("weight_decay", "final_lr", "beta1", "beta2", "self_distillation")


def setting(description: str, default: Any = MISSING, **metadata: Any) -> Any:
    """A field with its description and what else the command line reads of it; without a default it is required."""
    return field(default=default, metadata={"help": description, **metadata})


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """The lengths of an extension, in tokens, and the form in which the model is written.

    Raises `RopeError` naming what does not fit.
    """

    target: int | None = setting(
        "Length wanted, in tokens [default: four times the trained length].", default=None, unit="tokens"
    )
    trained_length: int | None = setting(
        "Trained length in tokens; overrides what the config and the table of families say.",
        default=None,
        unit="tokens",
    )
    unscaled_tokens: int = setting(
        "Number of first tokens that keep their angles (LongRoPE's n-hat); needs --native.", default=0, unit="tokens"
    )
    dtype: str | None = setting("Dtype of the weights written [default: that of the source].", default=None)
    native: bool = setting("Write ropewalk's own form: any method, read by ropewalk alone.", default=False)

    def __post_init__(self) -> None:
        if self.dtype not in (None, *DTYPES):
            raise RopeError(
                "extend: unknown dtype.", facts={"dtype": self.dtype}, cure=f"Choose from {', '.join(DTYPES)}."
            )

    def check_unscaled_tokens(self) -> None:
        """Refuse first tokens without scaling where no config.json can express them."""
        if self.unscaled_tokens and not self.native:
            raise RopeError(
                "extend: config.json cannot express first tokens that keep their angles.",
                facts={"unscaled_tokens": self.unscaled_tokens},
                cure="Pass --native to write a folder that ropewalk alone reads, or leave out --unscaled-tokens.",
            )


@dataclass(frozen=True, kw_only=True)
class MethodSettings(OutputSettings):
    """One method and how its effect is measured: loss by position on a held-out text, before and after."""

    tunes: ClassVar[bool] = False
    method: str = setting("Extension method, by the name that `ropewalk doctor` uses.", default="yarn")
    measure: bool | None = setting("Measure the loss by position, before and after.", default=None)
    validation: Path | None = field(
        default=None, metadata={"help": "Text to measure on [default: Moby Dick].", "metavar": "FILE"}
    )
    start_char: int = setting("Start the validation text at this character.", default=0)
    windows: int | None = setting("Number of windows to measure [default: up to 16].", default=None)
    block: int | None = setting(
        "Tokens of a block of positions [default: a quarter of the trained length].", default=None, unit="tokens"
    )
    device: str = setting("Device to compute on: auto, cpu, cuda.", default="auto")
    seed: int = setting("Seed of the windows that are measured.", default=0)

    def __post_init__(self) -> None:
        from ropewalk.methods import METHODS, method_named

        super().__post_init__()
        method = method_named(self.method)
        if self.unscaled_tokens and not method.scales_frequencies:
            able = [name for name, other in METHODS.items() if other.scales_frequencies]
            raise RopeError(
                "extend: --unscaled-tokens works with methods that scale frequencies.",
                facts={"method": self.method},
                cure=f"Choose from {', '.join(able)}, or leave it out.",
            )
        self.check_unscaled_tokens()
        if not self.measures:
            self._refuse_unused(("windows", "start_char", "block", *(() if self.tunes else ("validation", "seed"))))

    @property
    def measures(self) -> bool:
        """Whether the loss by position is measured."""
        return self.tunes or self.validation is not None if self.measure is None else self.measure

    def _refuse_unused(self, names: Collection[str]) -> None:
        """Refuse settings of measuring that this run would ignore, where they differ from their defaults."""
        fields = type(self).__dataclass_fields__
        unused = {name: getattr(self, name) for name in names if getattr(self, name) != fields[name].default}
        if unused:
            raise RopeError(
                "extend: these options belong to measuring, and would be ignored.",
                facts={f"--{name.replace('_', '-')}": value for name, value in unused.items()},
                cure="Pass --measure, or leave these options out.",
            )


@dataclass(frozen=True, kw_only=True)
class ApplySettings(MethodSettings):
    """What `extend.apply` does: one method, with the weights as they are.

    `measure` None: where a `validation` text is given. `quantization` None: "f16", or as a .gguf source has it.

    >>> ApplySettings(method="ntk", target=32768).measures
    False
    """

    quantization: Literal["f32", "f16", "q8_0"] | None = setting(
        "Of the matrices of a .gguf file [default: f16; a .gguf source's blocks are copied].", default=None
    )


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How weights are trained further, by AdamW.

    - `lr` None: 2e-5, or 2e-4 where only adapters, norms or embeddings are trained. YaRN's recipe is 400 steps at 2e-5.
    - `warmup` None: a tenth of the steps, at most 20; then a cosine to `final_lr` * `lr`.
    - `rank` None: 16 with "lora" in `train`; without it a rank is refused.
    - `tokens_per_step` is rounded up to whole batches of `batch_size` windows.
    - `window` None: windows of the target length. Otherwise PoSE (Zhu et al. 2023, arXiv:2309.10400): windows of so
      many tokens, whose positions skip once, so that every distance up to the target is met at the cost of the short
      length; `skip_target` None: the target. With `skip_target` = `window` nothing skips: the control.
    - `token_weights`: "longce" weighs each token's loss by min(exp(loss in a quarter of the window - loss), 5),
      without gradients (Fang et al. 2024, arXiv:2410.23771): two further forward passes. None: all count alike.
    - `self_distillation`: above 0, every window is read a second time at perturbed positions, and this many times
      KL(prediction there || prediction at its own positions, a constant) is added to the loss, in the mean over the
      tokens that moved (Li et al. 2026, arXiv:2604.14339, lambda; 1 there). An update takes about twice as long.
    - `repeat_share`: in this share of the windows blocks of words and of text occur twice, so that far tokens have
      something to tell.

    Raises `RopeError` naming what does not fit.
    """

    text: tuple[str, ...] = setting("UTF-8 text to tune on; each file is one document.", **TEXTS)
    steps: int = setting("Number of updates.")
    train: str = setting("Parts to train: all, attention, norms, embeddings, lora; joined by +.", default="all")
    rank: int | None = setting("Rank of lora's adapters [default: 16].", default=None)
    batch_size: int = setting("Windows in a batch.", default=1)
    tokens_per_step: int | None = setting("Tokens of one update [default: one batch].", default=None, unit="tokens")
    window: int | None = setting(
        "PoSE: train on windows of this many tokens, whose positions skip up to the target [default: whole windows].",
        default=None,
        unit="tokens",
    )
    skip_target: int | None = setting(
        "With --window: the length that positions skip to [default: the target].", default=None, unit="tokens"
    )
    repeat_share: float = setting("Share of the windows in which blocks of words and of text occur twice.", default=0.0)
    token_weights: Literal["longce"] | None = setting(
        "longce: weigh each token's loss by what a long context is worth to it.", default=None
    )
    self_distillation: float = setting(
        "Weight of the divergence between predictions at perturbed and at true positions; 0: none.", default=0.0
    )
    activation_checkpointing: bool = setting(
        "Activation checkpointing: less memory, about a third more time.", default=True
    )
    lr: float | None = setting("Peak learning rate [default: 2e-5; 2e-4 without whole matrices].", default=None)
    final_lr: float = setting("Last learning rate, as a fraction of the peak.", default=0.1)
    warmup: int | None = setting("Updates before the peak [default: a tenth of them, at most 20].", default=None)
    weight_decay: float = setting("Weight decay of AdamW, on matrices only.", default=0.0)
    beta1: float = setting("AdamW's beta1.", default=0.9)
    beta2: float = setting("AdamW's beta2.", default=0.95)
    clip: float = setting("Largest norm of the gradient.", default=1.0)
    precision: str = setting("Precision of matrix products: auto, float32, bfloat16.", default="auto")
    device: str = setting("Device to compute on: auto, cpu, cuda.", default="auto")
    seed: int = setting("Seed of windows, order, adapters and dropout.", default=0)

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
                "extend: --rank is the rank of lora's adapters.",
                facts={"rank": self.rank, "train": self.train},
                cure="Add lora: --train lora, or leave out --rank.",
            )
        check_at_least(
            {name: getattr(self, name) for name in ("steps", "rank", "batch_size", "tokens_per_step")}, least=1
        )
        check_at_least({"warmup": self.warmup, "seed": self.seed}, least=0)
        check_at_least({"skip_target": self.skip_target}, least=2)
        if self.skip_target is not None and self.window is None:
            raise RopeError(
                "extend: --skip-target is what the positions of short windows skip to.",
                facts={"skip_target": self.skip_target},
                cure="Pass --window too, or leave out --skip-target.",
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
        if self.token_weights not in (None, "longce"):
            raise RopeError(
                "extend: unknown `token_weights`.",
                facts={"token_weights": self.token_weights},
                cure="Pass longce, or leave it out.",
            )
        if self.precision not in PRECISIONS:
            raise RopeError(
                "extend: unknown `precision`.",
                facts={"precision": self.precision, "known": PRECISIONS},
                cure="Pass one of these.",
            )


@dataclass(frozen=True, kw_only=True)
class TuneSettings(TrainingSettings, MethodSettings):
    """What `extend.tune` does: one method, and training at the target length.

    `measure` None: yes. `windows`, `start_char` and `block` belong to measuring; `validation` is also what the log's
    validation loss is taken from.

    >>> TuneSettings(text=("a.txt",), steps=400, train="lora+norms").lr
    0.0002
    """

    tunes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        TrainingSettings.__post_init__(self)
        MethodSettings.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class SearchSettings(OutputSettings):
    """What `extend.search` does: a few numbers of a rule, or one divisor per pair, searched on `text`.

    - `over`: what is searched; see `extend.spaces.OVER`.
    - `budget`, `minutes` both None: 37 evaluations, 200 over factors, over dpe 60 and more (it grows with the target).
    - `halving` None: yes, but not over factors.
    - `answers`: names of retrieval tasks, separated by commas; the search is then on the loss of their answers.
    - `precision`: of the evaluations; `dtype` and `native` are those of the folder that is written, if one is.
    """

    text: tuple[str, ...] = setting("UTF-8 text to search on.", **TEXTS)
    over: str = setting(
        "Numbers to search: yarn, yarn-attention, ntk, llama3 (blocks that engines read), factors (one per pair), or "
        "dpe (in attention, one for each eighth of the pairs).",
        default="yarn",
    )
    within: float = setting(
        "Nats per token that a point may lose within the trained length; inf: no limit.", default=0.05
    )
    halving: bool | None = setting(
        "Successive halving: poor points read fewer windows or texts [default: not over factors].", default=None
    )
    precision: str = setting("Dtype that evaluations are computed in: float32, bfloat16.", default="float32")
    validation: Path | None = field(
        default=None, metadata={"help": "Text to measure the result on [default: Moby Dick].", "metavar": "FILE"}
    )
    start_char: int = setting("Start the validation text at this character.", default=0)
    windows: int | None = setting("Number of windows of the validation text [default: up to 16].", default=None)
    search_windows: int | None = setting(
        "Windows read for each evaluation, with --answers texts with many questions [default: 4].", default=None
    )
    within_windows: int | None = setting(
        "Windows that the loss within is read on, with --answers [default: 2].", default=None
    )
    answer_texts: int | None = setting(
        "Texts of the validation text that answers are measured on, with --answers [default: 8].", default=None
    )
    budget: int | None = setting(
        "Stop after this many evaluations [default: 37; over factors 200, over dpe 60 and more].", default=None
    )
    minutes: float | None = setting(
        "Stop after this many minutes of evaluations; with --budget, whichever comes first.", default=None
    )
    monotone: bool = setting(
        "With --over factors: divisors never decrease towards slower pairs (LongRoPE's constraint).", default=False
    )
    answers: str | None = setting("Search on far answers of retrieval tasks instead: numbers, passkey.", default=None)
    device: str = setting("Device to compute on: auto, cpu, cuda.", default="auto")
    seed: int = setting("Seed of windows, texts and the search.", default=0)

    def __post_init__(self) -> None:
        from ropewalk.extend.spaces import check_over

        super().__post_init__()
        object.__setattr__(self, "text", tuple(str(path) for path in self.text))
        if not self.text:
            raise RopeError("extend: there is no text to search on.", cure="Pass --text FILE, once for each file.")
        check_over(self.over, monotone=self.monotone)
        if self.precision not in ("float32", "bfloat16"):
            raise RopeError(
                "extend: unknown `precision`.", facts={"precision": self.precision}, cure="Pass float32 or bfloat16."
            )
        check_at_least({"within_windows": self.within_windows, "answer_texts": self.answer_texts}, least=1)
        unused = {name: getattr(self, name) for name in ("within_windows", "answer_texts")}
        unused = {f"--{name.replace('_', '-')}": value for name, value in unused.items() if value is not None}
        if unused and not self.tasks:
            raise RopeError(
                "extend: these options belong to --answers, and would be ignored.",
                facts=unused,
                cure="Pass --answers numbers, or leave them out.",
            )

    @property
    def tasks(self) -> tuple[str, ...]:
        """The retrieval tasks in `answers`, one by one."""
        return tuple(word.strip() for word in (self.answers or "").split(",") if word.strip())


def check_at_least(values: Mapping[str, int | None], *, least: int) -> None:
    """Raise `RopeError` for the first value below `least`; None passes."""
    for name, value in values.items():
        if value is not None and value < least:
            raise RopeError(
                f"extend: `{name}` must be at least {least}.",
                facts={name: value},
                cure=f"Pass --{name.replace('_', '-')} {least} or more.",
            )
