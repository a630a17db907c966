"""A server of the engine, and requests to it."""

import json
import os
import re
import subprocess
import urllib.request

CONTEXT_TOKENS = 8192
STOP_SECONDS = 30


class Server:
    """The engine with a model on a free port; its log goes to `log`."""

    def __init__(self, souffleur, model, log, *flags):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SOUFFLEUR_")}
        sizes = ["--context-length", CONTEXT_TOKENS, "--max-total-tokens", CONTEXT_TOKENS]
        command = [souffleur, "serve", "--model-path", model, "--port", "0", *sizes, *flags]
        self.path, self.log = log, log.open("wb")
        command = [str(part) for part in command]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, env=environment, text=True)

    def __enter__(self):
        # The last line that it prints is a command with its address.
        for line in self.process.stdout:
            if found := re.search(r"curl -N (http://[^/]+)/", line):
                self.url = found.group(1)
                return self
        self.__exit__()
        raise SystemExit(f"the server ended before it was ready: see {self.path}")

    def __exit__(self, *error):
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def post(self, path, body):
        """The answer to a call."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def tokenize(self, text, add_special_tokens=False):
        """The ids of a text."""
        return self.post("/v1/tokenize", {"prompt": text, "add_special_tokens": add_special_tokens})["tokens"]

    def detokenize(self, ids):
        """The text of ids."""
        return self.post("/v1/detokenize", {"tokens": ids, "skip_special_tokens": False})["text"]

    def log_probabilities(self, ids):
        """The log probability of each token but the first, by those before it."""
        sampling = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0}
        found = self.post("/generate", body)["meta_info"]["input_token_logprobs"]
        if [entry[1] for entry in found] != ids:
            raise SystemExit("the server returned log probabilities of other tokens than the requested ones")
        return [entry[0] for entry in found[1:]]

    def greedy(self, ids, count):
        """The greedy tokens after `ids`."""
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}}
        return self.post("/generate", body)["output_ids"]
