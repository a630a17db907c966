"""Tests of a gateway with two engines: answers equal those of an engine, and prompts reach the engine with their prefix."""

import contextlib
import json

from fleet import Fleet
from world import wait_until

PLACES = ("Stage", "Pit", "Box", "Gallery", "Foyer", "Wings")
TURNS = 4
GREEDY = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}


class Gateway(Fleet):
    def tearDown(self):
        self.wait_until_idle()

    def test_turns_of_a_conversation_go_to_the_engine_that_cached_the_earlier_turns(self):
        self.flush()
        conversations = [
            [{"role": "user", "content": f"{place}: tell me what happens behind the curtain. " * 8}] for place in PLACES
        ]
        # All streams are in flight at once, so that both engines get some of them.
        with contextlib.ExitStack() as streams:
            for messages in conversations:
                streams.enter_context(self.endless("/v1/chat/completions", messages=messages))
            self.check_both_run(len(conversations))
        self.wait_until_idle()
        before = [engine.prompt_tokens() for engine in self.engines]
        cached = [100] * len(conversations)
        for turn in range(TURNS):
            for index, messages in enumerate(conversations):
                answer = self.chat(messages)
                usage = answer.usage
                self.assertGreaterEqual(usage.prompt_tokens_details.cached_tokens, cached[index])
                # The last tokens of a prompt open the answer. A later turn may render them differently.
                cached[index] = usage.prompt_tokens - 8
                messages.append({"role": "assistant", "content": answer.choices[0].message.content})
                messages.append({"role": "user", "content": f"And then, {turn}?"})
        shares = [engine.prompt_tokens() - seen for engine, seen in zip(self.engines, before)]
        self.assertTrue(all(shares), f"one engine computed all prompts: {shares}")

    def test_answers_equal_those_of_an_engine(self):
        for prompt in ({"text": "The curtain rises."}, {"input_ids": list(range(40, 60))}):
            direct = self.generate(self.engines[0].http, sampling_params=GREEDY, **prompt)
            through = self.generate(sampling_params=GREEDY, **prompt)
            self.assertEqual(through["output_ids"], direct["output_ids"])

    def test_streams_come_in_pieces_and_are_complete(self):
        options = {"model": self.model, "temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
        messages = [{"role": "user", "content": "Who is on the stage?"}]
        whole = self.client.chat.completions.create(messages=messages, **options)
        deltas = self.client.chat.completions.create(messages=messages, stream=True, **options)
        pieces = [choice.delta.content or "" for chunk in deltas for choice in chunk.choices]
        self.assertEqual("".join(pieces), whole.choices[0].message.content)
        self.assertGreater(len(pieces), 2)
        whole = self.client.completions.create(prompt="The curtain", **options)
        chunks = self.client.completions.create(prompt="The curtain", stream=True, **options)
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks), whole.choices[0].text)

    def test_a_native_stream_ends_as_an_engines_does(self):
        call = {"text": "The lights go out.", "sampling_params": GREEDY, "stream": True}
        with self.http.stream("POST", "/generate", json=call) as response:
            self.assertEqual(response.status_code, 200)
            events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        self.assertEqual(events[-1], "[DONE]")
        last = json.loads(events[-2])
        self.assertEqual(last["meta_info"]["completion_tokens"], GREEDY["max_new_tokens"])

    def test_the_request_of_a_disconnected_client_is_cancelled(self):
        before = self.aborted()
        with self.endless(text="A play without an end."):
            wait_until("the request runs", lambda: sum(self.running()) == 1)
        self.wait_until_idle()
        self.assertEqual(self.aborted(), before + 1)

    def test_the_load_of_engines_is_known(self):
        with self.paused_request(input_ids=list(range(40, 140))):
            wait_until("one of two engines has the load", self.is_one_loaded)
        self.wait_until_idle()
        wait_until("the load is gone", lambda: not any(self.loads()))

    def test_flushing_empties_every_engine_that_is_idle(self):
        for engine in self.engines:
            self.generate(engine.http, text="Once upon a time", sampling_params=GREEDY)
        self.wait_until_idle()
        self.assertTrue(all(engine.cached_tokens() for engine in self.engines))
        self.flush()
        self.assertFalse(any(engine.cached_tokens() for engine in self.engines))
        with self.paused_request(text="A play without an end."):
            refused = self.http.post("/flush_cache")
            self.assertEqual(refused.status_code, 206, refused.text)
