"""FoPE, Fourier position embedding: cosines and sines that are learned sums of several frequencies, by key head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import columns_of
from ropewalk.rope.hugging_face import text_part
from ropewalk.rope.tables import check_position_ids
from ropewalk.rope.values import Float, Real, as_whole
from ropewalk.rotation.learned import Float32Parameters

Rest = Literal["ones", "unrotated"]


class FourierEmbedding(Float32Parameters):
    """FoPE's tables: in key head h, cos_d(t) = sum over D of cos(t f_D) C_h[D, d], and sin_d(t) likewise.

    Uses only frequencies above 2 pi / max_position_embeddings, which complete a turn within the trained length.
    `rotate` applies the tables. They are not rotations: `inverse` applies the transpose, which does not undo them, and
    the product of a query and a key depends on both positions.

    **Arguments:**
    - `config`: theta and max_position_embeddings, on one axis and without scaling.
    - `num_heads`: key heads, each with its own coefficients; None: all share one matrix (`fope_sep_head` false).
    - `num_inv_freq`: number of leading frequencies that are used; None: those above 2 pi / max_position_embeddings.
    - `init_factor`: gain of the Xavier normal numbers added to the identity at initialization.
    - `rest`: cos and sin of the pairs without a frequency. "ones": both are 1, as in the code of the paper's appendix,
      in xtuner (InternLM's training engine) and in vLLM before its issue 55204. The pair rotates by a fixed 45 degrees
      and grows by sqrt(2) in queries and in keys. "unrotated": cos is 1 and sin is 0, a frequency of 0 as in the
      paper's text, and vLLM since then. Weights trained with "ones" then count these pairs half.

    The parameters `cos_coef` and `sin_coef` are float32 `[num_heads, kept, kept]` or `[kept, kept]`, named as in the
    checkpoint. They stay float32 when the module is cast.

    **Raises:** `RopeError` for a config with several axes or a scaling, or if no frequency is used.
    **Source:** xtuner's `FourierEmbedding` and vLLM's `fope.py`, which agree except in `rest`; Hua et al. 2024,
    arXiv:2412.17739, appendix, whose code also divides each coefficient by the sum of its column.

    >>> config = RopeConfig(8, interleaved=False, theta=100.0, max_position_embeddings=50)
    >>> fope = FourierEmbedding(config, num_heads=2)
    >>> fope.cos_coef.shape, [table.shape for table in fope(torch.arange(5))]
    (torch.Size([2, 2, 2]), [torch.Size([1, 5, 2, 4]), torch.Size([1, 5, 2, 4])])
    >>> cos, sin = fope(torch.arange(5), num_heads=6)  # for the queries: three to each key head
    >>> cos.shape
    torch.Size([1, 5, 6, 4])
    """

    def __init__(
        self,
        config: RopeConfig,
        num_heads: int | None = None,
        *,
        num_inv_freq: int | None = None,
        init_factor: float = 0.1,
        rest: Rest = "ones",
    ) -> None:
        super().__init__()
        if config.num_axes > 1 or config.scaling is not None:
            raise RopeError(
                "FourierEmbedding: FoPE has one axis of positions and no scaling of its frequencies.",
                facts={"axes": config.num_axes, "scaling": config.scaling},
                cure="Pass RopeConfig(head_dim, interleaved=..., theta=..., max_position_embeddings=...).",
            )
        if rest not in ("ones", "unrotated"):
            raise RopeError(
                "FourierEmbedding: unknown `rest`.",
                facts={"rest": rest},
                cure='"ones" is what Intern-S1-Pro was trained with, "unrotated" the formula of the paper.',
            )
        heads = as_whole(num_heads)
        if num_heads is not None and (heads is None or heads < 1):
            raise RopeError(
                "FourierEmbedding: `num_heads` must be a whole number of key heads, at least 1.",
                facts={"num_heads": num_heads},
                cure="Pass None to share one matrix between all heads.",
            )
        self.config, self.num_heads, self.init_factor, self.rest = config, num_heads, init_factor, rest
        self.inv_freq = _kept(config, num_inv_freq)
        kept = len(self.inv_freq)
        shape = (kept, kept) if num_heads is None else (num_heads, kept, kept)
        self.cos_coef = nn.Parameter(torch.empty(shape, dtype=torch.float32))
        self.sin_coef = nn.Parameter(torch.empty(shape, dtype=torch.float32))
        self.reset_parameters()

    @classmethod
    def from_hf(cls, config: str | PathLike[str] | Mapping[str, Any] | Any, *, rest: Rest = "ones") -> FourierEmbedding:
        """Return the module of an Intern-S1-Pro config, with new coefficients.

        `load_state_dict` takes `cos_coef` and `sin_coef`; `ropewalk.checkpoints.read_coefficients` reads both.

        **Arguments:** `config`: as for `RopeConfig.from_hf`. `rest`: as for the class.
        **Raises:** `RopeError` if the config has no FoPE, or if a number is missing.

        >>> block = {"rope_type": "default", "fope_init_factor": 0.5, "fope_sep_head": True}
        >>> text = {"model_type": "interns1_pro_text", "head_dim": 128, "num_key_value_heads": 4, "rope_theta": 5e6,
        ...         "max_position_embeddings": 32768, "rope_scaling": block}
        >>> FourierEmbedding.from_hf(text).cos_coef.shape
        torch.Size([4, 36, 36])
        """
        fields = text_part(config)
        block = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
        if not any(block.get(key) not in (None, False) for key in _KEYS):
            raise RopeError(
                "FourierEmbedding.from_hf: the config has no FoPE.",
                facts={"rope block": dict(block), "keys of FoPE": ", ".join(_KEYS)},
                cure="RopeConfig.from_hf(config) is for models with one frequency for each pair.",
            )
        needed = {
            "head_dim": fields.get("head_dim"),
            "num_key_value_heads": fields.get("num_key_value_heads"),
            "rope_theta": block.get("rope_theta", fields.get("rope_theta")),
            "max_position_embeddings": fields.get("max_position_embeddings"),
        }
        if None in needed.values():
            raise RopeError(
                "FourierEmbedding.from_hf: a number is missing in the config.",
                facts=needed,
                cure="Add it; this family has no known default.",
            )
        rope = RopeConfig(
            needed["head_dim"],  # type: ignore[arg-type]
            interleaved=False,
            theta=needed["rope_theta"],  # type: ignore[arg-type]
            max_position_embeddings=needed["max_position_embeddings"],
        )
        factor = block.get("fope_init_factor")
        return cls(
            rope,
            needed["num_key_value_heads"] if block.get("fope_sep_head") else None,
            num_inv_freq=block.get("num_inv_freq"),
            init_factor=0.1 if factor is None else float(factor),
            rest=rest,
        )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set both matrices to the identity plus Xavier normal numbers, as in the training of Intern-S1-Pro."""
        if self.cos_coef.is_meta:
            return
        for coefficients in (self.cos_coef, self.sin_coef):
            nn.init.xavier_normal_(coefficients, gain=self.init_factor)
            coefficients.add_(torch.eye(len(self.inv_freq), device=coefficients.device))

    def forward(
        self, position_ids: Real[Tensor, "*positions"], num_heads: int | None = None
    ) -> tuple[Float[Tensor, "batch seq heads pairs"], Float[Tensor, "batch seq heads pairs"]]:
        """Return cos and sin, float32 `[batch or 1, seq, heads or 1, pairs]`, for `rotate`; for thd drop the leading 1.

        **Arguments:**
        - `position_ids`: `[seq]` or `[batch, seq]`.
        - `num_heads`: heads of the result, a multiple of the key heads: each key head's tables are those of its group
          of queries, in order. None: one for each key head.

        **Raises:** `RopeError` if `num_heads` is no multiple of the key heads.
        **Numerics:** angles and sums in float64, rounded once. Gradients reach the coefficients.
        """
        check_position_ids(position_ids, 1, "FourierEmbedding")
        own = 1 if self.num_heads is None else self.num_heads
        if num_heads is not None and (num_heads < 1 or num_heads % own):
            raise RopeError(
                "FourierEmbedding: `num_heads` must be a multiple of the key heads.",
                facts={"num_heads": num_heads, "key heads": own},
                cure="Pass the number of query heads.",
            )
        positions = position_ids if position_ids.ndim == 2 else position_ids[None]
        frequencies = torch.tensor(self.inv_freq, dtype=torch.float64, device=position_ids.device)
        angles = positions.to(torch.float64)[..., None] * frequencies
        cos = self._sums(angles.cos(), self.cos_coef, 1.0)
        sin = self._sums(angles.sin(), self.sin_coef, 1.0 if self.rest == "ones" else 0.0)
        if num_heads is None or own == 1:  # one table serves any number of heads
            return cos, sin
        return cos.repeat_interleave(num_heads // own, dim=2), sin.repeat_interleave(num_heads // own, dim=2)

    def _sums(self, waves: Tensor, coefficients: Tensor, rest: float) -> Tensor:
        """Return the sums of waves `[batch, seq, kept]` in each head, with `rest` in the pairs without a frequency."""
        by_head = coefficients.to(torch.float64).view(-1, *coefficients.shape[-2:])
        sums = torch.einsum("btD,hDd->bthd", waves, by_head)
        padding = (0, self.config.pairs - len(self.inv_freq))
        return nn.functional.pad(sums, padding, value=rest).to(torch.float32)


_KEYS = ("use_fope", "fope_init_factor", "fope_sep_head", "num_inv_freq")


def _kept(config: RopeConfig, count: int | None) -> tuple[float, ...]:
    """Return the frequencies that take part, in radians per token, fastest first."""
    frequencies, length = columns_of(config), config.max_position_embeddings
    if count is not None:
        whole = as_whole(count)
        kept = frequencies[:whole] if whole is not None and 0 < whole <= len(frequencies) else ()
    else:
        kept = () if length is None else tuple(f for f in frequencies if f > 2 * math.pi / length)
    if not kept:
        raise RopeError(
            "FourierEmbedding: no frequency is used.",
            facts={"num_inv_freq": count, "max_position_embeddings": length, "pairs": len(frequencies)},
            cure="Set max_position_embeddings in the config, or pass num_inv_freq of at most the number of pairs.",
        )
    return kept
