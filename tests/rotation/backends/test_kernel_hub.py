"""The layout of the Kernel Hub: what the script writes loads from a folder, and rotates as float64 does."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.rotation.backends.truth import Allowed, slack, turn, wide

ROOT = Path(__file__).parents[3]
if not (ROOT / "hub").is_dir():
    pytest.skip("the source distribution has no hub/", allow_module_level=True)
SCRIPT = runpy.run_path(str(ROOT / "scripts/kernel_hub.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with variants for a GPU and for a processor."""
    out = tmp_path_factory.mktemp("hub") / "ropewalk-rotary"
    SCRIPT["write"](out, ["cuda", "cpu"])
    return out


@pytest.fixture(scope="module")
def rotary(folder: Path) -> Iterator[ModuleType]:
    """The processor's variant, imported from its path as `kernels` does; Triton's interpreter runs it."""
    name = "_hub_variant_of_the_test"
    spec = importlib.util.spec_from_file_location(name, folder / "build/torch-cpu/__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    for each in [each for each in sys.modules if each.split(".")[0] == name]:
        del sys.modules[each]


def test_the_layout(folder: Path) -> None:
    """build.toml, sources and variants with metadata; the same sources in each; nothing imports ropewalk."""
    general = tomllib.loads((folder / "build.toml").read_text())["general"]
    assert (general["name"], general["version"], general["license"]) == ("ropewalk-rotary", 1, "MIT")
    source = folder / "torch-ext/ropewalk_rotary"
    files = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    assert {
        Path("__init__.py"),
        Path("layers.py"),
        Path("LICENSE"),
        Path("_ropewalk/rotation/backends/gpu/rotation.py"),
    } <= files
    for backend in ("cuda", "cpu"):
        variant = folder / "build" / f"torch-{backend}"
        assert {path.relative_to(variant) for path in variant.rglob("*") if path.is_file()} == {
            *files,
            Path("metadata.json"),
        }
        facts = json.loads((variant / "metadata.json").read_text())
        assert (facts["name"], facts["backend"]) == ("ropewalk-rotary", {"type": backend})
        assert facts["id"].startswith(f"_ropewalk_rotary_{backend}_")
    for path in source.rglob("*.py"):
        text = path.read_text()
        compile(text, str(path), "exec")
        lines = [line.strip() for line in text.splitlines()]
        assert not [line for line in lines if line.startswith(("from ropewalk", "import ropewalk"))], path
        assert '"ropewalk._kernels"' not in text


def test_a_folder_of_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit, match="Choose a new folder"):
        SCRIPT["write"](tmp_path)


def expected(x: Tensor, angle: np.ndarray, *, interleaved: bool, inverse: bool = False) -> Allowed:
    """What the rotation of `[batch, heads, seq, head_dim]` by angles `[batch or 1, 1, seq, pairs]` may be."""
    right, lengths = turn(wide(x), np.cos(angle), np.sin(angle), interleaved=interleaved, inverse=inverse)
    return Allowed(right, slack(lengths, x.dtype), x.dtype)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.thorough)], ids=str)
def test_positions_partial_rotation_and_gradients(rotary: ModuleType, interleaved: bool, dtype: torch.dtype) -> None:
    """Three of eight pairs rotate by tables of positions; gradients rotate back; both are the float64 oracle's."""
    positions = torch.tensor([[4, 0, 7, 3], [1, 2, 3, 9]])
    angles = np.arange(10)[:, None] / 100.0 ** (np.arange(3) / 3)
    cos, sin = (torch.from_numpy(f(angles)).float() for f in (np.cos, np.sin))
    q, k = (torch.randn(2, heads, 4, 16).to(dtype).requires_grad_() for heads in (3, 1))
    outs = rotary.apply_rotary(q, k, cos, sin, interleaved=interleaved, position_ids=positions)
    grads = [torch.randn_like(out) for out in outs]
    back = torch.autograd.grad(outs, (q, k), grads)
    angle = angles[positions.numpy()][:, None]
    for x, out, grad, to_x in zip((q, k), outs, grads, back, strict=True):
        expected(x, angle, interleaved=interleaved).check(out.detach())
        expected(grad, angle, interleaved=interleaved, inverse=True).check(to_x)
    with pytest.raises(AssertionError):
        expected(q, angle, interleaved=not interleaved).check(outs[0].detach())


