"""The ropes and positions of diffusers' models: against float64 formulas, and against diffusers' own modules.

The oracles repeat each class's formula in numpy and call nothing of the package. Tests that compare modules of
diffusers are skipped if it is not installed.
"""

from __future__ import annotations

import inspect
import json
import math
import warnings
from functools import partial
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


def last(places: Array, value: float = 0.0) -> Array:
    return np.concatenate([places, np.full((len(places), 1), value)], axis=-1)


at, FLUX, THREE = rw.positions.latent_positions, (16, 56, 56), np.arange(3)[:, None]
SMALL, WIDE, TALL = (1, 2, 2), (1, 2, 3), (1, 3, 2)
# The class of each case, our positions, the latents' coordinates, the features of the axes and theta
AXIAL: dict[str, tuple[str, torch.Tensor, list[Array], tuple[int, ...], float]] = {
    "flux": ("Flux", at("flux", IMAGE, text=3), [0 * THREE.repeat(3, 1), upright(IMAGE)], FLUX, 1e4),
    "flux kontext": ("Flux", at("flux", IMAGE, WIDE), [upright(IMAGE), upright(WIDE, 1)], FLUX, 1e4),
    "flux2": (
        "Flux2", at("flux2", IMAGE, WIDE, TALL, text=4),
        [text_flux2(4), last(upright(IMAGE)), last(upright(WIDE, 10)), last(upright(TALL, 20))], (32,) * 4, 2000.0,
    ),
    "flux3": ("Flux3", at("flux2", IMAGE), [last(upright(IMAGE))], (32,) * 4, 1e4),
    "wan": ("Wan", at("wan", VIDEO), [upright(VIDEO)], (44, 42, 42), 1e4),
    "hunyuan video": ("HunyuanVideo", at("hunyuan_video", VIDEO), [upright(VIDEO)], FLUX, 256.0),
    "hunyuan image": ("HunyuanImage", at("hunyuan_image", IMAGE), [upright(IMAGE)[:, 1:]], (64, 64), 256.0),
    "cogvideox": ("CogVideoX", at("cogvideox", VIDEO), [upright(VIDEO)], (16, 24, 24), 1e4),
    "qwen image": (
        "QwenImage", at("qwen_image", IMAGE, (1, 5, 3), text=3),
        [(7 + THREE).repeat(3, 1), centred(IMAGE, 0), centred((1, 5, 3), 1)], FLUX, 1e4,
    ),
    "qwen image upright": (
        "QwenImage", at("qwen_image", (1, 9, 4), text=1), [4 + THREE[:1].repeat(3, 1), centred((1, 9, 4), 0)], FLUX, 1e4
    ),
    "qwen image layered": (
        "QwenImage", at("qwen_image_layered", SMALL, WIDE, TALL, text=2),
        [(2 + THREE[:2]).repeat(3, 1), centred(SMALL, 0), centred(WIDE, 1), centred(TALL, -1)], FLUX, 1e4,
    ),
}  # fmt: skip
NAMES = {name.partition("Transformer")[0]: name for name in TRANSFORMERS}
ON = {"use_rotary_positional_embeddings": True}
CASES = {
    name: (named(NAMES[of], **(ON if of == "CogVideoX" else {})), ids, axial(np.concatenate(places), dims, theta))
    for name, (of, ids, places, dims, theta) in AXIAL.items()
}
SCALE = (8 / 25, 32.0, 32.0)
SHARES = 2 * upright(VIDEO) * np.array(SCALE) / (20.0, 2048.0, 2048.0) - 1
LTX = {"ltx": {}, "ltx 12": {"attention_head_dim": 12}, "ltx 6": {"attention_head_dim": 6}}  # two frequencies, and one
for name, sizes in LTX.items():
    config = named("LTXVideoTransformer3DModel", **sizes, **({"num_attention_heads": 1} if sizes else {}))
    CASES[name] = (config, at("ltx", VIDEO, scale=SCALE), ltx(SHARES, sizes.get("attention_head_dim", 2048)))


@pytest.mark.parametrize("name", CASES)
def test_tables_are_the_formula(name: str) -> None:
    """cos and sin in float64, from a config of the class's defaults and positions of the family; pairs (0, 1), ..."""
    config, positions, truth = CASES[name]
    assert config.interleaved
    atol = (
        2e-11 if name.startswith("ltx") else 2e-14 * max(1.0, np.abs(truth).max())
    )  # LTX's angles reach 10,000 radians
    np.testing.assert_allclose(tables_of(config, positions), np.stack([np.cos(truth), np.sin(truth)]), atol=atol)
    rounded = tables_of(config, positions, torch.float32)
    np.testing.assert_allclose(rounded, np.stack([np.cos(truth), np.sin(truth)]), atol=1.2e-7)


