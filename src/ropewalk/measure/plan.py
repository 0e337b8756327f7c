"""Plan a measurement of losses: lengths, blocks, windows, methods, what each method changes, and the jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.ledger import fingerprint as hash_of
from ropewalk.measure.engine import NOTHING, Job, Workload, due
from ropewalk.methods import METHODS, ConfigForm, Reach, chosen_methods, trained_length_of, unsettled
from ropewalk.models.config import Positions
from ropewalk.readers.losses import crop_steps
from ropewalk.readers.reader import CHUNK, Reader
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.values import MOST_SEED, check_whole
from ropewalk.statistics import LOOK_CONFIDENCE, LOOKS

MOST_WINDOWS = LOOKS[-1]
BLOCKS = 8  # blocks of each of the two parts of a window, within the trained length and beyond it
MOST_STRETCHES = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossProtocol:
    """The protocol of losses. Lengths are in tokens; `start_char` is in characters of each text.

    - `windows`: total number for all texts, each of `target` tokens. They alternate between the texts, so the first
      windows are of different texts. Windows of one text do not overlap if it is long enough.
    - `block`: positions in a block, counted from 0 and again from the trained length, so no block spans both parts.
    - `seed` draws the windows' places.

    Each token is predicted from all tokens before it in its window; its loss belongs to the block of its own position.
    The first token of a window has no loss, so the first block contains one loss fewer.
    """

    trained_length: int
    target: int
    block: int
    windows: int
    stride: int
    texts: tuple[str, ...]
    start_char: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        ones = ("trained_length", "target", "block", "windows", "stride")
        check_whole("protocol", **{name: getattr(self, name) for name in ones})
        check_whole("protocol", least=0, start_char=self.start_char)
        check_whole("protocol", least=0, most=MOST_SEED, seed=self.seed)
        if not self.texts:
            raise RopeError("protocol: there is no text to measure on.", cure="Give --text FILE.")
        if not 2 <= self.block <= max(2, self.target):
            raise RopeError(
                "protocol: `block` must be from 2 tokens to the target.",
                facts={"block": self.block, "target": self.target},
                cure="Give an eighth of the tokens beyond the trained length, or leave it out.",
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
        tokens: int | Sequence[int] | None = None,
    ) -> LossProtocol:
        """Fill in defaults.

        The target is 4x the trained length (3x or 2x if every text is shorter); the block an eighth of the shorter of a
        window's two parts; the stride a quarter of the trained length. There are up to 16 windows.

        - `tokens`: of each text, or of the only one. Windows of one text overlap by at most a half.

        >>> found = LossProtocol.choose(trained_length=512, text="moby_dick", tokens=300_000)
        >>> found.target, found.block, found.windows
        (2048, 64, 16)
        """
        texts = (text,) if isinstance(text, str) else tuple(text)
        lengths = None if tokens is None else ((tokens,) if isinstance(tokens, int) else tuple(tokens))
        longest = None if not lengths else max(lengths)
        times = next((n for n in (4, 3, 2) if longest is None or n * trained_length <= longest), 4)
        wanted = times * trained_length if target is None else target
        fitting = MOST_WINDOWS if lengths is None else sum(most_windows(length, wanted) for length in lengths)
        shorter = min(trained_length, wanted - trained_length if wanted > trained_length else wanted)
        return cls(
            trained_length=trained_length,
            target=wanted,
            block=max(2, shorter // BLOCKS) if block is None else block,
            windows=max(1, min(MOST_WINDOWS, fitting)) if windows is None else windows,
            stride=max(1, trained_length // 4) if stride is None else stride,
            texts=texts,
            start_char=start_char,
            seed=seed,
        )

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Return `[start, end)` of each block of positions; the last within and the last beyond may be shorter."""
        within = min(self.trained_length, self.target)
        return tuple(
            (start, min(start + self.block, end))
            for first, end in ((0, within), (within, self.target))
            for start in range(first, end, self.block)
        )

    @property
    def blocks_within(self) -> int:
        """Return the number of blocks within the trained length."""
        return sum(end <= self.trained_length for _, end in self.blocks)

    @property
    def weights(self) -> list[int]:
        """Return the number of losses in each block: the first token of a window has none."""
        return [end - max(start, 1) for start, end in self.blocks]

    @property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """Return `[first, last)` blocks of at most three parts beyond the trained length.

        >>> found = LossProtocol.choose(trained_length=256, target=1024, text="t", windows=1)
        >>> [(found.blocks[first][0], found.blocks[last - 1][1]) for first, last in found.stretches]
        [(256, 512), (512, 768), (768, 1024)]
        """
        first, count = self.blocks_within, len(self.blocks) - self.blocks_within
        parts = min(MOST_STRETCHES, count)
        cuts = [first + round(count * part / parts) for part in range(parts + 1)] if parts else []
        return tuple(pairwise(cuts))

    @property
    def stretch_ends(self) -> tuple[int, ...]:
        """Return the position at which each stretch ends."""
        return tuple(self.blocks[last - 1][1] for _, last in self.stretches)

    def places(self, tokens: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return the text and the first token of each window, in rounds over the texts, in random order in each text.

        - `tokens`: of each text. Windows of a text are disjoint, with random gaps, if it is long enough; else they are
          spread evenly and overlap by at most a half. Texts shorter than a window are left out.

        Raises `RopeError` if the texts are too short for the windows.

        >>> protocol = LossProtocol.choose(trained_length=4, text=("a", "b"), target=8, windows=3, seed=1)
        >>> protocol.places([30, 8])
        ((0, 15), (1, 0), (0, 7))
        """
        room = [most_windows(length, self.target) for length in tokens]
        counts = [0] * len(tokens)
        order: list[tuple[int, int]] = []
        while len(order) < self.windows:
            free = [text for text, most in enumerate(room) if counts[text] < most]
            if not free:
                raise RopeError(
                    "protocol: the texts are too short for the windows.",
                    facts={
                        "tokens in each text": dict(zip(self.texts, tokens, strict=False)),
                        "windows of this length in them": sum(room),
                        "windows": self.windows,
                        "target": self.target,
                    },
                    cure="Give a longer --text or more of them, fewer --windows, or a shorter --target.",
                )
            for text in free[: self.windows - len(order)]:
                order.append((text, counts[text]))
                counts[text] += 1
        starts = [self._starts(length, counts[text], text) for text, length in enumerate(tokens)]
        return tuple((text, starts[text][number]) for text, number in order)

    def _starts(self, tokens: int, windows: int, text: int) -> list[int]:
        """Return the first tokens of a text's windows, in random order."""
        random, spare = np.random.default_rng([self.seed, text]), tokens - windows * self.target
        if spare >= 0:
            gaps = np.sort(random.integers(0, spare + 1, windows))
            found = [int(gap) + index * self.target for index, gap in enumerate(gaps)]
        else:
            found = [round(value) for value in np.linspace(0, tokens - self.target, windows).tolist()]
        return [found[number] for number in random.permutation(windows)]

    def share(self, tokens: Sequence[int], windows: int | None = None) -> float:
        """Return the effective number of disjoint windows among the first `windows` (None: all), over their number."""
        places = self.places(tokens)[:windows]
        counts = [sum(text == number for text, _ in places) for number in range(len(tokens))]
        worth = sum(min(count, length / self.target) for count, length in zip(counts, tokens, strict=True))
        return worth / len(places)

    def sentence(self) -> str:
        """Return a description of the protocol."""
        several = f"up to {self.windows} windows" if self.windows > 1 else "one window"
        texts = self.texts[0] if len(self.texts) == 1 else f"{len(self.texts)} texts ({', '.join(self.texts)})"
        return (
            f"Loss in nats per token, each token given all tokens before it in its window of {self.target:,}; "
            f"{several}, placed at random (seed {self.seed}), of {texts} from character {self.start_char:,}; positions "
            f"0 to {self.target - 1:,}; a loss belongs to the block of the predicted position. Blocks of "
            f"{self.block:,}. crop: fresh windows of {self.trained_length:,} tokens, stride {self.stride:,}."
        )

    def to_json(self) -> dict[str, Any]:
        """Return the protocol as JSON, with its description."""
        return {**dataclasses.asdict(self), "confidence": LOOK_CONFIDENCE, "sentence": self.sentence()}


def most_windows(tokens: int, target: int) -> int:
    """Return the number of windows in a text of `tokens` tokens if they overlap by at most a half.

    >>> most_windows(100, 40), most_windows(79, 40), most_windows(39, 40)
    (4, 2, 0)
    """
    return 0 if tokens < target else 2 * tokens // target - 1


FORMAT = 6  # of a result and of how it is measured: a change of either takes the next number
KIND = "losses"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The methods of a run in order, the positions of each, and the methods that share numbers.

    - `same_as`: maps a method to an earlier one with equal frequencies at this length. `own`: the model's positions.
    - `config_form`: the form of the ropes in the model's config.
    """

    protocol: LossProtocol
    own: Positions
    positions: dict[str, Positions]
    same_as: dict[str, str]
    config_form: ConfigForm = dataclasses.field(default_factory=ConfigForm)

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods in order, `plain` first."""
        return tuple(self.positions)

    def key(self, method: str, window: int) -> str:
        """Return a job's key in the ledger, which contains a digest of the method's positions."""
        return f"{method}/{_digest_of(self.positions[method])}/{window}"

    def due(
        self,
        ledger: Ledger,
        *,
        chunk: int = CHUNK,
        windows: range | None = None,
        methods: Collection[str] | None = None,
        asked: int = 0,
    ) -> tuple[Job, ...]:
        """Return the jobs without a result in the ledger by window.

        - `windows`, `methods`: only these; None: all. Crop, which starts from plain's losses, comes last.
        - `asked`: tokens asked for in addition to the window, under every method except crop.
        """
        protocol = self.protocol
        windows = range(protocol.windows) if windows is None else windows
        reusable = "plain" in self.positions
        plain = {window for window in windows if reusable and self.key("plain", window) not in ledger}
        chosen = [name for name in self.methods if name not in self.same_as and (methods is None or name in methods)]
        chosen.sort(key=lambda name: METHODS[name].crops)
        return due(
            (
                Job(
                    method=name,
                    window=window,
                    key=self.key(name, window),
                    description=f"{name}, window {window + 1}",
                    tokens=tokens_of(name, protocol, reuse=window in plain),
                    work=workload_of(name, protocol, chunk=chunk, reuse=window in plain, asked=asked),
                )
                for window in windows
                for name in chosen
            ),
            ledger,
        )


@cache
def _digest_of(positions: Positions) -> str:
    return hash_of(positions)


def plan(reader: Reader, protocol: LossProtocol, methods: Sequence[str] | None) -> Plan:
    """Plan the measurement: always `plain` (differences are paired with it), and each distinct form of the model once.

    Raises `RopeError` if a method is unknown or does not apply.
    """
    reach = Reach(protocol.trained_length, protocol.target)
    own = reader.positions
    chosen = chosen_methods(methods, own, reach)
    crops = [name for name in chosen if METHODS[name].crops]
    if crops and (not reach.extends or reach.trained < 2):
        raise RopeError(
            f"doctor: {crops[0]} differs from plain only if the target exceeds the trained length.",
            facts={"target": reach.target, "trained_length": reach.trained},
            cure=f"Pass a longer --target, or leave out {crops[0]}.",
        )
    positions = {name: METHODS[name].positions(own, reach) for name in chosen}
    same_as: dict[str, str] = {}
    seen: dict[object, str] = {}
    for name in chosen:
        if not METHODS[name].crops:
            first = seen.setdefault((_angles(positions[name], reach.target), positions[name].extensions), name)
            if first != name:
                same_as[name] = first
    return Plan(
        protocol=protocol,
        own=own,
        positions=positions,
        same_as=same_as,
        config_form=reader.config_form,
    )


def _angles(positions: Positions, seq_len: int) -> object:
    """Return each layer's frequencies and attention factor at this length, which define a method's computation."""
    distinct = {
        rope: (columns_of(rope, seq_len), attention_factor_of(rope, seq_len)) for rope in positions.present_ropes
    }
    return tuple(None if rope is None else distinct[rope] for rope in positions.ropes)


def tokens_of(method: str, protocol: LossProtocol, *, reuse: bool = True) -> int:
    """Return the number of tokens processed for one window; with `reuse`, crop starts from plain's beginning."""
    if not METHODS[method].crops:
        return protocol.target
    steps = crop_steps(protocol.target, protocol.trained_length, protocol.stride)
    return sum(end - start for start, end, _ in steps) + (0 if reuse else protocol.trained_length)


def workload_of(method: str, protocol: LossProtocol, *, chunk: int, reuse: bool = True, asked: int = 0) -> Workload:
    """Return the work of a method on one window; `reuse`: crop starts from plain's beginning.

    - `asked`: tokens asked for after the window; each attends to all of it.
    """
    if not METHODS[method].crops:
        whole = Workload.of(protocol.target, chunk=chunk)
        whole += Workload(calls=0, tokens=asked, pairs=float(asked * protocol.target), scored=asked)
        return whole
    whole = NOTHING if reuse else Workload.of(protocol.trained_length, chunk=chunk)
    for start, end, scored in crop_steps(protocol.target, protocol.trained_length, protocol.stride):
        whole += Workload.of(end - start, chunk=chunk, first=scored - start)
    return whole


def take_windows(tokens: Sequence[int] | Sequence[Sequence[int]], protocol: LossProtocol) -> Tensor:
    """Return the protocol's windows of its tokenised texts, int64 `[windows, target]`, in order.

    `tokens` are those of each text, or of the only text. Raises `RopeError` if they are too few for the windows.
    """
    texts = cast(Sequence[Sequence[int]], [tokens] if tokens and isinstance(tokens[0], int) else tokens)
    rows = []
    for text, start in protocol.places([len(one) for one in texts]):
        rows.append(torch.tensor(texts[text][start : start + protocol.target], dtype=torch.int64, device="cpu"))
    return torch.stack(rows)


def required_trained_length(positions: Positions, given: int | None) -> int:
    """Return the trained length: `given`, or the model's own.

    Raises `RopeError` if the model has no rope, if its length is unknown and not given, or if it has a scaling of
    unknown training status.
    """
    ropes = positions.present_ropes
    if not ropes:
        raise RopeError(
            "context: this model has no rotary embedding in any layer, so there is nothing to extend.",
            facts={"layers": positions.num_layers},
            cure="Choose a model with RoPE.",
        )
    unknown = unsettled(positions)
    if unknown is not None:
        raise RopeError(
            "context: it is not known whether this model was trained with the scaling in its config.",
            facts={
                "scaling": unknown.scaling,
                "trained length with it": unknown.scaled_length,
                "trained length without it": unknown.original_length,
            },
            cure='Measure it with `ropewalk doctor`. Then pass --trained-length, or write "finetuned": true or false '
            "into the rope block of config.json.",
        )
    length = trained_length_of(positions) if given is None else given
    if length is None:
        raise RopeError(
            "context: the model's trained length is unknown.",
            facts={"rope": ropes[0]},
            cure="Pass --trained-length TOKENS.",
        )
    return length


def fingerprint(reader: Reader, windows: Tensor, protocol: LossProtocol) -> str:
    """Return a short hash of everything that determines a run's numbers: model, tokens of the windows, and protocol."""
    ids = windows.to(torch.int64).contiguous().numpy().tobytes()
    return hash_of(FORMAT, torch.__version__, reader.digest(), repr(protocol), ids)
