"""Checks every event and answer against the types of the clients' libraries: no field is missing, unknown or of another
type. The clients themselves tolerate all three until code reads the field."""

import functools
import json

from agents import MODEL, TOOLS, user
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.responses import Response, ResponsesServerEvent, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from test_agents_anthropic import ANTHROPIC_TOOLS
from test_agents_responses import TOOLS as RESPONSE_TOOLS
from world import World

# Fields that the services send but that the libraries' types lack.
EXTRA_FIELDS = {
    # The bytes of a token, which the types of complete output texts do contain.
    "response_text_delta_event.Logprob.bytes",
    "response_text_delta_event.LogprobTopLogprob.bytes",
    "response_text_done_event.Logprob.bytes",
    "response_text_done_event.LogprobTopLogprob.bytes",
    "ResponseFunctionCallArgumentsDoneEvent.name",
    "ResponseCustomToolCall.status",
    # Whether the response is stored.
    "Response.store",
    # On named lanes of a WebSocket.
    "stream_id",
}
CUSTOM = {"type": "custom", "name": "note", "description": "Notes a text."}
CALLS = {
    "Hello": {},
    "Plan my evening.": {"tools": RESPONSE_TOOLS, "include": ["reasoning.encrypted_content"]},
    "Compare Lisbon and Oslo.": {"tools": [*RESPONSE_TOOLS, CUSTOM], "parallel_tool_calls": True, "temperature": 0},
    "Note it down.": {"tools": [CUSTOM], "tool_choice": "auto", "metadata": {"a": "b"}, "user": "u"},
    "Think first.": {"reasoning": {"effort": "low", "summary": "auto"}, "instructions": "Be brief."},
    "Describe the play.": {
        "text": {"format": {"type": "json_object"}, "verbosity": "low"}, "prompt_cache_key": "k", "top_p": 0.5,
        "max_tool_calls": 3, "safety_identifier": "s", "truncation": "auto", "tools": [{"type": "function", "name": "f"}],
    },
    "Hello again": {"top_logprobs": 2, "include": ["message.output_text.logprobs"], "max_output_tokens": 2},
}


def unknown(value):
    """Names of fields that their types do not have."""
    if isinstance(value, BaseModel):
        kind = type(value)
        name = kind.__name__
        if name.startswith("Logprob"):
            name = f"{kind.__module__.rsplit('.', 1)[-1]}.{name}"
        for extra in value.model_extra or {}:
            if not {extra, f"{name}.{extra}"} & EXTRA_FIELDS:
                yield f"{name}.{extra}"
        value = [getattr(value, field) for field in value.model_fields_set - set(value.model_extra or {})]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from unknown(item)


# Building the schema of all events takes much longer than checking an event, so schemas are cached.
adapter = functools.cache(TypeAdapter)


class Shapes(World):
    def check(self, kind, text):
        value = adapter(kind).validate_json(text, strict=True)
        self.assertEqual(list(unknown(value)), [], text)
        # Checks that no field was converted to another type.
        self.assertEqual(adapter(kind).dump_python(value, mode="json", exclude_unset=True, by_alias=True), json.loads(text))

    def post(self, path, body):
        response = self.http.post(path, json=body)
        self.assertEqual(response.status_code, 200, response.text)
        return response.text

    def check_stream(self, kind, text):
        """Checks the events of a stream, and returns the kinds of events."""
        kinds = set()
        for event in text.removesuffix("\n\n").split("\n\n"):
            name, data = event.split("\n")
            self.check(kind, data.removeprefix("data: "))
            kinds.add(name.removeprefix("event: "))
        return kinds

    def test_responses(self):
        kinds = set()
        for question, options in CALLS.items():
            body = {"model": MODEL, "input": question, **options}
            whole = self.post("/v1/responses", body)
            self.check(Response, whole)
            stream = self.post("/v1/responses", {**body, "stream": True})
            kinds |= self.check_stream(ResponseStreamEvent, stream)
            again = self.http.get(f"/v1/responses/{json.loads(whole)['id']}?stream=true")
            self.assertEqual(again.status_code, 200, again.text)
            self.check_stream(ResponseStreamEvent, again.text)
        ends = {"response.completed", "response.incomplete"}
        parts = {"output_item", "content_part"}
        parts = {f"response.{part}.{end}" for part in parts for end in ("added", "done")}
        texts = {"output_text", "reasoning_text", "function_call_arguments", "custom_tool_call_input"}
        texts = {f"response.{text}.{end}" for text in texts for end in ("delta", "done")}
        self.assertEqual(kinds, {"response.created", "response.in_progress"} | parts | texts | ends)

    def test_the_websocket(self):
        with self.client.responses.connect() as connection:
            for lane in (None, "a"):
                frame = {"type": "response.create", "model": MODEL, "input": "Hello", "store": False}
                connection.send(frame | ({"stream_id": lane} if lane else {}))
                while True:
                    text = connection.recv_bytes().decode()
                    self.check(ResponsesServerEvent, text)
                    if json.loads(text)["type"] == "response.completed":
                        break

    def test_a_response_that_fails(self):
        body = {"model": MODEL, "input": "Hello " * 70_000, "stream": True}
        with self.client.responses.connect() as connection:
            connection.send({**body, "type": "response.create"})
            while True:
                text = connection.recv_bytes().decode()
                if json.loads(text)["type"] not in ("response.created", "response.in_progress"):
                    break
        event = json.loads(text)
        self.assertEqual(event["type"], "response.failed")
        # Codex knows this code, and the library's type does not.
        self.assertEqual(event["response"]["error"].pop("code"), "context_length_exceeded")
        event["response"]["error"]["code"] = "invalid_prompt"
        self.check(ResponseStreamEvent, json.dumps(event))

    def test_messages(self):
        kinds = set()
        for question in CALLS:
            body = {
                "model": MODEL, "max_tokens": 2 if "again" in question else 200, "messages": [user(question)],
                "tools": ANTHROPIC_TOOLS, "thinking": {"type": "enabled", "budget_tokens": 1024},
            }
            self.check(Message, self.post("/v1/messages", body))
            kinds |= self.check_stream(RawMessageStreamEvent, self.post("/v1/messages", {**body, "stream": True}))
        block = {"content_block_start", "content_block_delta", "content_block_stop"}
        self.assertEqual(kinds, {"message_start", "message_delta", "message_stop"} | block)
