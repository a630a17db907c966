"""Tests of smg with two engines over gRPC: KV events determine which engine gets a prompt."""

import os
import re

import chats
import httpx2
from chats import MESSAGES
from world import wait_until

METRICS = os.environ["SOUFFLEUR_METRICS"]


class Gateway(chats.Chats):
    def event_count(self):
        page = httpx2.get(METRICS).text
        return sum(float(value) for value in re.findall(r"^smg_kv_index_blocks{.*} (\S+)$", page, re.MULTILINE))

    def test_the_load_of_engines_is_known(self):
        messages = [{"role": "user", "content": "A play without an end. " * 25}]
        with self.paused_request("/v1/chat/completions", messages=messages):
            wait_until("one of two engines has the load", self.is_one_loaded)
        self.wait_until_idle()
        wait_until("the load is gone", lambda: not any(self.loads()))

    def test_flushing_empties_every_engine_that_is_idle(self):
        for engine in self.engines:
            self.ask(engine, MESSAGES * 3)
        self.wait_until_idle()
        self.assertTrue(all(engine.cached_tokens() for engine in self.engines))
        self.flush()
        self.assertFalse(any(engine.cached_tokens() for engine in self.engines))
        with self.paused_request("/v1/chat/completions", messages=MESSAGES):
            refused = self.http.post("/flush_cache")
            self.assertEqual(refused.status_code, 206, refused.text)
