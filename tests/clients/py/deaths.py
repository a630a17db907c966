"""Kills one of two engines that serve a gateway: its streams are lost, and no later request fails."""

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
    # In the last event of a stream that ends well.
    ending = None

    def prompt(self, index, times):
        return f"{PLACES[index % len(PLACES)]}: what comes next? " * times

    def under_way(self, index):
        """A stream in flight."""
        raise NotImplementedError

    def ask_later(self):
        """Prompts that each engine has in its cache, alternating."""
        raise NotImplementedError

    def check(self):
        victim, survivor = self.engines
        with contextlib.ExitStack() as streams:
            # All are in flight at once: one engine does not get them all.
            under_way = [streams.enter_context(self.under_way(index)) for index in range(len(PLACES))]
            lost, kept = self.check_both_run(len(PLACES))
            # None of its streams ends before it does.
            victim.pause()
            os.kill(VICTIM, signal.SIGKILL)
            wait_until("the engine is gone", lambda: not self.answers(victim))
            before = survivor.prompt_tokens()
            self.ask_later()
            self.assertGreater(survivor.prompt_tokens(), before)
            self.assertEqual(sum(self.ends_well(lines) for lines in under_way), kept, f"{lost} are lost")
        self.wait_until_whole([survivor])

    def ends_well(self, lines):
        """A lost stream has an error, with or without an end marker, or its connection ends."""
        with contextlib.suppress(httpx2.TransportError):
            return any(self.ending in line for line in lines)
        return False

    def answers(self, engine):
        try:
            return engine.http.get("/health").status_code == 200
        except httpx2.TransportError:
            return False