@pytest.mark.parametrize("name", AXIAL)
def test_tables_without_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On MPS integer positions use the exact phase: as accurate at row 100,000 as at row 0."""
    monkeypatch.setattr(tables, "_WITHOUT_FLOAT64", frozenset({"cpu"}))
    config, positions, _ = CASES[name]
    far = positions + 100_000
    columns = rw.inverse_frequencies(config).inv_freq.sum(0)
    axes = list(config.axes or ())
    truth = far.double().numpy()[:, axes] * columns.numpy()
    np.testing.assert_allclose(
        tables_of(config, far, torch.float32), np.stack([np.cos(truth), np.sin(truth)]), atol=1.2e-7
    )


def test_every_family_is_tested() -> None:
    """Each numbering occurs in a case."""
    assert {*LATENTS} <= {name.replace(" ", "_") for name in CASES}


# --- configs


def test_places_of_a_config(tmp_path: Any) -> None:
    """A file, a transformer's folder and a pipeline's folder."""
    config = {"_class_name": "HunyuanVideoTransformer3DModel", "rope_theta": 300.0, "rope_axes_dim": [2, 62, 64]}
    folder = tmp_path / "transformer"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    read = [rw.RopeConfig.from_diffusers(place) for place in (config, tmp_path, str(folder), folder / "config.json")]
    assert len(set(read)) == 1
    assert read[0].theta == 300.0
    assert [read[0].axes.count(axis) for axis in range(3)] == [1, 31, 32]


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
        ("hunyuan_image", [(2, 6, 7)], {}),
        ("ltx", [VIDEO], {}),
        ("ltx", [VIDEO], {"scale": (1.0, 2.0)}),
        ("ltx", [VIDEO], {"scale": (0.0, 32.0, 32.0)}),
    ],
)
def test_refused_positions(family: str, grids: list, more: dict) -> None:
    with pytest.raises(rw.RopeError, match="latent_positions"):
        at(family, *grids, **more)


# --- diffusers' own modules


@pytest.fixture(scope="module")
def module() -> Any:
    """diffusers.models.transformers, or a visible skip."""
    pytest.importorskip("diffusers", reason="diffusers is not installed: its own modules are not compared")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import diffusers.models.embeddings
        import diffusers.models.transformers

        return diffusers.models.transformers


def pairs_of(cos_sin: Any) -> Array:
    """cos and sin of each pair, from tensors that repeat both for the two features of a pair, or from complex ones."""
    if isinstance(cos_sin, torch.Tensor):
        return torch.stack([cos_sin.real, cos_sin.imag]).double().numpy()
    cos, sin = (x.reshape(-1, x.shape[-1]) for x in cos_sin)
    assert torch.equal(cos[:, ::2], cos[:, 1::2])
    return torch.stack([cos[:, ::2], sin[:, ::2]]).double().numpy()


def of_flux(m: Any, name: str) -> Any:
    config, positions, _ = CASES[name]
    embed = getattr(getattr(m, f"transformer_{name}"), f"{name.capitalize()}PosEmbed")
    return embed(theta=config.theta, axes_dim=list(AXIAL[name][3]))(positions)


def of_qwen(m: Any, kind: str, text: int, *images: tuple[int, int, int]) -> Any:
    embed = getattr(m.transformer_qwenimage, kind)(10_000, list(FLUX), scale_rope=True)
    image, words = embed([[*images]], max_txt_seq_len=text, device=torch.device("cpu"))
    return torch.cat([words, image])


def of_cogvideox(m: Any) -> Any:
    from diffusers.models.embeddings import get_3d_rotary_pos_embed

    frames, *sides = VIDEO
    return get_3d_rotary_pos_embed(64, ((0, 0), (*sides,)), (*sides,), frames, device=torch.device("cpu"))


PIXELS = torch.zeros(1, 1, *VIDEO)
THEIRS: dict[str, Any] = {  # the tables of diffusers' own modules, for latents of the same grids
    **{name: partial(of_flux, name=name) for name in ("flux", "flux2", "flux3")},
    "wan": lambda m: m.transformer_wan.WanRotaryPosEmbed(128, (1, 1, 1), 1024)(PIXELS),
    "hunyuan video": lambda m: m.transformer_hunyuan_video.HunyuanVideoRotaryPosEmbed(1, 1, [*FLUX], 256.0)(PIXELS),
    "hunyuan image": lambda m: m.transformer_hunyuanimage.HunyuanImageRotaryPosEmbed((1, 1), (64, 64), 256.0)(
        torch.zeros(1, 1, *IMAGE[1:])
    ),
    "cogvideox": of_cogvideox,
    "ltx": lambda m: m.transformer_ltx.LTXVideoRotaryPosEmbed(2048)(
        torch.zeros(1, 1), *VIDEO, rope_interpolation_scale=SCALE
    ),
    "qwen image": lambda m: of_qwen(m, "QwenEmbedRope", 3, IMAGE, (1, 5, 3)),
    "qwen image layered": lambda m: of_qwen(m, "QwenEmbedLayer3DRope", 2, SMALL, WIDE, TALL),
}


@pytest.mark.parametrize("name", THEIRS)
def test_tables_are_those_of_diffusers(module: Any, name: str) -> None:
    """Within the rounding of diffusers: of float32 tables if its angles are float64, else of float32 angles.

    A float32 angle is off by its size times a few roundings: of the frequency, of the product and of the power.
    """
    config, positions, truth = CASES[name]
    difference = np.abs(tables_of(config, positions) - pairs_of(THEIRS[name](module))).max()
    in_float64 = name.startswith("flux") or name == "wan"
    assert difference <= (6e-8 if in_float64 else 6e-8 + 4 * 2.0**-24 * np.abs(truth).max())


def test_defaults_are_those_of_the_class(module: Any) -> None:
    """Each class exists in diffusers, and the defaults of its constructor are ours."""
    import diffusers

    for name, known in TRANSFORMERS.items():
        parameters = inspect.signature(getattr(diffusers, name).__init__).parameters
        assert parameters["attention_head_dim"].default == known.head_dim, name
        for key, value in ((known.axes_key, known.axes_dim), (known.theta_key, known.theta)):
            assert not key or parameters[key].default == value, name
        words = {key for key in parameters if "rope" in key or "theta" in key or "rotary" in key}
        assert words == {known.axes_key, known.theta_key, known.switch, *known.ignored} - {""}, name
