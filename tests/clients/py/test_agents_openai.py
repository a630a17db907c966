"""Tests of tools, structured output and reasoning in chat completions, with the unmodified OpenAI client."""

import json

import openai
from agents import CLOCK, HAMLET, LINES, LISBON, MODEL, NOTE, RESULTS, SEAT, TOOLS, WEATHER, Play, function, user
from pydantic import BaseModel
from world import World

LISBON_QUESTION = "What is the weather in Lisbon?"
COMPARISON = "Compare Lisbon and Oslo."
CLOCK_CHOICE = {"type": "function", "function": {"name": "clock"}}


class Weather(BaseModel):
    """The weather of some days."""

    city: str
    days: int


STRICT_WEATHER = openai.pydantic_function_tool(Weather, name="weather")


class Agents(World):
    def chat(self, question, **options):
        messages = [user(question)] if isinstance(question, str) else question
        return self.client.chat.completions.create(model=MODEL, messages=messages, **options)

    def choice(self, question, **options):
        (choice,) = self.chat(question, **options).choices
        return choice

    def calls(self, question, **options):
        """Name and arguments of each call of an answer that consists of calls."""
        choice = self.choice(question, **options)
        self.assertEqual(choice.finish_reason, "tool_calls")
        ids = [call.id for call in choice.message.tool_calls]
        self.assertEqual(len(set(ids)), len(ids))
        return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]


