"""The public names: importable; the core needs torch and numpy only."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grimp
import pytest

import ropewalk
from ropewalk import imports
from ropewalk.errors import RopeError
from ropewalk.imports import install_command, need

LAZY = [
    "ropewalk", "ropewalk.audit", "ropewalk.serving", "ropewalk.figures", "ropewalk.models",
    "ropewalk.rotation",
]  # fmt: skip
"""The packages that import their names when they are used."""


@pytest.mark.parametrize("name", LAZY)
def test_every_name_of_a_package_is_imported_on_use(name):
    """Each public name has a home."""
    package = import_module(name)
    assert [public for public in package.__all__ if not hasattr(package, public)] == []
    assert not hasattr(package, "no_such_name")
    assert name != "ropewalk" or set(dir(package)) >= set(package.__all__)


def test_importing_the_package_imports_no_torch():
    """`import ropewalk` and its errors cost nearly nothing: torch comes with the first name that needs it."""
    code = (
        "import sys, ropewalk, ropewalk.cli.app\n"
        "from ropewalk import RopeError\n"
        "print(RopeError('f: no.', facts={'x': [1]}, cure='Do this.'))\n"
        "heavy = {'torch', 'numpy', 'scipy', 'rich', 'typer'}\n"
        "assert not heavy & set(sys.modules), sorted(heavy & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "f: no.\n  x  [1]\nDo this.\n", done.stderr


def test_what_is_not_imported_where_it_is_not_needed():
    """One process, step by step: what each step does without.

    The core needs no package of an extra and none for developers. `inspect` and `serve-config` start quickly, and a
    fault of the doctor cannot break them. All public names, a loaded model and its tokens come without dynamo, which
    takes longer to import than torch.
    """
    blocked = ["safetensors", "tokenizers", "gguf", "typer", "rich", "matplotlib", "transformers", "jaxtyping", "scipy"]
    config = str(Path(__file__).parent / "fixtures" / "configs" / "llama_3_1_8b.json")
    code = (
        "import contextlib, io, sys, warnings\n"
        f"for name in {blocked!r}: sys.modules[name] = None\n"
        "import torch, ropewalk as rw\n"
        "x = rw.apply_rotary_pos_emb(torch.ones(1, 3, 2, 8), torch.arange(3))\n"
        "print(tuple(x.shape))\n"
        f"for name in {blocked!r}: del sys.modules[name]\n"
        "warnings.simplefilter('ignore')\n"
        "from ropewalk.cli.app import main\n"
        "for words in (['inspect'], ['serve-config', '--engine', 'vllm', '--method', 'yarn']):\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        f"        try: main([*words, {config!r}])\n"
        "        except SystemExit as ended: assert not ended.code\n"
        "print({'ropewalk.diagnosis', 'ropewalk.checkpoints.reader'} & set(sys.modules))\n"
        "from ropewalk import *\n"
        "generate(load('tiny'), 'The sea', max_new_tokens=2)\n"
        "slow = {'torch._dynamo', 'torch._inductor', 'triton', 'sympy', 'scipy', 'transformers', 'matplotlib'}\n"
        "print(sorted(slow & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "(1, 3, 2, 8)\nset()\n[]\n", done.stdout + done.stderr


@pytest.mark.thorough
def test_a_first_use_inside_a_compiled_function_does_not_break_the_graph():
    """A name that is used for the first time while torch.compile traces is imported there."""
    code = (
        "import torch, ropewalk as rw\n"
        "def turn(x, cos, sin): return rw.rotate(x, cos, sin, interleaved=True)\n"
        "x, angles = torch.randn(1, 3, 2, 8), torch.randn(3, 4)\n"
        "turned = torch.compile(turn, backend='eager', fullgraph=True)(x, angles.cos(), angles.sin())\n"
        "print(torch.allclose(turned, turn(x, angles.cos(), angles.sin()), atol=1e-6))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


PACKAGE = Path(ropewalk.__file__).parent


def test_no_package_and_its_modules_import_each_other() -> None:
    """import-linter compares siblings; this compares a package's `__init__` with the modules that it imports."""
    graph = grimp.build_graph("ropewalk")
    circles = [
        (package, module)
        for package in graph.modules
        for module in graph.find_modules_directly_imported_by(package)
        if module.startswith(f"{package}.") and graph.find_shortest_chain(importer=module, imported=package)
    ]
    assert len(graph.modules) > 100
    assert circles == []


def test_a_missing_package_is_named_with_a_command_that_works_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout the command installs the checkout: no index holds a release yet."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(RopeError, match="the package `scipy` is needed here") as missing:
        need("scipy", extra="doctor")
    command = shlex.split(missing.value.cure.removeprefix("Install it: "))
    root = Path(__file__).parents[1]
    assert command == ["pip", "install", "-e", f"{root}[doctor]"]


@pytest.mark.parametrize(("found", "old"), [("4.57.6", True), ("5.16.1", True), ("5.17.0", False), ("6.0.0", False)])
def test_an_old_transformers_is_named(monkeypatch: pytest.MonkeyPatch, found: str, old: bool) -> None:
    """Before anything of it is imported, so that its own failures do not come first."""
    monkeypatch.setattr(imports, "version", lambda _: found)
    monkeypatch.setattr(imports, "import_module", lambda name: name)
    if not old:
        assert need("transformers.cache_utils") == "transformers.cache_utils"
        return
    with pytest.raises(RopeError, match=f"transformers {found} is too old: 5.17 is the oldest") as error:
        need("transformers.cache_utils")
    assert shlex.split(error.value.cure.partition(": ")[2]) == ["pip", "install", "--upgrade", "transformers>=5.17"]


GIT = {"url": "https://host/ropewalk.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}


@pytest.mark.parametrize(
    ("url", "wanted"),
    [  # what pip records in direct_url.json: a folder, one that is gone or another's, a repository, an index
        ("my clone", "{folder}[cli]"),
        ("elsewhere", "ropewalk[cli]"),
        (GIT, "ropewalk[cli] @ git+https://host/ropewalk.git"),
        (None, "ropewalk[cli]"),
    ],
)
def test_the_command_installs_from_the_same_origin(
    url: Any, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away from any checkout, with the extra; a space in a name survives the shell."""
    folder = tmp_path / "my clone"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[project]\nname = "ropewalk"\n')
    found = {"url": (tmp_path / url).as_uri(), "dir_info": {}} if isinstance(url, str) else url
    written = None if found is None else json.dumps(found)
    monkeypatch.setattr(imports, "__file__", str(tmp_path / "env" / "site-packages" / "ropewalk" / "imports.py"))
    monkeypatch.setattr(imports, "distribution", lambda _: SimpleNamespace(read_text=lambda _: written))
    assert shlex.split(install_command("cli")) == ["pip", "install", wanted.format(folder=folder)]


def test_the_command_line_without_typer() -> None:
    """The command itself says the same, with status 2."""
    code = "import sys; sys.modules['typer'] = None; from ropewalk.cli.app import main; main(['doctor'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.strip().endswith(install_command("cli"))
