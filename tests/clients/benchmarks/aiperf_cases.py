"""NVIDIA's AIPerf, on four APIs."""

import json

from server import MODEL, MODEL_FOLDER, Case, differ

ENVIRONMENT = "aiperf"
SERVER_FLAGS = []
REQUESTS, OUTPUT_TOKENS = 24, 16
# The flag for the endpoints that stream.
STREAMING = ["--streaming"]


def profile(endpoint, *flags):
    """Checks that all requests succeed with the requested number of tokens, and that client and server count the same."""

    def check(bin_folder, server):
        folder = server.out / "artifacts"
        problems, _ = server.client(
            bin_folder / "aiperf", "profile", "--model", MODEL, "--url", server.url, "--endpoint-type", endpoint, "--tokenizer", MODEL_FOLDER,
            "--request-count", REQUESTS, "--concurrency", 4, "--isl", 64, "--isl-stddev", 8, "--osl", OUTPUT_TOKENS, "--random-seed", 7, "--ui", "none",
            "--extra-inputs", "ignore_eos:true", "--no-gpu-telemetry", "--output-artifact-dir", folder, *flags,
            # Offline, AIPerf looks for tokenizers only in the hub's cache, not in folders.
            offline=False,
        )
        if problems:
            return problems
        record = json.loads((folder / "profile_export_aiperf.json").read_text())
        prompt_tokens, output_tokens = server.tokens()
        problems += differ("requests that succeeded", record["request_count"]["avg"], REQUESTS)
        problems += [f"error: {str(error)[:300]}" for error in record["error_summary"] or []]
        problems += differ("output tokens, by the server", output_tokens, REQUESTS * OUTPUT_TOKENS)
        # AIPerf reads only the usage of `response.completed`. Responses that end at their length limit are
        # `response.incomplete`.
        if endpoint != "responses":
            problems += differ("output tokens, by the client", record["total_usage_completion_tokens"]["avg"], REQUESTS * OUTPUT_TOKENS)
            problems += differ("prompt tokens, by the client", record["total_usage_prompt_tokens"]["avg"], prompt_tokens)
        if endpoint == "completions":
            problems += differ("prompt tokens, by the client's tokenizer", record["total_isl"]["avg"], prompt_tokens)
        return problems

    return check


CASES = [
    Case("completions", profile("completions", *STREAMING)),
    Case("chats", profile("chat", *STREAMING)),
    Case("chats without streaming", profile("chat")),
    Case("chats of three turns", profile("chat", *STREAMING, "--conversation-turn-mean", 3, "--conversation-turn-stddev", 0, "--num-conversations", REQUESTS // 3)),
    Case("responses", profile("responses", *STREAMING)),
    Case("messages", profile("messages", *STREAMING)),
]
