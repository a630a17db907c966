"""What is measured: the loads, the bars, and the least time that each could take."""

import math
import statistics
from dataclasses import dataclass
from typing import Callable

import shapes
from engines import STREAMS, fresh

PROMPT, DECODED = 512, 128
BATCH_PROMPT, BATCH_DECODED = 64, 128
SHARED_PREFIX, SHARED_OWN, SHARED_DECODED = 512, 64, 64
PREFILLS = 3


def percentile(values, share):
    """With linear interpolation."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def prefill(engine, rng):
    """One prompt of 512 tokens, one token out; the median of three."""
    times = []
    for _ in range(PREFILLS):
        (stream,) = engine.run([fresh(rng, PROMPT)], 1)
        times.append(stream.first - stream.start)
    return {"tok_s": PROMPT / statistics.median(times)}


def decode(engine, rng):
    """128 tokens behind a prompt of 512."""
    (stream,) = engine.run([fresh(rng, PROMPT)], DECODED + 1)
    return {"tok_s": (stream.tokens - stream.events[0][1]) / (stream.last - stream.first)}


def batch(streams):
    """So many streams: all their tokens in the time in which all of them decode."""

    def measure(engine, rng):
        seen = engine.run([fresh(rng, BATCH_PROMPT) for _ in range(streams)], BATCH_DECODED)
        begin, end = max(stream.first for stream in seen), min(stream.last for stream in seen)
        if end <= begin:
            return {"tok_s": math.nan}
        tokens = sum(count for stream in seen for when, count in stream.events if begin < when <= end)
        return {"tok_s": tokens / (end - begin)}

    return measure


def shared(warm):
    """16 users at once with a common prefix of 512 tokens and 64 of their own, 64 tokens out; the prefix is cached, or new."""

    def measure(engine, rng):
        prefix = fresh(rng, SHARED_PREFIX)
        if warm:
            engine.run([prefix + fresh(rng, SHARED_OWN)], 1)
        seen = engine.run([prefix + fresh(rng, SHARED_OWN) for _ in range(STREAMS)], SHARED_DECODED)
        begin = min(stream.start for stream in seen)
        first = [stream.first - stream.start for stream in seen]
        return {"total_s": max(stream.last for stream in seen) - begin, "ttft_p99_s": percentile(first, 0.99)}

    return measure


def prefill_floor(int8=False):
    """tok/s of the matrices' and the attention's operations at the peak."""
    return lambda shape, limits: {"tok_s": PROMPT / shapes.prefill_seconds(shape, limits, PROMPT, int8=int8)}


def step_floor(streams, context, int8=False):
    """tok/s when each step reads weights and K/V at full bandwidth, or computes at the peak if that takes longer."""
    return lambda shape, limits: {"tok_s": streams / shapes.step_seconds(shape, limits, streams, context, int8=int8)}


def shared_floor(warm):
    """Seconds when the prefix is computed once, or not at all, and read once a step."""

    def floor(shape, limits):
        first = shapes.prefill_seconds(shape, limits, STREAMS * SHARED_OWN, SHARED_PREFIX, STREAMS)
        if not warm:
            first += shapes.prefill_seconds(shape, limits, SHARED_PREFIX, rows=0)
        context = SHARED_PREFIX + SHARED_OWN + SHARED_DECODED // 2
        step = shapes.step_seconds(shape, limits, STREAMS, context, SHARED_PREFIX)
        return {"total_s": first + (SHARED_DECODED - 1) * step, "ttft_p99_s": first}

    return floor


@dataclass(frozen=True)
class Metric:
    """One line of the table: `bar` is the least ratio to the best peer, above 1 being better whatever the unit."""

    key: str
    title: str
    unit: str
    bar: float
    more_is_better: bool = True
    # The fraction of the floor that also counts as reached (`alternative`), or is needed as well (`needed`).
    alternative: float | None = None
    needed: float | None = None


@dataclass(frozen=True)
class Row:
    """One load on engines of one kind of weights."""

    name: str
    kind: str
    metrics: tuple
    measure: Callable | None = None
    floor: Callable | None = None
    # Engines that have the load in a full run, and the best of them, for each model, in a quick one.
    peers: tuple = ("llama.cpp", "vllm", "openvino")
    best: dict | None = None


def best(qwen, llama):
    """The peers of a quick run."""
    return {"qwen3-0.6b": tuple(qwen.split()), "llama-160m": tuple(llama.split())}


INT8_PEERS = ("llama.cpp", "openvino")
ROWS = [
    Row("prefill", "bf16", (Metric("tok_s", "prefill, 512 tokens", "tok/s", 1.0, needed=0.8),), prefill, prefill_floor(),
        best=best("vllm", "openvino")),
    Row("decode", "bf16", (Metric("tok_s", "decode, one stream, context 512", "tok/s", 1.3, alternative=0.88),), decode,
        step_floor(1, PROMPT + DECODED // 2), best=best("llama.cpp", "llama.cpp")),
    Row("batch8", "bf16", (Metric("tok_s", "8 streams, aggregate decode", "tok/s", 1.6),), batch(8),
        step_floor(8, BATCH_PROMPT + BATCH_DECODED // 2), best=best("vllm", "openvino")),
    Row("batch16", "bf16", (Metric("tok_s", "16 streams, aggregate decode", "tok/s", 1.5),), batch(16),
        step_floor(16, BATCH_PROMPT + BATCH_DECODED // 2), best=best("vllm", "openvino")),
    Row("shared-cold", "bf16", (
        Metric("total_s", "16 users, shared prefix, cold: total", "s", 1 / 0.75, False),
        Metric("ttft_p99_s", "16 users, shared prefix, cold: p99 TTFT", "s", 1 / 0.9, False),
    ), shared(False), shared_floor(False), best=best("vllm", "vllm")),
    Row("shared-warm", "bf16", (
        Metric("total_s", "16 users, shared prefix, warm: total", "s", 1 / 0.7, False),
        Metric("ttft_p99_s", "16 users, shared prefix, warm: p99 TTFT", "s", 1 / 0.9, False),
    ), shared(True), shared_floor(True), best=best("openvino", "openvino")),
    Row("int8-prefill", "int8", (Metric("tok_s", "int8: prefill, 512 tokens", "tok/s", 1.1),), prefill, prefill_floor(True),
        INT8_PEERS, best("openvino", "openvino")),
    Row("int8-decode", "int8", (Metric("tok_s", "int8: decode, one stream, context 512", "tok/s", 1.3),), decode,
        step_floor(1, PROMPT + DECODED // 2, True), INT8_PEERS, best("openvino llama.cpp", "openvino llama.cpp")),
    Row("int8-batch16", "int8", (Metric("tok_s", "int8: 16 streams, aggregate decode", "tok/s", 1.3),), batch(16),
        step_floor(16, BATCH_PROMPT + BATCH_DECODED // 2, True), INT8_PEERS, best("openvino", "openvino")),
]
# Rows that come with the starts of the others' engines.
START, FIRST_START, MEMORY = "start", "first-start", "memory"
START_LIMIT_S = 2.0
MEMORY_ALLOWANCE = 300e6
