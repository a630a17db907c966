"""lm-evaluation-harness, on this server and on transformers."""

import json

from server import MODEL, MODEL_FOLDER, Case, differ

ENVIRONMENT = "torch"
# Like transformers below: bfloat16 rounds more than the tolerance allows.
SERVER_FLAGS = ["--dtype", "float32"]
TOLERANCE = 1e-3
TASKS = ["stage_choices", "stage_answers"]
TASK_FOLDER = MODEL_FOLDER.parents[1] / "tests" / "clients" / "benchmarks" / "tasks"


def evaluate(bin_folder, server, name, *model):
    """Runs lm_eval with a model; returns the problems, and the responses by task, in the order of the documents."""
    out = server.out / name
    problems, _ = server.client(bin_folder / "lm_eval", "run", *model, "--tasks", ",".join(TASKS), "--include_path", ".", "--log_samples", "--output_path", out, cwd=TASK_FOLDER)
    if problems:
        return problems, {}
    responses = {}
    for task in TASKS:
        (samples,) = out.glob(f"*/samples_{task}_*.jsonl")
        lines = sorted(map(json.loads, samples.read_text().splitlines()), key=lambda line: line["doc_id"])
        responses[task] = [line["resps"] for line in lines]
    return [], responses


def compare(got, want):
    """The differences between the responses of two models."""
    problems = differ("greedy answers", got["stage_answers"], want["stage_answers"])
    ours = [float(likelihood) for document in got["stage_choices"] for ((likelihood, _),) in document]
    theirs = [float(likelihood) for document in want["stage_choices"] for ((likelihood, _),) in document]
    problems += differ("log-likelihoods", len(ours), len(theirs))
    pairs = zip(ours, theirs, strict=False)
    return problems + [f"a log-likelihood is {our}, with transformers {their}" for our, their in pairs if abs(our - their) > TOLERANCE]


def against_transformers(model, path):
    """Checks that the server's responses equal those of transformers."""

    def check(bin_folder, server):
        remote = f"model={MODEL},base_url={server.url}{path},tokenizer={MODEL_FOLDER},tokenizer_backend=huggingface,num_concurrent=4,max_retries=1"
        problems, got = evaluate(bin_folder, server, "server", "--model", model, "--model_args", remote)
        local = f"pretrained={MODEL_FOLDER},dtype=float32"
        more, want = evaluate(bin_folder, server, "transformers", "--model", "hf", "--model_args", local, "--device", "cpu")
        return problems + more + (compare(got, want) if got and want else [])

    return check


CASES = [
    Case("completions", against_transformers("local-completions", "/v1/completions")),
    Case("native", against_transformers("sglang-generate", "/generate")),
]
