"""Tests of tools, structured output and reasoning with the unmodified litellm."""

import json
import os

# Without this variable, importing litellm requests prices over the network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from agents import HAMLET, LINES, LISBON, MODEL, NOTE, RESULTS, TOOLS, Play, user
from world import URL, World

litellm.telemetry = False


class LiteLlm(World):
    def complete(self, question, **options):
        messages = [user(question)] if isinstance(question, str) else question
        return litellm.completion(
            model=f"openai/{MODEL}", api_base=f"{URL}/v1", api_key="none", messages=messages, max_retries=0, **options
        )

    def names_and_arguments(self, message):
        calls = message.tool_calls or []
        return [(call.function.name, json.loads(call.function.arguments)) for call in calls]

    def test_an_answer_and_its_usage(self):
        answer = self.complete("Hello")
        self.assertEqual(answer.choices[0].message.content, LINES[""])
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_tools_are_called(self):
        named = {"type": "function", "function": {"name": "weather"}}
        for choice in ("auto", "required", named):
            with self.subTest(choice):
                answer = self.complete("What is the weather in Lisbon?", tools=TOOLS, tool_choice=choice)
                self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
                self.assertEqual(self.names_and_arguments(answer.choices[0].message), [("weather", LISBON)])

    def test_a_stream_builds_the_same_message(self):
        for question in ("Compare Lisbon and Oslo.", "Think first.", "Hello"):
            with self.subTest(question):
                whole = self.complete(question, tools=TOOLS).choices[0]
                chunks = list(self.complete(question, tools=TOOLS, stream=True))
                built = litellm.stream_chunk_builder(chunks).choices[0]
                self.assertEqual(self.names_and_arguments(built.message), self.names_and_arguments(whole.message))
                self.assertEqual(built.message.content or "", whole.message.content or "")
                self.assertEqual(built.finish_reason, whole.finish_reason)
                thoughts = [getattr(choice.message, "reasoning_content", None) for choice in (built, whole)]
                self.assertEqual(*thoughts)

    def test_two_tools_and_an_answer(self):
        conversation = [user("Plan my evening.")]
        called = []
        while True:
            message = self.complete(conversation, tools=TOOLS).choices[0].message
            conversation.append(message)
            if not message.tool_calls:
                break
            called += self.names_and_arguments(message)
            for call in message.tool_calls:
                result = {"role": "tool", "tool_call_id": call.id, "content": RESULTS[call.function.name]}
                conversation.append(result)
        self.assertEqual(called, [("weather", LISBON), ("seat", {"row": 4, "note": NOTE})])
        self.assertEqual(message.content, LINES['"booked": 4'])

    def test_an_answer_follows_a_model(self):
        answer = self.complete("Describe the play.", response_format=Play)
        self.assertEqual(Play.model_validate_json(answer.choices[0].message.content), HAMLET)

    def test_thoughts_are_kept_apart(self):
        message = self.complete("Think first.").choices[0].message
        self.assertEqual((message.reasoning_content.strip(), message.content.strip()), ("One and one.", "Two."))

    def test_a_refusal_is_the_clients_error(self):
        with self.assertRaises(litellm.BadRequestError):
            self.complete("Hello", tools=[TOOLS[0], TOOLS[0]])
