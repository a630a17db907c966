"""Clients of smg in front of two engines that it speaks gRPC with: events of their caches tell it who has a prompt."""

import os
import re

import httpx2
from fleet import Fleet
from world import wait_until

METRICS = os.environ["SOUFFLEUR_METRICS"]
MESSAGES = [{"role": "user", "content": "Who is on the stage?"}]


class Gateway(Fleet):
    def tearDown(self):
        self.wait_until_whole()

    def test_answers_are_those_of_an_engine(self):
        direct = self.ask(self.engines[0], MESSAGES)
        through = self.chat(MESSAGES)
        self.assertEqual(through.choices[0].message.content, direct["choices"][0]["message"]["content"])
        self.assertEqual(through.usage.prompt_tokens, direct["usage"]["prompt_tokens"])

    def test_streams_come_in_pieces_and_to_their_end(self):
        whole = self.chat(MESSAGES)
        chunks = self.chat(MESSAGES, stream=True)
        pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
        self.assertEqual("".join(pieces), whole.choices[0].message.content)
        self.assertGreater(len(pieces), 2)

    def test_a_prompt_that_an_engine_has_from_elsewhere_goes_there(self):
        for index, engine in enumerate(self.engines):
            messages = [{"role": "user", "content": f"Act {index}: tell me what happens behind the curtain. " * 8}]
            known = self.known_blocks()
            self.ask(engine, messages)
            wait_until("the gateway has heard of it", lambda known=known: self.known_blocks() > known)
            before = engine.prompt_tokens()
            answer = self.chat(messages)
            self.assertGreaterEqual(answer.usage.prompt_tokens_details.cached_tokens, 64)
            self.assertEqual(engine.prompt_tokens(), before + answer.usage.prompt_tokens)

    def known_blocks(self):
        page = httpx2.get(METRICS).text
        return sum(float(value) for value in re.findall(r"^smg_kv_index_blocks{.*} (\S+)$", page, re.MULTILINE))

    def test_a_client_that_leaves_is_cancelled_in_its_engine(self):
        before = self.aborted()
        with self.endless("/v1/chat/completions", messages=MESSAGES):
            wait_until("the request runs", lambda: sum(self.running()) == 1)
        self.wait_until_whole()
        self.assertEqual(self.aborted(), before + 1)

    def test_the_load_of_engines_is_known(self):
        messages = [{"role": "user", "content": "A play without an end. " * 25}]
        with self.paused_under_way("/v1/chat/completions", messages=messages):
            wait_until("one of two engines has the load", self.is_one_loaded)
        self.wait_until_whole()
        wait_until("the load is gone", lambda: not any(self.loads()))

    def test_flushing_empties_every_engine_that_is_idle(self):
        for engine in self.engines:
            self.ask(engine, MESSAGES * 3)
        self.wait_until_whole()
        self.assertTrue(all(engine.cached_tokens() for engine in self.engines))
        self.flush()
        self.assertFalse(any(engine.cached_tokens() for engine in self.engines))
        with self.paused_under_way("/v1/chat/completions", messages=MESSAGES):
            refused = self.http.post("/flush_cache")
            self.assertEqual(refused.status_code, 206, refused.text)
