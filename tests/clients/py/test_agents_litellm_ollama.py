"""Tests of tools, structured output and reasoning with the Ollama provider of the unmodified litellm."""

import json
import os

# Without this variable, importing litellm requests prices over the network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from agents import HAMLET, LINES, LISBON, TOOLS, Play, user
from world import URL, World

litellm.telemetry = False


class LiteLlmOllama(World):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (listed,) = cls.http.get("/api/tags").json()["models"]
        cls.name = listed["name"].removesuffix(":latest")

    def complete(self, question, **options):
        model = options.pop("model", self.name)
        return litellm.completion(
            model=f"ollama_chat/{model}", api_base=URL, messages=[user(question)], max_retries=0, **options
        )

    def names_and_arguments(self, message):
        calls = message.tool_calls or []
        return [(call.function.name, json.loads(call.function.arguments)) for call in calls]

    def test_an_answer_and_its_usage(self):
        # litellm sends a frequency penalty as Ollama's penalty of repetitions.
        answer = self.complete("Hello", temperature=0, frequency_penalty=0)
        self.assertEqual(answer.choices[0].message.content, LINES[""])
        self.assertGreater(answer.usage.completion_tokens, 0)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)

    def test_tools_are_called(self):
        answer = self.complete("Tell me the weather in Lisbon.", tools=TOOLS)
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        self.assertEqual(self.names_and_arguments(answer.choices[0].message), [("weather", LISBON)])

    def test_a_stream_has_the_text_and_the_thought_of_the_whole_answer(self):
        for question in ("Hello", "Think first."):
            with self.subTest(question):
                whole = self.complete(question).choices[0].message
                deltas = [chunk.choices[0].delta for chunk in self.complete(question, stream=True)]
                self.assertEqual("".join(delta.content or "" for delta in deltas), whole.content)
                thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
                self.assertEqual("".join(thoughts), getattr(whole, "reasoning_content", None) or "")

    def test_an_answer_follows_a_model(self):
        answer = self.complete("Describe the play.", response_format=Play)
        self.assertEqual(Play.model_validate_json(answer.choices[0].message.content), HAMLET)

    def test_thoughts_are_kept_apart(self):
        message = self.complete("Think first.", reasoning_effort="low").choices[0].message
        self.assertEqual((message.reasoning_content.strip(), message.content.strip()), ("One and one.", "Two."))

    def test_another_model_is_the_clients_error(self):
        with self.assertRaisesRegex(Exception, "model 'other' not found"):
            self.complete("Hello", model="other")
