"""What a comparison computes: one frozen, checked record."""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.rope.scaling import NTK, Linear, Scaling, YaRN
from ropewalk.training.settings import TEXT_ENCODINGS, TrainSettings

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

    text: tuple[str, ...]
    _: KW_ONLY
    validation: tuple[str, ...] = ()
    encodings: tuple[str, ...] = ("sinusoidal", "learned", "rope", "t5", "alibi", "kerple")
    seeds: tuple[int, ...] = (0, 1, 2)
    size: str = "nano"
    vocab_size: int = 2048
    seq_len: int = 128
    batch_size: int = 32
    steps: int = 500
    lr: float = 3e-3
    multiples: tuple[int, ...] = (1, 2, 4, 8, 16)
    tokens: int = 65_536
    scalings: tuple[str, ...] = SCALINGS

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