def test_triton_runs_it(rotary: ModuleType) -> None:
    """The copy has no compiled extension: its own Triton kernels serve the processor's tensors."""
    backends = sys.modules[f"{rotary.__name__}._ropewalk.rotation.backends"]
    assert backends.choose(torch.zeros(1, 2, 3, 8)).name == "triton"


def test_wrong_positions_are_refused(rotary: ModuleType) -> None:
    q, cos = torch.zeros(1, 1, 3, 8), torch.ones(1, 3, 4)
    with pytest.raises(rotary.RopeError, match="select rows"):
        rotary.apply_rotary(q, q, cos, cos, interleaved=False, position_ids=torch.arange(3))


@pytest.mark.parametrize(
    ("layer", "interleaved"), [("apply_rotary_transformers", False), ("apply_rotary_interleaved", True)]
)
@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_layers_take_what_transformers_passes(
    rotary: ModuleType, layer: str, interleaved: bool, unsqueeze_dim: int
) -> None:
    """Tables `[batch, seq, 2 * pairs]` in the model's dtype; partial rotation; heads first or tokens first."""
    angles = np.arange(5)[None, :, None] / 10.0 ** np.arange(3)
    cos, sin = (torch.from_numpy(np.concatenate([f(angles)] * 2, -1)).double() for f in (np.cos, np.sin))
    q, k = (torch.randn(1, heads, 5, 10, dtype=torch.float64) for heads in (2, 1))
    given = [x if unsqueeze_dim == 1 else x.transpose(1, 2) for x in (q, k)]
    outs = getattr(rotary.layers, layer)()(*given, cos, sin, unsqueeze_dim)
    for x, out in zip((q, k), outs, strict=True):
        right, _ = turn(wide(x), np.cos(angles)[:, None], np.sin(angles)[:, None], interleaved=interleaved)
        np.testing.assert_allclose(wide(out if unsqueeze_dim == 1 else out.transpose(1, 2)), right, atol=1e-14)


def test_the_loader_of_kernels(folder: Path) -> None:
    """`kernels` finds the variant, validates its metadata, and its layer is stateless, as it demands."""
    kernels = pytest.importorskip("kernels", reason="the package `kernels` is not installed")
    loaded = kernels.get_local_kernel(folder, backend="cpu")
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 1, 3, 8)
    cos, sin = torch.ones(3, 4), torch.zeros(3, 4)
    assert torch.equal(loaded.apply_rotary(q, k, cos, sin, interleaved=False)[0], q)
    layer: Any = kernels.LocalLayerRepository(folder, layer_name="apply_rotary_transformers")
    assert layer.layer_name == "apply_rotary_transformers"


@pytest.mark.filterwarnings("ignore:\\s*No kernel mapping found:UserWarning")
def test_a_llama_trains_with_it(folder: Path) -> None:
    """transformers' Llama, its rotation replaced by `kernelize`: the same logits and gradients, and ours was called."""
    kernels = pytest.importorskip("kernels", reason="the package `kernels` is not installed")
    transformers = pytest.importorskip("transformers")
    if not transformers.utils.import_utils.is_kernels_available():
        pytest.skip(f"transformers {transformers.__version__} does not take kernels {kernels.__version__}")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=60,
    )  # fmt: skip
    model, ids = transformers.LlamaForCausalLM(config), torch.randint(0, 60, (2, 9))

    def step() -> list[Tensor]:
        model.zero_grad()
        out = model(ids, labels=ids)
        out.loss.backward()
        return [out.logits.detach(), *(p.grad.clone() for p in model.parameters())]

    before = step()
    layer = kernels.LocalLayerRepository(folder, layer_name="apply_rotary_transformers")
    mode, device = kernels.Mode, "cuda" if torch.version.cuda else "cpu"
    with kernels.use_kernel_mapping({"rotary_pos_emb": {"cpu": {mode.TRAINING: layer}}}):
        kernels.kernelize(model, mode=mode.TRAINING, device="cpu")
    forward = model.model.layers[0].self_attn._kernel_funcs["rotary_pos_emb"].forward
    layers, called = sys.modules[forward.__func__.__module__], []
    assert layers.__name__.startswith(f"_ropewalk_rotary_{device}_")
    rotated = layers._rotated
    layers._rotated = lambda *arguments: (called.append(1), rotated(*arguments))[1]
    try:
        for right, found in zip(before, step(), strict=True):
            torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-4)
    finally:
        layers._rotated = rotated
    assert len(called) == 2, "once for each layer"
