"""Tests of chat completions with the unmodified OpenAI client."""

from world import World

QUESTION = "Who are you?"
SYSTEM = "Talk with the user in simple English."


def messages(*contents):
    """A conversation that the user begins."""
    roles = ("user", "assistant")
    return [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]


class Chat(World):
    def chat(self, conversation=None, **options):
        conversation = conversation or messages(QUESTION)
        return self.client.chat.completions.create(
            model="any", messages=conversation, **{"temperature": 0, **options}
        )

    def content(self, *arguments, **options):
        (choice,) = self.chat(*arguments, **options).choices
        return choice.message.content

    def test_an_answer_has_the_shape_that_the_client_knows(self):
        completion = self.chat()
        (choice,) = completion.choices
        self.assertEqual((completion.object, completion.model), ("chat.completion", "souffleur-tiny"))
        self.assertTrue(completion.id.startswith("chatcmpl-"), completion.id)
        self.assertEqual((choice.index, choice.finish_reason, choice.logprobs), (0, "stop", None))
        self.assertEqual((choice.message.role, choice.message.refusal), ("assistant", None))
        self.assertIn("Souffleur", choice.message.content)
        usage = completion.usage
        self.assertEqual(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)

    def test_a_conversation_is_completed_as_its_template_renders_it(self):
        system = {"role": "system", "content": SYSTEM}
        rendered = (
            f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{QUESTION}<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        answer = self.chat([system, *messages(QUESTION)])
        completion = self.client.completions.create(model="any", prompt=rendered, temperature=0, max_tokens=200)
        self.assertEqual(answer.choices[0].message.content, completion.choices[0].text)
        self.assertEqual(answer.usage.prompt_tokens, completion.usage.prompt_tokens)
        self.assertEqual(answer.usage.completion_tokens, completion.usage.completion_tokens)

    def test_content_parts_are_one_text(self):
        parts = [{"type": "text", "text": "Who are"}, {"type": "text", "text": "you?"}]
        answer = self.chat([{"role": "user", "content": parts}])
        self.assertEqual(answer.choices[0].message.content, self.content())
        self.assertEqual(answer.usage.prompt_tokens, self.chat().usage.prompt_tokens)

    def test_max_tokens_and_max_completion_tokens_limit_the_length(self):
        for name in ("max_tokens", "max_completion_tokens"):
            answer = self.chat(**{name: 5})
            self.assertEqual((answer.choices[0].finish_reason, answer.usage.completion_tokens), ("length", 5))
        answer = self.chat(max_tokens=9, max_completion_tokens=5)
        self.assertEqual(answer.usage.completion_tokens, 5)

    def test_stop_strings_end_the_answer(self):
        whole = self.content()
        stop = whole[20:24]
        (choice,) = self.chat(stop=[stop, "nowhere"]).choices
        self.assertEqual((choice.message.content, choice.finish_reason), (whole[: whole.index(stop)], "stop"))
        self.assertEqual(choice.matched_stop, stop)

    def test_log_probabilities_carry_bytes_and_alternatives(self):
        (choice,) = self.chat(logprobs=True, top_logprobs=4, max_tokens=10).choices
        tokens = choice.logprobs.content
        self.assertEqual(b"".join(bytes(token.bytes) for token in tokens).decode(), choice.message.content)
        for token in tokens:
            self.assertEqual(len(token.top_logprobs), 4)
            first = token.top_logprobs[0]
            self.assertEqual((first.token, first.bytes), (token.token, token.bytes))
            self.assertAlmostEqual(first.logprob, token.logprob, places=5)
            descending = sorted((other.logprob for other in token.top_logprobs), reverse=True)
            self.assertEqual([other.logprob for other in token.top_logprobs], descending)

    def test_log_probabilities_may_come_without_alternatives(self):
        (choice,) = self.chat(logprobs=True, max_tokens=3).choices
        self.assertEqual([token.top_logprobs for token in choice.logprobs.content], [[], [], []])

    def test_samples_equal_answers_with_consecutive_seeds(self):
        options = {"temperature": 1.2, "max_tokens": 24}
        answer = self.chat(n=3, seed=21, **options)
        contents = [choice.message.content for choice in answer.choices]
        self.assertEqual(contents, [self.content(seed=seed, **options) for seed in (21, 22, 23)])
        self.assertEqual(answer.usage.prompt_tokens, self.chat(max_tokens=1).usage.prompt_tokens)

    def test_a_stream_is_the_message_in_parts(self):
        for options in (
            {},
            {"temperature": 1, "seed": 4},
            {"logprobs": True, "top_logprobs": 2, "max_tokens": 12},
            {"temperature": 1, "seed": 4, "n": 2, "max_tokens": 20},
        ):
            with self.subTest(options):
                whole = self.chat(**options)
                stream = self.chat(stream=True, stream_options={"include_usage": True}, **options)
                *chunks, last = list(stream)
                self.assertEqual([chunk.usage for chunk in chunks], [None] * len(chunks))
                self.assertEqual(last.choices, [])
                self.assertEqual(last.usage.total_tokens, whole.usage.total_tokens)
                for choice in whole.choices:
                    of_choice = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
                    self.check_parts(choice, of_choice)

    def check_parts(self, choice, parts):
        self.assertEqual((parts[0].delta.role, parts[0].delta.content), ("assistant", ""))
        self.assertEqual([part.delta.role for part in parts[1:]], [None] * (len(parts) - 1))
        self.assertEqual("".join(part.delta.content or "" for part in parts), choice.message.content)
        self.assertEqual([part.finish_reason for part in parts], [None] * (len(parts) - 1) + [choice.finish_reason])
        if choice.logprobs is not None:
            joined = [token for part in parts if part.logprobs for token in part.logprobs.content]
            self.assertEqual(joined, choice.logprobs.content)

    def test_the_clients_own_stream_reader_puts_the_message_together(self):
        with self.client.chat.completions.stream(model="any", messages=messages(QUESTION), temperature=0) as stream:
            texts = [event.delta for event in stream if event.type == "content.delta"]
            final = stream.get_final_completion()
        self.assertEqual("".join(texts), final.choices[0].message.content)
        self.assertEqual(final.choices[0].message.content, self.content())
        self.assertEqual(final.choices[0].finish_reason, "stop")

    def test_the_next_turn_finds_the_whole_conversation_in_the_cache(self):
        salt = {"extra_body": {"cache_salt": "a conversation of its own"}}
        first = self.chat(**salt)
        answer = first.choices[0].message.content
        self.assertEqual(first.usage.prompt_tokens_details.cached_tokens, 0)
        second = self.chat(messages(QUESTION, answer, "Tell me a story."), **salt)
        # The K/V of the last sampled token was never computed.
        computed = first.usage.prompt_tokens + first.usage.completion_tokens - 1
        self.assertEqual(second.usage.prompt_tokens_details.cached_tokens, computed)
        stranger = self.chat(messages(QUESTION, answer, "Tell me a story."), extra_body={"cache_salt": "another"})
        self.assertEqual(stranger.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(stranger.choices[0].message, second.choices[0].message)
