"""Rules for diffusion transformers: RIFLEx for longer videos, DyPE for larger images, by denoising step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ropewalk.errors import RopeError
from ropewalk.rope.rules.base import Ladder, Scaling
from ropewalk.rope.rules.combined import PerAxis
from ropewalk.rope.rules.interpolation import NTK
from ropewalk.rope.rules.yarn import yarn_mscale
from ropewalk.rope.values import TRAINED_KEY, as_whole, check_above_zero, check_factor, check_length, is_number


@dataclass(frozen=True)
class RIFLEx(Scaling):
    """Slow one pair to `share` of one rotation within `frames`; the other pairs are unchanged.

    The pair is the intrinsic one, whose period is the length at which a video model starts to repeat itself; see
    `for_repetition`. `pair` counts from 0 within the axis (the authors' k counts from 1). `frames` is the new length in
    latent frames: (video frames - 1) / 4 + 1 for CogVideoX, HunyuanVideo and Wan. The rule belongs to the time axis:
    `PerAxis((RIFLEx(3, 66), None, None))`. The paper's formula is 2 pi / frames, `share=1.0`; the authors' code
    multiplies it by 0.9. A model fine-tuned by the authors uses its trained number of frames at every length.
    Source: Zhao et al. 2025, arXiv:2502.15894, eq. 8, as quoted in github.com/thu-ml/RIFLEx, `riflex_utils.py`.

    >>> rule = RIFLEx(pair=1, frames=60)
    >>> [round(f, 4) for f in rule.inv_freq(Ladder(256.0, 6, (0, 1, 2)), None)]
    [1.0, 0.0942, 0.0248]
    """

    pair: int
    frames: int
    share: float = 0.9
    rope_type: ClassVar[str] = "riflex"

    def __post_init__(self) -> None:
        pair, frames = as_whole(self.pair), as_whole(self.frames)
        right = pair is not None and pair >= 0 and frames is not None and frames >= 2
        if not right or not (is_number(self.share) and 0 < self.share <= 1):
            raise RopeError(
                "RIFLEx: `pair` must be an index from 0, `frames` at least 2, and `share` above 0 and at most 1.",
                facts={"pair": self.pair, "frames": self.frames, "share": self.share},
                cure="For HunyuanVideo at 261 frames: RIFLEx(pair=3, frames=66).",
            )

    @classmethod
    def for_repetition(cls, ladder: Ladder, repeats_at: int, frames: int) -> RIFLEx:
        """Return the rule of the pair whose period, rounded to frames, is nearest to `repeats_at`.

        **Arguments:**
        - `ladder`: of the time axis: `config.ladders[0]`.
        - `repeats_at`: latent frame at which the model's own videos start to repeat.
        - `frames`: latent frames of the new video.

        **Returns:** a `RIFLEx` with the authors' share.
        **Source:** `identify_k` of the authors' code; paper, eq. 7.

        >>> RIFLEx.for_repetition(Ladder(256.0, 16, tuple(range(8))), 48, 66)
        RIFLEx(pair=3, frames=66, share=0.9)
        """
        if not is_number(repeats_at) or repeats_at < 1:
            raise RopeError(
                "RIFLEx: `repeats_at` must be a number of latent frames.",
                facts={"repeats_at": repeats_at},
                cure="Pass 48 for HunyuanVideo, which repeats after about 8 seconds.",
            )
        distances = [abs(round(2 * math.pi / f) - repeats_at) for f in ladder.inv_freq()]
        return cls(distances.index(min(distances)), frames)

    def _check_pair(self, pairs: int) -> None:
        if self.pair >= pairs:
            raise RopeError(
                "RIFLEx: the axis has no pair with this index.",
                facts={"pair": self.pair, "pairs": pairs},
                cure="Count from 0 within the time axis; RIFLEx.for_repetition(config.ladders[0], ...) finds the pair.",
            )

    def check(self, *, head_dim: int, rotary_dim: int, max_position_embeddings: int | None) -> None:
        self._check_pair(rotary_dim // 2)

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        frequencies = ladder.inv_freq()
        self._check_pair(len(frequencies))
        frequencies[self.pair] = self.share * 2 * math.pi / self.frames
        return frequencies


@dataclass(frozen=True)
class DyPE(Scaling):
    """YaRN in three parts with two ramps, which move to slower pairs during denoising.

    Fast pairs are unchanged, slow pairs are divided by `factor`, and pairs between have the NTK base for it. Ramps are
    linear in the pair's index, between the pairs with 1.25 and 0.75 rotations within the trained length (divided to
    NTK) and with 16 and 2 rotations (NTK to unchanged), times `strength`. `strength` is t^2 at time t of the diffusion
    (1 is noise, 0 the image), so the last steps use the frequencies of the training. With strength 1 it is the
    authors' YaRN without DyPE. `at_step` returns the rule of all axes at one step.
    The attention factor is YaRN's, 0.1 ln(factor) + 1, unless `attention_factor` is given. The authors multiply only
    the features of the scaled axis by it; `at_step` therefore sets it to 1 (see there).
    Source: Issachar et al. 2025, arXiv:2510.20766, from the authors' code (github.com/guyyariv/DyPE,
    `flux/transformer_flux.py`) and the abstract. Below t = 0.03 a ramp of the code is reversed for FLUX, because its
    first bound is beyond the last pair, and divides pairs that should be unchanged; here they are unchanged.

    >>> [round(f, 4) for f in DyPE(4.0, 64, strength=0.25).inv_freq(Ladder(10000.0, 12, tuple(range(6))), None)]
    [1.0, 0.1894, 0.0267, 0.0025, 0.0005, 0.0001]
    """

    factor: float
    original_max_position_embeddings: int
    strength: float = 1.0
    attention_factor: float | None = None
    rope_type: ClassVar[str] = "dype"
    DIVIDED: ClassVar[tuple[float, float]] = (1.25, 0.75)
    UNCHANGED: ClassVar[tuple[float, float]] = (16.0, 2.0)

    def __post_init__(self) -> None:
        check_factor("DyPE", self.factor)
        check_length("DyPE", self.original_max_position_embeddings)
        check_above_zero("DyPE", attention_factor=self.attention_factor)
        if not (is_number(self.strength) and 0 <= self.strength <= 1):
            raise RopeError(
                "DyPE: `strength` must be between 0 and 1.",
                facts={"strength": self.strength},
                cure="Pass the square of the diffusion's time, which is 1 for noise and 0 for the image.",
            )

    @classmethod
    def at_step(cls, timestep: float, grid: tuple[int, ...], trained: int, *, method: str = "yarn") -> PerAxis:
        """Return the rule of each axis at one step of the diffusion.

        **Arguments:**
        - `timestep`: time of the step, from 1 (noise) to 0; diffusers' schedulers count to 1000, so divide by it.
        - `grid`: positions on each axis, such as (1, rows, columns) in patches. An axis within `trained` is unscaled.
        - `trained`: patches of a side in training: 64 for FLUX (1024 pixels), 83 for Qwen-Image (1328 pixels).
        - `method`: "yarn" is this class with strength t^2; "ntk" is NTK with the factor s^(2 t^2).

        **Returns:** a `PerAxis` for a config with separate ladders. To reproduce the authors' images also multiply the
        features of each axis with a rule, in queries and keys, by 0.1 ln(factor) + 1 ("yarn" only). For Qwen-Image the
        code leaves text unscaled: build its tables with the config's own frequencies.
        **Raises:** `RopeError` for numbers out of range.

        >>> DyPE.at_step(0.5, (1, 128, 64), 64).rules[1:]
        (DyPE(factor=2.0, original_max_position_embeddings=64, strength=0.25, attention_factor=1.0), None)
        """
        sizes = [as_whole(size) or 0 for size in grid] if isinstance(grid, (tuple, list)) else [0]
        check_length("DyPE", trained)
        if not (is_number(timestep) and 0 <= timestep <= 1) or min(sizes) < 1 or method not in ("yarn", "ntk"):
            raise RopeError(
                'DyPE: `timestep` must be in 0 .. 1, sizes of `grid` at least 1, and `method` "yarn" or "ntk".',
                facts={"timestep": timestep, "grid": grid, "method": method},
                cure="Divide the scheduler's timestep by 1000, and pass the patches of each axis.",
            )
        strength = float(timestep) ** 2

        def rule(size: int) -> Scaling | None:
            ratio = size / trained
            if ratio <= 1:
                return None
            return NTK(ratio ** (2 * strength)) if method == "ntk" else cls(ratio, trained, strength, 1.0)

        return PerAxis(tuple(rule(size) for size in sizes))

    def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
        plain = ladder.inv_freq()
        if self.strength == 0:
            return plain
        ntk = ladder.inv_freq(ladder.ntk_theta(self.factor, "DyPE"))
        parts = zip(plain, ntk, self._kept(ladder, self.DIVIDED), self._kept(ladder, self.UNCHANGED), strict=True)
        return [(f / self.factor * (1 - a) + g * a) * (1 - b) + f * b for f, g, a, b in parts]

    def _kept(self, ladder: Ladder, rotations: tuple[float, float]) -> list[float]:
        """Return 1 for pairs faster than the first bound, 0 for pairs slower than the second, linear between them."""
        turn = self.strength * 2 * math.pi / getattr(self, TRAINED_KEY)
        fast, slow = (ladder.index_at(count * turn) for count in rotations)
        pairs = len(ladder.columns)
        low = max(math.floor(fast), 0)
        high = max(min(math.ceil(slow), pairs), low)
        return [1 - min(1.0, max(0.0, (i - low) / (high - low or 0.001))) for i in range(pairs)]

    def attention_factor_at(self, ladder_max: int | None, seq_len: int | None) -> float:
        return yarn_mscale(self.factor, 1.0) if self.attention_factor is None else float(self.attention_factor)

    def to_block(self, ladder: Ladder) -> dict[str, Any]:
        raise RopeError(
            "to_hf: transformers has no block for a scaling that depends on the diffusion step.",
            facts={"scaling": self},
            cure="Save the model in ropewalk's own form, whose config contains every field.",
        )
