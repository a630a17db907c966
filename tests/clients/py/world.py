"""Clients of the server under test, for all test modules, and a check that every test leaves the server idle."""

import faulthandler
import os
import re
import time
import unittest

import httpx2
import openai

URL = os.environ["SOUFFLEUR_URL"]
TIMEOUT_S = 60
# More tokens than are generated before a test cancels.
LONG = 3900

# A module that hangs prints its traceback and exits.
faulthandler.dump_traceback_later(int(os.environ["SOUFFLEUR_TEST_SECONDS"]), exit=True)


def openai_client(kind=openai.OpenAI, **options):
    return kind(base_url=f"{URL}/v1", api_key="none", **{"max_retries": 0, **options})


def wait_until(what, holds):
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out after {TIMEOUT_S} s waiting until {what}")
        # Releases the interpreter, so that an event loop in another thread can run.
        time.sleep(0.002)


class World(unittest.TestCase):
    """Clients of one server, which must be idle after every test, with no token of its pool lost."""

    @classmethod
    def setUpClass(cls):
        cls.http = httpx2.Client(base_url=URL, timeout=TIMEOUT_S)
        cls.client = openai_client()
        cls.addClassCleanup(cls.http.close)
        cls.addClassCleanup(cls.client.close)
        (model,) = cls.http.get("/v1/models").json()["data"]
        # Other engines of the server's process may share its metrics.
        cls.of_this_model = f'model_name="{model["id"]}"'

    def tearDown(self):
        self.wait_until_idle()

    def generate(self, **fields):
        response = self.http.post("/generate", json=fields)
        self.assertEqual(response.status_code, 200, response.text)
        return response.json()

    def token_ids(self, text):
        """The prompt's token ids, from the prompt's log probabilities."""
        scored = self.generate(
            text=text, return_logprob=True, logprob_start_len=0, sampling_params={"max_new_tokens": 0}
        )
        return [token for _, token, _ in scored["meta_info"]["input_token_logprobs"]]

    def stats(self):
        info = self.http.get("/server_info").json()
        return {**info["internal_states"][0], "requests_inside": info["requests_inside"]}

    def metrics(self, name, label=""):
        """The sum of a metric over its labels, or over the labels that contain this one; 0 before its first sample."""
        page = self.http.get("/metrics").text
        values = re.findall(rf"^{re.escape(name)}(?:{{([^\n]*)}})? (\S+)$", page, re.MULTILINE)
        return sum(float(value) for labels, value in values if label in labels)

    def wait_until_idle(self):
        """Waits until the server has no request and every token of the pool is free or can be evicted."""

        def is_idle():
            now = self.stats()
            idle = ("requests_inside", "running_requests", "waiting_requests", "private_tokens", "protected_tokens")
            return (
                not any(now[name] for name in idle)
                and now["free_rows"] == now["total_rows"]
                and now["free_tokens"] + now["evictable_tokens"] == now["total_tokens"]
            )

        wait_until("the server is idle", is_idle)
        for bug in ("souffleur_integrity_failures_total", "souffleur_pages_lost_total"):
            self.assertEqual(self.metrics(bug), 0, bug)
        for gauge in ("sglang:num_running_reqs", "sglang:num_queue_reqs"):
            self.assertEqual(self.metrics(gauge, self.of_this_model), 0, gauge)

    def wait_until_running(self, requests):
        wait_until(f"{requests} requests run", lambda: self.stats()["running_requests"] == requests)

    def wait_until_in_flight(self, requests):
        wait_until(f"the server has {requests} requests", lambda: self.stats()["requests_inside"] == requests)
