"""What the tests of gateways share: two engines, a gateway in front of them, and clients that know the gateway."""

import contextlib
import os
import unittest

import httpx2
from world import LONG, PATIENCE_S, URL, openai_client, wait_until

ENGINES = os.environ["SOUFFLEUR_ENGINES"].split()


class Engine:
    """One engine behind the gateway, asked directly."""

    def __init__(self, url):
        self.url = url
        self.http = httpx2.Client(base_url=url, timeout=PATIENCE_S)

    def stats(self):
        info = self.http.get("/server_info").json()
        return {**info["internal_states"][0], "requests_inside": info["requests_inside"]}

    def prompt_tokens(self):
        """Prompt tokens of all that it admitted."""
        return self.stats()["prompt_tokens"]

    def cached_tokens(self):
        """Tokens in its prefix cache that nobody needs at the moment."""
        return self.stats()["evictable_tokens"]

    def pause(self):
        """What is inside stays where it is, with all that it holds."""
        self.http.post("/pause_generation", json={"mode": "in_place"}).raise_for_status()

    def go_on(self):
        self.http.post("/continue_generation").raise_for_status()

    def is_whole(self):
        now = self.stats()
        idle = ("requests_inside", "running_requests", "waiting_requests", "private_tokens", "protected_tokens")
        return not any(now[name] for name in idle)


class Fleet(unittest.TestCase):
    """Clients of a gateway in front of two engines, which are whole after every test."""

    @classmethod
    def setUpClass(cls):
        cls.engines = [Engine(url) for url in ENGINES]
        cls.http = httpx2.Client(base_url=URL, timeout=PATIENCE_S)
        cls.client = openai_client()
        for closed in (cls.http, cls.client, *(engine.http for engine in cls.engines)):
            cls.addClassCleanup(closed.close)
        (model,) = cls.engines[0].http.get("/v1/models").json()["data"]
        cls.model = model["id"]
        wait_until("the gateway has found both engines", cls.is_ready)

    @classmethod
    def is_ready(cls):
        try:
            readiness = cls.http.get("/readiness")
        except httpx2.TransportError:
            # It does not listen yet.
            return False
        if readiness.status_code != 200 or readiness.json()["healthy_workers"] != len(ENGINES):
            return False
        # smg counts an engine as healthy before it sends requests there, and lists loads of those that it does.
        loads = cls.http.get("/get_loads")
        return loads.status_code == 200 and all(url in loads.text for url in ENGINES)

    def wait_until_whole(self, engines=None):
        for engine in engines or self.engines:
            wait_until(f"{engine.url} is whole", engine.is_whole)

    @contextlib.contextmanager
    def endless(self, path="/generate", **call):
        """The events of a stream that ends when it is left, from behind the first one on."""
        options = {"sampling_params": {"max_new_tokens": LONG, "temperature": 0, "ignore_eos": True}}
        if path != "/generate":
            options = {"model": self.model, "max_tokens": LONG, "temperature": 0, "ignore_eos": True}
        with self.http.stream("POST", path, json={"stream": True, **options, **call}) as response:
            self.assertEqual(response.status_code, 200)
            lines = response.iter_lines()
            next(lines)
            yield lines

    def running(self):
        return [engine.stats()["running_requests"] for engine in self.engines]

    def check_both_run(self, requests):
        running = self.running()
        self.assertEqual(sum(running), requests)
        self.assertTrue(all(running), f"one engine has them all: {running}")
        return running

    def generate(self, http=None, **fields):
        response = (http or self.http).post("/generate", json=fields)
        self.assertEqual(response.status_code, 200, response.text)
        return response.json()

    def chat(self, messages, **options):
        return self.client.chat.completions.create(
            model=self.model, messages=messages, temperature=0, max_tokens=16, **options
        )
