"""Tests of tools and structured output with the unmodified langchain-openai."""

import functools
import operator

import openai
from agents import HAMLET, LINES, LISBON, MODEL, NOTE, RESULTS, TOOLS, Play
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from world import URL, World


class LangChain(World):
    def setUp(self):
        self.model = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key="none", max_retries=0)

    def names_and_arguments(self, message):
        return [(call["name"], call["args"]) for call in message.tool_calls]

    def test_an_answer_and_its_usage(self):
        answer = self.model.invoke("Hello")
        self.assertEqual(answer.content, LINES[""])
        usage = answer.usage_metadata
        self.assertEqual(usage["total_tokens"], usage["input_tokens"] + usage["output_tokens"])

    def test_bound_tools_are_called(self):
        for choice in (None, "auto", "required", "weather"):
            with self.subTest(choice):
                bound = self.model.bind_tools(TOOLS, tool_choice=choice)
                answer = bound.invoke("What is the weather in Lisbon?")
                self.assertEqual(self.names_and_arguments(answer), [("weather", LISBON)])
                self.assertEqual(answer.response_metadata["finish_reason"], "tool_calls")
                self.assertEqual(answer.invalid_tool_calls, [])

    def test_streamed_calls_add_up(self):
        stream = self.model.bind_tools(TOOLS).stream("Compare Lisbon and Oslo.")
        whole = functools.reduce(operator.add, stream)
        calls = [("weather", LISBON), ("weather", {"city": "Oslo", "days": 1})]
        self.assertEqual(self.names_and_arguments(whole), calls)
        self.assertEqual(whole.content.strip(), "I look at both.")
        self.assertTrue(all(call["id"] for call in whole.tool_calls))

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

    def test_a_refusal_is_the_clients_error(self):
        bound = self.model.bind_tools([TOOLS[0], TOOLS[0]])
        with self.assertRaises(openai.BadRequestError):
            bound.invoke("Hello")
