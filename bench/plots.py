"""
Plots for docs/benchmarks.md and the README, drawn from a result file of `bench.peers`.

    python -m bench.plots build/results.json

The same results give the same bytes: no date, no random name. Colours are CSS, with others for a
reader who prefers dark; every plot has a background of its own, so it reads well on either page.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pygal  # type: ignore[import-untyped]
from pygal.style import Style  # type: ignore[import-untyped]

from bench.bars import HOT, LATENCY, RATES, kept_up, median_of

# pygal leaves a finder behind for its plugins, of which we have none: an old one, about which
# Python warns at every later import.
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != "pygal"]

FOLDER = Path("docs/plots")
SYSTEMS = {
    "ours": "Outbox Operator",
    "ours, ordered": "Outbox Operator, ordered",
    "debezium": "Debezium Server",
    "faststream": "faststream-outbox",
}
"""The names of cases in tables, and of their plots; a colour for each."""
LIGHT = ("#0b62c4", "#0f8a6d", "#c2410c", "#7c3aed")
DARK = ("#6cb0ff", "#4fd1ae", "#ff9a5c", "#c4a1ff")
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
DRAINS = {
    "drain": ("backlog", "warm"),
    HOT: ("backlog, 10 hot keys", "warm"),
    "burst": ("burst", "events/s"),
}
SHOWN_QUANTILES = {0.1: "p10", 0.5: "p50", 0.9: "p90", 0.99: "p99", 0.999: "p99.9"}
LEAST_MS = 0.1
"""An event may arrive before its producer knows of the commit; a logarithm needs more than zero."""
ABOVE = "svg .text-overlay text.value{transform:translateY(-3px)}"
"""A bar's value shall not touch the bar."""
Run = Mapping[str, Any]

STYLE = Style(
    background="#ffffff",
    plot_background="#ffffff",
    foreground="#3a4149",
    foreground_strong="#15191e",
    foreground_subtle="#c9ced4",
    guide_stroke_color="#dde1e6",
    major_guide_stroke_color="#dde1e6",
    guide_stroke_dasharray="0",
    major_guide_stroke_dasharray="0",
    colors=LIGHT,
    opacity="1",
    opacity_hover="1",
    stroke_width="2.5",
    transition="0s",
    font_family=FONT,
    title_font_size=16,
    label_font_size=13,
    major_label_font_size=13,
    value_font_size=12,
    legend_font_size=14,
)


def _dark() -> str:
    """The same rules again, with other colours; stronger, since pygal's have a class and no id."""
    series = "".join(
        f"svg .color-{i},svg .color-{i} a:visited{{stroke:{colour};fill:{colour}}}"
        for i, colour in enumerate(DARK)
    )
    return (
        "@media (prefers-color-scheme:dark){"
        "svg .graph>.background,svg .plot>.background{fill:#0f141a}"
        "svg .graph,svg .axis text,svg .legends .legend text{fill:#c6ced8}"
        "svg .title,svg .axis text.major,svg .series text{fill:#eef2f6}"
        "svg .axis .line{stroke:#8b949e}svg .axis .guide.line{stroke:#2a323c}"
        f"{series}svg .nofill{{fill:none}}svg .text-overlay .series text{{fill:#eef2f6}}}}"
    )


def throughput(runs: Sequence[Run]) -> bytes | None:
    works = {s: v for s, v in DRAINS.items() if any(r["scenario"] == s for r in runs)}
    if not works:
        return None
    chart = pygal.Bar(
        **_common("Throughput: events per second, more is better"),
        y_title="events per second",
        x_title="work",
        print_values=True,
        print_values_position="top",
        value_formatter=lambda value: f"{value:,.0f}",
    )
    chart.x_labels = [name for name, _ in works.values()]
    for case, name in SYSTEMS.items():
        chart.add(name, [median_of(runs, s, case, column) for s, (_, column) in works.items()])
    return _rendered(chart)


def latency(runs: Sequence[Run]) -> bytes | None:
    lines = {case: found for case in SYSTEMS if (found := _distribution(runs, case))}
    if not lines:
        return None
    chart = _logarithmic(
        "Latency at 500 events per second, less is better",
        "percentile of events",
        "milliseconds",
        [ms for line in lines.values() for _, ms in line],
    )
    chart.x_labels = [
        {"label": name, "value": _tail(quantile)} for quantile, name in SHOWN_QUANTILES.items()
    ]
    for case, name in SYSTEMS.items():
        line = lines.get(case, [])
        chart.add(name, [(_tail(q), _log(ms)) for q, ms in line])
    return _rendered(chart)


