"""Errors as the unmodified OpenAI client raises them."""

import openai
from world import World

HELLO = [{"role": "user", "content": "Hello"}]


class Errors(World):
    def check(self, kind, status, code, param, call, *parts):
        with self.assertRaises(openai.APIStatusError) as raised:
            call()
        error = raised.exception
        self.assertIs(type(error), kind)
        self.assertEqual((error.status_code, error.code, error.param), (status, code, param), error.body)
        self.assertEqual(error.type, "invalid_request_error")
        self.assertEqual(set(error.body), {"message", "type", "param", "code"})
        for part in parts:
            self.assertIn(part, error.body["message"])

    def refuses(self, param, *parts, code="invalid_request", **options):
        """Both endpoints refuse the options, streaming or not."""
        completions, chat = self.client.completions.create, self.client.chat.completions.create
        for stream in (False, True):
            for call in (
                lambda: completions(model="any", prompt="Hello", stream=stream, **options),
                lambda: chat(model="any", messages=HELLO, stream=stream, **options),
            ):
                self.check(openai.BadRequestError, 400, code, param, call, *parts)

    def test_sampling_out_of_range_names_value_and_limit(self):
        self.refuses("temperature", "temperature is -0.5", "at least 0", temperature=-0.5)
        self.refuses("top_p", "top_p is 1.5", "(0, 1]", top_p=1.5)
        self.refuses("presence_penalty", "presence_penalty is 3", "[-2, 2]", presence_penalty=3)
        self.refuses("frequency_penalty", "frequency_penalty is -3", "[-2, 2]", frequency_penalty=-3)
        self.refuses("n", "n is 0", "at least 1", n=0)
        self.refuses("n", "5000 samples", "limit is 1024", n=5000)
        self.refuses("logit_bias", "token 99999", "2048", logit_bias={"99999": 1})
        self.refuses("stop", "stop has 40 strings", "32", stop=["x"] * 40)

    def test_negative_lengths_name_the_field(self):
        self.refuses("max_tokens", "max_tokens is -1", "from 0", max_tokens=-1)
        self.refuses("max_tokens", "max_tokens is -9223372036854775808", max_tokens=-(2**63))

    def test_wrong_types_name_the_field(self):
        self.refuses("temperature", 'temperature is "hot"', "a number", temperature="hot")
        self.refuses("max_tokens", 'max_tokens is "8"', max_tokens="8")
        self.refuses("n", "n is 1.5", n=1.5)
        self.refuses("stop", "stop is 1", stop=1)
        self.refuses("seed", 'seed is "x"', seed="x")
        self.refuses("logit_bias", "not a token id", logit_bias={"x": 1})

    def test_what_is_not_supported_is_refused_by_name(self):
        create = self.client.chat.completions.create
        tools = [{"type": "function", "function": {"name": "look_up"}}]
        for param, options in (
            ("tools", {"tools": tools}),
            ("response_format", {"response_format": {"type": "json_object"}}),
        ):
            self.check(
                openai.BadRequestError, 400, "not_supported", param,
                lambda: create(model="any", messages=HELLO, **options), f"{param} is not supported",
            )

    def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(self):
        code = "context_length_exceeded"
        prompt = [5] * 5000
        call = lambda: self.client.completions.create(model="any", prompt=prompt)
        self.check(openai.BadRequestError, 400, code, None, call, "prompt has 5000 tokens", "limit is 409")
        long = [{"role": "user", "content": "word " * 5000}]
        call = lambda: self.client.chat.completions.create(model="any", messages=long)
        self.check(openai.BadRequestError, 400, code, None, call, "limit is 409")

    def test_prompts_that_are_none_are_refused(self):
        create = self.client.completions.create
        for param, prompt in (("prompt", {}), ("prompt[0]", [-1]), ("prompt[1]", ["a", 7])):
            call = lambda: create(model="any", prompt=prompt)
            self.check(openai.BadRequestError, 400, "invalid_request", param, call)
        for prompt in ("", [5, 99999]):
            with self.assertRaises(openai.BadRequestError):
                create(model="any", prompt=prompt)

    def test_messages_that_are_none_are_refused(self):
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        for param, conversation in (
            ("messages", []),
            ("messages", "hello"),
            ("messages[0]", ["hello"]),
            ("messages[0].role", [{"content": "hello"}]),
            ("messages[0].content", [{"role": "user", "content": 7}]),
            ("messages[0].content[0].type", image),
        ):
            call = lambda: self.client.chat.completions.create(model="any", messages=conversation)
            self.check(openai.BadRequestError, 400, "invalid_request", param, call)

    def test_what_does_not_exist_is_not_found(self):
        kind = openai.NotFoundError
        call = lambda: self.client.models.retrieve("nobody")
        self.check(kind, 404, "model_not_found", "model", call, '"nobody"', '"souffleur-tiny"')
        call = lambda: self.client.embeddings.create(model="any", input="x")
        self.check(kind, 404, "not_found", None, call, "/v1/embeddings")
        call = lambda: self.client.responses.create(model="any", input="x")
        self.check(kind, 404, "not_found", None, call, "/v1/responses")

    def test_other_methods_and_bodies_are_refused(self):
        call = lambda: self.client.get("/completions", cast_to=object)
        self.check(openai.APIStatusError, 405, "method_not_allowed", None, call, "GET", "POST")
        response = self.http.post("/v1/completions", content=b'{"prompt": ', headers={"content-type": "application/json"})
        self.assertEqual((response.status_code, response.json()["error"]["code"]), (400, "invalid_request"))
        self.assertIn("not valid JSON", response.json()["error"]["message"])
        response = self.http.post("/v1/completions", content=b"[1]")
        self.assertEqual(response.status_code, 400)

    def test_a_refused_request_leaves_the_connection_usable(self):
        for _ in range(20):
            with self.assertRaises(openai.BadRequestError):
                self.client.completions.create(model="any", prompt="Hello", max_tokens=-1)
            self.client.completions.create(model="any", prompt="Hello", max_tokens=1)
