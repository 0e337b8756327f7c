"""The kernels for Arm compile with a cross compiler; `make arm` also runs their tests, under emulation."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CSRC = ROOT / "src" / "ropewalk" / "rotation" / "backends" / "csrc"
COMPILER = shutil.which("aarch64-linux-gnu-g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs Debian's g++-aarch64-linux-gnu")
FLAGS = ("-std=c++17", "-DROPEWALK_ARM", "-Wall", "-Wextra", "-Werror")


def compiled(*arguments: str) -> str:
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
    compiled("-fsyntax-only", *flags, file)
    assert not flags or f'"{flags[0]}"' in (ROOT / "CMakeLists.txt").read_text()


@needs_compiler
@pytest.mark.thorough
def test_the_instructions_for_bfloat16_are_used() -> None:
    """Rounding is one instruction for four numbers with BF16, and arithmetic on integers without."""
    flags = ("-O1", "-S", "-o", "-")
    assert "bfcvtn" in compiled(*flags, "-march=armv8.2-a+bf16", "isa_neon_bf16.cpp")
    plain = compiled(*flags, "isa_neon.cpp")
    assert "bfcvtn" not in plain
    assert "fmla" in plain


def test_wheels_for_arm_are_configured() -> None:
    """Of Linux, macOS and Windows; CMakeLists.txt knows the processor by each system's name."""
    wheels = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert "aarch64" in wheels["linux"]["archs"]
    assert "arm64" in wheels["macos"]["archs"]
    assert "ARM64" in wheels["windows"]["archs"]
    assert "^(aarch64|arm64|ARM64)$" in (ROOT / "CMakeLists.txt").read_text()