def cpu_over_rate(runs: Sequence[Run]) -> bytes | None:
    lines = {case: found for case in SYSTEMS if (found := _costs(runs, case))}
    if not lines:
        return None
    chart = _logarithmic(
        "CPU per event: relay, PostgreSQL and Kafka together, less is better",
        "events per second",
        "microseconds per event",
        [us for line in lines.values() for _, us in line],
    )
    rates = sorted({rate for line in lines.values() for rate, _ in line})
    chart.x_labels = [{"label": f"{rate:,.0f}", "value": _log(rate)} for rate in rates]
    for case, name in SYSTEMS.items():
        line = lines.get(case, [])
        chart.add(name, [(_log(rate), _log(us)) for rate, us in line])
    return _rendered(chart)


PLOTS: dict[str, Callable[[Sequence[Run]], bytes | None]] = {
    "throughput": throughput,
    "latency": latency,
    "cpu-over-rate": cpu_over_rate,
}


def draw(runs: Sequence[Run], folder: Path = FOLDER) -> list[Path]:
    """Only what the runs have figures of."""
    drawn = []
    for name, plot in PLOTS.items():
        if content := plot(runs):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name}.svg"
            path.write_bytes(content)
            drawn.append(path)
    return drawn


def _distribution(runs: Sequence[Run], case: str) -> list[tuple[float, float]]:
    """The median of the rounds at each quantile."""
    mine = [
        run["details"]
        for run in runs
        if (run["scenario"], run["case"]) == (LATENCY, case) and "details" in run
    ]
    found: dict[float, list[float]] = {}
    for details in mine:
        for quantile, ms in zip(details["quantiles"], details["latency ms"], strict=True):
            found.setdefault(quantile, []).append(ms)
    within = (min(SHOWN_QUANTILES), max(SHOWN_QUANTILES))
    return [
        (quantile, max(sorted(values)[len(values) // 2], LEAST_MS))
        for quantile, values in sorted(found.items())
        if within[0] <= quantile <= within[1]
    ]


def _costs(runs: Sequence[Run], case: str) -> list[tuple[float, float]]:
    """CPU by rate. Without rates that the system did not keep up with."""
    rates = sorted(
        {
            (run["details"]["rate"], run["case"])
            for run in runs
            if run["scenario"] == RATES and run["case"].partition("/s, ")[2] == case
        }
    )
    return [
        (rate, us)
        for rate, name in rates
        if kept_up(runs, RATES, name) and (us := median_of(runs, RATES, name, "CPU"))
    ]


def _tail(quantile: float) -> float:
    """Stretches the tail: p50, p90, p99 and p99.9 are as far from each other."""
    return -math.log10(1 - quantile)


def _logarithmic(title: str, x_title: str, y_title: str, values: Sequence[float]) -> Any:
    """The values come as logarithms: pygal itself would take those of both axes or of none."""
    chart = pygal.XY(**_common(title), x_title=x_title, y_title=y_title, show_x_guides=True)
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    last = max(last, first + 1)
    ticks = [10.0**power * step for power in range(first, last) for step in (1, 2, 5)]
    ticks.append(10.0**last)
    chart.range = (_log(ticks[0]), _log(ticks[-1]))
    chart.y_labels = [{"label": f"{tick:,g}", "value": _log(tick)} for tick in ticks]
    return chart


def _log(value: float) -> float:
    """Above zero, where pygal would draw an axis."""
    return 10 + math.log10(value)


def _common(title: str) -> dict[str, Any]:
    return {
        "title": title,
        "width": 820,
        "height": 480,
        "explicit_size": True,
        "style": STYLE,
        "css": ["file://style.css", "file://graph.css", f"inline:{ABOVE}{_dark()}"],
        "js": [],
        "no_prefix": True,
        "legend_at_bottom": True,
        "legend_at_bottom_columns": 2,
        "truncate_legend": -1,
        "truncate_label": -1,
        "dots_size": 4,
        "disable_xml_declaration": False,
    }


def _rendered(chart: Any) -> bytes:
    chart.add_xml_filter(_bare)
    rendered: bytes = chart.render()
    return rendered + b"\n"


def _bare(root: Any) -> Any:
    """Without the date, and without what only scripts would read: an image runs none."""
    for parent in list(root.iter()):
        for child in list(parent):
            comment = not isinstance(child.tag, str)
            if comment or child.tag.rpartition("}")[2] in ("script", "desc"):
                parent.remove(child)
    return root


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.plots",
        description="Draw throughput, latency and CPU over the rate from a result file, as SVG.",
    )
    parser.add_argument("results", type=Path, help="what bench.peers has written")
    parser.add_argument(
        "--into", type=Path, default=FOLDER, metavar="FOLDER", help="default: %(default)s"
    )
    given = parser.parse_args()
    drawn = draw(json.loads(given.results.read_text())["runs"], given.into)
    print("\n".join(f"drawn {path}" for path in drawn) or "nothing to draw")


if __name__ == "__main__":
    main()
