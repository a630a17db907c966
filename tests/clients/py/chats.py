"""Tests of every gateway that speaks gRPC with engines and receives their KV events."""

from fleet import Fleet
from world import wait_until

MESSAGES = [{"role": "user", "content": "Who is on the stage?"}]


class Chats(Fleet):
    """Import the module `chats`, not this class: unittest runs every test class that a module imports by name."""

    def tearDown(self):
        self.wait_until_idle()

    def event_count(self):
        """A number that grows with the KV events that the gateway has received."""
        raise NotImplementedError

    def test_answers_equal_those_of_an_engine(self):
        direct = self.ask(self.engines[0], MESSAGES)
        through = self.chat(MESSAGES)
        self.assertEqual(through.choices[0].message.content, direct["choices"][0]["message"]["content"])
        self.assertEqual(through.usage.prompt_tokens, direct["usage"]["prompt_tokens"])

    def test_streams_come_in_pieces_and_are_complete(self):
        whole = self.chat(MESSAGES)
        chunks = self.chat(MESSAGES, stream=True)
        pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
        self.assertEqual("".join(pieces), whole.choices[0].message.content)
        self.assertGreater(len(pieces), 2)

    def test_a_prompt_goes_to_the_engine_that_another_client_sent_it_to(self):
        for index, engine in enumerate(self.engines):
            messages = [{"role": "user", "content": f"Act {index}: tell me what happens behind the curtain. " * 8}]
            seen = self.event_count()
            self.ask(engine, messages)
            wait_until("the gateway has received the event", lambda seen=seen: self.event_count() > seen)
            before = engine.prompt_tokens()
            answer = self.chat(messages)
            self.assertGreaterEqual(answer.usage.prompt_tokens_details.cached_tokens, 64)
            self.assertEqual(engine.prompt_tokens(), before + answer.usage.prompt_tokens)

    def test_the_request_of_a_disconnected_client_is_cancelled(self):
        before = self.aborted()
        with self.endless("/v1/chat/completions", messages=MESSAGES):
            wait_until("the request runs", lambda: sum(self.running()) == 1)
        self.wait_until_idle()
        self.assertEqual(self.aborted(), before + 1)
