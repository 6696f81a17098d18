"""A picture of what a form costs in listings of different sizes."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.clients import LISTINGS, OURS


def draw(costs: list[dict[str, Any]], file: Path) -> None:
    """Draw the medians with the span of the rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for label, points in groupby(costs, itemgetter("label")):
        curve = list(points)
        middles = [median(point["us_per_form"]) for point in curve]
        spans = [
            [middle - min(point["us_per_form"]) for middle, point in zip(middles, curve, strict=True)],
            [max(point["us_per_form"]) - middle for middle, point in zip(middles, curve, strict=True)],
        ]
        is_ours = label == LISTINGS[OURS].label
        axes.errorbar(
            [point["pages"] for point in curve],
            middles,
            yerr=spans,
            label=label,
            marker="o",
            capsize=3,
            linewidth=3 if is_ours else 1.2,
            zorder=3 if is_ours else 2,
        )
    sizes = sorted({cost["pages"] for cost in costs})
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("pages of 100 forms in the listing")
    axes.set_ylabel("CPU per form, µs (median, min to max)")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(file)
    pyplot.close(figure)
