"""The extension's own checks: no call reads or writes outside its tensors; and its sources compile for Arm."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from ropewalk import compiled

pytestmark = pytest.mark.skipif(compiled.kernels is None, reason="no compiled extension")
TURN = (0, False, 1.0, 1.0, 1)  # layout bshd, half-split, scales of cos and sin, threads
X, TABLE, WEIGHT = torch.zeros(2, 5, 4, 8), torch.zeros(5, 4), torch.zeros(8)


def freed(*shape: int) -> torch.Tensor:
    x = torch.zeros(*shape)
    x.untyped_storage().resize_(0)
    return x


NO_X = {
    "on meta": X.to("meta"), "freed": freed(2, 5, 4, 8), "no tensor": "x", "integers": X.long(), "packed": X[0],
    "fewer tokens": X[:, :4], "smaller batch": X[:1], "narrow heads": X[..., :4], "more heads": torch.zeros(2, 5, 5, 8),
    "double": X.double(),
}  # fmt: skip
NO_TABLE = {
    "on meta": TABLE.to("meta"), "freed": freed(5, 4), "no tensor": None, "double": TABLE.double(), "short": TABLE[:4],
    "too many pairs": torch.zeros(5, 5), "features apart": torch.zeros(4, 5).T, "other batch": TABLE.expand(3, 5, 4),
    "other heads": torch.zeros(1, 5, 3, 4), "one row": TABLE[0],
}  # fmt: skip


@pytest.mark.parametrize("wrong", NO_X.values(), ids=NO_X)
def test_results_that_do_not_fit(wrong):
    """A result, or a second tensor, of another device, dtype or size is refused."""
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        compiled.kernels.rotate(*TURN, TABLE, TABLE, X, wrong)
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        compiled.kernels.norm_rotate(*TURN, TABLE, TABLE, 1e-6, None, ((X, X, WEIGHT), (X, wrong, WEIGHT)))


@pytest.mark.parametrize("wrong", NO_TABLE.values(), ids=NO_TABLE)
@pytest.mark.parametrize("which", ["cos", "sin"])
def test_tables_that_do_not_fit(which, wrong):
    """Tables of another device, dtype or size are refused."""
    cos, sin = (wrong, TABLE) if which == "cos" else (TABLE, wrong)
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        compiled.kernels.rotate(*TURN, cos, sin, X, X.clone())


@pytest.mark.parametrize("slots", [[[0, 1, 2, 3, 6]], [[0, 1, 2, 3]], [0, 1, 2, 3, 4]], ids=str)
def test_slots_that_do_not_fit(slots):
    """A slot at the capacity or beyond would write outside the cache."""
    buffer = torch.zeros(2, 4, 6, 8)
    sides = ((X, X.clone(), WEIGHT), (X, buffer, WEIGHT), (X, buffer, None))
    with pytest.raises(ValueError, match="slots"):
        compiled.kernels.norm_rotate(*TURN, TABLE, TABLE, 1e-6, torch.tensor(slots), sides)


@pytest.mark.parametrize(
    ("positions", "columns", "axes", "rows"),
    [
        (torch.zeros(5, 1), (1.0,) * 4, None, 5),
        (torch.zeros(5, 1).long().to("meta"), (1.0,) * 4, None, 5),
        (torch.zeros(5, 1).long(), (1.0,) * 4, None, 4),
        (torch.zeros(5, 1).long(), (1.0,) * 5, None, 5),
        (torch.zeros(5, 2).long(), (1.0,) * 4, (0, 1, 2, 0), 5),
        (torch.zeros(5, 2).long(), (1.0,) * 4, (0, 1), 5),
        (torch.zeros(5, 1).long(), torch.ones(4), None, 5),
        (torch.zeros(5, 0).long(), (1.0,) * 4, None, 5),
    ],
    ids=["float32", "meta", "rows", "pairs", "no such axis", "too few axes", "a tensor", "none"],
)
def test_table_requests_that_do_not_fit(positions, columns, axes, rows):
    """ModelRopes, frequencies, axes and results that do not belong together are refused."""
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        compiled.kernels.tables(1, positions, columns, axes, torch.zeros(rows, 4), torch.zeros(rows, 4))


@pytest.mark.parametrize("where", [(0, 7), (0, -2)])
def test_windows_that_do_not_fit(where):
    """A window beyond the head reaches no memory."""
    x, table = torch.zeros(1, 2, 1, 10), torch.zeros(2, 4)
    with pytest.raises(ValueError, match="does not fit the tensors"):
        compiled.kernels.rotate(where, False, 1.0, 1.0, 1, table, table, x, x.clone())


ROOT = Path(__file__).resolve().parents[3]
CSRC = ROOT / "src" / "ropewalk" / "rotation" / "backends" / "csrc"
COMPILER = shutil.which("aarch64-linux-gnu-g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs Debian's g++-aarch64-linux-gnu")
FLAGS = ("-std=c++17", "-DROPEWALK_ARM", "-Wall", "-Wextra", "-Werror")


def compiled_of_arm(*arguments: str) -> str:
    """Run the cross compiler; its messages are the failure's."""
    assert COMPILER is not None
    done = subprocess.run([COMPILER, *FLAGS, *arguments], cwd=CSRC, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_compiler
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("file", "flags"),
    [("isa_neon.cpp", ()), ("isa_neon_bf16.cpp", ("-march=armv8.2-a+bf16",)), ("isa_portable.cpp", ()),
     ("memory.cpp", ()), ("threads.cpp", ())],
)  # fmt: skip
def test_sources_compile_for_arm(file: str, flags: tuple[str, ...]) -> None:
    """Without warnings, with the flags that CMakeLists.txt gives them."""
    compiled_of_arm("-fsyntax-only", *flags, file)
    assert not flags or f'"{flags[0]}"' in (ROOT / "CMakeLists.txt").read_text()


@needs_compiler
@pytest.mark.thorough
def test_the_instructions_for_bfloat16_are_used() -> None:
    """Rounding is one instruction for four numbers with BF16, and arithmetic on integers without."""
    flags = ("-O1", "-S", "-o", "-")
    assert "bfcvtn" in compiled_of_arm(*flags, "-march=armv8.2-a+bf16", "isa_neon_bf16.cpp")
    plain = compiled_of_arm(*flags, "isa_neon.cpp")
    assert "bfcvtn" not in plain
    assert "fmla" in plain
