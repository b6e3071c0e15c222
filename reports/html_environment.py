"""The one jinja2 environment of all pages."""

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

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
    )
    return environment
