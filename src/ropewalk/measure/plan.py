"""Plan a measurement of losses: lengths, blocks, windows, methods, what each method changes, and the jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.ledger import fingerprint as hash_of
from ropewalk.measure.engine import NOTHING, Job, Workload, due
from ropewalk.methods import METHODS, ConfigForm, Reach, chosen_methods, unsettled
from ropewalk.models.config import Positions
from ropewalk.readers.losses import crop_steps
from ropewalk.readers.reader import CHUNK, Reader
from ropewalk.rope.frequencies import attention_factor_of, columns_of, first_columns_of
from ropewalk.statistics import CONFIDENCE, interval_sentence

TOKENS_PER_METHOD = 65_536
MOST_WINDOWS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossProtocol:
    """What was measured of losses; every length is in tokens, `start_char` in characters of each text.

    `windows` of each text are disjoint, at places drawn from `seed`. `unscaled_tokens` is the number of leading tokens
    left unscaled (LongRoPE's n-hat).

    The loss of a token given all tokens before it in its window belongs to the block of its own position: so
    the first token of a window has none, and the first block holds one loss fewer.
    """

    trained_length: int
    target: int
    block: int
    windows: int
    stride: int
    texts: tuple[str, ...]
    start_char: int = 0
    seed: int = 0
    unscaled_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("trained_length", "target", "block", "windows", "stride"):
            if getattr(self, name) < 1:
                raise RopeError(
                    f"protocol: `{name}` must be at least 1.",
                    facts={name: getattr(self, name)},
                    cure="Give a positive number of tokens." if name != "windows" else "Give a positive --windows.",
                )
        if not self.texts:
            raise RopeError("protocol: there is no text to measure on.", cure="Give --text FILE.")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise RopeError(
                "protocol: `seed` must be a whole number from 0 on.",
                facts={"seed": self.seed},
                cure="Leave it out for 0.",
            )
        if not isinstance(self.unscaled_tokens, int) or not 0 <= self.unscaled_tokens < self.target:
            raise RopeError(
                "protocol: `unscaled_tokens` must be a whole number from 0 to below the target.",
                facts={"unscaled_tokens": self.unscaled_tokens, "target": self.target},
                cure="Give a few, such as 4; LongRoPE tries up to 256.",
            )
        if self.start_char < 0:
            raise RopeError(
                "protocol: `start_char` must not be negative.",
                facts={"start_char": self.start_char},
                cure="Count it from the beginning of the text.",
            )
        if not 2 <= self.block <= self.target:
            raise RopeError(
                "protocol: `block` must be from 2 tokens to the target.",
                facts={"block": self.block, "target": self.target},
                cure="Give a block that divides the target, such as a quarter of the trained length.",
            )
        if 4 * self.stride > max(self.trained_length, 4):
            raise RopeError(
                "protocol: crop's stride must be at most a quarter of the trained length.",
                facts={"stride": self.stride, "trained_length": self.trained_length},
                cure="Give a smaller stride; the default is a quarter.",
            )

    @classmethod
    def choose(
        cls,
        *,
        trained_length: int,
        text: str | Sequence[str],
        target: int | None = None,
        block: int | None = None,
        windows: int | None = None,
        stride: int | None = None,
        start_char: int = 0,
        seed: int = 0,
        unscaled_tokens: int = 0,
        tokens: int | None = None,
    ) -> LossProtocol:
        """Fill in defaults: target 4x (3x or 2x if the shortest text's `tokens` are fewer), block and stride a quarter
        of the trained length, and as many windows (16 at most) as fit into those tokens and into 65,536 tokens for each
        method.

        >>> found = LossProtocol.choose(trained_length=512, text="moby_dick")
        >>> found.target, found.block, found.windows
        (2048, 128, 16)
        """
        times = next((n for n in (4, 3, 2) if tokens is None or n * trained_length <= tokens), 4)
        wanted = times * trained_length if target is None else target
        quarter = max(1, trained_length // 4)
        texts = (text,) if isinstance(text, str) else tuple(text)
        share = TOKENS_PER_METHOD // max(1, len(texts))
        most = share if tokens is None else min(share, tokens)
        return cls(
            trained_length=trained_length,
            target=wanted,
            block=min(max(2, quarter), max(2, wanted)) if block is None else block,
            windows=max(1, min(MOST_WINDOWS, most // max(1, wanted))) if windows is None else windows,
            stride=quarter if stride is None else stride,
            texts=texts,
            start_char=start_char,
            seed=seed,
            unscaled_tokens=unscaled_tokens,
        )

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Return `[start, end)` of each block of positions; the last may be shorter."""
        return tuple((start, min(start + self.block, self.target)) for start in range(0, self.target, self.block))

    @property
    def total_windows(self) -> int:
        """Return the number of windows of all texts."""
        return self.windows * len(self.texts)

    def starts(self, tokens: int, text: int = 0) -> tuple[int, ...]:
        """Return the first token of each window in the text with that number: disjoint, with random gaps.

        >>> LossProtocol.choose(trained_length=4, text="t", target=8, windows=3, seed=1).starts(30)
        (3, 11, 21)
        """
        spare = tokens - self.windows * self.target
        if tokens < self.windows * self.target:
            raise RopeError(
                "protocol: the text is too short for the windows.",
                facts={
                    "text": self.texts[text],
                    "tokens in the text": tokens,
                    "tokens needed": self.windows * self.target,
                    "windows": self.windows,
                    "target": self.target,
                },
                cure="Give a longer --text, fewer --windows, a smaller start_char or a shorter --target.",
            )
        gaps = np.sort(np.random.default_rng([self.seed, text]).integers(0, spare + 1, self.windows))
        return tuple(int(gap) + index * self.target for index, gap in enumerate(gaps))

    def sentence(self) -> str:
        """Return the protocol in words."""
        several = f"{self.windows} disjoint windows" if self.windows > 1 else "one window"
        texts = self.texts[0] if len(self.texts) == 1 else f"each of {', '.join(self.texts)}"
        return (
            f"Loss in nats per token, each token given all tokens before it in its window of {self.target:,}; "
            f"{several}, placed at random (seed {self.seed}), of {texts} from character {self.start_char:,}; positions "
            f"0 to {self.target - 1:,}; a loss belongs to the block of the predicted position. Blocks of "
            f"{self.block:,}. crop: fresh windows of {self.trained_length:,} tokens, stride {self.stride:,}. "
            + self._first_tokens()
            + interval_sentence(self.total_windows, texts=len(self.texts))
        )

    def _first_tokens(self) -> str:
        if not self.unscaled_tokens:
            return ""
        return (
            f"The first {self.unscaled_tokens:,} tokens of a window keep their angles under every method that changes "
            "frequencies. "
        )

    def to_json(self) -> dict[str, Any]:
        """Return the protocol as JSON, with its sentence."""
        return {**dataclasses.asdict(self), "confidence": CONFIDENCE, "sentence": self.sentence()}


FORMAT = 5  # of a result and of how it is measured: a change of either takes the next number
KIND = "losses"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The methods of a run in order, the positions of each, and the methods that share numbers.

    `same_as` maps a method to an earlier one with equal frequencies at this length. `own` are the model's positions.
    `crop_seq_len`: the length for the frequencies of crop's windows, if not their own. `config_form`: the form in
    which the model's config contains its ropes.
    """

    protocol: LossProtocol
    own: Positions
    positions: dict[str, Positions]
    same_as: dict[str, str]
    crop_seq_len: int | None = None
    config_form: ConfigForm = dataclasses.field(default_factory=ConfigForm)

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods in order, `plain` first."""
        return tuple(self.positions)

    def key(self, method: str, window: int) -> str:
        """Return a job's key in the ledger, which contains a digest of the method's positions."""
        at = "" if self.crop_seq_len is None or not METHODS[method].crops else f"@{self.crop_seq_len}"
        return f"{method}/{_digest_of(self.positions[method])}{at}/{window}"

    def due(self, ledger: Ledger, *, chunk: int = CHUNK) -> tuple[Job, ...]:
        """Return the jobs without a result in the ledger, window by window; `part` is the tokens taken from plain."""
        protocol = self.protocol
        windows = range(protocol.total_windows)
        plain = {window for window in windows if "plain" in self.positions and self.key("plain", window) not in ledger}
        return due(
            (
                Job(
                    method=name,
                    window=window,
                    key=self.key(name, window),
                    description=f"{name}, window {window + 1} of {protocol.total_windows}",
                    tokens=tokens_of(name, protocol, reuse=window in plain),
                    work=workload_of(name, protocol, chunk=chunk, reuse=window in plain),
                    part=shared_tokens(name, protocol, chunk),
                )
                for window in windows
                for name in self.methods
                if name not in self.same_as
            ),
            ledger,
        )


@cache
def _digest_of(positions: Positions) -> str:
    return hash_of(positions)


def plan(reader: Reader, protocol: LossProtocol, methods: Sequence[str] | None) -> Plan:
    """Plan the measurement: `plain` always (differences are paired with it), each distinct form of the model once.

    Raises `RopeError` for a method that is unknown or does not apply.
    """
    reach = Reach(protocol.trained_length, protocol.target, protocol.unscaled_tokens)
    own = reader.positions
    chosen = chosen_methods(methods, own, reach)
    crops = [name for name in chosen if METHODS[name].crops]
    if crops and (not reach.extends or reach.trained < 2):
        raise RopeError(
            f"doctor: {crops[0]} differs from plain only beyond the trained length.",
            facts={"target": reach.target, "trained_length": reach.trained},
            cure=f"Ask for a longer --target, or leave {crops[0]} out.",
        )
    positions = {name: METHODS[name].positions(own, reach) for name in chosen}
    same_as: dict[str, str] = {}
    seen: dict[object, str] = {}
    for name in chosen:
        if not METHODS[name].crops:
            first = seen.setdefault((_angles(positions[name], reach.target), positions[name].extensions), name)
            if first != name:
                same_as[name] = first
    return Plan(protocol=protocol, own=own, positions=positions, same_as=same_as, config_form=reader.config_form)


def _angles(positions: Positions, seq_len: int) -> object:
    """Return what defines a method's computation: each layer's frequencies and attention factor at this length."""
    distinct = {
        rope: (columns_of(rope, seq_len), first_columns_of(rope), attention_factor_of(rope, seq_len))
        for rope in positions.present_ropes
    }
    return tuple(None if rope is None else distinct[rope] for rope in positions.ropes)


def shared_tokens(method: str, protocol: LossProtocol, chunk: int) -> int:
    """Return the leading tokens of a window, in whole chunks, for which a method other than crop equals `plain`."""
    if METHODS[method].crops:
        return 0
    reach = Reach(protocol.trained_length, protocol.target, protocol.unscaled_tokens)
    return min(METHODS[method].equal_below(reach), protocol.target - 1) // chunk * chunk


def tokens_of(method: str, protocol: LossProtocol, *, reuse: bool = True) -> int:
    """Return the tokens that the model processes for one window; with `reuse`, crop starts from plain's beginning."""
    if not METHODS[method].crops:
        return protocol.target
    steps = crop_steps(protocol.target, protocol.trained_length, protocol.stride)
    return sum(end - start for start, end, _ in steps) + (0 if reuse else protocol.trained_length)


def workload_of(method: str, protocol: LossProtocol, *, chunk: int, reuse: bool = True) -> Workload:
    """Return the work of a method on one window; `reuse`: it starts from plain's beginning if it can."""
    if not METHODS[method].crops:
        whole = Workload.of(protocol.target, chunk=chunk)
        shared = shared_tokens(method, protocol, chunk) if reuse else 0
        return whole.without(Workload.of(shared, chunk=chunk)) if shared else whole
    whole = NOTHING if reuse else Workload.of(protocol.trained_length, chunk=chunk)
    for start, end, scored in crop_steps(protocol.target, protocol.trained_length, protocol.stride):
        whole += Workload.of(end - start, chunk=chunk, first=scored - start)
    return whole


def take_windows(tokens: Sequence[int] | Sequence[Sequence[int]], protocol: LossProtocol) -> Tensor:
    """int64 `[windows, target]`: the protocol's windows of its tokenised texts, in order.

    `tokens` are those of each text, or of the one text. Raises `RopeError` if one is too short.
    """
    texts = cast(Sequence[Sequence[int]], [tokens] if tokens and isinstance(tokens[0], int) else tokens)
    rows = []
    for number, text in enumerate(texts):
        ids = torch.tensor(text, dtype=torch.int64, device="cpu")
        rows += [ids[start : start + protocol.target] for start in protocol.starts(len(ids), number)]
    return torch.stack(rows)


def trained_length_of(reader: Reader, given: int | None) -> int:
    """Return the trained length: `given`, or the model's own.

    Raises `RopeError` if the model has no rope, if its length is unknown and none is given, or if it has a scaling of
    unknown training status.
    """
    ropes = reader.positions.present_ropes
    if not ropes:
        raise RopeError(
            "context: this model has no rotary embedding in any layer, so there is nothing to extend.",
            facts={"layers": reader.positions.num_layers},
            cure="Choose a model with RoPE.",
        )
    unknown = unsettled(reader.positions)
    if unknown is not None:
        raise RopeError(
            "context: it is not known whether this model was trained with the scaling in its config.",
            facts={
                "scaling": unknown.scaling,
                "trained length with it": unknown.scaled_length,
                "trained length without it": unknown.original_length,
            },
            cure='`ropewalk doctor` measures it. Then pass --trained-length, or write "finetuned": true or false into '
            "the rope block of config.json.",
        )
    length = reader.trained_length if given is None else given
    if length is None:
        raise RopeError(
            "context: the model does not say its trained length.",
            facts={"rope": ropes[0]},
            cure="Pass --trained-length TOKENS.",
        )
    return length


def fingerprint(reader: Reader, windows: Tensor, protocol: LossProtocol) -> str:
    """Return a short hash of what a run's numbers depend on: the model, the windows' tokens and the protocol."""
    ids = windows.to(torch.int64).contiguous().numpy().tobytes()
    old_form = repr(protocol).removeprefix("Loss").encode()  # its name in version 0.1, whose ledgers are resumed
    return hash_of(FORMAT, torch.__version__, reader.digest(), old_form, ids)
