"""Figures of one rope: clocks, waves, and its table of angles compared with tables of positions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ropewalk.errors import RopeError
from ropewalk.figures.material import Array, described, frequencies, main_rope, packaged, theta_of
from ropewalk.figures.style import (
    BLUE,
    GRID,
    INK,
    QUIET,
    RED,
    SHADE,
    bar,
    caption,
    heat,
    length_ticks,
    panel,
    style,
    tokens,
)
from ropewalk.layers.encodings import sinusoidal_table
from ropewalk.rope.config import DEFAULT_THETA
from ropewalk.rope.values import check_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def clocks(config: Any, *, pairs: Sequence[int] = (), positions: int = 9, position: int = 256) -> Figure:
    """Draw the first positions on the circles of a few pairs, and a clock for every pair at one position.

    A pair that has not completed a turn at `position` shows its arc in red.

    **Arguments:**
    - `config`: a `RopeConfig`; a packaged config ("llama_2_7b"); the path of a config.json, a folder or a .gguf; the
      content of a config.json; or a transformers config. Of several ropes, that of full attention.
    - `pairs`: the pairs with a circle, at most twelve, the fastest is 0; by default four of the faster half.
    - `positions`: tokens on each circle. `position`: the token of the clocks.

    **Returns:** a matplotlib figure. **Raises:** `RopeError` for a pair that the head does not have.

    >>> import ropewalk as rw
    >>> figure = rw.figures.clocks(rw.RopeConfig(64, interleaved=False), position=1000)
    """
    shown = clocks_numbers(config, pairs=pairs, positions=positions, position=position)
    circles, radians, turns = shown["circles"], shown["radians_per_token"], shown["turns"]
    with style():
        from matplotlib.figure import Figure
        from matplotlib.patches import Circle, Wedge

        columns = 8 if len(turns) <= 32 else 16
        rows = -(-len(turns) // columns)
        height = 8.8 / columns * 1.22 * rows + 0.4
        figure = Figure(figsize=(8.8, 3.1 + height))
        top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=(3.1, height))[:, 0]
        for index, (axes, (pair, (x, y))) in enumerate(
            zip(top.subplots(1, len(circles), squeeze=False)[0], circles.items(), strict=True)
        ):
            axes.set_aspect("equal")
            axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=QUIET, linewidth=1))
            axes.plot([0, x[0]], [0, y[0]], color=QUIET, linewidth=1)
            axes.plot([0, x[-1]], [0, y[-1]], color=BLUE, linewidth=1.6)
            axes.plot(x, y, color=BLUE, linestyle="none", marker="o", markersize=4.5, zorder=3)
            apart = radians[pair] > 0.25
            for number, (a, b) in enumerate(zip(x, y, strict=True)):
                if apart or number in (0, len(x) - 1):
                    low = 0.0 if apart else 0.1 if number else -0.12
                    axes.text(1.24 * a, 1.24 * b + low, str(number), ha="center", va="center", fontsize=8)
            axes.set_xlim(-1.5, 1.5)
            axes.set_ylim(-1.5, 1.5)
            axes.set_xticks([-1, 0, 1])
            axes.set_yticks([-1, 0, 1], None if index == 0 else [""] * 3)
            panel(axes, f"pair {pair}: {radians[pair]:.3g} rad/token")
            axes.set_xlabel("first feature / length")
            if index == 0:
                axes.set_ylabel("second feature / length")
        grid = bottom.subplots(rows, columns, squeeze=False).ravel()
        for pair, axes in enumerate(grid):
            axes.set_axis_off()
            if pair >= len(turns):
                continue
            axes.set_aspect("equal")
            axes.set_xlim(-1.12, 1.12)
            axes.set_ylim(-1.12, 1.12)
            whole = turns[pair] >= 1
            axes.add_patch(Circle((0, 0), 1, facecolor=SHADE if whole else "white", edgecolor=QUIET, linewidth=0.8))
            if not whole:
                axes.add_patch(Wedge((0, 0), 1, 0, 360 * turns[pair], facecolor=RED, alpha=0.35, linewidth=0))
            axes.plot([0, 1], [0, 0], color=GRID if whole else QUIET, linewidth=0.8)
            axes.plot(
                [0, shown["hands"][0][pair]], [0, shown["hands"][1][pair]], color=INK if whole else RED, linewidth=1.8
            )
            name = f"pair {pair}" if columns == 8 else f"{pair}"
            axes.set_title(
                f"{name}: {_turns(turns[pair])}", fontsize=8 if columns == 8 else 7, fontweight="normal",
                loc="center", pad=1, color=INK,
            )  # fmt: skip
        caption(top, f"Positions 0 to {len(next(iter(circles.values()))[0]) - 1} on the circles of a few pairs")
        slow = sum(turn < 1 for turn in turns)
        caption(
            bottom,
            f"Turns of every pair at token {tokens(position)} ({slow} of {len(turns)}: less than one)",
            shown["note"],
        )
        return figure


def clocks_numbers(
    config: Any, *, pairs: Sequence[int] = (), positions: int = 9, position: int = 256
) -> dict[str, Any]:
    """Return what `clocks` draws, by its arguments.

    **Returns:** "circles", by pair (x, y) of each position; "radians_per_token", by pair; "turns" `[pairs]` and
    "hands", (x, y) of every pair, at `position`; "note".

    >>> import ropewalk as rw
    >>> rw.figures.clocks_numbers(rw.RopeConfig(4, interleaved=True), position=100)["turns"].round(3).tolist()
    [15.915, 0.159]
    """
    check_whole("figures.clocks", optional=False, positions=positions, position=position)
    rope = main_rope(config)
    inv_freq = frequencies(rope, position + 1)
    shown = chosen_pairs(pairs, len(inv_freq), (0, 1 / 8, 1 / 4, 1 / 2), "clocks")
    angles = np.outer(inv_freq[list(shown)], np.arange(positions))
    at = inv_freq * position
    return {
        "circles": {pair: (np.cos(row), np.sin(row)) for pair, row in zip(shown, angles, strict=True)},
        "radians_per_token": {pair: float(inv_freq[pair]) for pair in shown},
        "turns": at / (2 * np.pi),
        "hands": (np.cos(at), np.sin(at)),
        "note": described(rope),
    }


def _turns(turns: float) -> str:
    """Return a number of turns as short text.

    >>> _turns(1303.8), _turns(40.7437), _turns(0.0407)
    ('1,304', '40.7', '0.041')
    """
    return f"{turns:,.0f}" if turns >= 100 else f"{turns:.3g}" if turns >= 0.1 else f"{turns:.2g}"


def chosen_pairs(pairs: Sequence[int], count: int, shares: Sequence[float], figure: str) -> tuple[int, ...]:
    """Return the requested pairs in order, or by default those at the given fractions of the head."""
    if not len(pairs):
        return tuple(sorted({min(count - 1, int(share * count)) for share in shares}))
    if min(pairs) < 0 or max(pairs) >= count or len(pairs) > 12:
        raise RopeError(
            f"figures.{figure}: `pairs` are counted from 0 within the head, at most twelve.",
            facts={"pairs": pairs, "pairs of the head": count},
            cure=f"Choose from 0 to {count - 1}, or leave it out.",
        )
    return tuple(sorted(set(pairs)))


def waves(config: Any, length: int = 512, *, pairs: Sequence[int] = ()) -> Figure:
    """Draw cosine and sine of a few pairs' angles by position, and the config's trained length.

    **Arguments:**
    - `config`: as for `clocks`. `length`: tokens shown.
    - `pairs`: at most twelve, the fastest is 0; by default six over the head.

    **Returns:** a matplotlib figure. **Raises:** `RopeError` for a pair that the head does not have.

    >>> import ropewalk as rw
    >>> len(rw.figures.waves("llama_2_7b", 8192, pairs=(0, 16, 32)).axes)
    3
    """
    shown = waves_numbers(config, length, pairs=pairs)
    positions, curves, trained = shown["positions"], shown["curves"], shown["trained_length"]
    with style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8.8, 1.5 + 1.0 * len(curves)))
        grid = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
        last = positions[-1]
        for axes, (pair, (cos, sin)) in zip(grid, curves.items(), strict=True):
            if trained is not None and trained < last:
                axes.axvspan(trained, last, color=SHADE, zorder=0, linewidth=0)
                axes.axvline(trained, color=INK, linewidth=1)
            axes.plot(positions, cos, color=BLUE, linewidth=1.4, label="cosine")
            axes.plot(positions, sin, color=RED, linewidth=1.2, linestyle=(0, (4, 1.5)), label="sine")
            axes.set_ylim(-1.15, 1.15)
            axes.set_yticks([-1, 0, 1])
            axes.set_xlim(0, last)
            title, turn = f"pair {pair}", shown["wavelengths"][pair]
            title += f": {turn:,.1f} tokens per turn"
            if trained is not None:
                share = trained / turn
                title += f", {share:,.1f} turns in training" if share >= 1 else f", {share:.2g} turns in training"
            panel(axes, title)
        if trained is not None and trained < last:
            grid[0].annotate(
                f"trained length {tokens(trained)}", (trained, 1), xycoords=("data", "axes fraction"),
                xytext=(3, 6), textcoords="offset points", fontsize=9,
            )  # fmt: skip
        figure.supylabel("cosine and sine of the angle (no unit)", fontsize=10)
        grid[-1].set_xlabel("position (tokens)")
        if last % 8 == 0:
            grid[-1].set_xticks([last * eighth / 8 for eighth in range(9)])
        length_ticks(grid[-1])
        caption(figure, "Sine and cosine of each pair's angle", shown["note"])
        handles, names = grid[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="upper right", ncols=2)
        return figure


def waves_numbers(config: Any, length: int = 512, *, pairs: Sequence[int] = ()) -> dict[str, Any]:
    """Return what `waves` draws, by its arguments.

    **Returns:** "positions", up to 4,097 points from 0 to `length`; "curves", by pair (cosine, sine) of each;
    "wavelengths", tokens per turn by pair; "trained_length", tokens or None; "note".

    >>> import ropewalk as rw
    >>> waves = rw.figures.waves_numbers(rw.RopeConfig(64, interleaved=False), pairs=(0, 16))
    >>> {pair: round(tokens, 1) for pair, tokens in waves["wavelengths"].items()}
    {0: 6.3, 16: 628.3}
    """
    check_whole("figures.waves", optional=False, length=length)
    rope = main_rope(config)
    inv_freq = frequencies(rope, length)
    shown = chosen_pairs(pairs, len(inv_freq), (0, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4), "waves")
    positions = np.linspace(0, length, min(8 * length, 4096) + 1)
    angles = np.outer(inv_freq[list(shown)], positions)
    return {
        "positions": positions,
        "curves": {pair: (np.cos(row), np.sin(row)) for pair, row in zip(shown, angles, strict=True)},
        "wavelengths": {pair: 2 * np.pi / float(inv_freq[pair]) if inv_freq[pair] else np.inf for pair in shown},
        "trained_length": rope.trained_length,
        "note": described(rope),
    }


def tables(config: Any, *, learned: Any = None) -> Figure:
    """Draw RoPE's angles next to the sinusoidal and a learned table, and below the similarity of positions in each.

    **Arguments:**
    - `config`: as for `clocks`. Its rope has one axis.
    - `learned`: a table of positions `[positions, features]`, as `model.encoding.positions.weight` of a
      decoder with learned positions; by default the packaged one, `[256, 128]`. The other tables have its size.

    **Returns:** a matplotlib figure. **Raises:** `RopeError` for a table of another shape.

    >>> import ropewalk as rw
    >>> figure = rw.figures.tables(rw.RopeConfig(64, interleaved=False))
    """
    shown = tables_numbers(config, learned=learned)
    angles, learned, reach = shown["angles"], shown["learned"], shown["learned_reach"]
    with style():
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator

        figure = Figure(figsize=(10.6, 7.4))
        (top, bottom) = figure.subplots(2, 3)
        image = heat(top[0], shown["sinusoidal"], vmin=-1, vmax=1)
        panel(top[0], "sinusoidal: added to embeddings")
        top[0].set_xlabel("feature")
        bar(figure, image, top[0], "value (no unit)")

        image = heat(top[1], angles.clip(min=angles[1].min()), norm=LogNorm())
        panel(top[1], "RoPE: the angle of each pair")
        top[1].set_xlabel("pair (fastest first)")
        if angles.max() > 2 * np.pi and angles.shape[1] > 1:
            line = top[1].contour(angles, levels=[2 * np.pi], colors="white", linewidths=2)
            top[1].clabel(line, fmt={2 * np.pi: "one turn"}, fontsize=9, colors="white")
        drawn = bar(figure, image, top[1], "angle (radians)")
        drawn.ax.yaxis.set_minor_locator(NullLocator())

        image = heat(top[2], learned, vmin=-reach, vmax=reach)
        panel(top[2], "learned: trained, added to embeddings")
        top[2].set_xlabel("feature")
        beyond = "both" if abs(learned).max() > reach else "neither"
        bar(figure, image, top[2], "value (no unit)", extend=beyond)

        for axes, name in zip(bottom, ("sinusoidal", "rope", "learned"), strict=True):
            image = heat(axes, shown["alike"][name], vmin=-1, vmax=1)
            panel(axes, {"rope": "RoPE", "learned": "learned"}.get(name, name) + ": similarity of positions")
            axes.set_xlabel("position (tokens)", color=INK)
            bar(figure, image, axes, "cosine (no unit)")
        for axes in (top[0], bottom[0]):
            axes.set_ylabel("position (tokens)")
        caption(figure, "Three tables of positions", shown["note"])
        return figure


def tables_numbers(config: Any, *, learned: Any = None) -> dict[str, Any]:
    """Return what `tables` draws, by its arguments.

    **Returns:** "sinusoidal" and "learned" `[positions, features]`; "angles" `[positions, pairs]`, radians;
    "learned_reach", the value at which the colours of the learned table end; "alike", for "sinusoidal", "rope" and
    "learned" the cosines between rows `[positions, positions]`; "note".

    >>> import ropewalk as rw
    >>> rw.figures.tables_numbers(rw.RopeConfig(64, interleaved=False))["alike"]["rope"].shape
    (256, 256)
    """
    rope = main_rope(config)
    if learned is None:
        table, source = packaged_table()
    else:
        table, source = torch.as_tensor(learned).detach().double().cpu().numpy(), "as given"
        if table.ndim != 2 or len(table) < 2:
            raise RopeError(
                "figures.tables: `learned` must have the shape [positions, features], with two positions or more.",
                facts={"learned": learned},
                cure="Pass the weights of an embedding of positions.",
            )
    positions, hidden = table.shape
    sinusoidal = sinusoidal_table(
        torch.arange(positions), hidden, rope.theta if isinstance(rope.theta, float) else DEFAULT_THETA
    ).numpy()
    angles = np.outer(np.arange(positions), frequencies(rope, positions))
    return {
        "sinusoidal": sinusoidal,
        "angles": angles,
        "learned": table,
        "learned_reach": float(np.quantile(np.abs(table), 0.99)),
        "alike": {
            "sinusoidal": alike(sinusoidal),
            "rope": alike(np.concatenate([np.cos(angles), np.sin(angles)], axis=1)),
            "learned": alike(table - table.mean(0)),
        },
        "note": f"theta {theta_of(rope)}; sinusoidal and learned: {hidden} features; RoPE: head_dim {rope.head_dim}. "
        f"Learned table {source}:\nits colours end at the 99th percentile, and its mean over positions is subtracted "
        "before the cosine.",
    }


def packaged_table() -> tuple[Array, str]:
    """Return the learned table that `scripts/make_learned_table.py` trains, and its origin in words."""
    with np.load(packaged("learned_table.npz"), allow_pickle=False) as stored:
        made = json.loads(str(stored["provenance"]))
        text = f"trained on {made['tokens']:,} tokens of Moby-Dick, {made['parameters'] / 1e6:.1f}M parameters"
        return stored["table"].astype(np.float64), text


def alike(rows: Array) -> Array:
    """Return the cosine of the angle between every two rows, `[rows, rows]`."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines: Array = unit @ unit.T
    return cosines
