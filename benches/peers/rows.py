"""Defines the rows of the table: their loads, their bars, and the floor of each time."""

import math
import statistics
from dataclasses import dataclass, replace
from typing import Callable

import shapes
from engines import STREAMS, fresh
from install import GIVEN
from shapes import FileShape

PROMPT, DECODED = 512, 128
BATCH_PROMPT, BATCH_DECODED = 64, 128
SHARED_PREFIX, SHARED_OWN, SHARED_DECODED = 512, 64, 64
PREFILLS = 3


def percentile(values, share):
    """A percentile with linear interpolation; `share` is from 0 to 1."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def prefill(engine, rng):
    """Prefills a prompt of 512 tokens; the median of three."""
    times = []
    for _ in range(PREFILLS):
        (stream,) = engine.run([fresh(rng, PROMPT)], 1)
        times.append(stream.first - stream.start)
    return {"tok_s": PROMPT / statistics.median(times)}


def decode(engine, rng):
    """Decodes 128 tokens after a prompt of 512."""
    (stream,) = engine.run([fresh(rng, PROMPT)], DECODED + 1)
    return {"tok_s": (stream.tokens - stream.events[0][1]) / (stream.last - stream.first)}


def batch(streams):
    """Decodes `streams` streams. Counts all tokens from when the last one has started until the first one ends."""

    def measure(engine, rng):
        seen = engine.run([fresh(rng, BATCH_PROMPT) for _ in range(streams)], BATCH_DECODED)
        begin, end = max(stream.first for stream in seen), min(stream.last for stream in seen)
        if end <= begin:
            return {"tok_s": math.nan}
        tokens = sum(count for stream in seen for when, count in stream.events if begin < when <= end)
        return {"tok_s": tokens / (end - begin)}

    return measure


def shared(warm):
    """16 concurrent prompts of a shared prefix of 512 tokens and 64 own ones, with 64 output tokens. `warm` caches the prefix before."""

    def measure(engine, rng):
        prefix = fresh(rng, SHARED_PREFIX)
        if warm:
            engine.run([prefix + fresh(rng, SHARED_OWN)], 1)
        seen = engine.run([prefix + fresh(rng, SHARED_OWN) for _ in range(STREAMS)], SHARED_DECODED)
        begin = min(stream.start for stream in seen)
        first = [stream.first - stream.start for stream in seen]
        return {"total_s": max(stream.last for stream in seen) - begin, "ttft_p99_s": percentile(first, 0.99)}

    return measure


def prefill_floor(kind="bf16"):
    """tok/s if the operations of matrices and attention run at the peak."""

    def floor(shape, limits):
        minimum = shapes.prefill(shape, limits, PROMPT, kind=kind)
        return {"tok_s": PROMPT / minimum.seconds}, minimum.limit

    return floor


def step_floor(streams, context, kind="bf16"):
    """tok/s if each step reads weights and KV at full bandwidth, or computes at the peak if that takes longer."""

    def floor(shape, limits):
        minimum = shapes.step(shape, limits, streams, context, kind=kind)
        return {"tok_s": streams / minimum.seconds}, minimum.limit

    return floor


def shared_floor(warm):
    """Seconds if the prefix is computed once, or not at all with `warm`, and read once per step."""

    def floor(shape, limits):
        own = shapes.prefill(shape, limits, STREAMS * SHARED_OWN, SHARED_PREFIX, STREAMS)
        prefix = 0.0 if warm else shapes.prefill(shape, limits, SHARED_PREFIX, rows=0).seconds
        context = SHARED_PREFIX + SHARED_OWN + SHARED_DECODED // 2
        step = shapes.step(shape, limits, STREAMS, context, SHARED_PREFIX)
        first = own.seconds + prefix
        return {"total_s": first + (SHARED_DECODED - 1) * step.seconds, "ttft_p99_s": first}, own.limit

    return floor


@dataclass(frozen=True)
class Metric:
    """A line of the table. `bar` is the required ratio to the peer; above 1, Souffleur is better in any unit."""

    key: str
    title: str
    unit: str
    bar: float
    more_is_better: bool = True
    # Fractions of the floor: `alternative` suffices if the ratio does not reach the bar, `needed` is required in addition.
    alternative: float | None = None
    needed: float | None = None
    # Fields that differ for instruction sets with vectors of up to 256 bits.
    narrow: dict | None = None
    # The bar for a size, which replaces the ratio: this multiple of the size of the model's file, plus the KV pool.
    times_file: float | None = None

    def on(self, peak_isa):
        """The metric with the bars for an instruction set."""
        return self if peak_isa.wide or not self.narrow else replace(self, **self.narrow)


@dataclass(frozen=True)
class Row:
    """A load on engines with one kind of weights."""

    name: str
    kind: str
    metrics: tuple
    measure: Callable | None = None
    floor: Callable | None = None
    # The peers of a full run, and for each model the peers of a quick run, which are the best ones on AVX-512.
    peers: tuple = ("llama.cpp", "vllm", "openvino")
    best: dict | None = None
    # The peer that Souffleur is compared with; None for the best one.
    against: str | None = None
    # Measured on a separate start while no other engine runs.
    alone: bool = False

    def peers_of(self, model, quick, peak_isa):
        """The peers on which the row is measured. The best ones are known only for vectors of 512 bits."""
        return self.best.get(model, self.peers) if quick and peak_isa.wide else self.peers


def best(qwen, llama):
    """The peers of a quick run, by model."""
    return {"qwen3-0.6b": tuple(qwen.split()), "llama-160m": tuple(llama.split())}


def best_peer(bar, alternative=None, needed=None):
    """The bars of bf16 and int8 rows: these with vectors of 512 bits, and a ratio of 1 with shorter ones."""
    return {"bar": bar, "alternative": alternative, "needed": needed, "narrow": {"bar": 1.0, "alternative": None, "needed": None}}


def seconds(key, title, bar):
    """A metric in seconds."""
    return Metric(key, title, "s", more_is_better=False, **best_peer(bar))


def rate(title, **bars):
    """A metric in tokens per second."""
    return Metric("tok_s", title, "tok/s", **bars)


def gguf_rows(short, kind, title, prefill_bars, decode_bars, batch_bars, peers):
    """The rows of a GGUF file, which Souffleur and its peers read."""
    quick = {model: ("llama.cpp", "ik_llama.cpp") for model in shapes.SHAPES}
    common = {"kind": kind, "peers": peers, "best": quick, "against": None if kind == GIVEN else "llama.cpp"}
    together = common | {"peers": tuple(peer for peer in peers if peer not in ONE_STREAM), "best": {model: ("llama.cpp",) for model in shapes.SHAPES}}
    load = (
        Metric("s", f"{title}: load, first token of a 16-token prompt", "s", 2.0, False),
        Metric("mib", f"{title}: load, peak resident memory", "MiB", 1.0, False, times_file=FILE_MEMORY),
    )
    return [
        Row(f"{short}-prefill", metrics=(rate(f"{title}: prefill, 512 tokens", **prefill_bars),), measure=prefill, floor=prefill_floor(kind), **common),
        Row(f"{short}-decode", metrics=(rate(f"{title}: decode, one stream, context 512", **decode_bars),), measure=decode,
            floor=step_floor(1, PROMPT + DECODED // 2, kind), **common),
        *(
            Row(f"{short}-batch{streams}", metrics=(rate(f"{title}: {streams} streams, aggregate decode", **bars),), measure=batch(streams),
                floor=step_floor(streams, BATCH_PROMPT + BATCH_DECODED // 2, kind), **together)
            for streams, bars in batch_bars.items()
        ),
        Row(f"{short}-load", metrics=load, alone=True, **common | {"peers": tuple(peer for peer in peers if peer in LOAD_PEERS)}),
    ]


FILE_MEMORY = 1.1
INT8_PEERS = ("llama.cpp", "openvino")
FILE_PEERS = ("llama.cpp", "ik_llama.cpp", "mistral.rs")
# Peers that fail when streams decode together.
ONE_STREAM = ("ik_llama.cpp", "mistral.rs")
LOAD_PEERS = ("llama.cpp", "ik_llama.cpp")
ROWS = [
    Row("prefill", "bf16", (rate("prefill, 512 tokens", **best_peer(1.0, needed=0.8)),), prefill, prefill_floor(),
        best=best("vllm", "openvino")),
    Row("decode", "bf16", (rate("decode, one stream, context 512", **best_peer(1.3, alternative=0.88)),), decode,
        step_floor(1, PROMPT + DECODED // 2), best=best("llama.cpp", "llama.cpp")),
    Row("batch8", "bf16", (rate("8 streams, aggregate decode", **best_peer(1.6)),), batch(8),
        step_floor(8, BATCH_PROMPT + BATCH_DECODED // 2), best=best("vllm", "openvino")),
    Row("batch16", "bf16", (rate("16 streams, aggregate decode", **best_peer(1.5)),), batch(16),
        step_floor(16, BATCH_PROMPT + BATCH_DECODED // 2), best=best("vllm", "openvino")),
    Row("shared-cold", "bf16", (
        seconds("total_s", "16 users, shared prefix, cold: total", 1 / 0.75),
        seconds("ttft_p99_s", "16 users, shared prefix, cold: p99 TTFT", 1 / 0.9),
    ), shared(False), shared_floor(False), best=best("vllm", "vllm")),
    Row("shared-warm", "bf16", (
        seconds("total_s", "16 users, shared prefix, warm: total", 1 / 0.7),
        seconds("ttft_p99_s", "16 users, shared prefix, warm: p99 TTFT", 1 / 0.9),
    ), shared(True), shared_floor(True), best=best("openvino", "openvino")),
    Row("int8-prefill", "int8", (rate("int8: prefill, 512 tokens", **best_peer(1.1)),), prefill, prefill_floor("int8"),
        INT8_PEERS, best("openvino", "openvino")),
    Row("int8-decode", "int8", (rate("int8: decode, one stream, context 512", **best_peer(1.3)),), decode,
        step_floor(1, PROMPT + DECODED // 2, "int8"), INT8_PEERS, best("openvino llama.cpp", "openvino llama.cpp")),
    Row("int8-batch16", "int8", (rate("int8: 16 streams, aggregate decode", **best_peer(1.3)),), batch(16),
        step_floor(16, BATCH_PROMPT + BATCH_DECODED // 2, "int8"), INT8_PEERS, best("openvino", "openvino")),
    *gguf_rows(
        "q4", "q4_k_m", "Q4_K_M", peers=(*FILE_PEERS, "openvino"),
        prefill_bars={"bar": 1.7, "narrow": {"bar": 1.8}},
        decode_bars={"bar": 1.4, "needed": 0.8, "narrow": {"bar": 1.2, "needed": 0.75}},
        batch_bars={8: {"bar": 1.9, "narrow": {"bar": 1.7}}, 16: {"bar": 2.0, "narrow": {"bar": 1.9}}},
    ),
    *gguf_rows(
        "q8", "q8_0", "Q8_0", peers=FILE_PEERS,
        prefill_bars={"bar": 1.3}, decode_bars={"bar": 1.5, "narrow": {"bar": 1.15}},
        batch_bars={8: {"bar": 1.0}, 16: {"bar": 1.0}},
    ),
    *gguf_rows(
        "gguf", GIVEN, "the file", peers=FILE_PEERS,
        prefill_bars={"bar": 1.0}, decode_bars={"bar": 1.0}, batch_bars={8: {"bar": 1.0}, 16: {"bar": 1.0}},
    ),
]
# Rows that are measured when the engines of other rows start.
START, FIRST_START, MEMORY = "start", "first-start", "memory"
START_LIMIT_S = 2.0
MEMORY_ALLOWANCE = 300e6


def kinds_of(model):
    """The kinds of weights with which a model is measured."""
    return [GIVEN] if isinstance(shapes.SHAPES[model], FileShape) else ["bf16", "int8", "q4_k_m", "q8_0"]


def kinds(names):
    """The kinds of weights of some rows, or of all."""
    return {row.kind for row in ROWS if not names or row.name in names} | ({"bf16", "int8"} if not names or START in names else set())
