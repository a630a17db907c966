"""Kills one of two engines that serve a gateway over HTTP: its streams are lost, and no later request fails."""

import deaths


class Death(deaths.Death):
    ending = '"finish_reason":{"type":"length"'

    def in_flight(self, index):
        return self.endless(text=self.prompt(index, 4))

    def ask_later(self):
        for index in range(deaths.LATER_REQUESTS):
            self.generate(text=self.prompt(index, 4), sampling_params={"max_new_tokens": 4, "ignore_eos": True})
        answer = self.chat([{"role": "user", "content": "Who is left?"}])
        self.assertTrue(answer.choices[0].message.content)

    def test_no_later_request_fails(self):
        self.check()
