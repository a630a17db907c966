"""Tests that the server cancels all requests of clients that disconnect, and frees their memory."""

import asyncio
import contextlib

import openai
from world import LONG, World, openai_client, wait_until

LONG_PROMPT = [7 + index % 1000 for index in range(2000)]
ENDLESS = {"model": "any", "max_tokens": LONG, "extra_body": {"ignore_eos": True}}
COMPLETION = {**ENDLESS, "prompt": "Once upon a time"}
CHAT = {**ENDLESS, "messages": [{"role": "user", "content": "Tell me a story."}]}


class Cancel(World):
    def setUp(self):
        self.ended = self.metrics("sglang:num_requests_total")
        self.aborted = self.metrics("sglang:num_aborted_requests_total")

    def check_all_were_aborted(self, requests):
        """Checks that this many requests ended, and that all of them were aborted."""
        wait_until(f"{requests} requests ended", lambda: self.ended_requests() >= requests)
        self.wait_until_idle()
        self.assertEqual((self.ended_requests(), self.aborted_requests()), (requests, requests))

    def ended_requests(self):
        return self.metrics("sglang:num_requests_total") - self.ended

    def aborted_requests(self):
        return self.metrics("sglang:num_aborted_requests_total") - self.aborted

    def test_a_stream_that_is_closed_early_is_cancelled(self):
        for create, options in (
            (self.client.completions.create, COMPLETION),
            (self.client.chat.completions.create, CHAT),
        ):
            stream = create(stream=True, **options)
            for _ in range(3):
                next(stream)
            stream.close()
        self.check_all_were_aborted(2)

    def test_closing_a_stream_of_samples_cancels_every_one(self):
        with self.client.chat.completions.create(stream=True, n=5, **CHAT) as stream:
            next(stream)
            self.wait_until_running(5)
        self.check_all_were_aborted(5)

    def test_a_timeout_of_the_client_cancels(self):
        # The requests generate for much longer than this timeout.
        impatient = self.client.with_options(timeout=2)
        with self.assertRaises(openai.APITimeoutError):
            impatient.completions.create(**{**COMPLETION, "n": 64})
        self.check_all_were_aborted(64)

    def test_cancelled_tasks_cancel_their_requests(self):
        async def whole(client, create, options):
            await create(client)(**options)

        async def streamed(client, create, options):
            async for _ in await create(client)(stream=True, **options):
                pass

        for read in (whole, streamed):
            for create, options in (
                (lambda client: client.completions.create, COMPLETION),
                (lambda client: client.chat.completions.create, CHAT),
            ):
                with self.subTest(read=read.__name__, options=options):
                    asyncio.run(self.cancel_midway(read, create, options))

    async def cancel_midway(self, read, create, options):
        self.setUp()
        async with openai_client(openai.AsyncOpenAI) as client:
            tasks = [asyncio.create_task(read(client, create, options)) for _ in range(4)]
            await asyncio.to_thread(self.wait_until_running, 4)
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                self.assertTrue(task.cancelled())
            # The client stays open: only the tasks' connections are closed.
            await asyncio.to_thread(self.check_all_were_aborted, 4)

    def test_requests_of_clients_that_disconnect_in_prefill_are_cancelled(self):
        async def ask(client, index):
            await client.completions.create(
                model="any", prompt=[index + 1, *LONG_PROMPT], max_tokens=2000, extra_body={"ignore_eos": True}
            )

        async def disconnect():
            async with openai_client(openai.AsyncOpenAI) as client:
                tasks = [asyncio.create_task(ask(client, index)) for index in range(4)]
                await asyncio.to_thread(self.wait_until_in_flight, 4)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(disconnect())
        self.check_all_were_aborted(4)

    def test_other_requests_continue_when_a_client_disconnects(self):
        options = {"model": "any", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 40}
        alone = self.client.completions.create(**options).choices[0].text
        stream = self.client.completions.create(stream=True, n=16, **COMPLETION)
        next(stream)
        stay = self.client.completions.create(stream=True, **options)
        text = next(stay).choices[0].text
        stream.close()
        text += "".join(chunk.choices[0].text for chunk in stay)
        self.assertEqual(text, alone)
        wait_until("all 18 requests ended", lambda: self.ended_requests() == 18)
        wait_until("16 aborted requests are counted", lambda: self.aborted_requests() >= 16)
        self.assertEqual(self.aborted_requests(), 16)

    def test_an_abort_by_request_id_ends_the_answer_with_finish_reason_abort(self):
        async def abort():
            async with openai_client(openai.AsyncOpenAI) as client:
                options = {**CHAT, "extra_body": {"ignore_eos": True, "rid": "to-abort"}}
                task = asyncio.create_task(client.chat.completions.create(**options))
                await asyncio.to_thread(self.wait_until_running, 1)
                response = await asyncio.to_thread(self.http.post, "/abort_request", json={"rid": "to-abort"})
                self.assertEqual(response.json(), {"aborted": 1})
                return await task

        answer = asyncio.run(abort())
        self.assertEqual(answer.id, "to-abort")
        self.assertEqual(answer.choices[0].finish_reason, "abort")
        self.assertLess(answer.usage.completion_tokens, LONG)
        self.check_all_were_aborted(1)