class Tools(Agents):
    def test_a_call_has_the_shape_that_the_client_knows(self):
        choice = self.choice(LISBON_QUESTION, tools=TOOLS)
        self.assertEqual((choice.finish_reason, choice.message.role), ("tool_calls", "assistant"))
        self.assertEqual((choice.message.content, choice.message.refusal), (None, None))
        (call,) = choice.message.tool_calls
        self.assertEqual((call.type, call.function.name), ("function", "weather"))
        self.assertRegex(call.id, r"^call_\w+$")
        # The arguments are exactly as the model wrote them.
        self.assertEqual(call.function.arguments, '{"city": "Lisbon", "days": 3}')

    def test_every_choice_of_tools_is_obeyed(self):
        named = {"type": "function", "function": {"name": "weather"}}
        allowed = [{"type": "function", "function": {"name": "weather"}}]
        for choice in (
            "auto",
            "required",
            named,
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed}},
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": allowed}},
        ):
            with self.subTest(choice):
                self.assertEqual(self.calls(LISBON_QUESTION, tools=TOOLS, tool_choice=choice), [("weather", LISBON)])

    def test_a_required_tool_is_called_regardless_of_the_models_reply(self):
        only_clock = {"mode": "required", "tools": [{"type": "function", "function": {"name": "clock"}}]}
        for choice in (CLOCK_CHOICE, {"type": "allowed_tools", "allowed_tools": only_clock}):
            with self.subTest(choice):
                calls = self.calls(LISBON_QUESTION, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
                self.assertEqual(calls, [("clock", {})])

    def test_a_model_that_may_call_tools_may_also_answer(self):
        choice = self.choice("Hello", tools=TOOLS)
        self.assertEqual((choice.finish_reason, choice.message.tool_calls), ("stop", None))
        self.assertEqual(choice.message.content, LINES[""])

    def test_with_tool_choice_none_the_prompt_has_no_tools(self):
        without = self.chat("Hello")
        none = self.chat("Hello", tools=TOOLS, tool_choice="none")
        self.assertEqual(none.choices[0].message, without.choices[0].message)
        self.assertEqual(none.usage.prompt_tokens, without.usage.prompt_tokens)
        self.assertGreater(self.chat("Hello", tools=TOOLS).usage.prompt_tokens, without.usage.prompt_tokens)

    def test_calls_may_be_parallel(self):
        both = [("weather", LISBON), ("weather", {"city": "Oslo", "days": 1})]
        self.assertEqual(self.calls(COMPARISON, tools=TOOLS), both)
        self.assertEqual(self.choice(COMPARISON, tools=TOOLS).message.content.strip(), "I look at both.")
        self.assertEqual(self.calls(COMPARISON, tools=TOOLS, parallel_tool_calls=False), both[:1])

    def test_a_tool_without_parameters_is_called_with_none(self):
        self.assertEqual(self.calls("What time is it?", tools=[CLOCK]), [("clock", {})])

    def test_two_tools_and_an_answer(self):
        for stream in (False, True):
            with self.subTest(stream=stream):
                self.evening(stream)

    def evening(self, stream):
        conversation = [{"role": "developer", "content": "Be brief."}, user("Plan my evening.")]
        called = []
        while True:
            message = self.turn(conversation, stream)
            conversation.append(message)
            if not message.get("tool_calls"):
                break
            for call in message["tool_calls"]:
                name = call["function"]["name"]
                called.append((name, json.loads(call["function"]["arguments"])))
                conversation.append({"role": "tool", "tool_call_id": call["id"], "content": RESULTS[name]})
        self.assertEqual(called, [("weather", LISBON), ("seat", {"row": 4, "note": NOTE})])
        self.assertEqual(message["content"], "The sky is clear, and row 4 is yours.")
        self.assertEqual(conversation[2]["reasoning_content"].strip(), "The weather decides.")

    def turn(self, conversation, stream):
        """The assistant's next message, as a dictionary."""
        if not stream:
            return self.choice(conversation, tools=TOOLS).message.model_dump(exclude_none=True)
        with self.client.chat.completions.stream(model=MODEL, messages=conversation, tools=STRICT_TOOLS) as events:
            events.until_done()
            message = events.get_final_completion().choices[0].message
        dumped = message.model_dump(exclude_none=True, exclude={"parsed"})
        for call in dumped.get("tool_calls", []):
            call["function"].pop("parsed_arguments", None)
        return dumped

    def test_each_choice_has_its_own_call(self):
        answer = self.chat(LISBON_QUESTION, tools=TOOLS, n=2)
        ids = set()
        for choice in answer.choices:
            (call,) = choice.message.tool_calls
            ids.add(call.id)
            self.assertEqual((choice.finish_reason, json.loads(call.function.arguments)), ("tool_calls", LISBON))
        self.assertEqual(len(ids), 2)

    def test_log_probabilities_cover_the_call(self):
        choice = self.choice(LISBON_QUESTION, tools=TOOLS, logprobs=True, top_logprobs=2)
        generated = b"".join(bytes(token.bytes) for token in choice.logprobs.content).decode()
        self.assertEqual(generated.removesuffix("<|im_end|>"), LINES["weather in Lisbon"])
        stream = self.chat(LISBON_QUESTION, tools=TOOLS, logprobs=True, top_logprobs=2, stream=True)
        chunks = [chunk.choices[0] for chunk in stream]
        tokens = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content]
        self.assertEqual(tokens, choice.logprobs.content)

    def test_a_truncated_answer_has_finish_reason_length(self):
        choice = self.choice(LISBON_QUESTION, tools=TOOLS, max_tokens=8)
        self.assertEqual(choice.finish_reason, "length")

    def test_content_parts_of_tools_and_assistants_are_text(self):
        call = {"id": "call_1", "type": "function", "function": {"name": "seat", "arguments": '{"row": 4}'}}
        conversation = [
            user([{"type": "text", "text": "A seat, please."}]),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": RESULTS["seat"]}]},
        ]
        self.assertEqual(self.choice(conversation, tools=TOOLS).message.content, LINES['"booked": 4'])


STRICT_TOOLS = [
    {**tool, "function": {**tool["function"], "strict": True}} for tool in (WEATHER, SEAT)
]


