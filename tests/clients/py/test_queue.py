"""A server that runs one request at a time: clients that leave the queue are cancelled in it."""

import asyncio

import openai
from world import LONG, World, openai_client, wait_until

STORY = {"model": "any", "prompt": "Once upon a time", "temperature": 0, "extra_body": {"ignore_eos": True}}


class Queue(World):
    def test_those_who_leave_the_queue_are_cancelled_and_the_one_who_runs_is_not(self):
        tokens = 1500
        alone = self.client.completions.create(max_tokens=tokens, **STORY).choices[0].text
        aborted = self.metrics("sglang:num_aborted_requests_total")
        generated = self.metrics("sglang:generation_tokens_total")
        self.assertEqual(asyncio.run(self.run_one_and_leave(tokens, leaving=5)), alone)
        wait_until("they are cancelled", lambda: self.metrics("sglang:num_aborted_requests_total") == aborted + 5)
        self.wait_until_whole()
        # None of them got as far as a token.
        self.assertEqual(self.metrics("sglang:generation_tokens_total") - generated, tokens)

    async def run_one_and_leave(self, tokens, leaving):
        """The text of a request that runs while others wait behind it and leave."""
        async with openai_client(openai.AsyncOpenAI) as client:
            first = await client.completions.create(stream=True, max_tokens=tokens, **STORY)
            text = (await anext(first)).choices[0].text
            options = [{**STORY, "max_tokens": LONG, "stream": index % 2 == 0} for index in range(leaving)]
            tasks = [asyncio.create_task(client.completions.create(**each)) for each in options]
            await asyncio.to_thread(self.wait_until_waiting, leaving)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.assertTrue(all(task.cancelled() for task in tasks))
            return text + "".join([chunk.choices[0].text async for chunk in first])

    def wait_until_waiting(self, requests):
        wait_until(f"{requests} requests wait", lambda: self.stats()["waiting_requests"] == requests)
