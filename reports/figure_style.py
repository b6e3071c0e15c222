"""
The look of all figures, and figures as byte-identical SVG.

Colours are Okabe and Ito's, which people with any colour vision tell apart (https://jfly.uni-koeln.de/color/);
what matters most also has a hatch, a mark or a word.  No text that a person typed goes into a figure.
"""

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib.style
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, SKY, GREEN, ORANGE, VERMILION, PURPLE = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7"
YELLOW, GREY, LIGHT_GREY, INK, MUTED = "#F0E442", "#999999", "#E4E7EA", "#1B2730", "#5A6872"
MOST_STRETCH = 3  # times the largest speed: up to there a target is drawn
WIDTH_IN = 7.0  # the page scales it; the font sizes below are meant for this width

STYLE = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the figure is the same on every machine
    "font.size": 9.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "hatch.linewidth": 0.7,
    "legend.columnspacing": 1.4,
    "legend.frameon": False,
    "legend.handlelength": 1.3,
    "legend.handletextpad": 0.5,
    "legend.fontsize": 9,
    "svg.fonttype": "path",
    "svg.hashsalt": "moeplan",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
}


@contextmanager
def figure_style() -> Iterator[None]:
    """matplotlib's defaults and our style, whatever a person's matplotlibrc says; all is put back at the end."""
    with rc_context():
        matplotlib.style.use(["default", STYLE])
        yield


def new_axes(height_in: float) -> tuple[Figure, Axes]:
    """A figure of the common width with one axes."""
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    return figure, figure.add_subplot()


def in_sight(target_tokens_per_s: float, top_tokens_per_s: float) -> bool:
    """Whether a figure whose largest speed is the second number has room for a target; else speeds would be flat."""
    return target_tokens_per_s <= MOST_STRETCH * top_tokens_per_s


def as_svg(figure: Figure) -> str:
    """The figure as SVG text without dates or versions: the same figure gives the same bytes."""
    buffer = io.StringIO()
    nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(buffer, format="svg", metadata=nothing)
    return buffer.getvalue()


def as_data_uri(svg: str) -> str:
    """An SVG as the source of an <img>: its ids cannot clash with those of other figures on the page."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
