"""Tests of Dynamo's frontend with two engines and their sidecars: answers equal those of an engine, and KV events
determine which engine gets a prompt."""

import re

import chats
from chats import MESSAGES
from world import wait_until


class Dynamo(chats.Chats):
    def test_completions_have_the_requested_length(self):
        prompt = self.client.completions.create(
            model=self.model, prompt="The curtain", temperature=0, max_tokens=8, extra_body={"ignore_eos": True}
        )
        self.assertEqual(prompt.usage.completion_tokens, 8)

    def test_no_event_is_refused(self):
        self.chat(MESSAGES * 4)
        wait_until("an event was applied", lambda: self.event_count() > 0)
        page = self.http.get("/metrics").text
        refused = re.findall(r'^dynamo_component_kv_cache_events_applied{.*status="(?!ok")\w+".*} (\S+)$', page, re.MULTILINE)
        self.assertTrue(refused)
        self.assertFalse(any(map(float, refused)), page)

    def event_count(self):
        page = self.http.get("/metrics").text
        name = 'dynamo_component_kv_cache_events_applied{.*event_type="stored",status="ok".*}'
        return sum(float(value) for value in re.findall(rf"^{name} (\S+)$", page, re.MULTILINE))
