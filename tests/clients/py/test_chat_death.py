"""One of two engines that a gateway speaks gRPC with is killed: what runs in it is lost, and no later chat fails."""

import contextlib
import os
import signal

import httpx2
from fleet import Fleet
from world import wait_until

# Of the first engine.
VICTIM = int(os.environ["SOUFFLEUR_PID"])
PLACES = ("Stage", "Pit", "Box", "Wings")
LATER_REQUESTS = 40


class Death(Fleet):
    def messages(self, index):
        return [{"role": "user", "content": f"{PLACES[index % len(PLACES)]}: what comes next? " * 6}]

    def test_no_later_chat_fails(self):
        victim, survivor = self.engines
        with contextlib.ExitStack() as streams:
            # All are under way at once: one engine does not get them all.
            under_way = [
                streams.enter_context(self.endless("/v1/chat/completions", messages=self.messages(index)))
                for index in range(len(PLACES))
            ]
            lost, kept = self.check_both_run(len(PLACES))
            # None of its streams ends before it does.
            victim.pause()
            os.kill(VICTIM, signal.SIGKILL)
            wait_until("the engine is gone", lambda: not self.answers(victim))
            before = survivor.prompt_tokens()
            # Prompts that either engine has in its cache, by turns.
            for index in range(LATER_REQUESTS):
                answer = self.chat(self.messages(index))
                self.assertTrue(answer.choices[0].message.content)
            self.assertGreater(survivor.prompt_tokens(), before)
            self.assertEqual(sum(self.ends_well(lines) for lines in under_way), kept, f"{lost} are lost")
        self.wait_until_whole([survivor])

    def ends_well(self, lines):
        """A stream that is lost has an error, or its connection ends."""
        with contextlib.suppress(httpx2.TransportError):
            return any('"finish_reason":"length"' in line for line in lines)
        return False

    def answers(self, engine):
        try:
            return engine.http.get("/health").status_code == 200
        except httpx2.TransportError:
            return False
