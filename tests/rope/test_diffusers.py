"""The ropes and positions of diffusers' models: against float64 formulas, and against diffusers' own modules.

The oracles repeat each class's formula in numpy and call nothing of the package. Tests that compare modules of
diffusers are skipped if it is not installed.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.rope import tables
from ropewalk.rope.diffusers import LATENTS, TRANSFORMERS

Array = np.ndarray
IMAGE, VIDEO = (1, 9, 14), (5, 6, 7)


def named(name: str, **config: Any) -> rw.RopeConfig:
    return rw.RopeConfig.from_diffusers({"_class_name": name, **config})


def tables_of(config: rw.RopeConfig, positions: torch.Tensor, dtype: torch.dtype = torch.float64) -> Array:
    return torch.stack(rw.RotaryEmbedding(config).cos_sin(positions, dtype=dtype)).numpy()


def axial(places: Array, dims: tuple[int, ...], theta: float) -> Array:
    """get_1d_rotary_pos_embed of each axis, side by side: pos * theta^(-2i/dim)."""
    blocks = [
        places[:, axis, None] * theta ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
        for axis, dim in enumerate(dims)
    ]
    return np.concatenate(blocks, axis=-1)


def grid(frames: Any, rows: Any, columns: Any) -> Array:
    return np.array([(f, r, c) for f in frames for r in rows for c in columns], dtype=np.float64)


def upright(size: tuple[int, int, int], first: int = 0) -> Array:
    return grid(range(first, first + size[0]), range(size[1]), range(size[2]))


def centred(size: tuple[int, int, int], first: int) -> Array:
    """QwenEmbedRope with scale_rope: the last h - h // 2 of the negative indices, then the first h // 2."""
    sides = [[*range(-(n - n // 2), 0), *range(n // 2)] for n in size[1:]]
    return grid(range(first, first + size[0]), *sides)


def ltx(places: Array, width: int) -> Array:
    """LTXVideoRotaryPosEmbed: theta^linspace(0, 1) * pi / 2 * (2 grid - 1), axes in turn, padding in front."""
    ramp = 10_000.0 ** np.linspace(0, 1, width // 6) * math.pi / 2
    angles = (places[:, None, :] * ramp[:, None]).reshape(len(places), -1)
    return np.concatenate([np.zeros((len(places), width % 6 // 2)), angles], axis=-1)


def text_flux2(text: int) -> Array:
    return np.array([(0, 0, 0, token) for token in range(text)], dtype=np.float64).reshape(-1, 4)


ZEROS = np.zeros((3, 3))
CASES: dict[str, tuple[rw.RopeConfig, torch.Tensor, Array]] = {}


def case(name: str, config: rw.RopeConfig, positions: torch.Tensor, truth: Array) -> None:
    CASES[name] = (config, positions, truth)


def last(places: Array, value: float = 0.0) -> Array:
    return np.concatenate([places, np.full((len(places), 1), value)], axis=-1)


at = rw.positions.latent_positions
FLUX = named("FluxTransformer2DModel")
case("flux", FLUX, at("flux", IMAGE, text=3), axial(np.concatenate([ZEROS, upright(IMAGE)]), (16, 56, 56), 1e4))
case(
    "flux kontext", FLUX, at("flux", IMAGE, (1, 2, 3)),
    axial(np.concatenate([upright(IMAGE), upright((1, 2, 3), 1)]), (16, 56, 56), 1e4),
)  # fmt: skip
case(
    "flux2", named("Flux2Transformer2DModel"), at("flux2", IMAGE, (1, 2, 3), (1, 3, 2), text=4),
    axial(
        np.concatenate(
            [text_flux2(4), last(upright(IMAGE)), last(upright((1, 2, 3), 10)), last(upright((1, 3, 2), 20))]
        ), (32,) * 4, 2000.0,
    ),
)  # fmt: skip
case("flux3", named("Flux3Transformer2DModel"), at("flux2", IMAGE), axial(last(upright(IMAGE)), (32,) * 4, 1e4))
case("wan", named("WanTransformer3DModel"), at("wan", VIDEO), axial(upright(VIDEO), (44, 42, 42), 1e4))
case(
    "hunyuan video", named("HunyuanVideoTransformer3DModel"), at("hunyuan_video", VIDEO),
    axial(upright(VIDEO), (16, 56, 56), 256.0),
)  # fmt: skip
case(
    "hunyuan image", named("HunyuanImageTransformer2DModel"), at("hunyuan_image", IMAGE),
    axial(upright(IMAGE)[:, 1:], (64, 64), 256.0),
)  # fmt: skip
case(
    "cogvideox", named("CogVideoXTransformer3DModel", use_rotary_positional_embeddings=True), at("cogvideox", VIDEO),
    axial(upright(VIDEO), (16, 24, 24), 1e4),
)  # fmt: skip
QWEN = named("QwenImageTransformer2DModel")
case(
    "qwen image", QWEN, at("qwen_image", IMAGE, (1, 5, 3), text=3),
    axial(
        np.concatenate([[(7 + i,) * 3 for i in range(3)], centred(IMAGE, 0), centred((1, 5, 3), 1)]), (16, 56, 56), 1e4
    ),
)  # fmt: skip
case(
    "qwen image layered", QWEN, at("qwen_image_layered", (1, 2, 2), (1, 2, 3), (1, 3, 2), text=2),
    axial(
        np.concatenate(
            [[(2 + i,) * 3 for i in range(2)], centred((1, 2, 2), 0), centred((1, 2, 3), 1), centred((1, 3, 2), -1)]
        ), (16, 56, 56), 1e4,
    ),
)  # fmt: skip
SCALE = (8 / 25, 32.0, 32.0)
case(
    "ltx", named("LTXVideoTransformer3DModel"), at("ltx", VIDEO, scale=SCALE),
    ltx(2 * upright(VIDEO) * np.array(SCALE) / (20.0, 2048.0, 2048.0) - 1, 2048),
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_tables_are_the_formula(name: str) -> None:
    """cos and sin in float64, from a config of the class's defaults and positions of the family; pairs (0, 1), ..."""
    config, positions, truth = CASES[name]
    assert config.interleaved
    atol = 2e-11 if name == "ltx" else 2e-14 * max(1.0, np.abs(truth).max())  # LTX's angles reach 10,000 radians
    np.testing.assert_allclose(tables_of(config, positions), np.stack([np.cos(truth), np.sin(truth)]), atol=atol)
    rounded = tables_of(config, positions, torch.float32)
    np.testing.assert_allclose(rounded, np.stack([np.cos(truth), np.sin(truth)]), atol=1.2e-7)


@pytest.mark.parametrize("name", CASES)
def test_tables_without_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On MPS integer positions use the exact phase: as accurate at row 100,000 as at row 0."""
    monkeypatch.setattr(tables, "_WITHOUT_FLOAT64", frozenset({"cpu"}))
    config, positions, _ = CASES[name]
    if positions.is_floating_point():
        assert name == "ltx"
        return
    far = positions + 100_000
    columns = rw.inverse_frequencies(config).inv_freq.sum(0)
    axes = list(config.axes or ())
    truth = far.double().numpy()[:, axes] * columns.numpy()
    np.testing.assert_allclose(
        tables_of(config, far, torch.float32), np.stack([np.cos(truth), np.sin(truth)]), atol=1.2e-7
    )


def test_every_family_is_tested() -> None:
    """Each kind of config and each numbering occurs in a case."""
    assert len(CASES) == 11
    assert {name.split()[0].rstrip("23") for name in CASES} >= {family.split("_")[0].rstrip("23") for family in LATENTS}


# --- configs


def test_places_of_a_config(tmp_path: Any) -> None:
    """A file, a transformer's folder and a pipeline's folder."""
    config = {"_class_name": "HunyuanVideoTransformer3DModel", "rope_theta": 300.0, "rope_axes_dim": [32, 48, 48]}
    folder = tmp_path / "transformer"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    read = [rw.RopeConfig.from_diffusers(place) for place in (config, tmp_path, str(folder), folder / "config.json")]
    assert len(set(read)) == 1
    assert read[0].theta == 300.0
    assert [read[0].axes.count(axis) for axis in range(3)] == [16, 24, 24]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"_class_name": "UNet2DConditionModel"}, "is unknown"),
        ({}, "is unknown"),
        ({"_class_name": ["FluxTransformer2DModel"]}, "is unknown"),
        ({"_class_name": "WanTransformer3DModel", 1: 2, "rope_theta": 5.0}, "ignores some rope keys"),
        ({"_class_name": "FluxTransformer2DModel", "rope_theta": 2000}, "ignores some rope keys"),
        ({"_class_name": "WanTransformer3DModel", "rope_axes_dim": [16, 56, 56]}, "ignores some rope keys"),
        ({"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [16, 56, 54]}, "add up"),
        ({"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [15, 57, 56]}, "add up"),
        ({"_class_name": "FluxTransformer2DModel", "axes_dims_rope": []}, "add up"),
        ({"_class_name": "FluxTransformer2DModel", "attention_head_dim": 1.5}, "whole number"),
        ({"_class_name": "CogVideoXTransformer3DModel"}, "no rotation"),
        ("/nowhere", "no such file"),
        (3, "pass the transformer"),
    ],
)
def test_refused_configs(config: Any, words: str) -> None:
    """Unknown classes and unread rope keys never become plain RoPE in silence."""
    with pytest.raises(rw.RopeError, match=words):
        rw.RopeConfig.from_diffusers(config)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("family", "grids", "more"),
    [
        ("sora", [IMAGE], {}),
        (["flux"], [IMAGE], {}),
        ("wan", [], {}),
        ("wan", [VIDEO, VIDEO], {}),
        ("wan", [VIDEO], {"text": 1}),
        ("flux", [(1, 0, 4)], {}),
        ("flux", [(4, 4)], {}),
        ("flux", [IMAGE], {"text": -1}),
        ("flux", [IMAGE], {"scale": SCALE}),
        ("hunyuan_image", [VIDEO], {}),
        ("ltx", [VIDEO], {}),
        ("ltx", [VIDEO], {"scale": (1.0, 2.0)}),
    ],
)
def test_refused_positions(family: str, grids: list, more: dict) -> None:
    with pytest.raises(rw.RopeError, match="latent_positions"):
        at(family, *grids, **more)


# --- diffusers' own modules


@pytest.fixture(scope="module")
def transformers_of_diffusers() -> Any:
    """diffusers.models.transformers, or a visible skip."""
    pytest.importorskip("diffusers", reason="diffusers is not installed: its own modules are not compared")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import diffusers.models.transformers as module
        from diffusers.models import embeddings  # noqa: F401
    return module


def pairs_of(cos_sin: Any) -> Array:
    """cos and sin of each pair, from tensors that repeat both for the two features of a pair, or from complex ones."""
    if isinstance(cos_sin, torch.Tensor):
        return torch.stack([cos_sin.real, cos_sin.imag]).double().numpy()
    cos, sin = (x.reshape(-1, x.shape[-1]) for x in cos_sin)
    assert torch.equal(cos[:, ::2], cos[:, 1::2])
    return torch.stack([cos[:, ::2], sin[:, ::2]]).double().numpy()


def theirs(module: Any, name: str) -> Array:
    """The tables of diffusers' own module, for latents of the same grids."""
    frames, rows, columns = VIDEO
    video = torch.zeros(1, 1, frames, rows, columns)
    if name.startswith("flux"):
        embed = getattr(getattr(module, f"transformer_{name}"), f"{name.capitalize()}PosEmbed")
        config, positions, _ = CASES[name]
        return pairs_of(embed(theta=config.theta, axes_dim=[16, 56, 56] if name == "flux" else [32] * 4)(positions))
    if name == "wan":
        return pairs_of(module.transformer_wan.WanRotaryPosEmbed(128, (1, 1, 1), 1024)(video))
    if name == "hunyuan video":
        return pairs_of(module.transformer_hunyuan_video.HunyuanVideoRotaryPosEmbed(1, 1, [16, 56, 56], 256.0)(video))
    if name == "hunyuan image":
        image = torch.zeros(1, 1, *IMAGE[1:])
        return pairs_of(module.transformer_hunyuanimage.HunyuanImageRotaryPosEmbed((1, 1), (64, 64), 256.0)(image))
    if name == "cogvideox":
        from diffusers.models.embeddings import get_3d_rotary_pos_embed

        return pairs_of(
            get_3d_rotary_pos_embed(64, ((0, 0), (rows, columns)), (rows, columns), frames, device=torch.device("cpu"))
        )
    if name == "ltx":
        embed = module.transformer_ltx.LTXVideoRotaryPosEmbed(2048)
        return pairs_of(embed(torch.zeros(1, 1), *VIDEO, rope_interpolation_scale=SCALE))
    qwen = module.transformer_qwenimage
    if name == "qwen image":
        image, text = qwen.QwenEmbedRope(10_000, [16, 56, 56], scale_rope=True)(
            [[IMAGE, (1, 5, 3)]], max_txt_seq_len=3, device=torch.device("cpu")
        )
    else:
        image, text = qwen.QwenEmbedLayer3DRope(10_000, [16, 56, 56], scale_rope=True)(
            [[(1, 2, 2), (1, 2, 3), (1, 3, 2)]], max_txt_seq_len=2, device=torch.device("cpu")
        )
    return pairs_of(torch.cat([text, image]))


def test_tables_are_those_of_diffusers(transformers_of_diffusers: Any) -> None:
    """Within the rounding of diffusers: of float32 tables if its angles are float64, else of float32 angles.

    A float32 angle is off by its size times a few roundings: of the frequency, of the product and of the power.
    """
    for name, (config, positions, truth) in CASES.items():
        if name != "flux kontext":
            difference = np.abs(tables_of(config, positions) - theirs(transformers_of_diffusers, name)).max()
            in_float64 = name.startswith("flux") or name == "wan"
            assert difference <= (6e-8 if in_float64 else 6e-8 + 4 * 2.0**-24 * np.abs(truth).max()), name


def test_defaults_are_those_of_the_class(transformers_of_diffusers: Any) -> None:
    """Each class exists in diffusers, and the defaults of its constructor are ours."""
    import inspect

    import diffusers

    for name, known in TRANSFORMERS.items():
        parameters = inspect.signature(getattr(diffusers, name).__init__).parameters
        assert parameters["attention_head_dim"].default == known.head_dim, name
        for key, value in ((known.axes_key, known.axes_dim), (known.theta_key, known.theta)):
            assert not key or parameters[key].default == value, name
        words = {key for key in parameters if "rope" in key or "theta" in key or "rotary" in key}
        assert words == {known.axes_key, known.theta_key, known.switch, *known.ignored} - {""}, name
