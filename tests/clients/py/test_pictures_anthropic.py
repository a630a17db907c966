"""Tests of pictures and screenshots in `/v1/messages`, with the unmodified Anthropic client."""

import anthropic
from pictures import ASSISTANT, Pictures, encoded
from world import URL

MODEL = "any"
# The newest client has no argument for it.
GREEDY = {"temperature": 0}
READ = {
    "name": "Read", "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"file_path": {"type": "string"}}},
}


def image(number):
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(number)}}


def screenshot(number):
    """A call and its result, as Claude Code sends them."""
    name = f"toolu_{number}"
    call = {"type": "tool_use", "id": name, "name": "Read", "input": {"file_path": f"/{number}.png"}}
    result = {
        "tool_use_id": name, "type": "tool_result", "content": [image(number)], "cache_control": {"type": "ephemeral"},
    }
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


class Messages(Pictures):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.anthropic = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
        cls.addClassCleanup(cls.anthropic.close)

    def ask(self, messages, **options):
        """The answer, the tokens of the prompt, and the cached ones."""
        answer = self.anthropic.messages.create(
            model=MODEL, max_tokens=6, messages=messages, extra_body=GREEDY, **options
        )
        cached = answer.usage.cache_read_input_tokens
        n_tokens = answer.usage.input_tokens + cached
        counted = self.anthropic.messages.count_tokens(model=MODEL, messages=messages, **options)
        self.assertEqual(counted.input_tokens, n_tokens)
        return answer, n_tokens, cached

    def test_a_picture_is_counted_and_answered_also_as_a_stream(self):
        messages = [{"role": "user", "content": [{"type": "text", "text": "Look: "}, image(41)]}]
        answer, n_tokens, _ = self.ask(messages)
        same = [{
            "role": "user",
            "content": [
                {"type": "text", "text": "Look: "},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(41)}"}},
            ],
        }]
        self.assertEqual(n_tokens, len(self.tokens(same)))
        with self.anthropic.messages.stream(
            model=MODEL, max_tokens=6, messages=messages, extra_body=GREEDY
        ) as stream:
            streamed = "".join(stream.text_stream)
        self.assertEqual(streamed, "".join(block.text for block in answer.content))

    def test_screenshots_of_a_session_are_encoded_once(self):
        before = self.n_encoded()
        messages = [{"role": "user", "content": "Show me the files."}]
        known = 0
        for turn in range(1, 5):
            messages += screenshot(50 + turn)
            _, n_tokens, cached = self.ask(messages, tools=[READ])
            self.assertGreaterEqual(cached, known)
            self.assertEqual(self.n_encoded(), before + turn)
            # Up to the turn that the model was to write.
            known = n_tokens - len(ASSISTANT)

    def test_a_picture_by_an_url_is_refused(self):
        image = {"type": "image", "source": {"type": "url", "url": "http://localhost/a.png"}}
        with self.assertRaises(anthropic.BadRequestError) as raised:
            self.ask([{"role": "user", "content": [image]}])
        self.assertIn("messages[0].content[0]", raised.exception.body["error"]["message"])
