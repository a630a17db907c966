"""Tests of `/v1/responses` over HTTP, as a stream and over a WebSocket, with the unmodified OpenAI client."""

import asyncio
import json

import openai
from agents import HAMLET, LINES, LISBON, MODEL, NOTE, RESULTS, Play
from world import TIMEOUT_S, World, openai_client


def function(name, properties):
    parameters = {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }
    return {"type": "function", "name": name, "description": f"The {name}.", "parameters": parameters}


TOOLS = [
    function("weather", {"city": {"type": "string"}, "days": {"type": "integer"}}),
    function("seat", {"row": {"type": "integer"}, "note": {"type": "string"}}),
    {"type": "web_search"},
]
EVENING = "The sky is clear, and row 4 is yours."


def results(response):
    """The results of a response's calls, as the next input."""
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": RESULTS[item.name]}
        for item in response.output
        if item.type == "function_call"
    ]


def called(response):
    return [(item.name, json.loads(item.arguments)) for item in response.output if item.type == "function_call"]


class Turns(World):
    def create(self, question, **options):
        return self.client.responses.create(model=MODEL, input=question, **options)

    def check_evening(self, turns):
        calls = [call for turn in turns for call in called(turn)]
        self.assertEqual(calls, [("weather", LISBON), ("seat", {"row": 4, "note": NOTE})])
        self.assertEqual(turns[-1].output_text, EVENING)
        thoughts = [item for item in turns[0].output if item.type == "reasoning"]
        self.assertEqual([part.text for part in thoughts[0].content], ["The weather decides."])

    def check_cached(self, turns):
        """Checks that each turn finds all earlier tokens in the cache, except the token that ended the answer."""
        for earlier, later in zip(turns, turns[1:]):
            self.assertGreaterEqual(later.usage.input_tokens_details.cached_tokens, earlier.usage.total_tokens - 1)


class Responses(Turns):
    def test_two_tools_and_an_answer(self):
        turns = [self.create("Plan my evening.", tools=TOOLS)]
        while outputs := results(turns[-1]):
            turns.append(self.create(outputs, tools=TOOLS, previous_response_id=turns[-1].id))
        self.check_evening(turns)
        self.check_cached(turns)

    def test_a_client_may_keep_the_conversation_itself(self):
        conversation = [{"role": "user", "content": "Plan my evening."}]
        options = {"tools": TOOLS, "store": False, "include": ["reasoning.encrypted_content"]}
        turns = [self.create(conversation, **options)]
        while outputs := results(turns[-1]):
            conversation += [item.model_dump(exclude_none=True) for item in turns[-1].output]
            conversation += outputs
            turns.append(self.create(conversation, **options))
        self.check_evening(turns)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(turns[0].id)

    def test_a_stream_is_put_together_by_the_client(self):
        turns, previous, question = [], {}, "Plan my evening."
        while question:
            with self.client.responses.stream(model=MODEL, input=question, tools=TOOLS, **previous) as stream:
                numbers = [event.sequence_number for event in stream]
                turns.append(stream.get_final_response())
            self.assertEqual(numbers, list(range(len(numbers))))
            previous, question = {"previous_response_id": turns[-1].id}, results(turns[-1])
        self.check_evening(turns)
        self.check_cached(turns)

    def test_the_text_is_parsed(self):
        response = self.client.responses.parse(model=MODEL, input="Describe the play.", text_format=Play)
        self.assertEqual(response.output_parsed, HAMLET)

    def test_stored_responses_are_read_counted_and_deleted(self):
        response = self.create("Hello", instructions="Be brief.", metadata={"a": "b"})
        self.assertEqual(response.output_text, LINES[""])
        found = self.client.responses.retrieve(response.id)
        self.assertEqual(found.model_dump(), response.model_dump())
        (item,) = self.client.responses.input_items.list(response.id)
        self.assertEqual(item.content[0].text, "Hello")
        counted = self.client.responses.input_tokens.count(model=MODEL, input="Hello", instructions="Be brief.")
        self.assertEqual(counted.input_tokens, response.usage.input_tokens)
        with self.assertRaises(openai.BadRequestError):
            self.client.responses.cancel(response.id)
        self.client.responses.delete(response.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(response.id)
        with self.assertRaises(openai.BadRequestError) as raised:
            self.create("Hello", previous_response_id=response.id)
        self.assertEqual(raised.exception.code, "previous_response_not_found")

    def test_a_truncated_answer_is_incomplete(self):
        response = self.create("Hello", max_output_tokens=2)
        self.assertEqual((response.status, response.incomplete_details.reason), ("incomplete", "max_output_tokens"))


class Connections(Turns):
    def answer(self, connection, lane=None):
        """Reads the next response of a lane, and checks its events."""
        kinds = []
        for event in connection:
            self.assertNotEqual(event.type, "error", event)
            self.assertEqual(getattr(event, "stream_id", None), lane)
            self.assertEqual(event.sequence_number, len(kinds))
            kinds.append(event.type)
            if event.type in ("response.completed", "response.incomplete", "response.failed"):
                self.assertEqual(kinds[:2], ["response.created", "response.in_progress"])
                return event.response

    def test_two_tools_and_an_answer(self):
        with self.client.responses.connect() as connection:
            turns, previous, question = [], {}, "Plan my evening."
            while question:
                connection.response.create(model=MODEL, input=question, tools=TOOLS, store=False, **previous)
                turns.append(self.answer(connection))
                previous, question = {"previous_response_id": turns[-1].id}, results(turns[-1])
        self.check_evening(turns)
        self.check_cached(turns)

    def test_a_warm_up_has_no_output(self):
        with self.client.responses.connect() as connection:
            frame = {"type": "response.create", "model": MODEL, "instructions": "Be brief.", "tools": TOOLS}
            connection.send({**frame, "input": [], "generate": False})
            warm = self.answer(connection)
            self.assertEqual((warm.status, warm.output), ("completed", []))
            connection.send({**frame, "input": "Hello", "previous_response_id": warm.id})
            response = self.answer(connection)
        self.assertEqual(response.output_text, LINES[""])
        self.assertGreaterEqual(response.usage.input_tokens_details.cached_tokens, warm.usage.input_tokens)

    def test_lanes_name_their_events(self):
        lanes = [f"lane-{index}" for index in range(8)]
        with self.client.responses.connect() as connection:
            for lane in lanes:
                connection.send({"type": "response.create", "model": MODEL, "input": "Hello", "stream_id": lane})
            ended = {}
            for event in connection:
                if event.type == "response.completed":
                    ended[event.stream_id] = event.response.output_text
                if len(ended) == len(lanes):
                    break
        self.assertEqual(ended, dict.fromkeys(lanes, LINES[""]))

    def test_a_connection_is_usable_after_an_error(self):
        with self.client.responses.connect() as connection:
            connection.response.create(model=MODEL, input="Hello", previous_response_id="resp_unknown")
            event = connection.recv()
            self.assertEqual((event.type, event.status), ("error", 400))
            self.assertEqual(event.error.code, "previous_response_not_found")
            connection.response.create(model=MODEL, input="Hello")
            self.assertEqual(self.answer(connection).output_text, LINES[""])

    def test_the_asynchronous_client_reads_the_answer(self):
        async def ask():
            async with openai_client(openai.AsyncOpenAI) as client, client.responses.connect() as connection:
                await connection.response.create(model=MODEL, input="Hello")
                async for event in connection:
                    if event.type == "response.completed":
                        return event.response

        response = asyncio.run(asyncio.wait_for(ask(), TIMEOUT_S))
        self.assertEqual(response.output_text, LINES[""])

