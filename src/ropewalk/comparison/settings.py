"""What a comparison computes: one frozen, checked record.

The module imports no torch, so that the help can be shown without it.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import RopeError
from ropewalk.training.settings import TEXT_ENCODINGS, TrainSettings

if TYPE_CHECKING:
    from ropewalk.rope.scaling import Scaling

SCALINGS = ("pi", "ntk", "yarn")


@dataclass(frozen=True)
class CompareSettings:
    """Which encodings are trained on what, and how far beyond the trained length they are measured.

    - `text`: UTF-8 files to train on; `validation`: files to measure on; none: the last tenth of each text.
    - `encodings`: names of `ropewalk train --encoding`. `seeds`: each trains every encoding once: the seed decides the
      first weights and the order of the windows, so the order is the same for all encodings of a seed.
    - `size`, `vocab_size`, `seq_len` (tokens, the trained length), `batch_size`, `steps`, `lr`: as `TrainSettings`.
    - `multiples`: of the trained length, at which the loss is measured; `tokens`: how many are measured, at most, the
      same for each length.
    - `scalings`: rules that each trained rope is measured under as well, at factor = length / trained length.

    Raises `RopeError` for names that nobody knows and numbers out of range.

    >>> CompareSettings(text=("novel.txt",), encodings=("rope", "alibi")).lengths
    (128, 256, 512, 1024, 2048)
    """

    text: tuple[str, ...] = field(
        metadata={"help": "UTF-8 text files to train on [default: Moby Dick].", "metavar": "FILE"}
    )
    _: KW_ONLY
    validation: tuple[str, ...] = field(
        default=(),
        metadata={"help": "Text files to measure on [default: the last tenth of each --text].", "metavar": "FILE"},
    )
    encodings: tuple[str, ...] = field(
        default=("sinusoidal", "learned", "rope", "t5", "alibi", "kerple"),
        metadata={
            "help": "Position encodings to compare, with commas, as `ropewalk train --encoding` has them.",
            "commas": True,
        },
    )
    seeds: tuple[int, ...] = field(
        default=(0, 1, 2),
        metadata={"help": "Seeds, with commas: each trains every encoding once [default: 0,1,2].", "commas": True},
    )
    size: str = field(default="nano", metadata={"help": "Preset of `ropewalk train`."})
    vocab_size: int = field(default=2048, metadata={"help": "Tokens of the trained tokenizer."})
    seq_len: int = field(
        default=128, metadata={"help": "Tokens of a training window: the trained length.", "unit": "tokens"}
    )
    batch_size: int = field(default=32, metadata={"help": "Windows of one batch."})
    steps: int = field(default=500, metadata={"help": "Updates of each run."})
    lr: float = field(default=3e-3, metadata={"help": "Peak learning rate."})
    multiples: tuple[int, ...] = field(
        default=(1, 2, 4, 8, 16),
        metadata={
            "help": "Multiples of the trained length to measure at, with commas [default: 1,2,4,8,16].",
            "commas": True,
        },
    )
    tokens: int = field(
        default=65_536, metadata={"help": "Tokens to measure on at each length, at most.", "unit": "tokens"}
    )
    scalings: tuple[str, ...] = field(
        default=SCALINGS,
        metadata={
            "help": f'Scaling rules to measure each trained rope under: {", ".join(SCALINGS)}, with commas; or "none".',
            "commas": True,
            "empty": "none",
        },
    )

    def __post_init__(self) -> None:
        _known("encodings", self.encodings, TEXT_ENCODINGS)
        _known("scalings", self.scalings, SCALINGS)
        for name, values in (("seeds", self.seeds), ("multiples", self.multiples)):
            if not values or len(set(values)) != len(values) or min(values) < (name == "multiples"):
                raise RopeError(
                    f"compare: `{name}` must be different whole numbers, at least one.",
                    facts={name: values},
                    cure="For example 0 1 2, and 1 2 4 8 16.",
                )
        if self.tokens < self.lengths[-1]:
            raise RopeError(
                "compare: the longest length needs more tokens to be measured on.",
                facts={"tokens": self.tokens, "longest": self.lengths[-1]},
                cure="Raise --tokens, or measure fewer --multiples.",
            )
        self.training("rope", 0)  # raises for what no run could use

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of the windows that are measured, ascending."""
        return tuple(self.seq_len * multiple for multiple in sorted(self.multiples))

    @property
    def jobs(self) -> tuple[tuple[str, int], ...]:
        """Each encoding and seed, all encodings of a seed before the next seed: a stopped run has whole seeds."""
        return tuple((encoding, seed) for seed in self.seeds for encoding in self.encodings)

    def training(self, encoding: str, seed: int, tokenizer: str = "bpe") -> TrainSettings:
        """The run that trains one encoding with one seed."""
        return TrainSettings(
            text=self.text,
            validation=self.validation,
            validation_fraction=0.1,
            validation_windows=128,
            tokenizer=tokenizer,
            vocab_size=self.vocab_size,
            size=self.size,
            encoding=encoding,
            seq_len=self.seq_len,
            batch_size=self.batch_size,
            steps=self.steps,
            lr=self.lr,
            seed=seed,
        )

    def to_json(self) -> dict[str, Any]:
        """These settings as JSON holds them; texts by their file's name."""
        plain: dict[str, Any] = {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()
        }
        for name in ("text", "validation"):
            plain[name] = [Path(path).name for path in plain[name]]
        return plain


def scaling_of(name: str, factor: float, trained: int) -> Scaling:
    """The rule of a scaling's name at one factor."""
    from ropewalk.rope.scaling import NTK, Linear, YaRN

    rules: dict[str, Scaling] = {"pi": Linear(factor), "ntk": NTK(factor), "yarn": YaRN(factor, trained)}
    return rules[name]


def _known(name: str, given: tuple[str, ...], known: tuple[str, ...]) -> None:
    wrong = [value for value in given if value not in known]
    if wrong or len(set(given)) != len(given) or (name == "encodings" and not given):
        raise RopeError(
            f"compare: `{name}` must be different known names.",
            facts={name: given, "known": known},
            cure="Choose some of these.",
        )


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "encodings": ("sinusoidal", "rope", "alibi", "t5"), "seeds": (0,), "steps": 150, "tokens": 16_384,
        "scalings": ("yarn",),
    },
    "hour": {},
    "full": {"encodings": TEXT_ENCODINGS, "steps": 2000, "tokens": 131_072},
}  # fmt: skip
"""`quick`: four encodings, one seed, minutes. `hour`: what two cores do in an hour. `full`: all, for a few nights."""
