"""Tests of tools, thinking, token counts and errors of `/v1/messages`, with the unmodified Anthropic client."""

import json

import anthropic
from agents import HAMLET, LINES, LISBON, MODEL, NOTE, RESULTS, TOOLS, Play, user
from world import URL, World

LISBON_QUESTION = "What is the weather in Lisbon?"


def tool(function):
    """A shared tool as Anthropic's clients declare it."""
    function = function["function"]
    schema = function.get("parameters", {"type": "object", "properties": {}})
    return {"name": function["name"], "description": function["description"], "input_schema": schema}


ANTHROPIC_TOOLS = [tool(function) for function in TOOLS]


class Messages(World):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.anthropic = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
        cls.addClassCleanup(cls.anthropic.close)

    def options(self, question, options):
        messages = [user(question)] if isinstance(question, str) else question
        return {"model": MODEL, "max_tokens": 500, "messages": messages} | options

    def ask(self, question, **options):
        return self.anthropic.messages.create(**self.options(question, options))

    def streamed(self, question, **options):
        """The message that the client builds from a stream."""
        with self.anthropic.messages.stream(**self.options(question, options)) as stream:
            for _ in stream:
                pass
            return stream.get_final_message()


class Answers(Messages):
    def test_an_answer_has_the_shape_that_the_client_knows(self):
        message = self.ask("Hello")
        self.assertEqual((message.type, message.role, message.stop_reason), ("message", "assistant", "end_turn"))
        self.assertRegex(message.id, r"^msg_\w+$")
        self.assertEqual([(block.type, block.text) for block in message.content], [("text", LINES[""])])
        self.assertRegex(message._request_id, r"^req_\w+$")
        usage = message.usage
        self.assertGreater(usage.output_tokens, 0)
        prompt = usage.input_tokens + usage.cache_read_input_tokens
        counted = self.anthropic.messages.count_tokens(model=MODEL, messages=[user("Hello")])
        self.assertEqual(counted.input_tokens, prompt)
        self.assertEqual(self.ask("Hello").usage.cache_read_input_tokens, prompt - 1)

    def test_a_stream_gives_text_and_the_same_message(self):
        with self.anthropic.messages.stream(**self.options("Hello", {})) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        self.assertEqual(text, LINES[""])
        self.assertEqual([block.text for block in message.content], [LINES[""]])
        kinds = [event.type for event in self.ask("Hello", stream=True)]
        self.assertEqual(kinds[:2], ["message_start", "content_block_start"])
        self.assertEqual(kinds[-3:], ["content_block_stop", "message_delta", "message_stop"])
        self.assertEqual(set(kinds[2:-3]), {"content_block_delta"})

    def test_stop_sequences_and_max_tokens_end_answers(self):
        message = self.ask("Hello", stop_sequences=["nothing"])
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", "nothing"))
        self.assertEqual(message.content[0].text, "I have ")
        self.assertEqual(self.ask("Hello", max_tokens=1).stop_reason, "max_tokens")

    def test_an_async_client_is_answered_too(self):
        import asyncio

        async def ask():
            async with anthropic.AsyncAnthropic(base_url=URL, api_key="none", max_retries=0) as client:
                async with client.messages.stream(**self.options("Hello", {})) as stream:
                    return await stream.get_final_text()

        self.assertEqual(asyncio.run(ask()), LINES[""])

    def test_an_answer_is_parsed_by_a_model(self):
        message = self.anthropic.messages.parse(**self.options("Describe the play.", {}), output_format=Play)
        self.assertEqual(message.parsed_output, HAMLET)


