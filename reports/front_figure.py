"""The figure of a front: RAM against storage speed for a target."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from reports.figure_style import BLUE, MUTED, ORANGE, VERMILION, as_svg, figure_style, new_axes
from reports.wording import round_rate
from simulator.plan_result import Front, FrontPoint, StorageCeiling


def front_figure(front: Front, now: tuple[int, float], ceiling: StorageCeiling | None = None) -> str:
    """
    SVG: RAM cap across, storage speed up; on and above the steps the target is met.

    now: the scenario's own RAM cap in bytes and storage speed in bytes per second; ceiling: drawn where the picture
    reaches it.
    """
    with figure_style():
        figure, axes = new_axes(3.4)
        most_bytes = max([now[0], *(point.ram_cap_bytes for point in front.points)]) * 1.05
        looks: tuple[dict[str, Any], dict[str, Any]] = (
            {"color": BLUE, "linewidth": 2, "label": "the value meets the target"},
            {"color": ORANGE, "linewidth": 2, "linestyle": "--", "label": "the low end does too"},
        )
        top = max([now[1], *(point.storage_read_bytes_per_s for point in front.points)]) * 2
        for points, look in zip((front.points, front.cautious_points), looks, strict=True):
            if points:
                _steps(axes, points, most_bytes, top, look)
        if front.available_ram_bytes < most_bytes:
            axes.axvline(
                front.available_ram_bytes / 2**30, color=MUTED, linestyle=":", label="RAM that the device leaves"
            )
        if ceiling is not None and ceiling.bytes_per_s < top:
            axes.axhline(ceiling.bytes_per_s, color=MUTED, linestyle="--", linewidth=1, label=f"{ceiling.text} carries")
        axes.plot(now[0] / 2**30, now[1], "X", color=VERMILION, markersize=10, label="this scenario", clip_on=False)
        axes.set_yscale("log")
        axes.set_ylim(top=top)
        _rate_axis(axes)
        axes.set_xlim(left=0, right=most_bytes / 2**30)
        axes.set_xlabel("RAM cap, GiB")
        axes.set_ylabel("storage, sequential read")
        figure.legend(loc="outside upper left", ncols=2)
        return as_svg(figure)


def _steps(axes: Axes, points: tuple[FrontPoint, ...], most_bytes: float, top: float, look: dict[str, Any]) -> None:
    """A staircase: each point holds until the next cap; a line up where less RAM will not do with any storage."""
    x = [points[0].ram_cap_bytes, *(point.ram_cap_bytes for point in points), most_bytes]
    y = [top, *(point.storage_read_bytes_per_s for point in points), points[-1].storage_read_bytes_per_s]
    axes.step([n_bytes / 2**30 for n_bytes in x], y, where="post", **look)
    if not look.get("linestyle"):
        axes.fill_between([n_bytes / 2**30 for n_bytes in x], y, top, step="post", color=BLUE, alpha=0.08, linewidth=0)


def _rate_axis(axes: Axes) -> None:
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: round_rate(rate)))
    axes.yaxis.set_minor_formatter(NullFormatter())
