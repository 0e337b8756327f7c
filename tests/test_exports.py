"""The public names: a literal list, importable, documented; the core needs torch and numpy only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import ropewalk

PROMISED = {
    "apply_rotary_pos_emb", "RopeConfig", "scaling", "inverse_frequencies", "RotaryEmbedding", "rotate", "rotate_qk",
    "explain_backends", "freqs_cis", "apply_rotary_complex", "convert_pairing", "text_positions", "KVCache",
    "Attention", "Decoder", "TextClassifier", "load", "RopeError",
}  # fmt: skip


def literal_all() -> list[str]:
    """`__all__` as it is written in the file."""
    tree = ast.parse(Path(ropewalk.__file__).read_text())
    values = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"]
    return ast.literal_eval(values[0])


def test_all_is_literal_sorted_and_true():
    """`__all__` is a sorted literal, and holds exactly the public names of the package that it should."""
    names = literal_all()
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert all(hasattr(ropewalk, name) for name in names)
    assert set(names) >= PROMISED


def test_every_public_name_is_documented():
    """Each exported function and class has a docstring with an example."""
    bare = [name for name in literal_all() if ">>>" not in _documentation(getattr(ropewalk, name))]
    assert set(bare) <= {"encodings", "scaling", "Frequencies"}


def _documentation(value: object) -> str:
    return value.__doc__ or ""


def test_the_core_imports_without_extras():
    """`import ropewalk` needs neither an extra nor a development package."""
    blocked = ["safetensors", "tokenizers", "gguf", "typer", "rich", "matplotlib", "transformers", "jaxtyping", "scipy"]
    code = (
        "import sys\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        "import torch, ropewalk as rw\n"
        "x = rw.apply_rotary_pos_emb(torch.ones(1, 3, 2, 8), torch.arange(3))\n"
        "print(tuple(x.shape))\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "(1, 3, 2, 8)\n", done.stderr