class Streams(Agents):
    def chunks(self, question, **options):
        return list(self.chat(question, stream=True, stream_options={"include_usage": True}, **options))

    def check_order(self, chunks, choices=1):
        """Checks that each choice begins with its role and ends with its finish reason, and that the usage comes last."""
        *chunks, last = chunks
        self.assertEqual(last.choices, [])
        self.assertEqual(last.usage.total_tokens, last.usage.prompt_tokens + last.usage.completion_tokens)
        self.assertEqual({chunk.object for chunk in [*chunks, last]}, {"chat.completion.chunk"})
        first_indices = list(dict.fromkeys(chunk.choices[0].index for chunk in chunks))
        self.assertEqual(first_indices, list(range(choices)))
        for index in range(choices):
            own = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
            self.assertEqual(own[0].delta.role, "assistant")
            self.assertEqual([choice.delta.role for choice in own[1:]], [None] * (len(own) - 1))
            self.assertIsNotNone(own[-1].finish_reason)
            self.assertEqual([choice.finish_reason for choice in own[:-1]], [None] * (len(own) - 1))

    def check_calls(self, choices):
        """Checks that calls do not interleave, and that the id and name of a call come once, before the arguments."""
        calls = []
        for choice in choices:
            for delta in choice.delta.tool_calls or []:
                if delta.id is not None:
                    self.assertEqual((delta.index, delta.type), (len(calls), "function"))
                    self.assertTrue(delta.function.name)
                    calls.append([delta.id, delta.function.name, delta.function.arguments])
                else:
                    self.assertEqual((delta.index, delta.type, delta.function.name), (len(calls) - 1, None, None))
                    calls[-1][2] += delta.function.arguments
        return calls

    def test_a_streamed_call_is_the_whole_one_in_parts(self):
        for question in (LISBON_QUESTION, COMPARISON, "Plan my evening.", "Hello"):
            with self.subTest(question):
                whole = self.choice(question, tools=TOOLS)
                chunks = self.chunks(question, tools=TOOLS)
                self.check_order(chunks)
                choices = [chunk.choices[0] for chunk in chunks[:-1]]
                self.assertEqual(choices[-1].finish_reason, whole.finish_reason)
                calls = [
                    (call.function.name, call.function.arguments) for call in whole.message.tool_calls or []
                ]
                self.assertEqual([(name, text) for _, name, text in self.check_calls(choices)], calls)
                text = "".join(choice.delta.content or "" for choice in choices)
                self.assertEqual(text, whole.message.content or "")
                thoughts = "".join(getattr(choice.delta, "reasoning_content", None) or "" for choice in choices)
                self.assertEqual(thoughts, getattr(whole.message, "reasoning_content", None) or "")

    def test_arguments_come_in_parts(self):
        parts = [
            delta.function.arguments
            for chunk in self.chunks(LISBON_QUESTION, tools=TOOLS)[:-1]
            for delta in chunk.choices[0].delta.tool_calls or []
        ]
        self.assertGreater(sum(map(bool, parts)), 2)

    def test_choices_are_streamed_concurrently(self):
        chunks = self.chunks(COMPARISON, tools=TOOLS, n=2)
        self.check_order(chunks, choices=2)
        for index in range(2):
            choices = [chunk.choices[0] for chunk in chunks[:-1] if chunk.choices[0].index == index]
            self.assertEqual([name for _, name, _ in self.check_calls(choices)], ["weather", "weather"])

    def test_the_clients_own_reader_puts_calls_together(self):
        with self.client.chat.completions.stream(
            model=MODEL, messages=[user(COMPARISON)], tools=[STRICT_WEATHER]
        ) as events:
            done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
            final = events.get_final_completion()
        self.assertEqual([(event.index, event.name) for event in done], [(0, "weather"), (1, "weather")])
        self.assertEqual(done[0].parsed_arguments, Weather(**LISBON))
        parsed = [call.function.parsed_arguments for call in final.choices[0].message.tool_calls]
        self.assertEqual(parsed, [Weather(**LISBON), Weather(city="Oslo", days=1)])
        self.assertEqual(final.choices[0].finish_reason, "tool_calls")

    def test_the_clients_own_reader_parses_content(self):
        with self.client.chat.completions.stream(
            model=MODEL, messages=[user("Describe the play.")], response_format=Play
        ) as events:
            (done,) = [event for event in events if event.type == "content.done"]
        self.assertEqual(done.parsed, HAMLET)


class StructuredOutput(Agents):
    def test_an_answer_is_parsed_into_a_model(self):
        answer = self.client.chat.completions.parse(
            model=MODEL, messages=[user("Describe the play.")], response_format=Play
        )
        self.assertEqual(answer.choices[0].message.parsed, HAMLET)
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_arguments_are_parsed_into_a_model(self):
        answer = self.client.chat.completions.parse(
            model=MODEL, messages=[user(LISBON_QUESTION)], tools=[STRICT_WEATHER]
        )
        (call,) = answer.choices[0].message.tool_calls
        self.assertEqual(call.function.parsed_arguments, Weather(**LISBON))

    def test_every_format_of_a_response(self):
        schema = {"name": "play", "schema": Play.model_json_schema(), "strict": True}
        for response_format in (
            {"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": schema},
        ):
            with self.subTest(response_format["type"]):
                choice = self.choice("Describe the play.", response_format=response_format)
                self.assertEqual(json.loads(choice.message.content), HAMLET.model_dump())
                stream = self.chat("Describe the play.", response_format=response_format, stream=True)
                parts = [chunk.choices[0].delta.content or "" for chunk in stream]
                self.assertEqual("".join(parts), choice.message.content)

    def test_a_schema_is_followed_regardless_of_the_models_reply(self):
        schema = {"type": "object", "properties": {"open": {"enum": [True]}}, "required": ["open"],
                  "additionalProperties": False}
        response_format = {"type": "json_schema", "json_schema": {"name": "open", "schema": schema, "strict": True}}
        choice = self.choice("Hello", response_format=response_format)
        self.assertEqual((json.loads(choice.message.content), choice.finish_reason), ({"open": True}, "stop"))

    def test_tools_and_a_schema_leave_the_model_the_choice(self):
        schema = {"name": "play", "schema": Play.model_json_schema(), "strict": True}
        options = {"tools": TOOLS, "response_format": {"type": "json_schema", "json_schema": schema}}
        self.assertEqual(self.calls(LISBON_QUESTION, **options), [("weather", LISBON)])
        self.assertEqual(json.loads(self.choice("Describe the play.", **options).message.content), HAMLET.model_dump())


