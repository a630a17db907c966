"""Runs OpenVINO GenAI, whose package has no HTTP server, and takes batches of prompts as JSON lines on stdin.

ov_driver.py MODEL KV_GIB PROPERTIES: PROPERTIES is a JSON object. For an input line `{"prompts": [[ids], ...], "tokens": n}` it
prints a line with the events of each stream, in seconds of the monotonic clock, which all processes share.
"""

import json
import sys
import time

import numpy as np
import openvino
import openvino_genai as genai


def generation(tokens):
    """The configuration for exactly `tokens` greedy tokens."""
    config = genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = tokens
    config.ignore_eos, config.do_sample = True, False
    return config


def run(pipeline, numbers, prompts, tokens):
    """Adds all prompts at once, and runs steps until all have ended. Returns the events of each stream."""
    start = time.monotonic()
    handles = [
        pipeline.add_request(next(numbers), openvino.Tensor(np.array([prompt], dtype=np.int64)), generation(tokens)) for prompt in prompts
    ]
    seen = [{"start": start, "events": []} for _ in prompts]
    while pipeline.has_non_finished_requests():
        pipeline.step()
        now = time.monotonic()
        for handle, stream in zip(handles, seen):
            while handle.can_read():
                stream["events"].append((now, sum(len(output.generated_ids) for output in handle.read().values())))
    return seen


def main():
    model, kv_gib, more = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = scheduler.dynamic_split_fuse = True
    scheduler.cache_size, scheduler.max_num_batched_tokens, scheduler.max_num_seqs = kv_gib, 2048, 16
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    properties = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "bf16" if "BF16" in capabilities else "f32"} | more
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
    print(json.dumps({"ready": time.monotonic()}), flush=True)
    numbers = iter(range(1 << 62))
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps({"streams": run(pipeline, numbers, job["prompts"], job["tokens"])}), flush=True)


if __name__ == "__main__":
    main()
