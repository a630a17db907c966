"""Kills one of two engines that serve a gateway: its streams are lost, and no later request fails."""

import contextlib
import os
import signal

import httpx2
from fleet import Fleet
from world import wait_until

# The process id of the first engine.
VICTIM = int(os.environ["SOUFFLEUR_PID"])
PLACES = ("Stage", "Pit", "Box", "Wings")
LATER_REQUESTS = 40


class Death(Fleet):
    # Text in the last event of a stream that ends without an error.
    ending = None

    def prompt(self, index, times):
        return f"{PLACES[index % len(PLACES)]}: what comes next? " * times

    def in_flight(self, index):
        """A stream in flight."""
        raise NotImplementedError

    def ask_later(self):
        """Sends prompts that one engine or the other has in its cache, alternating."""
        raise NotImplementedError

    def check(self):
        victim, survivor = self.engines
        with contextlib.ExitStack() as streams:
            # All streams are in flight at once, so that both engines get some of them.
            in_flight = [streams.enter_context(self.in_flight(index)) for index in range(len(PLACES))]
            lost, kept = self.check_both_run(len(PLACES))
            # Pauses the engine, so that none of its streams ends before it is killed.
            victim.pause()
            os.kill(VICTIM, signal.SIGKILL)
            wait_until("the engine is gone", lambda: not self.answers(victim))
            before = survivor.prompt_tokens()
            self.ask_later()
            self.assertGreater(survivor.prompt_tokens(), before)
            self.assertEqual(sum(self.ends_well(lines) for lines in in_flight), kept, f"{lost} are lost")
        self.wait_until_idle([survivor])

    def ends_well(self, lines):
        """Returns whether a stream has its last event. A lost stream has an error instead, or its connection ends."""
        with contextlib.suppress(httpx2.TransportError):
            return any(self.ending in line for line in lines)
        return False

    def answers(self, engine):
        try:
            return engine.http.get("/health").status_code == 200
        except httpx2.TransportError:
            return False
