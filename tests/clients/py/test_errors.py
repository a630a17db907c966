"""Tests of errors as the unmodified OpenAI client raises them."""

import openai
from world import World

HELLO = [{"role": "user", "content": "Hello"}]


class Errors(World):
    def check(self, kind, code, param, parts, call, **options):
        """Checks that the call raises this error, and that its message contains every part."""
        with self.assertRaises(openai.APIStatusError) as raised:
            call(**options)
        error = raised.exception
        self.assertIs(type(error), kind)
        self.assertEqual((error.code, error.param, error.type), (code, param, "invalid_request_error"), error.body)
        self.assertEqual(set(error.body), {"message", "type", "param", "code"})
        for part in parts:
            self.assertIn(part, error.body["message"])

    def check_bad(self, param, parts, call, code="invalid_request", **options):
        self.check(openai.BadRequestError, code, param, parts, call, model="any", **options)

    def refuses(self, param, *parts, **options):
        """Checks that both endpoints refuse the options, streaming or not."""
        for stream in (False, True):
            self.check_bad(param, parts, self.client.completions.create, prompt="Hello", stream=stream, **options)
            self.check_bad(param, parts, self.client.chat.completions.create, messages=HELLO, stream=stream, **options)

    def test_sampling_out_of_range_names_value_and_limit(self):
        self.refuses("temperature", "temperature is -0.5", "at least 0", temperature=-0.5)
        self.refuses("top_p", "top_p is 1.5", "[0, 1]", top_p=1.5)
        self.refuses("presence_penalty", "presence_penalty is 3", "[-2, 2]", presence_penalty=3)
        self.refuses("frequency_penalty", "frequency_penalty is -3", "[-2, 2]", frequency_penalty=-3)
        self.refuses("n", "n is 0", "1 to 128", n=0)
        self.refuses("n", "n is 5000", "1 to 128", n=5000)
        self.refuses("logit_bias", "token id 99999", "2048", logit_bias={"99999": 1})
        self.refuses("stop", "stop has 40 strings", "32", stop=["x"] * 40)

    def test_negative_lengths_name_the_field(self):
        self.refuses("max_tokens", "max_tokens is -1", "at least 0", max_tokens=-1)
        self.refuses("max_tokens", "max_tokens is -9223372036854775808", max_tokens=-(2**63))

    def test_wrong_types_name_the_field(self):
        self.refuses("temperature", 'temperature is "hot"', "a number", temperature="hot")
        self.refuses("max_tokens", 'max_tokens is "8"', max_tokens="8")
        self.refuses("n", "n is 1.5", n=1.5)
        self.refuses("stop", "stop is 1", stop=1)
        self.refuses("seed", 'seed is "x"', seed="x")
        self.refuses("logit_bias", "not a token id", logit_bias={"x": 1})

    def test_unsupported_fields_are_refused_by_name(self):
        for param, value in (("audio", {"format": "wav", "voice": "alloy"}), ("web_search_options", {"a": 1})):
            self.check_bad(
                param, [f"{param} is not supported"], self.client.chat.completions.create,
                code="not_supported", messages=HELLO, **{param: value},
            )

    def test_errors_of_invalid_tools_and_formats_name_the_field(self):
        create = self.client.chat.completions.create
        custom = [{"type": "custom", "custom": {"name": "look_up"}}]
        self.check_bad("tools[0].type", ['"custom"'], create, messages=HELLO, tools=custom)
        kind = {"type": "xml"}
        self.check_bad("response_format.type", ['"xml"'], create, messages=HELLO, response_format=kind)

    def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(self):
        code, limit = "context_length_exceeded", "maximum context length is 409"
        parts = ["you requested 5000 tokens", limit]
        self.check_bad(None, parts, self.client.completions.create, code=code, prompt=[5] * 5000)
        long = [{"role": "user", "content": "word " * 5000}]
        self.check_bad(None, [limit], self.client.chat.completions.create, code=code, messages=long)

    def test_invalid_prompts_are_refused(self):
        for param, parts, prompt in (
            ("prompt", [], {}),
            ("prompt[0]", ["-1"], [-1]),
            ("prompt[1]", ["7"], ["a", 7]),
            (None, ["no tokens"], ""),
            (None, ["99999", "2048"], [5, 99999]),
        ):
            self.check_bad(param, parts, self.client.completions.create, prompt=prompt)

    def test_invalid_messages_are_refused(self):
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
        for param, conversation in (
            ("messages", []),
            ("messages", "hello"),
            ("messages[0]", ["hello"]),
            ("messages[0].role", [{"content": "hello"}]),
            ("messages[0].content", [{"role": "user", "content": 7}]),
            ("messages[0].content[0].type", image),
        ):
            self.check_bad(param, [param], self.client.chat.completions.create, messages=conversation)

    def test_unknown_models_and_routes_are_not_found(self):
        kind = openai.NotFoundError
        parts = ['"nobody"', '"souffleur-tiny"']
        self.check(kind, "model_not_found", "model", parts, self.client.models.retrieve, model="nobody")
        create = self.client.moderations.create
        self.check(kind, "not_found", None, ["/v1/moderations"], create, model="any", input="x")

    def test_another_method_is_refused(self):
        parts = ["GET", "POST"]
        get = self.client.get
        self.check(openai.APIStatusError, "method_not_allowed", None, parts, get, path="/completions", cast_to=object)

    def test_bodies_that_are_no_objects_are_refused(self):
        for body, part in ((b'{"prompt": ', "not valid JSON"), (b"[1]", "not a JSON object"), (b"", "not valid JSON")):
            headers = {"Content-Type": "application/json"}
            response = self.http.post("/v1/completions", content=body, headers=headers)
            self.assertEqual((response.status_code, response.json()["error"]["code"]), (400, "invalid_request"))
            self.assertIn(part, response.json()["error"]["message"])

    def test_a_refused_request_leaves_the_connection_usable(self):
        for _ in range(20):
            with self.assertRaises(openai.BadRequestError):
                self.client.completions.create(model="any", prompt="Hello", max_tokens=-1)
            self.client.completions.create(model="any", prompt="Hello", max_tokens=1)
