"""Hooks of MkDocs: the reference of Python, the explorer."""

from __future__ import annotations

import re
from typing import Any

import griffe
from docs_records import MARKS, PICTURES, RESULTS
from docs_reference import all_names
from mkdocs.structure.files import File

from ropewalk.figures.explorer import explorer_data, explorer_page, picture_page
from ropewalk.figures.explorer_model import packed_model

FRONT = re.compile(r"<picture>.*?</picture>", re.DOTALL)
CODE = re.compile(r"(?<=<code>)[^<]+(?=</code></td>)")
BREAKS = re.compile(r"\((?!\))|\.(?=[a-z])")
EXPLORER = re.compile(r"\]\(((?:\.\./)*)explorer\.md#(?!figures)")  # a picture; on GitHub, the page about them
EXAMPLES = re.compile(r"^>>>(?:.+\n?|\n(?=>>>))+", re.MULTILINE)  # to an empty line that no other example follows
RECORD = re.compile(r"\]\(((?:\.\./)+)benchmarks/results/")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the records and their figures as results/NAME, and the explorer."""
    for path in sorted(RESULTS.iterdir()):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    page = explorer_page(explorer_data(site=".."), packed_model())
    files.append(File.generated(config, "explorer/index.html", content=page))
    for name in PICTURES:
        files.append(File.generated(config, f"explorer/{name}.html", content=picture_page(name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Insert the reference; redirect links to records."""
    markdown = MARKS.sub(_of_the_site, markdown)
    markdown = FRONT.sub(_by_scheme, markdown)
    markdown = EXPLORER.sub(r"](\1explorer/index.html#", markdown)
    return RECORD.sub(lambda found: f"]({found[1].removeprefix('../')}results/", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Let calls in the tables of calls break after a bracket or a dot."""
    head, calls, rest = html.partition('<div class="stack calls">')
    return head + calls + CODE.sub(lambda found: BREAKS.sub(r"\g<0><wbr>", found[0]), rest)


def _of_the_site(found: re.Match[str]) -> str:
    """Return the reference in place of a table of names, and the explorer's picture in place of its still."""
    if found["kind"] == "names of":
        return all_names(found["what"])
    if found["kind"] == "picture":
        folder, _, name = found["what"].rpartition("figures/picture-")
        source = f"{folder}explorer/{name}.html"
        return f'<iframe class="picture" src="{source}" title="{found["alt"]}" loading="lazy"></iframe>'
    return found[0]


def _by_scheme(found: re.Match[str]) -> str:
    """Return a picture once for light and once for dark: the page's own switch decides, not the system."""
    sources = re.findall(r'<source media="(.*?)" srcset="(.*?)">', found[0])
    pictures = []
    for scheme in ("light", "dark"):
        own = [(media, file) for media, file in sources if "max-width" in media and scheme in file]
        narrow = "".join(f'<source media="{media.split(" and ")[0]}" srcset="{file}">' for media, file in own)
        image = re.search(r"<img .*?>", found[0], re.DOTALL)[0].replace("-light.", f"-{scheme}.")  # type: ignore[index]
        pictures.append(f'<picture class="only-{scheme}">{narrow}{image}</picture>')
    return f"<p>{''.join(pictures)}</p>"


# -- docstrings -------------------------------------------------------------------------------------------------------


class Examples(griffe.Extension):
    """Griffe extension that fences every `>>>` example; the rest of our docstrings is Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Convert the docstring of each loaded object."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """Return a docstring with examples as blocks of code and an empty line before its first list.

    >>> print(as_markdown("Adds.\\n\\n>>> 1 + 1\\n2").replace("`" * 3, "~~~"))
    Adds.
    <BLANKLINE>
    <BLANKLINE>
    ~~~pycon
    >>> 1 + 1
    2
    ~~~
    """
    text = EXAMPLES.sub(lambda found: f"\n```pycon\n{found[0].rstrip()}\n```\n", docstring)
    return re.sub(r"([^\n])\n(- )", r"\1\n\n\2", text, count=1)
