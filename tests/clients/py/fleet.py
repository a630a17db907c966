"""Shared by the tests of gateways: two engines, a gateway in front of them, and clients of the gateway."""

import contextlib
import os
import time
import unittest

import httpx2
from world import LONG, TIMEOUT_S, URL, openai_client, wait_until

ENGINES = os.environ["SOUFFLEUR_ENGINES"].split()
# The engines as the gateway names them.
WORKERS = os.environ.get("SOUFFLEUR_WORKERS", os.environ["SOUFFLEUR_ENGINES"]).split()
GATEWAY = os.environ["SOUFFLEUR_GATEWAY"]


class Engine:
    """One engine of the gateway, with direct access."""

    def __init__(self, url):
        self.url = url
        self.http = httpx2.Client(base_url=url, timeout=TIMEOUT_S)

    def stats(self):
        info = self.http.get("/server_info").json()
        return {**info["internal_states"][0], "requests_inside": info["requests_inside"]}

    def prompt_tokens(self):
        """Prompt tokens of all admitted requests."""
        return self.stats()["prompt_tokens"]

    def cached_tokens(self):
        """Tokens in its prefix cache that no request uses at the moment."""
        return self.stats()["evictable_tokens"]

    def pause(self):
        """Pauses the engine. Its requests stay in the engine and keep their memory."""
        self.http.post("/pause_generation", json={"mode": "in_place"}).raise_for_status()

    def resume(self):
        self.http.post("/continue_generation").raise_for_status()

    def is_idle(self):
        now = self.stats()
        idle = ("requests_inside", "running_requests", "waiting_requests", "private_tokens", "protected_tokens")
        return not any(now[name] for name in idle)


class Fleet(unittest.TestCase):
    """Clients of a gateway in front of two engines, which must be idle after every test."""

    @classmethod
    def setUpClass(cls):
        cls.engines = [Engine(url) for url in ENGINES]
        cls.http = httpx2.Client(base_url=URL, timeout=TIMEOUT_S)
        cls.client = openai_client()
        for closed in (cls.http, cls.client, *(engine.http for engine in cls.engines)):
            cls.addClassCleanup(closed.close)
        (model,) = cls.engines[0].http.get("/v1/models").json()["data"]
        cls.model = model["id"]
        wait_until("the gateway has found both engines", cls.is_ready)

    @classmethod
    def is_ready(cls):
        if GATEWAY == "dynamo":
            return cls.is_dynamo_ready()
        try:
            readiness = cls.http.get("/readiness")
        except httpx2.TransportError:
            # The gateway does not listen yet.
            return False
        if readiness.status_code != 200 or readiness.json()["healthy_workers"] != len(ENGINES):
            return False
        # smg marks an engine healthy before it routes requests to it, and lists loads of healthy engines only.
        loads = cls.http.get("/get_loads")
        return loads.status_code == 200 and all(url in loads.text for url in WORKERS)

    @classmethod
    def is_dynamo_ready(cls):
        try:
            health = cls.http.get("/health").json()
            listed = cls.http.get("/v1/models").json()["data"]
        except httpx2.TransportError:
            # The gateway does not listen yet.
            return False
        workers = [instance for instance in health["instances"] if instance["endpoint"] == "generate"]
        if len(workers) < len(ENGINES) or not listed:
            return False
        # The router learns of engines only after they are listed. It knows an engine to which it has routed a request.
        call = {"model": listed[0]["id"], "prompt": f"{time.monotonic()}", "max_tokens": 1}
        cls.http.post("/v1/completions", json=call)
        return all(engine.prompt_tokens() for engine in cls.engines)

    def wait_until_idle(self, engines=None):
        for engine in engines or self.engines:
            wait_until(f"{engine.url} is idle", engine.is_idle)

    @contextlib.contextmanager
    def endless(self, path="/generate", **call):
        """The events, after the first one, of a stream that only ends when the client disconnects."""
        options = {"sampling_params": {"max_new_tokens": LONG, "temperature": 0, "ignore_eos": True}}
        if path != "/generate":
            options = {"model": self.model, "max_tokens": LONG, "temperature": 0, "ignore_eos": True}
        with self.http.stream("POST", path, json={"stream": True, **options, **call}) as response:
            self.assertEqual(response.status_code, 200)
            lines = response.iter_lines()
            next(lines)
            yield lines

    def aborted(self):
        pages = [engine.http.get("/metrics").text for engine in self.engines]
        lines = [line for page in pages for line in page.splitlines()]
        counted = [line for line in lines if line.startswith("sglang:num_aborted_requests_total{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in counted)

    @contextlib.contextmanager
    def paused_request(self, *path, **call):
        """A request that neither ends nor disconnects."""
        with self.endless(*path, **call):
            try:
                for engine in self.engines:
                    engine.pause()
                yield
            finally:
                for engine in self.engines:
                    engine.resume()

    def is_one_loaded(self):
        # The load is the 100 tokens of the prompt and the tokens of the answer so far.
        return sorted(load > 100 for load in self.loads()) == [False, True]

    def loads(self):
        """The tokens in use on each engine, as the gateway reports them."""
        loads = self.http.get("/get_loads").json()
        if GATEWAY == "sglang_router":
            self.assertTrue(all(worker["load"] >= 0 for worker in loads["workers"]), loads)
            return [worker["load"] for worker in loads["workers"]]
        ranks = loads["loads"]
        self.assertEqual(len(ranks), len(self.engines), loads)
        for rank in ranks:
            self.assertGreater(rank["max_total_num_tokens"], 0, loads)
        return [rank["num_used_tokens"] for rank in ranks]

    def flush(self):
        flushed = self.http.post("/flush_cache")
        self.assertEqual(flushed.status_code, 200, flushed.text)

    def running(self):
        return [engine.stats()["running_requests"] for engine in self.engines]

    def check_both_run(self, requests):
        running = self.running()
        self.assertEqual(sum(running), requests)
        self.assertTrue(all(running), f"one engine has all requests: {running}")
        return running

    def generate(self, http=None, **fields):
        response = (http or self.http).post("/generate", json=fields)
        self.assertEqual(response.status_code, 200, response.text)
        return response.json()

    def ask(self, engine, messages):
        """The answer of an engine to a chat, without the gateway."""
        call = {"model": self.model, "messages": messages, "temperature": 0, "max_tokens": 16}
        response = engine.http.post("/v1/chat/completions", json=call)
        self.assertEqual(response.status_code, 200, response.text)
        return response.json()

    def chat(self, messages, **options):
        return self.client.chat.completions.create(
            model=self.model, messages=messages, temperature=0, max_tokens=16, **options
        )
