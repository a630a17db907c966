"""llama.cpp's server, and the tokens that it evaluates."""

import json
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packaging"))

from lib import cross  # noqa: E402

PACKAGE = "llama.cpp-tools"
# Tokens of a batch and of the context. The parts of a prompt that llama.cpp keeps depend on both.
LARGE, SMALL = (2048, 4096), (64, 256)
PREDICTED_TOKENS = 16
START_SECONDS, STOP_SECONDS = 60, 30
MAGIC, SERVER_TOKENS, SERVER_VERSION = b"qsgg", -1, 1


class Peer:
    """The packages of llama.cpp in a scratch folder."""

    def __init__(self, scratch, mirror):
        self.scratch = scratch
        self.root = cross.make(scratch, mirror, (PACKAGE,))

    def command(self, *words):
        """A command of `llama-server` inside the packages."""
        inside = ["bwrap", "--unshare-pid", "--die-with-parent", "--clearenv", "--bind", self.root, "/"]
        inside += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind", self.scratch, self.scratch]
        return [str(part) for part in (*inside, "--setenv", "PATH", "/usr/bin", "llama-server", *words)]

    def version(self):
        """The line of `llama-server --version` with the version."""
        done = subprocess.run(self.command("--version"), check=True, capture_output=True, text=True)
        lines = (done.stdout + done.stderr).splitlines()
        return next(line.removeprefix("version: ") for line in lines if line.startswith("version: "))

    def serve(self, model, sizes, *flags):
        """A server with a model."""
        return Server(self, model, sizes, flags)


class Server:
    """A running server; its log goes next to the model."""

    def __init__(self, peer, model, sizes, flags):
        self.scratch, self.path = peer.scratch, model.with_suffix(".log")
        self.log, port = self.path.open("w"), free_port()
        self.url = f"http://127.0.0.1:{port}"
        batch, context = sizes
        sizes = ["-b", batch, "-ub", batch, "-c", context, "-n", PREDICTED_TOKENS, "-np", 1]
        where = ["--host", "127.0.0.1", "--port", port, "--slot-save-path", peer.scratch, "--offline"]
        command = peer.command("-m", model, *sizes, *where, "--no-warmup", "-t", 1, *flags)
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)

    def __enter__(self):
        deadline = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                self.get("/health")
                return self
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        self.__exit__()
        raise SystemExit(f"llama.cpp's server did not start: see {self.path}")

    def __exit__(self, *error):
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def get(self, path):
        """The answer to a GET."""
        with urllib.request.urlopen(self.url + path) as response:
            return json.load(response)

    def post(self, path, body):
        """The answer to a POST."""
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), kind)
        try:
            with urllib.request.urlopen(request) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise SystemExit(f"llama.cpp refused {path}: {error.read().decode()}") from error

    def infill(self, call):
        """The tokens of a call's prompt. The saved slot has them, then those of the output."""
        answer = self.post("/infill", {**call, "id_slot": 0})
        self.post("/slots/0?action=save", {"filename": "slot"})
        count = answer["tokens_evaluated"]
        tokens = saved_tokens(self.scratch / "slot")
        if len(tokens) < count:
            raise SystemExit(f"the slot has {len(tokens)} tokens, the prompt {count}: {call}")
        tokens = tokens[:count]
        read = self.post("/detokenize", {"tokens": tokens})["content"]
        # Spaces at the beginning and before punctuation are left out of either text.
        if answer["prompt"].replace(" ", "") != read.replace(" ", ""):
            raise SystemExit(f"the tokens of the slot are {read!r}, the prompt is {answer['prompt']!r}")
        return tokens


def saved_tokens(path):
    """The tokens of a saved slot."""
    data = path.read_bytes()
    if data[:4] != MAGIC:
        raise SystemExit(f"{path} is not a saved slot")
    (length,) = struct.unpack_from("<I", data, 8)
    saved = struct.unpack_from(f"<{length}i", data, 12)
    if saved[:2] != (SERVER_TOKENS, SERVER_VERSION):
        raise SystemExit(f"{path} has another form: {saved[:3]}")
    return list(saved[3 : 3 + saved[2]])


def free_port():
    """A port that no server uses."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]
