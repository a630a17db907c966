"""Tests of sixteen clients that share a prefix: the cached tokens in the answers, and their sums in the metrics."""

import asyncio
import contextlib

import openai
from world import World, openai_client

CLIENTS = 16
OWN_TOKENS = 9


class Sharing(World):
    def setUp(self):
        self.page_size = self.http.get("/server_info").json()["page_size"]
        self.counted = self.counters()

    def counters(self):
        return [self.metrics(name) for name in ("sglang:prompt_tokens_total", "sglang:cached_tokens_total")]

    def prompts(self, shared_tokens):
        """Prompts that differ from the first token after the shared tokens on."""
        shared = [100 + index * 7 % 1000 for index in range(shared_tokens)]
        firsts = range(1200, 1200 + CLIENTS * OWN_TOKENS, OWN_TOKENS)
        return [[*shared, *range(first, first + OWN_TOKENS)] for first in firsts]

    def options(self, prompt, salt):
        extra = {"ignore_eos": True, "cache_salt": salt}
        return {"model": "any", "prompt": prompt, "max_tokens": 4, "temperature": 0, "extra_body": extra}

    def check(self, shared_tokens, completions):
        common = shared_tokens // self.page_size * self.page_size
        usages = [completion.usage for completion in completions]
        cached = [usage.prompt_tokens_details.cached_tokens for usage in usages]
        self.assertEqual(sorted(cached), [0] + [common] * (CLIENTS - 1))
        prompt_tokens = sum(usage.prompt_tokens for usage in usages)
        self.assertEqual(prompt_tokens, CLIENTS * (shared_tokens + OWN_TOKENS))
        counted = [now - before for now, before in zip(self.counters(), self.counted)]
        self.assertEqual(counted, [prompt_tokens, sum(cached)])
        return cached

    def test_all_but_the_first_of_sequential_clients_find_the_prefix(self):
        for shared_tokens in (512, 500):
            with self.subTest(shared_tokens):
                self.setUp()
                salt = f"one after another {shared_tokens}"
                prompts = self.prompts(shared_tokens)
                completions = [self.client.completions.create(**self.options(prompt, salt)) for prompt in prompts]
                self.assertEqual(self.check(shared_tokens, completions)[0], 0)

    def test_all_but_one_of_concurrent_clients_find_the_prefix(self):
        for shared_tokens in (512, 500):
            with self.subTest(shared_tokens):
                self.setUp()
                completions = asyncio.run(self.at_once(self.prompts(shared_tokens), f"at once {shared_tokens}"))
                self.check(shared_tokens, completions)

    async def at_once(self, prompts, salt):
        """Sends all prompts at once, each over a separate connection that is already open."""
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(openai_client(openai.AsyncOpenAI)) for _ in prompts]
            await asyncio.gather(*(client.models.list() for client in clients))
            pairs = zip(clients, prompts)
            calls = [client.completions.create(**self.options(prompt, salt)) for client, prompt in pairs]
            return await asyncio.gather(*calls)

    def test_samples_of_one_prompt_share_it(self):
        (prompt, *_) = self.prompts(512)
        options = {**self.options(prompt, "samples"), "n": 8, "temperature": 1, "seed": 1}
        self.client.completions.create(**options)
        prompt_tokens, cached_tokens = (now - before for now, before in zip(self.counters(), self.counted))
        whole = (len(prompt) - 1) // self.page_size * self.page_size
        self.assertEqual((prompt_tokens, cached_tokens), (8 * len(prompt), 7 * whole))
