"""Starts the server under test for each case, and reads the server's counters."""

import json
import os
import re
import shutil
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path

MODEL = "souffleur-tiny"
START_SECONDS, STOP_SECONDS, CLIENT_SECONDS = 60, 30, 300
MODEL_FOLDER = Path(__file__).resolve().parents[3] / "models" / MODEL


class Server:
    """The bundled model on a free port. Outputs of the client and the server's log go to the folder `out`."""

    def __init__(self, souffleur, scratch, out, flags):
        self.out, self.scratch = out, scratch
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SOUFFLEUR_")}
        command = [souffleur, "serve", "--model-path", MODEL_FOLDER, "--port", "0", *flags]
        self.log = (out / "server.log").open("wb")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, env=environment, text=True)

    def __enter__(self):
        # The last line that the server prints is a command with the server's address.
        for line in self.process.stdout:
            if found := re.search(r"curl -N (http://[^/]+)/", line):
                self.url = found.group(1)
                return self
        self.__exit__()
        raise SystemExit(f"the server ended before it was ready: see {self.out / 'server.log'}")

    def __exit__(self, *error):
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def client(self, *command, offline=True, cwd=None):
        """Runs a client without network access; returns the problem if it fails, and its output."""
        environment = dict(os.environ, HF_HOME=str(self.scratch / "hf"), HTTPS_PROXY="http://127.0.0.1:9", NO_PROXY="127.0.0.1", TOKENIZERS_PARALLELISM="false")
        environment.pop("HF_HUB_OFFLINE", None)
        if offline:
            environment["HF_HUB_OFFLINE"] = "1"
        log = self.out / "client.log"
        with log.open("ab") as file:
            try:
                ended = subprocess.run([str(part) for part in command], stdout=file, stderr=subprocess.STDOUT, env=environment,
                                       cwd=cwd or self.out, timeout=CLIENT_SECONDS, check=False)
                problems = [] if ended.returncode == 0 else [f"{Path(command[0]).name} ended with {ended.returncode}"]
            except subprocess.TimeoutExpired:
                problems = [f"{Path(command[0]).name} took more than {CLIENT_SECONDS} s"]
        return problems, log.read_text(errors="replace")

    def metric(self, name):
        """The sum of a counter over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics") as response:
            page = response.read().decode()
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:{{[^\n]*}})? (\S+)$", page, re.MULTILINE))

    def tokens(self):
        """The numbers of prompt tokens and output tokens that the server has counted."""
        return int(self.metric("sglang:prompt_tokens_total")), int(self.metric("sglang:generation_tokens_total"))

    def left_over(self):
        """Problems that remain after the client has disconnected."""
        with urllib.request.urlopen(f"{self.url}/server_info") as response:
            info = json.load(response)
        now = info["internal_states"][0]
        names = ("running_requests", "waiting_requests", "private_tokens", "protected_tokens")
        problems = [f"the server still has {name}: {now[name]}" for name in names if now[name]]
        bugs = ("souffleur_integrity_failures_total", "souffleur_pages_lost_total")
        return problems + [f"{bug} is {self.metric(bug)}" for bug in bugs if self.metric(bug)]


@dataclass
class Case:
    """One run of a client: `check(bin, server)` returns the problems."""

    name: str
    check: object

    def problems(self, bin_folder, server):
        """The problems of the run, including the requests and pages that the server still has after it."""
        return self.check(bin_folder, server) + server.left_over()


def differ(what, got, want):
    """The problem if a number differs from the expected one."""
    return [] if got == want else [f"{what}: {got}, must be {want}"]
