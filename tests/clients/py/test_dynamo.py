"""Clients of Dynamo's frontend in front of two engines, each with its sidecar: its answers are an engine's, and events
of the engines' caches tell it who has a prompt."""

import re

from fleet import Fleet
from world import wait_until

MESSAGES = [{"role": "user", "content": "Who is on the stage?"}]


class Dynamo(Fleet):
    def tearDown(self):
        self.wait_until_whole()

    def test_answers_are_those_of_an_engine(self):
        direct = self.ask(self.engines[0], MESSAGES)
        through = self.chat(MESSAGES)
        self.assertEqual(through.choices[0].message.content, direct["choices"][0]["message"]["content"])
        self.assertEqual(through.usage.prompt_tokens, direct["usage"]["prompt_tokens"])
        prompt = self.client.completions.create(
            model=self.model, prompt="The curtain", temperature=0, max_tokens=8, extra_body={"ignore_eos": True}
        )
        self.assertEqual(prompt.usage.completion_tokens, 8)

    def test_streams_come_in_pieces_and_to_their_end(self):
        whole = self.chat(MESSAGES)
        chunks = self.chat(MESSAGES, stream=True)
        pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
        self.assertEqual("".join(pieces), whole.choices[0].message.content)
        self.assertGreater(len(pieces), 2)

    def test_a_prompt_that_an_engine_has_from_elsewhere_goes_there(self):
        for index, engine in enumerate(self.engines):
            messages = [{"role": "user", "content": f"Act {index}: tell me what happens behind the curtain. " * 8}]
            stored = self.stored_events()
            self.ask(engine, messages)
            wait_until("the router has heard of it", lambda stored=stored: self.stored_events() > stored)
            before = engine.prompt_tokens()
            answer = self.chat(messages)
            self.assertGreaterEqual(answer.usage.prompt_tokens_details.cached_tokens, 64)
            self.assertEqual(engine.prompt_tokens(), before + answer.usage.prompt_tokens)

    def test_no_event_is_refused(self):
        self.chat(MESSAGES * 4)
        wait_until("an event was taken", lambda: self.stored_events() > 0)
        page = self.http.get("/metrics").text
        refused = re.findall(r'^dynamo_component_kv_cache_events_applied{.*status="(?!ok")\w+".*} (\S+)$', page, re.MULTILINE)
        self.assertTrue(refused)
        self.assertFalse(any(map(float, refused)), page)

    def stored_events(self):
        page = self.http.get("/metrics").text
        name = 'dynamo_component_kv_cache_events_applied{.*event_type="stored",status="ok".*}'
        return sum(float(value) for value in re.findall(rf"^{name} (\S+)$", page, re.MULTILINE))

    def test_a_client_that_leaves_is_cancelled_in_its_engine(self):
        before = self.aborted()
        with self.endless("/v1/chat/completions", messages=MESSAGES):
            wait_until("the request runs", lambda: sum(self.running()) == 1)
        self.wait_until_whole()
        self.assertEqual(self.aborted(), before + 1)