class Tools(Messages):
    def test_tools_are_called(self):
        for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "weather"}):
            for ask in (self.ask, self.streamed):
                with self.subTest(choice=choice, ask=ask.__name__):
                    message = ask(LISBON_QUESTION, tools=ANTHROPIC_TOOLS, tool_choice=choice)
                    self.assertEqual(message.stop_reason, "tool_use")
                    (call,) = message.content
                    self.assertEqual((call.type, call.name, call.input), ("tool_use", "weather", LISBON))
                    self.assertRegex(call.id, r"^toolu_\w+$")
        none = self.ask("Hello", tools=ANTHROPIC_TOOLS, tool_choice={"type": "none"})
        self.assertEqual(none.content[0].text, LINES[""])

    def test_one_call_where_no_more_are_allowed(self):
        two = self.ask("Compare Lisbon and Oslo.", tools=ANTHROPIC_TOOLS)
        self.assertEqual([block.type for block in two.content], ["text", "tool_use", "tool_use"])
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        one = self.ask("Compare Lisbon and Oslo.", tools=ANTHROPIC_TOOLS, tool_choice=choice)
        self.assertEqual([block.type for block in one.content], ["text", "tool_use"])

    def test_an_evening_is_planned_with_two_tools(self):
        for ask in (self.ask, self.streamed):
            messages = [user("Plan my evening.")]
            called = []
            for _ in range(3):
                message = ask(messages, tools=ANTHROPIC_TOOLS, thinking={"type": "enabled", "budget_tokens": 1024})
                messages.append({"role": "assistant", "content": message.content})
                calls = [block for block in message.content if block.type == "tool_use"]
                if not calls:
                    break
                called += [(call.name, call.input) for call in calls]
                results = [
                    {"type": "tool_result", "tool_use_id": call.id, "content": RESULTS[call.name]} for call in calls
                ]
                messages.append({"role": "user", "content": results})
            self.assertEqual(called, [("weather", LISBON), ("seat", {"row": 4, "note": NOTE})])
            self.assertEqual(message.content[-1].text, LINES['"booked": 4'])
            self.assertEqual(message.stop_reason, "end_turn")

    def test_hosted_tools_are_ignored(self):
        search = {"type": "web_search_20250305", "name": "web_search"}
        message = self.ask(LISBON_QUESTION, tools=[search, *ANTHROPIC_TOOLS])
        self.assertEqual([block.type for block in message.content], ["tool_use"])


class Thinking(Messages):
    def test_thinking_is_a_separate_block(self):
        for ask in (self.ask, self.streamed):
            message = ask("Think first.", thinking={"type": "enabled", "budget_tokens": 1024})
            thought, text = message.content
            self.assertEqual((thought.type, text.type), ("thinking", "text"))
            self.assertEqual((thought.thinking.strip(), text.text), ("One and one.", "Two."))
            self.assertTrue(thought.signature)
            details = message.usage.output_tokens_details
            self.assertTrue(0 < details.thinking_tokens < message.usage.output_tokens, details)

    def test_thinking_is_switched_off(self):
        def count(thinking):
            messages = [user("Hello")]
            counted = self.anthropic.messages.count_tokens(model=MODEL, messages=messages, thinking=thinking)
            return counted.input_tokens

        self.assertGreater(count({"type": "disabled"}), count({"type": "adaptive"}))


class Errors(Messages):
    def check(self, kind, error_type, part, call):
        with self.assertRaises(anthropic.APIStatusError) as raised:
            call()
        error = raised.exception
        self.assertIs(type(error), kind)
        self.assertEqual((error.body["type"], error.body["error"]["type"]), ("error", error_type))
        self.assertIn(part, error.body["error"]["message"])
        self.assertEqual(error.request_id, error.body["request_id"])
        self.assertRegex(error.request_id, r"^req_\w+$")

    def test_fields_are_refused_by_name(self):
        image = [{"type": "image", "source": {"type": "url", "url": "http://localhost/x.png"}}]
        for ask in (self.ask, self.streamed):
            for part, options in [
                ("temperature is -1", {"extra_body": {"temperature": -1}}),
                ("tool_choice.name is", {"tools": ANTHROPIC_TOOLS, "tool_choice": {"type": "tool", "name": "x"}}),
                ("messages[0].content[0].type", {"messages": [{"role": "user", "content": image}]}),
                ("mcp_servers", {"extra_body": {"mcp_servers": [{"name": "x"}]}}),
            ]:
                call = lambda: ask("Hello", **options)  # noqa: E731
                self.check(anthropic.BadRequestError, "invalid_request_error", part, call)

    def test_a_prompt_that_is_too_long(self):
        long = lambda: self.ask("word " * 70_000)  # noqa: E731
        self.check(anthropic.BadRequestError, "invalid_request_error", "prompt is too long: ", long)

    def test_a_body_that_is_too_large(self):
        large = lambda: self.ask("x" * (17 << 20))  # noqa: E731
        self.check(anthropic.RequestTooLargeError, "request_too_large", "bytes", large)

    def test_hints_are_ignored(self):
        message = self.ask(
            [{"role": "user", "content": [{"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}]}],
            metadata={"user_id": "x"}, service_tier="auto", extra_body={"context_management": {"edits": []}},
            extra_headers={"anthropic-beta": "interleaved-thinking-2025-05-14"},
        )
        self.assertEqual(message.content[0].text, LINES[""])
        self.assertEqual(json.loads(message.to_json())["role"], "assistant")
