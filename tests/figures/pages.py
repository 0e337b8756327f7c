"""A page taken apart by the standard library's parser, strictly: what is opened is closed, and in order."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Tags with their attributes, text by the element it stands in, and the ids."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = source
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert "svg" in self.open, f"<{tag}/> stands outside a figure"
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1], data.strip()))

    def of(self, tag: str) -> list[str]:
        """The texts of one kind of element."""
        return [text for where, text in self.texts if where == tag]

    def values(self, name: str) -> list[str]:
        """Every value of an attribute."""
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]

    @property
    def markup(self) -> str:
        """The source without what stands in its two script elements."""
        return re.sub(r"(<script[^>]*>).*?(</script>)", r"\1\2", self.source, flags=re.DOTALL)

    @property
    def words(self) -> str:
        """Everything that is shown."""
        return " ".join(text for where, text in self.texts if where not in ("style", "script"))
