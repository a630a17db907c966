"""GuideLLM, on three APIs of OpenAI."""

import json

from server import MODEL, MODEL_FOLDER, Case, differ

ENVIRONMENT = "torch"
SERVER_FLAGS = []
REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 24, 64, 16


def benchmark(path, *, backend="", data=""):
    """Checks that all requests succeed with the requested number of tokens, and that client and server count the same."""

    def check(bin_folder, server):
        record = server.out / "record.json"
        problems, _ = server.client(
            bin_folder / "guidellm", "run", "--disable-progress", "--backend", f"kind=openai_http,target={server.url},model={MODEL},request_format={path}{backend}",
            "--profile", "kind=concurrent,streams=4", "--constraint", f"kind=max_requests,count={REQUESTS}", "--tokenizer", f"kind=hf_auto,model={MODEL_FOLDER}",
            "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}{data}", "--output", f"kind=json,path={record}",
        )
        if problems:
            return problems
        (run,) = json.loads(record.read_text())["benchmarks"]
        metrics = run["metrics"]
        prompt_tokens, output_tokens = server.tokens()
        problems += differ("requests", metrics["request_totals"], {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS})
        problems += differ("output tokens, by the client", metrics["output_token_count"]["successful"]["total_sum"], REQUESTS * OUTPUT_TOKENS)
        problems += differ("output tokens, by the server", output_tokens, REQUESTS * OUTPUT_TOKENS)
        # The client computes this sum from means.
        problems += differ("prompt tokens, by the client", round(metrics["prompt_token_count"]["successful"]["total_sum"], 3), prompt_tokens)
        if path == "/v1/completions" and not data:
            problems += differ("prompt tokens, by the server", prompt_tokens, REQUESTS * PROMPT_TOKENS)
        return problems

    return check


CASES = [
    Case("completions", benchmark("/v1/completions")),
    Case("chats", benchmark("/v1/chat/completions")),
    Case("chats without streaming", benchmark("/v1/chat/completions", backend=",stream=false")),
    Case("responses", benchmark("/v1/responses")),
    Case("responses of three turns", benchmark("/v1/responses", backend=",server_history=true", data=",turns=3")),
]
