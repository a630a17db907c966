"""Tests of tools, structured output and reasoning with the unmodified langchain-ollama."""

import functools
import operator

import ollama
from agents import HAMLET, LINES, LISBON, NOTE, RESULTS, TOOLS, Play
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaLLM
from world import URL, World


class LangChainOllama(World):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (listed,) = cls.http.get("/api/tags").json()["models"]
        cls.name = listed["name"].removesuffix(":latest")
        cls.model = ChatOllama(model=cls.name, base_url=URL, validate_model_on_init=True)

    def names_and_arguments(self, message):
        return [(call["name"], call["args"]) for call in message.tool_calls]

    def test_an_answer_and_its_usage(self):
        answer = self.model.invoke("Hello")
        self.assertEqual(answer.content, LINES[""])
        self.assertEqual(answer.response_metadata["done_reason"], "stop")
        usage = answer.usage_metadata
        self.assertGreater(usage["output_tokens"], 0)
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])

    def test_streamed_calls_add_up(self):
        stream = self.model.bind_tools(TOOLS).stream("Compare Lisbon and Oslo.")
        whole = functools.reduce(operator.add, stream)
        calls = [("weather", LISBON), ("weather", {"city": "Oslo", "days": 1})]
        self.assertEqual(self.names_and_arguments(whole), calls)
        self.assertEqual(whole.content.strip(), "I look at both.")

    def test_two_tools_and_an_answer(self):
        bound = self.model.bind_tools(TOOLS)
        conversation = [HumanMessage("Plan my evening.")]
        called = []
        while (answer := bound.invoke(conversation)).tool_calls:
            conversation.append(answer)
            for call in answer.tool_calls:
                called.append((call["name"], call["args"]))
                conversation.append(ToolMessage(RESULTS[call["name"]], tool_call_id=call["id"]))
        self.assertEqual(called, [("weather", LISBON), ("seat", {"row": 4, "note": NOTE})])
        self.assertEqual(answer.content, LINES['"booked": 4'])

    def test_structured_output_by_every_method(self):
        for method, question in (
            ("json_schema", "Describe the play."),
            ("json_mode", "Describe the play."),
            ("function_calling", "Describe the play in a call."),
        ):
            with self.subTest(method):
                structured = self.model.with_structured_output(Play, method=method)
                self.assertEqual(structured.invoke(question), HAMLET)

    def test_reasoning_is_kept_apart(self):
        thinker = ChatOllama(model=self.name, base_url=URL, reasoning=True)
        answer = thinker.invoke("Think first.")
        self.assertEqual(answer.content, "Two.")
        self.assertEqual(answer.additional_kwargs["reasoning_content"].strip(), "One and one.")

    def test_plain_prompts(self):
        self.assertEqual(OllamaLLM(model=self.name, base_url=URL).invoke("Hello"), LINES[""])

    def test_another_model_is_the_clients_error(self):
        with self.assertRaises(ollama.ResponseError):
            ChatOllama(model="other", base_url=URL).invoke("Hello")
        with self.assertRaises(ValueError):
            ChatOllama(model="other", base_url=URL, validate_model_on_init=True)
