"""Tests that queued requests of disconnected clients are cancelled, on a server that runs one request at a time."""

import asyncio

import openai
from world import LONG, World, openai_client, wait_until

STORY = {"model": "any", "prompt": "Once upon a time", "temperature": 0, "extra_body": {"ignore_eos": True}}


class Queue(World):
    def setUp(self):
        self.ended = self.metrics("sglang:num_requests_total")

    def test_only_requests_of_disconnected_clients_are_cancelled(self):
        tokens, samples = 800, 5
        alone = self.client.completions.create(max_tokens=tokens, **STORY).choices[0].text
        self.setUp()
        aborted = self.metrics("sglang:num_aborted_requests_total")
        generated = self.metrics("sglang:generation_tokens_total")
        texts = asyncio.run(self.run_some_and_leave(tokens, samples, leaving=5))
        self.assertEqual(texts, [alone] * samples)
        wait_until("five requests are cancelled", lambda: self.metrics("sglang:num_aborted_requests_total") == aborted + 5)
        self.wait_until_idle()
        # The cancelled requests generated no token.
        self.assertEqual(self.metrics("sglang:generation_tokens_total") - generated, tokens * samples)

    async def run_some_and_leave(self, tokens, samples, leaving):
        """Runs samples one by one, while other requests queue after them and disconnect; returns the samples' texts."""
        texts = [""] * samples
        async with openai_client(openai.AsyncOpenAI) as client:
            first = await client.completions.create(stream=True, n=samples, max_tokens=tokens, **STORY)
            chunk = await anext(first)
            texts[chunk.choices[0].index] += chunk.choices[0].text
            options = [{**STORY, "max_tokens": LONG, "stream": index % 2 == 0} for index in range(leaving)]
            tasks = [asyncio.create_task(client.completions.create(**each)) for each in options]
            await asyncio.to_thread(self.wait_until_arrived, samples + leaving)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.assertTrue(all(task.cancelled() for task in tasks))
            async for chunk in first:
                texts[chunk.choices[0].index] += chunk.choices[0].text
        return texts

    def wait_until_arrived(self, requests):
        """Reads the ended requests first, so that a request that ends in between is missed rather than counted twice."""

        def arrived():
            ended = self.metrics("sglang:num_requests_total") - self.ended
            return ended + self.stats()["requests_inside"]

        wait_until(f"{requests} requests arrived", lambda: arrived() >= requests)
