"""Tests of SGLang's native endpoint, called as users' scripts call it."""

import json

from world import LONG, World, wait_until

STORY = "Once upon a time"


class Native(World):
    def sampled(self, max_new_tokens=12, **sampling):
        return {"temperature": 0, "max_new_tokens": max_new_tokens, **sampling}

    def stream(self, **fields):
        """The events of a stream, which ends with [DONE]."""
        with self.http.stream("POST", "/generate", json={**fields, "stream": True}) as response:
            self.assertEqual(response.status_code, 200)
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        self.assertEqual(lines.pop(), "[DONE]")
        return [json.loads(line) for line in lines]

    def test_text_and_input_ids_give_the_same_answer(self):
        ids = self.token_ids(STORY)
        from_text = self.generate(text=STORY, sampling_params=self.sampled(), rid="named")
        from_ids = self.generate(input_ids=ids, sampling_params=self.sampled())
        for key in ("text", "output_ids"):
            self.assertEqual(from_text[key], from_ids[key])
        meta = from_text["meta_info"]
        self.assertEqual((meta["id"], meta["prompt_tokens"], meta["completion_tokens"]), ("named", len(ids), 12))
        self.assertEqual(len(from_text["output_ids"]), 12)

    def test_a_batch_is_a_list_of_the_single_answers(self):
        texts = [STORY, "Hello", "Tell me"]
        single = [self.generate(text=text, sampling_params=self.sampled()) for text in texts]
        batch = self.generate(text=texts, sampling_params=self.sampled())
        self.assertEqual([answer["text"] for answer in batch], [answer["text"] for answer in single])
        own = [self.sampled(length) for length in (3, 4, 5)]
        batch = self.generate(text=texts, sampling_params=own)
        self.assertEqual([len(answer["output_ids"]) for answer in batch], [3, 4, 5])
        samples = self.generate(text=STORY, sampling_params={"n": 2, "max_new_tokens": 3, "ignore_eos": True})
        self.assertEqual([len(answer["output_ids"]) for answer in samples], [3, 3])

    def test_reasons_to_finish_have_sglangs_shapes(self):
        def reason(**sampling):
            return self.generate(text=STORY, sampling_params=self.sampled(**sampling))["meta_info"]["finish_reason"]

        self.assertEqual(reason(max_new_tokens=5), {"type": "length", "length": 5})
        whole = self.generate(text=STORY, sampling_params=self.sampled(300))
        (eos, _) = self.http.get("/model_info").json()["eos_token_ids"]
        self.assertEqual(whole["meta_info"]["finish_reason"], {"type": "stop", "matched": eos})
        self.assertEqual(whole["output_ids"][-1], eos)
        token = whole["output_ids"][3]
        self.assertEqual(reason(stop_token_ids=[token]), {"type": "stop", "matched": token})
        stop = whole["text"][8:12]
        self.assertEqual(reason(stop=stop), {"type": "stop", "matched": stop})

    def test_a_stream_repeats_the_text_so_far(self):
        fields = {"text": STORY, "sampling_params": self.sampled(40)}
        whole = self.generate(**fields)
        events = self.stream(**fields)
        for earlier, later in zip(events, events[1:]):
            self.assertTrue(later["text"].startswith(earlier["text"]))
            self.assertEqual(later["output_ids"][: len(earlier["output_ids"])], earlier["output_ids"])
            self.assertIsNone(earlier["meta_info"]["finish_reason"])
        last = events[-1]
        self.assertEqual((last["text"], last["output_ids"]), (whole["text"], whole["output_ids"]))
        self.assertEqual(last["meta_info"]["finish_reason"], whole["meta_info"]["finish_reason"])

    def test_events_of_a_streamed_batch_have_an_index(self):
        texts = [STORY, "Hello"]
        whole = self.generate(text=texts, sampling_params=self.sampled())
        events = self.stream(text=texts, sampling_params=self.sampled())
        for index, answer in enumerate(whole):
            last = [event for event in events if event["index"] == index][-1]
            self.assertEqual(last["text"], answer["text"])

    def test_log_probabilities_are_triples_of_value_token_and_text(self):
        options = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2, "return_text_in_logprobs": True}
        answer = self.generate(text=STORY, sampling_params=self.sampled(6), token_ids_logprob=[5, 6], **options)
        meta = answer["meta_info"]
        inputs, outputs = meta["input_token_logprobs"], meta["output_token_logprobs"]
        self.assertEqual([text for _, _, text in inputs], ["Once", " upon", " a", " time"])
        self.assertIsNone(inputs[0][0])
        self.assertEqual([token for _, token, _ in outputs], answer["output_ids"])
        self.assertEqual("".join(text for _, _, text in outputs), answer["text"])
        for (logprob, token, _), top in zip(outputs, meta["output_top_logprobs"]):
            self.assertEqual((len(top), top[0][1]), (2, token))
            self.assertAlmostEqual(top[0][0], logprob, places=5)
        chosen = [[token for _, token, _ in place] for place in meta["output_token_ids_logprobs"]]
        self.assertEqual(chosen, [[5, 6]] * 6)
        # Scoring the answer as a prompt gives the same log probabilities as generating it.
        ids = [token for _, token, _ in inputs] + answer["output_ids"]
        scored = self.generate(input_ids=ids, sampling_params={"max_new_tokens": 0}, **options)
        self.assertEqual(scored["meta_info"]["input_token_logprobs"], inputs + outputs)

    def test_errors_have_openais_error_object(self):
        for fields, param in (
            ({}, "text"),
            ({"text": "a", "input_ids": [1]}, "input_ids"),
            ({"text": 5}, "text"),
            ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature"),
            ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
            ({"input_ids": [99999]}, None),
            ({"input_ids": [5, "x"]}, "input_ids[1]"),
        ):
            with self.subTest(fields):
                response = self.http.post("/generate", json=fields)
                error = response.json()["error"]
                self.assertEqual((response.status_code, error["param"]), (400, param), error)
                self.assertEqual((error["type"], error["code"]), ("invalid_request_error", "invalid_request"))

    def test_a_stream_is_cancelled_when_the_client_disconnects(self):
        aborted = self.metrics("sglang:num_aborted_requests_total")
        fields = {"text": STORY, "sampling_params": {"max_new_tokens": LONG, "ignore_eos": True}, "stream": True}
        with self.http.stream("POST", "/generate", json=fields) as response:
            lines = response.iter_lines()
            next(lines)
            self.wait_until_running(1)
        wait_until("the request is cancelled", lambda: self.metrics("sglang:num_aborted_requests_total") == aborted + 1)