class Reasoning(Agents):
    def test_thoughts_are_kept_apart_from_the_answer(self):
        answer = self.chat("Think first.")
        message = answer.choices[0].message
        self.assertEqual((message.reasoning_content.strip(), message.content.strip()), ("One and one.", "Two."))
        details = answer.usage.completion_tokens_details
        self.assertTrue(0 < details.reasoning_tokens < answer.usage.completion_tokens, details)

    def test_thoughts_are_streamed_before_the_answer(self):
        deltas = [chunk.choices[0].delta for chunk in self.chat("Think first.", stream=True)]
        kinds = [
            "thought" if getattr(delta, "reasoning_content", None) else "answer"
            for delta in deltas
            if getattr(delta, "reasoning_content", None) or delta.content
        ]
        self.assertEqual(kinds, sorted(kinds, reverse=True))
        thoughts = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        self.assertEqual(thoughts.strip(), "One and one.")

    def test_thoughts_may_stay_in_the_answer(self):
        message = self.choice("Think first.", extra_body={"separate_reasoning": False}).message
        self.assertEqual(message.content, LINES["Think first"])

    def test_no_effort_switches_thinking_off(self):
        """Without thinking, the template adds an empty thinking block to the prompt."""
        thinking = self.chat("Hello").usage.prompt_tokens
        off = self.chat("Hello", reasoning_effort="none").usage.prompt_tokens
        kwargs = self.chat("Hello", extra_body={"chat_template_kwargs": {"enable_thinking": False}}).usage.prompt_tokens
        self.assertGreater(off, thinking)
        self.assertEqual(off, kwargs)

    def test_an_answer_without_thoughts_has_none(self):
        message = self.choice("Hello").message
        self.assertIsNone(getattr(message, "reasoning_content", None))


class Refusals(Agents):
    def refuses(self, param, *parts, **options):
        """Checks that the options are refused with the name of the field, streaming or not."""
        for stream in (False, True):
            with self.assertRaises(openai.BadRequestError) as raised:
                self.chat("Hello", stream=stream, **options)
            error = raised.exception
            self.assertEqual(error.type, "invalid_request_error")
            self.assertTrue((error.param or "").startswith(param), error.body)
            for part in parts:
                self.assertIn(part, error.body["message"])

    def test_invalid_tools(self):
        self.refuses("tools", tools="weather")
        self.refuses("tools", tools=[{"type": "function"}])
        self.refuses("tools", "weather", tools=[WEATHER, WEATHER])
        self.refuses("tools", tools=[{"type": "custom", "custom": {"name": "free"}}])

    def test_tool_choices_without_a_matching_tool(self):
        self.refuses("tool_choice", tools=TOOLS, tool_choice="sometimes")
        self.refuses("tool_choice", "stage", tools=TOOLS,
                     tool_choice={"type": "function", "function": {"name": "stage"}})
        self.refuses("tool_choice", tool_choice="required")

    def test_schemas_that_cannot_be_obeyed(self):
        def json_schema(schema):
            return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}

        self.refuses("response_format", response_format={"type": "poem"})
        self.refuses("response_format", response_format=json_schema({"type": "no such type"}))
        self.refuses("response_format", "not", response_format=json_schema({"type": "string", "not": {"const": "x"}}))
        broken = function("broken", {"x": {"type": 12}}, strict=True)
        self.refuses("tools", tools=[broken], tool_choice="required")
