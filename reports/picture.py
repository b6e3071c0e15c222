"""A figure on a page."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Picture:
    """A figure on the page: its finding as the title, the image, and what the marks mean."""

    title: str
    source: str
    caption: str = ""
