"""Tests of a server that admits two requests, with clients that send more."""

import openai
from world import LONG, World, openai_client

ENDLESS = {"model": "any", "prompt": "Once upon a time", "max_tokens": LONG, "extra_body": {"ignore_eos": True}}
SHORT = {"model": "any", "prompt": "Hello", "max_tokens": 1}


class Overload(World):
    def test_a_request_above_the_limit_gets_503_and_retry_after(self):
        streams = [self.client.completions.create(stream=True, **ENDLESS) for _ in range(2)]
        for stream in streams:
            next(stream)
        with self.assertRaises(openai.InternalServerError) as raised:
            self.client.completions.create(**SHORT)
        error = raised.exception
        self.assertEqual((error.status_code, error.code, error.type), (503, "overloaded", "service_unavailable_error"))
        self.assertIn("limit is 2", error.body["message"])
        self.assertGreaterEqual(int(error.response.headers["retry-after"]), 1)
        for stream in streams:
            stream.close()

    def test_a_client_that_retries_is_admitted(self):
        streams = [self.client.completions.create(stream=True, **ENDLESS) for _ in range(2)]
        refused = []

        def on_response(response):
            refused.append(response.status_code)
            # With the streams closed, no other request delays the next attempt.
            for stream in streams:
                stream.close()

        retrying = openai_client(max_retries=5)
        retrying._client.event_hooks["response"].append(on_response)
        with retrying:
            completion = retrying.completions.create(**SHORT)
        self.assertEqual(completion.usage.completion_tokens, 1)
        self.assertEqual((refused[0], refused[-1]), (503, 200))

    def test_a_list_of_prompts_that_does_not_fit_is_refused_whole(self):
        with self.assertRaises(openai.InternalServerError) as raised:
            self.client.completions.create(**{**SHORT, "prompt": ["a", "b", "c"]})
        self.assertEqual(raised.exception.code, "overloaded")
