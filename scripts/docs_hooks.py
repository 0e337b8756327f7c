"""What MkDocs runs while it builds: the reference from the docstrings, and what records say, with their figures."""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

import ropewalk as rw
from ropewalk import distributed, encodings, scaling
from ropewalk.attention.extensions import Extension
from ropewalk.explorer.data import explorer_data
from ropewalk.explorer.page import explorer_page
from ropewalk.methods import METHODS

PLACE = "<!-- every public name -->"
METHODS_PLACE = "<!-- every method --> *The table of methods stands here in the built site (`make docs`).*"
RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
SCRIPTS = Path(__file__).parent
WITH_RECORDS = runpy.run_path(str(SCRIPTS / "docs_outputs.py"))["with_records"]
WITH_TABLES = runpy.run_path(str(SCRIPTS / "docs_records.py"))["with_tables"]
WITH_COMMANDS = runpy.run_path(str(SCRIPTS / "docs_commands.py"))["with_commands"]
RECORD = re.compile(r"\]\(((?:\.\./)+)benchmarks/results/")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the records and their figures, which pages link and show, as results/NAME; and the explorer."""
    for path in sorted(RESULTS.iterdir()):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    page = explorer_page(explorer_data(site=".."))
    files.append(File.generated(config, "explorer/index.html", content=page))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put in the reference, the commands and what records say; a clone's links to records become the site's."""
    if "<!-- needs:" in markdown:
        markdown = WITH_RECORDS(markdown)
    markdown = WITH_COMMANDS(WITH_TABLES(markdown))
    for place, make in ((PLACE, reference), (METHODS_PLACE, method_table)):
        if place in markdown:
            markdown = markdown.replace(place, make())
    return RECORD.sub(lambda found: f"]({found[1].removeprefix('../')}results/", markdown)


def method_table() -> str:
    """What each of the doctor's methods changes, costs, and whether a config can hold it."""
    lines = ["| method | what it changes | what it costs per token | in a config | source |", "|---|---|---|---|---|"]
    for name, method in METHODS.items():
        source = f"arXiv:{method.source}" if method.source else ""
        lines.append(f"| `{name}` | {method.changes} | {method.costs} | {method.config_note} | {source} |")
    return "\n".join(lines)


def reference() -> str:
    """Every public name with its signature and its docstring, as Markdown."""
    classes = [name for name in scaling.__dict__ if _is_rule(getattr(scaling, name))]
    parts = ["## ropewalk"]
    parts += [_entry("rw", name, getattr(rw, name)) for name in rw.__all__ if not inspect.ismodule(getattr(rw, name))]
    parts += ["## ropewalk.scaling"]
    parts += [_entry("rw.scaling", name, getattr(scaling, name)) for name in classes]
    parts += ["## ropewalk.distributed"]
    parts += [
        _entry("rw.distributed", name, thing)
        for name in distributed.__all__
        if callable(thing := getattr(distributed, name))
    ]
    parts += ["## ropewalk.encodings"]
    parts += [_entry("rw.encodings", kind.__name__, kind) for kind in encodings.ENCODINGS.values()]
    parts += ["## ropewalk.attention.extensions"]
    parts += [_entry("rw.attention.extensions", name, kind) for name, kind in Extension.registry.items()]
    return "\n\n".join(parts)


def _is_rule(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, scaling.Scaling) and thing is not scaling.Scaling


def _entry(where: str, name: str, thing: Any) -> str:
    """One name: heading, signature, docstring; a class's own public methods below it."""
    parts = [f"### {where}.{name}", _signature(f"{where}.{name}", thing), as_markdown(inspect.getdoc(thing) or "")]
    if inspect.isclass(thing):
        for method, function in vars(thing).items():
            if not method.startswith("_") and inspect.isfunction(
                inspect.unwrap(getattr(function, "__func__", function))
            ):
                said = inspect.getdoc(getattr(thing, method)) or ""
                parts += [f"**`.{method}`**", _signature(f".{method}", getattr(thing, method)), as_markdown(said)]
    return "\n\n".join(part for part in parts if part)


def _signature(name: str, thing: Any) -> str:
    """The call with its arguments and defaults; types are in the text below it, and in the source."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    bare = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in found.parameters.values()
        if one.name not in ("self", "cls", "_")
    ]
    call = str(inspect.Signature(bare))
    if len(name) + len(call) > 80:
        stars = ["*"] if any(one.kind is one.KEYWORD_ONLY for one in bare) and "*, " in call else []
        positional = [str(one) for one in bare if one.kind is not one.KEYWORD_ONLY]
        named = [str(one) for one in bare if one.kind is one.KEYWORD_ONLY]
        call = "(\n    " + ",\n    ".join(positional + stars + named) + ",\n)"
    return f"```python\n{name}{call}\n```"


def as_markdown(docstring: str) -> str:
    """Examples become blocks of code; the rest of our docstrings is Markdown already."""
    lines, out, inside = docstring.splitlines(), [], False
    for index, line in enumerate(lines):
        if line.startswith(">>>") and not inside:
            out += ["", "```pycon"]
            inside = True
        if inside and not line.strip() and not any(later.startswith(">>>") for later in lines[index + 1 : index + 2]):
            out.append("```")
            inside = False
        out.append(line)
    text = "\n".join([*out, "```"] if inside else out)
    return re.sub(r"([^\n])\n(- )", lambda found: f"{found[1]}\n\n{found[2]}", text, count=1)
