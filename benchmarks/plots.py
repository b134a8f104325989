"""The plots of docs/benchmarks.md."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_PARTS: Final = (
    ("idle_ms", "idle", "tab:green"),
    ("two_process_ms", "bulk in another job", "tab:blue"),
    ("loaded_ms", "beside bulk in the same job", "tab:red"),
)


def latency_plot(found: Mapping[str, Any], path: Path) -> None:
    """Write an SVG: for each part of the latency benchmark the share of sends that had arrived after so long."""
    import matplotlib

    matplotlib.use("svg")
    # Text stays text, and the same figures make the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "sendonce", "font.size": 10})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 3.6), layout="constrained")
    for name, label, colour in _PARTS:
        ordered = sorted(found[name])
        shares = [100 * (place + 1) / len(ordered) for place in range(len(ordered))]
        axes.step(ordered, shares, where="post", label=label, color=colour)
    axes.axvline(1000, color="grey", linewidth=0.8, linestyle="--")
    axes.set(xscale="log", xlabel="milliseconds from publishing to the provider", ylabel="% of sends", ylim=(0, 101))
    ticks = [20, 50, 100, 200, 500, 1000, 2000]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
