"""The doctor's run: which work is due, each piece measured once, kept, and summed up by block."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ropewalk.context.measure import CHUNK, Losses, crop_steps, cropped_losses, window_losses
from ropewalk.context.methods import Extensions, Ropes, chosen_methods, extensions_for, ropes_for, under
from ropewalk.context.protocol import Protocol
from ropewalk.context.recommend import Recommendation, recommend
from ropewalk.context.state import State, WindowResult, peak_memory
from ropewalk.context.workers import Stopped, each
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.rope.frequencies import attention_factor_of, columns_of, first_columns_of


@dataclasses.dataclass(frozen=True)
class Job:
    """One piece of work: a method on a window; `tokens` go through the model for it."""

    method: str
    window: int
    tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will do: methods in order, what each changes, the jobs that are due, and who shares whose numbers.

    `same_as` names, for a method whose frequencies equal an earlier one's at this length, that earlier method; `own`
    are the model's ropes as it was given.
    """

    protocol: Protocol
    own: Ropes
    methods: tuple[str, ...]
    ropes: dict[str, Ropes]
    extensions: dict[str, Extensions]
    same_as: dict[str, str]
    jobs: tuple[Job, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """Every method's results, window by window, and the ropes and extensions that they were measured with.

    `own` are the model's ropes as it was given.
    """

    protocol: Protocol
    own: Ropes
    ropes: dict[str, Ropes]
    extensions: dict[str, Extensions]
    same_as: dict[str, str]
    results: dict[str, tuple[WindowResult, ...]]

    def block_means(self, method: str) -> list[list[float]]:
        """`[window][block]`: mean loss in nats per token."""
        counts = _block_counts(self.protocol)
        return [
            [total / count for total, count in zip(found.block_sums, counts, strict=True)]
            for found in self.results[method]
        ]

    def mean_over(self, method: str, blocks: Iterable[int]) -> float:
        """Mean loss over some blocks, by their numbers, and over all windows."""
        chosen, counts = list(blocks), _block_counts(self.protocol)
        total = sum(found.block_sums[index] for found in self.results[method] for index in chosen)
        return total / (sum(counts[index] for index in chosen) * len(self.results[method]))

    def within(self, method: str) -> list[float]:
        """For each window, the mean loss of tokens 1 .. trained_length - 1."""
        count = min(self.protocol.trained_length, self.protocol.target) - 1
        return [found.within_sum / count for found in self.results[method]]

    def beyond(self, method: str) -> list[float] | None:
        """For each window, the mean loss of tokens from trained_length on; None where there are none."""
        count = self.protocol.target - self.protocol.trained_length
        if count <= 0:
            return None
        return [(sum(found.block_sums) - found.within_sum) / count for found in self.results[method]]

    def recommendation(self) -> Recommendation:
        """The answer, from these numbers."""
        within = {name: self.within(name) for name in self.results}
        beyond = {name: values for name in self.results if (values := self.beyond(name)) is not None}
        return recommend(within, beyond or None)


def _block_counts(protocol: Protocol) -> list[int]:
    """Losses in each block: the first token of a window has none."""
    return [end - max(start, 1) for start, end in protocol.blocks]


def take_windows(tokens: Sequence[int] | Sequence[Sequence[int]], protocol: Protocol) -> Tensor:
    """int64 `[windows, target]`: the protocol's windows of its tokenised texts, in order.

    `tokens` are those of each text, or of the one text. Raises `RopeError` if one is too short.
    """
    texts = cast(Sequence[Sequence[int]], [tokens] if tokens and isinstance(tokens[0], int) else tokens)
    rows = []
    for number, text in enumerate(texts):
        ids = torch.tensor(text, dtype=torch.int64)
        rows += [ids[start : start + protocol.target] for start in protocol.starts(len(ids), number)]
    return torch.stack(rows)


def trained_length_of(model: Decoder, given: int | None) -> int:
    """The length to hold methods against: `given`, or what the model's ropes say.

    Raises `RopeError` where the model has no rope at all, or none says its length and none is given.
    """
    ropes = [rope for rope in model.config.ropes if rope is not None]
    if not ropes:
        raise RopeError(
            "context: this model has no rotary embedding in any layer, so there is nothing to extend.",
            facts={"layers": model.config.num_hidden_layers},
            cure="Choose a model with RoPE.",
        )
    if given is not None:
        return given
    found = next((rope.trained_length for rope in ropes if rope.trained_length is not None), None)
    if found is None:
        raise RopeError(
            "context: the model does not say its trained length.",
            facts={"rope": ropes[0]},
            cure="Pass --trained-length TOKENS.",
        )
    return found


def plan(model: Decoder, protocol: Protocol, methods: Sequence[str] | None, state: State) -> Plan:
    """What there is to do: `plain` always (differences are paired to it), each distinct rope once, window by window.

    Raises `RopeError` for a method that is unknown or does not apply.
    """
    trained, target = protocol.trained_length, protocol.target
    chosen = chosen_methods(methods, model.config, trained_length=trained, target=target)
    if "crop" in chosen and (target <= trained or trained < 2):
        raise RopeError(
            "doctor: crop differs from plain only beyond the trained length.",
            facts={"target": target, "trained_length": trained},
            cure="Ask for a longer --target, or leave crop out.",
        )
    ropes = {
        name: ropes_for(
            name,
            model.config.ropes,
            model.config.sliding_windows,
            trained_length=trained,
            target=target,
            unscaled_tokens=protocol.unscaled_tokens,
        )
        for name in chosen
    }
    extensions = {name: extensions_for(name, model.config, trained_length=trained, target=target) for name in chosen}
    for name in chosen:
        state.enter(name, repr((ropes[name], extensions[name])))
    same_as: dict[str, str] = {}
    seen: dict[object, str] = {}
    for name in chosen:
        if name != "crop":
            first = seen.setdefault((_angles(ropes[name], target), extensions[name]), name)
            if first != name:
                same_as[name] = first
    due = [
        Job(name, window, tokens_of(name, protocol, reuse=("plain", window) not in state.results))
        for window in range(protocol.total_windows)
        for name in chosen
        if name not in same_as and (name, window) not in state.results
    ]
    return Plan(
        protocol=protocol,
        own=model.config.ropes,
        methods=chosen,
        ropes=ropes,
        extensions=extensions,
        same_as=same_as,
        jobs=tuple(due),
    )


def _angles(ropes: Ropes, seq_len: int) -> object:
    """What makes two methods the same computation: each layer's frequencies and attention factor at this length."""
    distinct = {
        rope: (columns_of(rope, seq_len), first_columns_of(rope), attention_factor_of(rope, seq_len))
        for rope in ropes
        if rope is not None
    }
    return tuple(None if rope is None else distinct[rope] for rope in ropes)


def tokens_of(method: str, protocol: Protocol, *, reuse: bool = True) -> int:
    """Tokens that go through the model for one window; where it can, crop reuses the plain pass's beginning."""
    if method != "crop":
        return protocol.target
    steps = crop_steps(protocol.target, protocol.trained_length, protocol.stride)
    return sum(end - start for start, end, _ in steps) + (0 if reuse else protocol.trained_length)


def run(
    model: Decoder,
    windows: Tensor,
    work: Plan,
    state: State,
    *,
    chunk: int = CHUNK,
    workers: int = 1,
    begin: Callable[[Job], None] | None = None,
    advance: Callable[[int], None] | None = None,
) -> Measurement:
    """Do every job of the plan, keeping each result in `state` as soon as it is there, and gather them.

    `begin` is called before each job, `advance` with tokens as they go through, one call at a time. `workers` jobs go
    on at once, each on its share of the cores. A KeyboardInterrupt passes through: what was done is in the state.
    Raises `RopeError` where a loss is not finite.
    """
    protocol, stop, one_at_a_time = work.protocol, threading.Event(), threading.Lock()
    plain: dict[int, Losses] = {}

    def went(tokens: int) -> None:
        if stop.is_set():
            raise Stopped
        if advance is not None:
            with one_at_a_time:
                advance(tokens)

    def measure(job: Job) -> WindowResult:
        if begin is not None:
            with one_at_a_time:
                begin(job)
        started = time.perf_counter()
        variant = under(model, work.ropes[job.method], work.extensions[job.method])
        ids = windows[job.window]
        if job.method == "crop":
            losses = cropped_losses(
                variant,
                ids,
                trained_length=protocol.trained_length,
                stride=protocol.stride,
                beginning=plain.get(job.window),
                chunk=chunk,
                advance=went,
            )
        else:
            losses = window_losses(variant, ids, chunk=chunk, advance=went)
        if job.method == "plain":
            plain[job.window] = losses
        return _sums(losses, protocol, job.method, time.perf_counter() - started)

    each(work.jobs, measure, lambda job, found: state.add(job.method, job.window, found), workers=workers, stop=stop)
    return gather(work, state)


def _sums(losses: Losses, protocol: Protocol, method: str, seconds: float) -> WindowResult:
    if not np.isfinite(losses).all():
        raise RopeError(
            "measurement: a loss is not a finite number.",
            facts={"method": method, "first such token": int(np.flatnonzero(~np.isfinite(losses))[0]) + 1},
            cure="Measure with --dtype float32; if it stays, the checkpoint's weights are broken.",
        )
    by_position = np.concatenate([[0.0], losses])
    sums = tuple(float(by_position[start:end].sum()) for start, end in protocol.blocks)
    return WindowResult(sums, float(by_position[: protocol.trained_length].sum()), seconds, peak_memory())


def gather(work: Plan, state: State) -> Measurement:
    """The measurement of a finished plan, each method under its own name."""
    results = {
        name: tuple(
            state.results[work.same_as.get(name, name), window] for window in range(work.protocol.total_windows)
        )
        for name in work.methods
    }
    return Measurement(
        protocol=work.protocol,
        own=work.own,
        ropes=work.ropes,
        extensions=work.extensions,
        same_as=work.same_as,
        results=results,
    )
