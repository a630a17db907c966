"""Tests of completions with the unmodified OpenAI client."""

import asyncio

import openai
from world import World, openai_client

STORY = "Once upon a time"


class Completions(World):
    def complete(self, prompt=STORY, **options):
        return self.client.completions.create(model="any", prompt=prompt, **{"temperature": 0, **options})

    def text(self, prompt=STORY, **options):
        (choice,) = self.complete(prompt, **options).choices
        return choice.text

    def chunks(self, **options):
        return list(self.complete(stream=True, **options))

    def test_the_served_model_is_listed_and_retrieved(self):
        (listed,) = self.client.models.list().data
        self.assertEqual(listed.id, "souffleur-tiny")
        self.assertEqual(self.client.models.retrieve("souffleur-tiny"), listed)

    def test_a_completion_has_the_shape_that_the_client_knows(self):
        completion = self.complete(max_tokens=8)
        (choice,) = completion.choices
        self.assertEqual((completion.object, completion.model), ("text_completion", "souffleur-tiny"))
        self.assertTrue(completion.id.startswith("cmpl-"), completion.id)
        self.assertEqual((choice.index, choice.finish_reason, choice.logprobs), (0, "length", None))
        usage = completion.usage
        self.assertEqual((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens), (4, 8, 12))

    def test_sixteen_tokens_are_the_default_and_zero_is_accepted(self):
        self.assertEqual(self.complete(extra_body={"ignore_eos": True}).usage.completion_tokens, 16)
        nothing = self.complete(max_tokens=0)
        self.assertEqual((nothing.choices[0].text, nothing.choices[0].finish_reason), ("", "length"))
        self.assertEqual(nothing.usage.completion_tokens, 0)

    def test_prompts_are_texts_or_token_ids_or_lists_of_them(self):
        other = "<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n"
        texts = [self.text(STORY), self.text(other)]
        self.assertNotEqual(*texts)
        ids = [self.token_ids(STORY), self.token_ids(other)]
        self.assertEqual(self.text(ids[0]), texts[0])
        for prompts in ([STORY, other], ids):
            completion = self.complete(prompts)
            self.assertEqual([choice.text for choice in completion.choices], texts)
            self.assertEqual([choice.index for choice in completion.choices], [0, 1])
            self.assertEqual(completion.usage.prompt_tokens, sum(map(len, ids)))

    def test_log_probabilities_name_every_token(self):
        (choice,) = self.complete(max_tokens=12, logprobs=3).choices
        found = choice.logprobs
        self.assertEqual("".join(found.tokens), choice.text)
        self.assertEqual(len(found.token_logprobs), 12)
        self.assertEqual(found.text_offset, [len("".join(found.tokens[:place])) for place in range(12)])
        for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs):
            self.assertEqual(len(top), 3)
            self.assertEqual(max(top, key=top.get), token)
            self.assertAlmostEqual(top[token], logprob, places=5)

    def test_an_echo_scores_prompt_and_output_as_one_text(self):
        (echoed,) = self.complete(max_tokens=12, logprobs=1, echo=True).choices
        self.assertEqual(echoed.text, STORY + self.text(max_tokens=12))
        self.assertEqual("".join(echoed.logprobs.tokens), echoed.text)
        self.assertIsNone(echoed.logprobs.token_logprobs[0])
        self.assertEqual(echoed.logprobs.text_offset[:5], [0, 4, 9, 11, 16])
        completion = self.complete(echoed.text, max_tokens=0, logprobs=1, echo=True)
        (scored,) = completion.choices
        self.assertEqual((scored.text, scored.finish_reason), (echoed.text, "length"))
        self.assertEqual(completion.usage.completion_tokens, 0)
        # Decoding and prefill give the same bits.
        self.assertEqual(scored.logprobs, echoed.logprobs)

    def test_an_echo_without_log_probabilities_is_the_prompt(self):
        self.assertEqual(self.text(echo=True, max_tokens=0), STORY)
        self.assertEqual(self.text(self.token_ids(STORY), echo=True, max_tokens=0), STORY)

    def test_samples_equal_answers_with_consecutive_seeds(self):
        options = {"temperature": 1, "max_tokens": 24}
        completion = self.complete(n=3, seed=5, **options)
        self.assertEqual([choice.index for choice in completion.choices], [0, 1, 2])
        texts = [choice.text for choice in completion.choices]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual(texts, [self.text(seed=seed, **options) for seed in (5, 6, 7)])
        self.assertEqual(completion.usage.prompt_tokens, 4)

    def test_a_seed_gives_one_text(self):
        options = {"temperature": 1, "max_tokens": 32}
        first, second, other = (self.text(seed=seed, **options) for seed in (11, 11, 12))
        self.assertEqual(first, second)
        self.assertNotEqual(first, other)

    def test_a_stop_string_ends_the_text_before_itself(self):
        whole = self.text(max_tokens=48)
        middle = len(whole) // 2
        # Any four characters: a stop string may span tokens.
        for start in range(middle, middle + 6):
            stop = whole[start : start + 4]
            expected = whole[: whole.index(stop)]
            (choice,) = self.complete(max_tokens=48, stop=stop).choices
            self.assertEqual((choice.text, choice.finish_reason, choice.matched_stop), (expected, "stop", stop))
            streamed = self.chunks(max_tokens=48, stop=stop)
            self.assertEqual("".join(chunk.choices[0].text for chunk in streamed), expected)
            self.assertEqual(streamed[-1].choices[0].finish_reason, "stop")

    def test_of_several_stop_strings_the_first_in_the_text_counts(self):
        whole = self.text(max_tokens=48)
        early, late = whole[12:17], whole[30:35]
        (choice,) = self.complete(max_tokens=48, stop=[late, "not in it", early]).choices
        self.assertEqual((choice.text, choice.matched_stop), (whole[: whole.index(early)], early))

    def test_a_biased_token_is_sampled(self):
        (token,) = self.token_ids(" time")
        (choice,) = self.complete(
            max_tokens=5, logit_bias={str(token): 100}, extra_body={"return_token_ids": True}
        ).choices
        self.assertEqual(choice.token_ids, [token] * 5)

    def test_sampling_fields_of_sglang_go_through_extra_body(self):
        self.assertEqual(self.text(temperature=1, extra_body={"top_k": 1}), self.text())
        (choice,) = self.complete(max_tokens=64, extra_body={"stop_token_ids": self.token_ids(" lived")}).choices
        self.assertEqual((choice.finish_reason, choice.matched_stop), ("stop", self.token_ids(" lived")[0]))

    def test_a_stream_is_the_whole_text_in_parts(self):
        for options in (
            {"max_tokens": 40},
            {"max_tokens": 40, "temperature": 1, "seed": 3},
            {"max_tokens": 12, "echo": True, "logprobs": 2},
            {"max_tokens": 20, "temperature": 1, "seed": 3, "n": 3},
            {"prompt": [STORY, "Hello"], "max_tokens": 9},
        ):
            with self.subTest(options):
                whole = self.complete(**options)
                *parts, last = self.chunks(stream_options={"include_usage": True}, **options)
                self.assertEqual([part.usage for part in parts], [None] * len(parts))
                self.assertEqual({part.id for part in parts}, {last.id})
                self.assertEqual(last.choices, [])
                self.assertEqual(last.usage.total_tokens, whole.usage.total_tokens)
                self.assertEqual(last.usage.completion_tokens, whole.usage.completion_tokens)
                for choice in whole.choices:
                    of_choice = [part.choices[0] for part in parts if part.choices[0].index == choice.index]
                    self.check_parts(choice, of_choice)

    def check_parts(self, choice, parts):
        self.assertEqual("".join(part.text for part in parts), choice.text)
        self.assertEqual([part.finish_reason for part in parts], [None] * (len(parts) - 1) + [choice.finish_reason])
        if choice.logprobs is None:
            return
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [entry for part in parts for entry in getattr(part.logprobs, name)]
            self.assertEqual(joined, getattr(choice.logprobs, name))

    def test_a_stream_without_the_option_carries_no_usage(self):
        chunks = self.chunks(max_tokens=4)
        self.assertEqual([chunk.usage for chunk in chunks], [None] * len(chunks))
        self.assertEqual([len(chunk.choices) for chunk in chunks], [1] * len(chunks))

    def test_a_stream_comes_token_by_token_as_server_sent_events(self):
        create = self.client.completions.with_streaming_response.create
        with create(model="any", prompt=STORY, max_tokens=6, temperature=0, stream=True) as response:
            self.assertEqual(response.headers["content-type"].split(";")[0], "text/event-stream")
            events = [line for line in response.iter_lines() if line.startswith("data:")]
        self.assertEqual(events[-1], "data: [DONE]")
        self.assertGreaterEqual(len(events), 4)


class AsyncCompletions(World):
    def test_the_asynchronous_client_reads_the_same(self):
        async def read():
            async with openai_client(openai.AsyncOpenAI) as client:
                options = {"model": "any", "prompt": STORY, "max_tokens": 20, "temperature": 0}
                whole = await client.completions.create(**options)
                stream = await client.completions.create(stream=True, **options)
                return whole.choices[0].text, "".join([chunk.choices[0].text async for chunk in stream])

        whole, streamed = asyncio.run(read())
        self.assertEqual(whole, streamed)
        completion = self.client.completions.create(model="any", prompt=STORY, max_tokens=20, temperature=0)
        self.assertEqual(whole, completion.choices[0].text)
