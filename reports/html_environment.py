"""The one jinja2 environment of all pages, and how a page is written."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from moeplan.files import write_text
from moeplan.quantity import format_rate, format_seconds
from reports import wording


@cache
def html_environment() -> Environment:
    """Everything is escaped unless a template says otherwise, and none does."""
    environment = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        size=wording.size,
        rate=format_rate,
        seconds=format_seconds,
        number=wording.number,
        goal=wording.goal,
        percent=wording.percent,
        span=wording.span,
        bound_name=lambda name: wording.BOUND_NAME.get(name, name),
    )
    return environment


def write_page(template: str, path: Path, **context: Any) -> None:
    """Write one page, whole or not at all. Raises InputError when path cannot be written."""
    write_text(path, html_environment().get_template(template).render(**context))
