"""Tests of chats, tools, thinking, formats and discovery with the unmodified ollama-python."""

import asyncio

import ollama
from agents import HAMLET, LINES, LISBON, NOTE, RESULTS, TOOLS, Play, user
from world import URL, World


def weather(city: str, days: int) -> str:
    """Tells the weather.

    Args:
      city: The city.
      days: The number of days.
    """
    return RESULTS["weather"]


class Ollama(World):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ollama = ollama.Client(host=URL)
        cls.addClassCleanup(cls.ollama.close)
        (listed,) = cls.ollama.list().models
        cls.model = listed.model

    def chat(self, question, **options):
        messages = [user(question)] if isinstance(question, str) else question
        return self.ollama.chat(self.model, messages, **options)

    def names_and_arguments(self, message):
        return [(call.function.name, dict(call.function.arguments)) for call in message.tool_calls or []]

    def check_counts(self, answer):
        self.assertIs(answer.done, True)
        self.assertGreater(answer.prompt_eval_count, 0)
        self.assertGreater(answer.eval_count, 0)
        for duration in ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration"):
            self.assertIsInstance(answer[duration], int, duration)

    def test_the_model_is_listed_shown_and_running(self):
        (listed,) = self.ollama.list().models
        self.assertTrue(listed.model.endswith(":latest"))
        self.assertEqual(listed.details.family, "qwen3")
        self.assertGreater(listed.size, 0)
        (running,) = self.ollama.ps().models
        self.assertEqual((running.model, running.digest), (listed.model, listed.digest))
        self.assertGreater(running.expires_at, listed.modified_at)
        for name in (listed.model, listed.model.removesuffix(":latest")):
            shown = self.ollama.show(name)
            self.assertEqual(shown.modelinfo["general.architecture"], "qwen3")
            self.assertEqual(shown.modelinfo["qwen3.context_length"], running.context_length)
            self.assertLessEqual({"completion", "tools", "thinking"}, set(shown.capabilities))

    def test_an_answer_and_its_counts(self):
        answer = self.chat("Hello")
        self.assertEqual(answer.message.content, LINES[""])
        self.assertEqual(answer.done_reason, "stop")
        self.check_counts(answer)
        short = self.chat("Hello", options={"num_predict": 2, "num_ctx": 512, "seed": 1})
        self.assertEqual((short.done_reason, short.eval_count), ("length", 2))

    def test_a_stream_adds_up_to_the_whole_answer(self):
        for question in ("Hello", "Compare Lisbon and Oslo.", "Think first."):
            with self.subTest(question):
                whole = self.chat(question, tools=TOOLS)
                *parts, last = self.chat(question, tools=TOOLS, stream=True)
                self.assertFalse(any(part.done or part.eval_count is not None for part in parts))
                texts = [part.message.content or "" for part in parts]
                self.assertEqual("".join(texts), whole.message.content)
                thoughts = [part.message.thinking or "" for part in parts]
                self.assertEqual("".join(thoughts), whole.message.thinking or "")
                calls = [call for part in parts for call in self.names_and_arguments(part.message)]
                self.assertEqual(calls, self.names_and_arguments(whole.message))
                self.check_counts(last)
                self.assertEqual(last.eval_count, whole.eval_count)

    def test_functions_are_tools(self):
        answer = self.chat("Tell me the weather in Lisbon.", tools=[weather])
        self.assertEqual(self.names_and_arguments(answer.message), [("weather", LISBON)])

    def test_two_tools_and_an_answer(self):
        conversation = [user("Plan my evening.")]
        called = []
        while (message := self.chat(conversation, tools=TOOLS).message).tool_calls:
            conversation.append(message)
            for name, arguments in self.names_and_arguments(message):
                called.append((name, arguments))
                conversation.append({"role": "tool", "tool_name": name, "content": RESULTS[name]})
        self.assertEqual(called, [("weather", LISBON), ("seat", {"row": 4, "note": NOTE})])
        self.assertEqual(message.content, LINES['"booked": 4'])

    def test_an_answer_follows_a_schema(self):
        for format in (Play.model_json_schema(), "json"):
            answer = self.chat("Describe the play.", format=format)
            self.assertEqual(Play.model_validate_json(answer.message.content), HAMLET)

    def test_thoughts_are_kept_apart(self):
        for think in (True, "high", None):
            message = self.chat("Think first.", think=think).message
            self.assertEqual((message.thinking.strip(), message.content), ("One and one.", "Two."))

    def test_plain_prompts(self):
        answer = self.ollama.generate(self.model, "Hello", system="Be brief.")
        self.assertEqual(answer.response, LINES[""])
        self.check_counts(answer)
        parts = list(self.ollama.generate(self.model, "Hello", stream=True))
        self.assertEqual("".join(part.response for part in parts), LINES[""])
        loaded = self.ollama.generate(self.model, keep_alive=0)
        self.assertEqual((loaded.done, loaded.done_reason), (True, "unload"))

    def test_log_probabilities(self):
        answer = self.chat("Hello", logprobs=True, top_logprobs=1)
        self.assertEqual(len(answer.logprobs), answer.eval_count)

    def test_refusals_are_errors(self):
        with self.assertRaises(ollama.ResponseError) as refused:
            self.ollama.chat("other", [user("Hello")])
        self.assertEqual((refused.exception.error, refused.exception.status_code), ("model 'other' not found", 404))
        with self.assertRaises(ollama.ResponseError) as refused:
            list(self.ollama.chat("other", [user("Hello")], stream=True))
        self.assertEqual(refused.exception.status_code, 404)
        for options in ({"temperature": -1}, {"num_predict": "many"}):
            with self.assertRaises(ollama.ResponseError) as refused:
                self.chat("Hello", options=options)
            self.assertEqual(refused.exception.status_code, 400)
            self.assertIn(*options, refused.exception.error)
        with self.assertRaises(ollama.ResponseError) as refused:
            self.chat([{**user("Hello"), "images": ["iVBORw0KGgo="]}])
        self.assertIn("images", refused.exception.error)

    def test_the_asynchronous_client(self):
        async def ask():
            client = ollama.AsyncClient(host=URL)
            parts = [part async for part in await client.chat(self.model, [user("Hello")], stream=True)]
            await client.close()
            return "".join(part.message.content for part in parts)

        self.assertEqual(asyncio.run(ask()), LINES[""])
