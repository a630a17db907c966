"""Kills one of two engines that serve a gateway over gRPC: its streams are lost, and no later chat fails."""

import deaths


class Death(deaths.Death):
    ending = '"finish_reason":"length"'

    def messages(self, index):
        return [{"role": "user", "content": self.prompt(index, 6)}]

    def in_flight(self, index):
        return self.endless("/v1/chat/completions", messages=self.messages(index))

    def ask_later(self):
        for index in range(deaths.LATER_REQUESTS):
            answer = self.chat(self.messages(index))
            self.assertTrue(answer.choices[0].message.content)

    def test_no_later_chat_fails(self):
        self.check()
