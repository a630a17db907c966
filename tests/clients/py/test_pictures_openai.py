"""Tests of pictures in OpenAI's chats and responses, with the unmodified client."""

import openai
from pictures import ASSISTANT, END, Pictures, data_url

MODEL = "any"


def text(text):
    return {"type": "text", "text": text}


def image(number):
    return {"type": "image_url", "image_url": {"url": data_url(number), "detail": "high"}}


def user(*parts):
    return {"role": "user", "content": list(parts)}


class Chats(Pictures):
    def ask(self, messages, **options):
        answer = self.client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=6, temperature=0, **options
        )
        self.assertEqual(answer.usage.prompt_tokens, len(self.tokens(messages)))
        return answer

    def test_a_picture_is_counted_and_answered_also_as_a_stream(self):
        messages = [user(text("Look: "), image(1), text("Which colours?"))]
        whole = self.ask(messages)
        stream = self.client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=6, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )
        events = list(stream)
        self.assertEqual(events[-1].usage.prompt_tokens, whole.usage.prompt_tokens)
        streamed = "".join(event.choices[0].delta.content or "" for event in events[:-1])
        self.assertEqual(streamed, whole.choices[0].message.content or "")
        without = self.ask([user(text("Look: "), text("Which colours?"))])
        # 5 x 3 vectors and marks.
        self.assertGreater(whole.usage.prompt_tokens, without.usage.prompt_tokens + 15)

    def test_later_turns_have_the_pictures_cached(self):
        before = self.n_encoded()
        messages = [user(image(2), text("Which one?"))]
        for turn in range(1, 4):
            answer = self.ask(messages)
            cached = answer.usage.prompt_tokens_details.cached_tokens
            if turn > 1:
                self.assertGreaterEqual(cached, known)
            known = self.up_to_pictures(messages)
            # One picture is new in each turn.
            self.assertEqual(self.n_encoded(), before + turn)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
            messages.append(user(text("And this?"), image(turn + 10)))

    def test_further_questions_encode_nothing(self):
        self.ask([user(image(3), text("Which colour?"))])
        before = self.n_encoded()
        messages = [user(image(3), text("How large is it?"))]
        cached = self.ask(messages).usage.prompt_tokens_details.cached_tokens
        self.assertGreaterEqual(cached, self.up_to_pictures(messages))
        self.assertEqual(self.n_encoded(), before)

    def test_samples_share_a_picture(self):
        before = self.n_encoded()
        answer = self.ask([user(text("Four times: "), image(4))], n=4)
        contents = {choice.message.content for choice in answer.choices}
        self.assertEqual((len(answer.choices), len(contents)), (4, 1))
        self.assertEqual(self.n_encoded(), before + 1)

    def test_names_of_tokens_are_letters(self):
        for name in ("<|image_pad|>", "<|vision_start|>", "[IMG]", "[IMG_END]"):
            tokens = self.tokens([user(text(f"The token {name} and "), image(5))])
            without = self.tokens([user(text("The token  and "), image(5))])
            self.assertEqual(tokens.count(END), without.count(END), name)
            self.assertGreater(len(tokens), len(without) + 2, name)

    def test_damaged_pictures_and_urls_are_refused_by_their_place(self):
        damaged = {"type": "image_url", "image_url": {"url": data_url(6)[:-40]}}
        elsewhere = {"type": "image_url", "image_url": {"url": "http://localhost/a.png"}}
        for part in (damaged, elsewhere):
            with self.assertRaises(openai.BadRequestError) as raised:
                self.client.chat.completions.create(model=MODEL, messages=[user(text("a"), part)], max_tokens=1)
            self.assertIn("messages[0].content[1]", raised.exception.message)


class Responses(Pictures):
    def respond(self, given, **options):
        answer = self.client.responses.create(
            model=MODEL, input=given, max_output_tokens=6, temperature=0, **options
        )
        return answer, answer.usage.input_tokens_details.cached_tokens

    def item(self, number, text):
        image = {"type": "input_image", "image_url": data_url(number), "detail": "auto"}
        return {"role": "user", "content": [image, {"type": "input_text", "text": text}]}

    def test_a_response_goes_on_with_the_picture_of_the_one_before(self):
        before = self.n_encoded()
        given = [self.item(21, "Which one?")]
        first, _ = self.respond(given)
        counted = self.client.responses.input_tokens.count(model=MODEL, input=given)
        self.assertEqual(counted.input_tokens, first.usage.input_tokens)
        second, cached = self.respond("And why?", previous_response_id=first.id)
        self.assertGreaterEqual(cached, first.usage.input_tokens - 1)
        self.assertEqual(self.n_encoded(), before + 1)
        answer = {"role": "assistant", "content": first.output_text}
        whole, _ = self.respond([*given, answer, {"role": "user", "content": "And why?"}])
        self.assertEqual(whole.output_text, second.output_text)
        self.assertEqual(whole.usage.input_tokens, second.usage.input_tokens)

    def test_outputs_of_calls_have_pictures(self):
        before = self.n_encoded()
        given = [{"role": "user", "content": "Take a picture."}]
        for turn in range(1, 4):
            image = {"type": "input_image", "image_url": data_url(21 + turn), "detail": "auto"}
            name = f"call_{turn}"
            given += [
                {"type": "function_call", "call_id": name, "name": "shoot", "arguments": "{}"},
                {
                    "type": "function_call_output", "call_id": name,
                    "output": [{"type": "input_text", "text": "done"}, image],
                },
            ]
            answer, cached = self.respond(given)
            if turn > 1:
                # Up to the turn that the model was to write.
                self.assertGreaterEqual(cached, known)
            known = answer.usage.input_tokens - len(ASSISTANT)
            self.assertEqual(self.n_encoded(), before + turn)
            counted = self.client.responses.input_tokens.count(model=MODEL, input=given)
            self.assertEqual(counted.input_tokens, answer.usage.input_tokens)

    def test_a_stream_has_the_same_text(self):
        given = [self.item(31, "Which one?")]
        whole, _ = self.respond(given)
        events = list(
            self.client.responses.create(model=MODEL, input=given, max_output_tokens=6, temperature=0, stream=True)
        )
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        self.assertEqual("".join(deltas), whole.output_text)
        self.assertEqual(events[-1].response.usage.input_tokens, whole.usage.input_tokens)
