"""Shortens the calls that Schemathesis generates: few tokens, few samples, and no time limits."""

import schemathesis

MAX_TOKENS = 8
MAX_SAMPLES = 2
# The largest `n` that the server accepts. A larger `n` must be refused, so it is not changed.
MAX_ACCEPTED_SAMPLES = 128
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
# Time limits are removed, because a call that exceeds its time limit correctly gets 503.
TIMEOUTS = ("waiting_timeout", "running_timeout")
# The length limits of endpoints that would otherwise generate to the end of the context.
UNLIMITED = {
    "/v1/chat/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/responses": "max_output_tokens",
}
# Ollama's endpoints have the limit in their options.
OLLAMA = ("/api/chat", "/api/generate")


def is_above(value, limit):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > limit


def shorten(body):
    for name in TIMEOUTS:
        if is_above(body.get(name), 0):
            del body[name]
    for name in LIMITS:
        if is_above(body.get(name), MAX_TOKENS):
            body[name] = MAX_TOKENS
    if is_above(body.get("n"), MAX_SAMPLES) and body["n"] <= MAX_ACCEPTED_SAMPLES:
        body["n"] = MAX_SAMPLES


@schemathesis.hook
def before_call(context, case, kwargs):
    if not isinstance(case.body, dict):
        return
    shorten(case.body)
    params = case.body.get("sampling_params")
    for inside in params if isinstance(params, list) else [params]:
        if isinstance(inside, dict):
            shorten(inside)
    limit = UNLIMITED.get(case.operation.path)
    if limit and case.body.get(limit) is None:
        case.body[limit] = MAX_TOKENS
    options = case.body.get("options") or {}
    if case.operation.path in OLLAMA and isinstance(options, dict):
        case.body["options"] = {**options, "num_predict": MAX_TOKENS}
