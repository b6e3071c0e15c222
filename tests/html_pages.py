"""A page as a browser reads it, for the tests of the reports."""

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "img"}


class Checker(HTMLParser):
    """Collects tags, addresses and text, and holds that every tag that opens also closes, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.alts: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"src", "href"}:
                self.sources.append(value or "")
            if name == "alt":
                self.alts.append(value or "")
            assert not name.startswith("on"), "no inline JavaScript"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(path: Path) -> Checker:
    """A page, parsed; whitespace in its text is folded."""
    checker = Checker()
    checker.feed(path.read_text(encoding="utf-8"))
    checker.close()
    assert checker.open == []
    checker.text = " ".join(checker.text.split())
    return checker
