"""SGLang's bench_serving, on SGLang's native endpoint and on OpenAI's endpoints."""

import json
import re

from server import MODEL, MODEL_FOLDER, Case, differ

ENVIRONMENT = "torch"
SERVER_FLAGS = []
PROMPTS = 24
RANDOM = ["--dataset-name", "random-ids", "--random-input-len", 64, "--random-output-len", 16, "--random-range-ratio", 0.5]
GROUPS, PER_GROUP = 3, 8
SHARED = ["--dataset-name", "generated-shared-prefix", "--gsp-num-groups", GROUPS, "--gsp-prompts-per-group", PER_GROUP, "--gsp-system-prompt-len", 128,
          "--gsp-question-len", 16, "--gsp-output-len", 16, "--gsp-range-ratio", 1.0]


def bench(bin_folder, server, backend, *flags):
    """Runs bench_serving; returns the problems, the record that it writes, and its output."""
    record = server.out / "record.jsonl"
    command = [bin_folder / "python", "-m", "sglang.benchmark.serving", "--backend", backend, "--base-url", server.url, "--model", MODEL, "--tokenizer", MODEL_FOLDER,
               "--num-prompts", PROMPTS, "--max-concurrency", 4, "--seed", 3, "--warmup-requests", 0, "--disable-tqdm", "--output-file", record, "--output-details", *flags]
    problems, printed = server.client(*command)
    if problems:
        return problems, {}, printed
    record = json.loads(record.read_text())
    problems += differ("requests that succeeded", record["completed"], PROMPTS)
    problems += [f"error of a request: {error[:300]}" for error in record["errors"] if error]
    return problems, record, printed


def generation(backend, *flags, counts_prompts=True):
    """Checks that all requests succeed, and that client and server count the same tokens. Streams of OpenAI's endpoints do not report prompt lengths."""

    def check(bin_folder, server):
        problems, record, printed = bench(bin_folder, server, backend, *flags)
        if not record:
            return problems
        requested = re.search(r"^#Output tokens: (\d+)$", printed, re.MULTILINE)
        prompt_tokens, output_tokens = server.tokens()
        if requested:
            problems += differ("output tokens, by the client", record["total_output_tokens"], int(requested.group(1)))
        problems += differ("output tokens, by the server", output_tokens, record["total_output_tokens"])
        if counts_prompts:
            problems += differ("prompt tokens, by the server", prompt_tokens, sum(record["input_lens"]))
        if any(not text for text in record["generated_texts"]):
            problems.append("a request has no text")
        if report := record.get("cache_report"):
            cached = int(server.metric("sglang:cached_tokens_total"))
            problems += differ("cached tokens, by the client", report["total_cached_tokens"], cached)
            problems += [] if cached else ["nothing is cached"]
        return problems

    return check


def embeddings(bin_folder, server):
    """Checks that all requests succeed. The client counts random ids but sends their text, so the server counts other tokens."""
    problems, record, _ = bench(bin_folder, server, "sglang-embedding", *RANDOM)
    if record and server.tokens()[0] < PROMPTS:
        problems.append(f"the server counted {server.tokens()[0]} tokens of {PROMPTS} prompts")
    return problems


CASES = [
    Case("native", generation("sglang", *RANDOM, "--tokenize-prompt", "--flush-cache")),
    Case("native text and log probabilities", generation("sglang", *RANDOM, "--return-logprob", "--top-logprobs-num", 2)),
    Case("native shared prefixes", generation("sglang", *SHARED, "--cache-report")),
    Case("completions", generation("sglang-oai", *RANDOM, counts_prompts=False)),
    Case("chats", generation("sglang-oai-chat", *RANDOM, counts_prompts=False)),
    Case("chats without streaming", generation("vllm-chat", *RANDOM, "--disable-stream")),
    Case("chats of shared prefixes", generation("sglang-oai-chat", *SHARED, "--cache-report", counts_prompts=False)),
    Case("embeddings", embeddings),
]
