"""What a run will do: the methods, what each changes, the windows, and the jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import cast

import torch
from torch import Tensor

from ropewalk.diagnosis.protocol import Protocol
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger
from ropewalk.ledger import fingerprint as hash_of
from ropewalk.methods import METHODS, ConfigForm, Reach, chosen_methods, unsettled
from ropewalk.models.positions import Positions
from ropewalk.readers.losses import crop_steps
from ropewalk.readers.reader import Reader
from ropewalk.rope.frequencies import attention_factor_of, columns_of, first_columns_of

FORMAT = 5  # of a result and of how it is measured: a change of either takes the next number
KIND = "losses"


@dataclasses.dataclass(frozen=True)
class Job:
    """One piece of work: a method on a window; `tokens` go through the model for it."""

    method: str
    window: int
    tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The methods of a run in order, each one's positions, and who shares whose numbers.

    `same_as` names, for a method whose frequencies equal an earlier one's at this length, that earlier method; `own`
    are the model's positions as it was given. `crop_seq_len`: the length whose frequencies crop's windows have,
    where it is not their own. `config_form`: where the model's config says its ropes.
    """

    protocol: Protocol
    own: Positions
    positions: dict[str, Positions]
    same_as: dict[str, str]
    crop_seq_len: int | None = None
    config_form: ConfigForm = dataclasses.field(default_factory=ConfigForm)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods in order, `plain` first."""
        return tuple(self.positions)

    def key(self, method: str, window: int) -> str:
        """A job's key in the ledger, with a digest of the method's positions: another form of it is another key."""
        at = "" if self.crop_seq_len is None or not METHODS[method].crops else f"@{self.crop_seq_len}"
        return f"{method}/{_digest_of(self.positions[method])}{at}/{window}"

    def due(self, ledger: Ledger) -> tuple[Job, ...]:
        """The jobs whose results are not in the ledger, window by window."""
        windows = range(self.protocol.total_windows) if "plain" in self.positions else ()
        plain = {window for window in windows if self.key("plain", window) not in ledger}
        return tuple(
            Job(name, window, tokens_of(name, self.protocol, reuse=window in plain))
            for window in range(self.protocol.total_windows)
            for name in self.methods
            if name not in self.same_as and self.key(name, window) not in ledger
        )


@cache
def _digest_of(positions: Positions) -> str:
    return hash_of(positions)


def plan(reader: Reader, protocol: Protocol, methods: Sequence[str] | None) -> Plan:
    """What there is to do: `plain` always (differences are paired to it), each distinct form of the model once.

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
    """What makes two methods the same computation: each layer's frequencies and attention factor at this length."""
    distinct = {
        rope: (columns_of(rope, seq_len), first_columns_of(rope), attention_factor_of(rope, seq_len))
        for rope in positions.present_ropes
    }
    return tuple(None if rope is None else distinct[rope] for rope in positions.ropes)


def shared_tokens(method: str, protocol: Protocol, chunk: int) -> int:
    """Tokens at the beginning of each window, in whole chunks, that a method other than crop reads as `plain` does."""
    if METHODS[method].crops:
        return 0
    reach = Reach(protocol.trained_length, protocol.target, protocol.unscaled_tokens)
    return min(METHODS[method].equal_below(reach), protocol.target - 1) // chunk * chunk


def tokens_of(method: str, protocol: Protocol, *, reuse: bool = True) -> int:
    """Tokens that go through the model for one window; where it can, crop reuses the plain pass's beginning."""
    if not METHODS[method].crops:
        return protocol.target
    steps = crop_steps(protocol.target, protocol.trained_length, protocol.stride)
    return sum(end - start for start, end, _ in steps) + (0 if reuse else protocol.trained_length)


def take_windows(tokens: Sequence[int] | Sequence[Sequence[int]], protocol: Protocol) -> Tensor:
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
    """The length to hold methods against: `given`, or what the model was trained to.

    Raises `RopeError` where the model has no rope at all, does not say its length and none is given, or carries a
    scaling of which it is not known whether it was trained with it.
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


def fingerprint(reader: Reader, windows: Tensor, protocol: Protocol) -> str:
    """A short hash of all that a run's numbers depend on: the model, the windows' tokens and the protocol."""
    ids = windows.to(torch.int64).contiguous().numpy().tobytes()
    return hash_of(FORMAT, torch.__version__, reader.digest(), protocol, ids)
