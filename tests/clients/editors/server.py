"""Starts a server whose model fills in the middle."""

import json
import re
import shutil
import subprocess
from pathlib import Path

BUNDLED = Path(__file__).resolve().parents[3] / "models" / "souffleur-tiny"
MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
STOP_SECONDS = 30


def make_model(folder):
    """Copies the bundled model, whose last tokens become Qwen's marks. It was not trained with them."""
    shutil.copytree(BUNDLED, folder)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    model, added = tokenizer["model"], tokenizer["added_tokens"]
    first = len(model["vocab"]) - len(MARKS)
    # Each of the last tokens is made by one of the last merges, and by no other.
    model["merges"] = model["merges"][:-len(MARKS)]
    model["vocab"] = {text: token for text, token in model["vocab"].items() if token < first}
    added += [{**added[0], "id": first + role, "content": mark, "special": False} for role, mark in enumerate(MARKS)]
    file.write_text(json.dumps(tokenizer))


class Server:
    """A server on a free port, with its model and log in the folder `scratch`."""

    def __init__(self, souffleur, scratch):
        make_model(scratch / "model")
        model = ["--model-path", "model", "--served-model-name", BUNDLED.name]
        command = [souffleur.resolve(), "serve", *model, "--port", "0", "--threads", "1"]
        self.log = (scratch / "server.log").open("wb")
        self.process = subprocess.Popen(command, cwd=scratch, stdout=subprocess.PIPE, stderr=self.log, text=True)

    def __enter__(self):
        # The last line that the server prints is a command with the server's address.
        for line in self.process.stdout:
            if found := re.search(r"curl -N (http://[^/]+)/", line):
                self.url = found.group(1)
                return self
        self.__exit__()
        raise SystemExit("the server ended before it was ready")

    def __exit__(self, *error):
        self.process.terminate()
        self.process.wait(STOP_SECONDS)
        self.log.close()
