"""Hooks of MkDocs: the reference from docstrings and commands, tables and figures of records, the explorer."""

from __future__ import annotations

import inspect
import re
import runpy
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File

import ropewalk as rw
from ropewalk import encodings, processes, scaling
from ropewalk.diagnosis.depth import DepthMap, depth_map
from ropewalk.diagnosis.record import Diagnosis
from ropewalk.figures.explorer import explorer_data, explorer_page
from ropewalk.figures.explorer_model import packed_model
from ropewalk.rope.extensions import Extension

NAMES = re.compile(r"^<!-- names of: ([\w ]+) --> \*.*\*$", re.MULTILINE)
RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
SCRIPTS = Path(__file__).parent
WITH_TABLES = runpy.run_path(str(SCRIPTS / "docs_records.py"))["with_tables"]
NOTEBOOKS = runpy.run_path(str(SCRIPTS / "docs_notebooks.py"))
WITH_COMMANDS = runpy.run_path(str(SCRIPTS / "docs_commands.py"))["with_commands"]
FRONT = re.compile(r"<picture>.*?</picture>", re.DOTALL)
CODE = re.compile(r"(?<=<code>)[^<]+(?=</code></td>)")
BREAKS = re.compile(r"\((?!\))|\.(?=[a-z])")
RECORD = re.compile(r"\]\(((?:\.\./)+)benchmarks/results/")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the records and their figures as results/NAME, the explorer, and the lesson's notebooks."""
    for path in sorted(RESULTS.iterdir()):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    page = explorer_page(explorer_data(site=".."), packed_model())
    files.append(File.generated(config, "explorer/index.html", content=page))
    files.append(File.generated(config, "explorer/clocks.html", content=explorer_page({"only": "clocks"})))
    for lesson in NOTEBOOKS["pages"]():
        made = nbformat.writes(NOTEBOOKS["notebook"](lesson))
        files.append(File.generated(config, f"lesson/{lesson.stem}.ipynb", content=made))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Insert the reference, commands, tables of records and links to notebooks; redirect links to records."""
    if page.file.src_uri.startswith("lesson/"):
        head, rest = markdown.split("\n", 1)
        markdown = f"{head}\n\n[This page as a notebook]({Path(page.file.src_uri).stem}.ipynb){{ download }}\n{rest}"
    markdown = WITH_COMMANDS(WITH_TABLES(markdown))
    markdown = NAMES.sub(lambda found: names_of(found[1]), markdown)
    markdown = FRONT.sub(_by_scheme, markdown)
    return RECORD.sub(lambda found: f"]({found[1].removeprefix('../')}results/", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Let calls in the tables of calls break after a bracket or a dot."""
    head, calls, rest = html.partition('<div class="stack calls">')
    return head + calls + CODE.sub(lambda found: BREAKS.sub(r"\g<0><wbr>", found[0]), rest)


def _by_scheme(found: re.Match[str]) -> str:
    """Return a picture once for light and once for dark: the page's own switch decides, not the system."""
    sources = re.findall(r'<source media="(.*?)" srcset="(.*?)">', found[0])
    pictures = []
    for scheme in ("light", "dark"):
        own = [(media, file) for media, file in sources if "max-width" in media and scheme in file]
        narrow = "".join(f'<source media="{media.split(" and ")[0]}" srcset="{file}">' for media, file in own)
        image = re.search(r"<img .*?>", found[0], re.DOTALL)[0].replace("-light.svg", f"-{scheme}.svg")  # type: ignore[index]
        pictures.append(f'<picture class="only-{scheme}">{narrow}{image}</picture>')
    return f"<p>{''.join(pictures)}</p>"


def names_of(subpackages: str) -> str:
    """Return mkdocstrings entries for every public name of these subpackages.

    More groups contain what `ropewalk.__all__` omits: `scalings`, `encodings`, `extensions`, `processes`, `record`
    (`Diagnosis`, `depth_map` and `DepthMap`), and `rw_NAME`, the `__all__` of the module `ropewalk.NAME`.
    """
    entries: list[tuple[str, Any]] = []
    for group in subpackages.split():
        if group == "scalings":
            rules = [name for name in scaling.__dict__ if _is_rule(getattr(scaling, name))]
            entries += [(f"rw.scaling.{name}", getattr(scaling, name)) for name in rules]
        elif group == "encodings":
            entries += [(f"rw.encodings.{kind.__name__}", kind) for kind in encodings.ENCODINGS.values()]
        elif group == "processes":
            entries += [(f"rw.processes.{name}", getattr(processes, name)) for name in ("joined", "Launch")]
        elif group == "record":
            entries += [(f"{kind.__module__}.{kind.__name__}", kind) for kind in (Diagnosis, depth_map, DepthMap)]
        elif group.startswith("rw_"):
            module = import_module(f"ropewalk.{group.removeprefix('rw_')}")
            things = [(name, getattr(module, name)) for name in module.__all__ if name not in rw.__all__]
            entries += [(f"{group.replace('_', '.')}.{name}", thing) for name, thing in things if callable(thing)]
        elif group == "extensions":
            own = {name: kind for name, kind in Extension.registry.items() if kind.__module__ == Extension.__module__}
            entries += [(f"rw.rope.extensions.{name}", kind) for name, kind in own.items()]
        else:
            entries += [
                (f"rw.{name}", thing) for name, thing in public_names() if thing.__module__.split(".")[1] == group
            ]
    return "\n\n".join(
        f"::: {thing.__module__}.{thing.__qualname__}\n    options:\n      heading: {name}\n      toc_label: {name}"
        for name, thing in entries
    )


def public_names() -> list[tuple[str, Any]]:
    """Return the names of `ropewalk.__all__` with their objects, without modules."""
    return [(name, getattr(rw, name)) for name in rw.__all__ if not inspect.ismodule(getattr(rw, name))]


def _is_rule(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, scaling.Scaling) and thing is not scaling.Scaling
