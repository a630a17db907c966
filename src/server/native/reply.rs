//! Writes SGLang's native response.

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use crate::cached::CachedTokens;
use crate::spelling::Spelling;
use crate::sse::Chunks;
use crate::transcript::{Transcript, TranscriptEnd};
use souffleur_base::ids::RequestId;
use souffleur_request::FinishReason;
use souffleur_state::sampling::{LogprobWish, TokenLogprobs};

#[derive(Clone)]
pub(crate) struct ReplyForm {
    logprobs: bool,
    top: bool,
    chosen: bool,
    spelling: Option<Spelling>,
}

impl ReplyForm {
    /// The requested lists of log probabilities, with the tokens' texts if `spelling` is given.
    pub(crate) fn new(wish: Option<&LogprobWish>, spelling: Option<&Spelling>) -> Self {
        Self {
            logprobs: wish.is_some(),
            top: wish.is_some_and(|wish| wish.top > 0),
            chosen: wish.is_some_and(|wish| !wish.token_ids.is_empty()),
            spelling: spelling.cloned(),
        }
    }
}

#[derive(Serialize)]
pub(crate) struct Reply<'a> {
    text: &'a str,
    output_ids: &'a [u32],
    meta_info: Meta<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
}

impl<'a> Reply<'a> {
    pub(crate) fn new(
        rid: &'a RequestId,
        form: &'a ReplyForm,
        transcript: &'a Transcript,
        index: Option<usize>,
    ) -> Self {
        let logprobs = form.logprobs.then(|| Logprobs::new(form, transcript));
        Self::with(logprobs, rid, transcript, index)
    }

    /// A partial answer. Its lists of log probabilities are empty: [`LogprobsJson`] fills in the output tokens' list.
    fn so_far(
        rid: &'a RequestId,
        form: &'a ReplyForm,
        transcript: &'a Transcript,
        index: Option<usize>,
    ) -> Self {
        let logprobs = form.logprobs.then(|| Logprobs::with(form, &[], &[]));
        Self::with(logprobs, rid, transcript, index)
    }

    fn with(
        logprobs: Option<Logprobs<'a>>,
        rid: &'a RequestId,
        transcript: &'a Transcript,
        index: Option<usize>,
    ) -> Self {
        Self {
            text: &transcript.text,
            output_ids: &transcript.tokens,
            meta_info: Meta::with(logprobs, rid, transcript),
            index,
        }
    }
}

#[derive(Serialize)]
pub(crate) struct Meta<'a> {
    id: &'a RequestId,
    finish_reason: Option<Reason<'a>>,
    prompt_tokens: u32,
    completion_tokens: u32,
    cached_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens_details: Option<CachedTokens>,
    num_retractions: u32,
    weight_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    e2e_latency: Option<f64>,
    #[serde(flatten)]
    drafts: Option<Drafts<'a>>,
    #[serde(flatten)]
    logprobs: Option<Logprobs<'a>>,
}

/// Counts of drafts, in a whole answer of an engine that speculates. The draft tokens are those that steps verified.
#[derive(Serialize)]
struct Drafts<'a> {
    spec_accept_rate: f64,
    spec_accept_length: f64,
    spec_accept_token_num: u32,
    spec_draft_token_num: u32,
    spec_verify_ct: u32,
    spec_accept_histogram: &'a [u32],
}

impl<'a> Drafts<'a> {
    fn of(transcript: &'a Transcript) -> Option<Self> {
        let end = transcript.end.as_ref()?;
        let usage = &transcript.usage;
        let drafts = usage.drafts.filter(|drafts| drafts.verify_steps > 0)?;
        let rate = f64::from(drafts.accepted) / f64::from(drafts.drafted.max(1));
        Some(Self {
            spec_accept_rate: rate,
            // As in SGLang, the first token counts, although a prefill computes it.
            spec_accept_length: f64::from(usage.completion_tokens) / f64::from(drafts.verify_steps),
            spec_accept_token_num: drafts.accepted,
            spec_draft_token_num: drafts.drafted,
            spec_verify_ct: drafts.verify_steps,
            spec_accept_histogram: &end.accept_histogram,
        })
    }
}

impl<'a> Meta<'a> {
    pub(crate) fn new(rid: &'a RequestId, form: &'a ReplyForm, transcript: &'a Transcript) -> Self {
        let logprobs = form.logprobs.then(|| Logprobs::new(form, transcript));
        Self::with(logprobs, rid, transcript)
    }

    fn with(
        logprobs: Option<Logprobs<'a>>,
        rid: &'a RequestId,
        transcript: &'a Transcript,
    ) -> Self {
        let usage = &transcript.usage;
        Self {
            id: rid,
            finish_reason: transcript.end.as_ref().map(Reason::of),
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            cached_tokens: usage.cached_tokens,
            cached_tokens_details: CachedTokens::if_stored(usage),
            num_retractions: usage.num_retractions,
            weight_version: "default",
            e2e_latency: transcript.end.as_ref().map(|end| end.e2e_latency_s),
            drafts: Drafts::of(transcript),
            logprobs,
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Reason<'a> {
    Stop { matched: Option<Matched<'a>> },
    Length { length: u32 },
    Abort { message: &'static str },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Matched<'a> {
    Token(u32),
    Text(&'a str),
}

impl<'a> Reason<'a> {
    fn of(end: &'a TranscriptEnd) -> Self {
        match &end.reason {
            FinishReason::StopToken(token) => Self::Stop {
                matched: Some(Matched::Token(*token)),
            },
            FinishReason::StopString(text) => Self::Stop {
                matched: Some(Matched::Text(text)),
            },
            FinishReason::Grammar => Self::Stop { matched: None },
            FinishReason::Length { max_new_tokens } => Self::Length {
                length: *max_new_tokens,
            },
            FinishReason::Abort => Self::Abort {
                message: "the request was aborted",
            },
        }
    }
}

#[derive(Serialize)]
struct Logprobs<'a> {
    input_token_logprobs: TokenList<'a>,
    output_token_logprobs: TokenList<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_top_logprobs: Option<TokenLists<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_top_logprobs: Option<TokenLists<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_token_ids_logprobs: Option<TokenLists<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_ids_logprobs: Option<TokenLists<'a>>,
}

impl<'a> Logprobs<'a> {
    fn new(form: &'a ReplyForm, transcript: &'a Transcript) -> Self {
        let (input, output) = (&transcript.input_logprobs, &transcript.output_logprobs);
        Self::with(form, input, output)
    }

    fn with(form: &'a ReplyForm, input: &'a [TokenLogprobs], output: &'a [TokenLogprobs]) -> Self {
        let spelling = form.spelling.as_ref();
        let others = |wanted: bool, tokens: &'a [TokenLogprobs], pick: Pick| {
            wanted.then_some(TokenLists {
                tokens,
                pick,
                spelling,
            })
        };
        Self {
            input_token_logprobs: TokenList {
                tokens: input,
                spelling,
            },
            output_token_logprobs: TokenList {
                tokens: output,
                spelling,
            },
            input_top_logprobs: others(form.top, input, |token| &token.top),
            output_top_logprobs: others(form.top, output, |token| &token.top),
            input_token_ids_logprobs: others(form.chosen, input, |token| &token.chosen),
            output_token_ids_logprobs: others(form.chosen, output, |token| &token.chosen),
        }
    }
}

/// The JSON of an output's log probabilities so far. Each event repeats them, so each log probability is serialised
/// once and then copied. The log probabilities of the prompt and of alternatives come only with the whole answer.
#[derive(Default)]
pub(crate) struct LogprobsJson(Vec<u8>);

impl LogprobsJson {
    pub(crate) fn push(&mut self, form: &ReplyForm, positions: &[TokenLogprobs]) {
        for pos in positions {
            if !self.0.is_empty() {
                self.0.push(b',');
            }
            let triple = triple(pos.logprob, pos.token, form.spelling.as_ref());
            serde_json::to_writer(&mut self.0, &triple).expect("triples have no keys");
        }
    }

    /// Adds an event with the answer so far.
    pub(crate) fn write_event(
        &self,
        rid: &RequestId,
        form: &ReplyForm,
        transcript: &Transcript,
        index: Option<usize>,
        out: &mut Chunks,
    ) {
        const LIST: &[u8] = b"\"output_token_logprobs\":[";
        let reply = Reply::so_far(rid, form, transcript, index);
        let json = serde_json::to_vec(&reply).expect("responses have string keys only");
        // Quotes inside texts are escaped, so only the key has these bytes. The search begins at the end, near the key.
        let found = json.windows(LIST.len()).rposition(|bytes| bytes == LIST);
        match found {
            None => out.json(&[&json]),
            Some(at) => {
                let (before, after) = json.split_at(at + LIST.len());
                out.json(&[before, &self.0, after]);
            }
        }
    }
}

/// `[logprob, token, text]`. The text is null if it was not requested.
type Triple = (Option<f32>, u32, Option<String>);

fn triple(logprob: Option<f32>, token: u32, spelling: Option<&Spelling>) -> Triple {
    (
        logprob,
        token,
        spelling.map(|spelling| spelling.lossy(token)),
    )
}

struct TokenList<'a> {
    tokens: &'a [TokenLogprobs],
    spelling: Option<&'a Spelling>,
}

impl Serialize for TokenList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let triples = self
            .tokens
            .iter()
            .map(|pos| triple(pos.logprob, pos.token, self.spelling));
        serializer.collect_seq(triples)
    }
}

type Pick = fn(&TokenLogprobs) -> &[(u32, f32)];

/// For each position a list of triples; null at a prompt's first token, which has no log probabilities.
struct TokenLists<'a> {
    tokens: &'a [TokenLogprobs],
    pick: Pick,
    spelling: Option<&'a Spelling>,
}

impl Serialize for TokenLists<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.tokens.len()))?;
        for pos in self.tokens {
            let triples = (self.pick)(pos).iter();
            let triples =
                triples.map(|(token, logprob)| triple(Some(*logprob), *token, self.spelling));
            let triples: Option<Vec<Triple>> = pos.logprob.is_some().then(|| triples.collect());
            list.serialize_element(&triples)?;
        }
        list.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::spelling::tests::bytewise;
    use crate::transcript::Update;
    use souffleur_request::{Delta, DraftUsage, Usage};

    fn pos(token: u32, logprob: Option<f32>) -> TokenLogprobs {
        let others = || {
            if logprob.is_some() {
                vec![(98, -1.5)]
            } else {
                Vec::new()
            }
        };
        TokenLogprobs {
            token,
            logprob,
            top: others(),
            chosen: others(),
        }
    }

    fn transcript() -> Transcript {
        let usage = Usage {
            prompt_tokens: 2,
            completion_tokens: 1,
            reasoning_tokens: 0,
            cached_tokens: 1,
            loaded_tokens: 0,
            num_retractions: 3,
            drafts: None,
            prediction: None,
        };
        let delta = Delta {
            text: "a".to_owned(),
            pieces: Vec::new(),
            tokens: vec![97],
            output_logprobs: vec![pos(97, Some(-0.5))],
            input_logprobs: vec![pos(256, None), pos(98, Some(-2.0))],
            usage,
        };
        let mut transcript = Transcript::default();
        transcript.push(Update { delta, end: None });
        transcript
    }

    #[track_caller]
    fn check(form: &ReplyForm, transcript: &Transcript, index: Option<usize>, expected: Value) {
        let rid = RequestId::new("r");
        let reply = Reply::new(&rid, form, transcript, index);
        assert_eq!(serde_json::to_value(reply).expect("plain data"), expected);
    }

    #[test]
    fn log_probabilities_are_triples_and_null_at_the_first_token() {
        let wish = LogprobWish {
            start: Some(0),
            top: 1,
            token_ids: [].into(),
        };
        let form = ReplyForm::new(Some(&wish), Some(&bytewise()));
        let expected = json!({
            "text": "a",
            "output_ids": [97],
            "meta_info": {
                "id": "r", "finish_reason": null, "prompt_tokens": 2, "completion_tokens": 1,
                "cached_tokens": 1, "num_retractions": 3, "weight_version": "default",
                "input_token_logprobs": [[null, 256, "<|256|>"], [-2.0, 98, "b"]],
                "output_token_logprobs": [[-0.5, 97, "a"]],
                "input_top_logprobs": [null, [[-1.5, 98, "b"]]],
                "output_top_logprobs": [[[-1.5, 98, "b"]]],
            },
        });
        check(&form, &transcript(), None, expected);
    }

    #[test]
    fn an_answer_so_far_has_only_the_outputs_log_probabilities() {
        let wish = LogprobWish {
            start: Some(0),
            top: 1,
            token_ids: [98].into(),
        };
        let form = ReplyForm::new(Some(&wish), Some(&bytewise()));
        let (rid, mut transcript) = (RequestId::new("r"), transcript());
        transcript.text = r#"","output_token_logprobs":["#.to_owned();
        let mut written = LogprobsJson::default();
        written.push(&form, &transcript.output_logprobs);
        written.push(&form, &[pos(98, Some(-2.0))]);
        let mut out = Chunks::default();
        written.write_event(&rid, &form, &transcript, Some(4), &mut out);
        let event = String::from_utf8(out.into_bytes()).expect("JSON is text");
        let event = event.strip_prefix("data: ").expect("an event");
        let reply: Value = serde_json::from_str(event).expect("JSON");
        assert_eq!(reply["text"], transcript.text);
        assert_eq!(reply["index"], 4);
        let meta = &reply["meta_info"];
        let expected = json!([[-0.5, 97, "a"], [-2.0, 98, "b"]]);
        assert_eq!(meta["output_token_logprobs"], expected);
        for later in [
            "input_token_logprobs",
            "input_top_logprobs",
            "input_token_ids_logprobs",
            "output_top_logprobs",
            "output_token_ids_logprobs",
        ] {
            assert_eq!(meta[later], json!([]), "{later}");
        }
    }

    #[test]
    fn an_answer_so_far_without_log_probabilities_has_no_list_of_them() {
        let (rid, form, transcript) = (
            RequestId::new("r"),
            ReplyForm::new(None, None),
            transcript(),
        );
        let mut out = Chunks::default();
        LogprobsJson::default().write_event(&rid, &form, &transcript, None, &mut out);
        let event = String::from_utf8(out.into_bytes()).expect("JSON is text");
        let event = event.strip_prefix("data: ").expect("an event");
        let reply: Value = serde_json::from_str(event).expect("JSON");
        let whole = Reply::new(&rid, &form, &transcript, None);
        assert_eq!(reply, serde_json::to_value(whole).expect("plain data"));
    }

    #[test]
    fn reasons_have_sglangs_shapes() {
        let reason = |reason: FinishReason| {
            let end = TranscriptEnd {
                reason,
                e2e_latency_s: 0.25,
                prompt: Default::default(),
                embedding: None,
                timings: None,
                accept_histogram: Default::default(),
            };
            serde_json::to_value(Reason::of(&end)).expect("plain data")
        };
        let length = FinishReason::Length { max_new_tokens: 8 };
        assert_eq!(reason(length), json!({"type": "length", "length": 8}));
        let stop = FinishReason::StopString("x".to_owned());
        assert_eq!(reason(stop), json!({"type": "stop", "matched": "x"}));
        assert_eq!(
            reason(FinishReason::StopToken(2)),
            json!({"type": "stop", "matched": 2})
        );
        let abort = json!({"type": "abort", "message": "the request was aborted"});
        assert_eq!(reason(FinishReason::Abort), abort);
    }

    #[test]
    fn a_whole_answer_has_the_counts_of_its_drafts() {
        let mut transcript = transcript();
        transcript.usage.completion_tokens = 9;
        transcript.usage.drafts = Some(DraftUsage {
            verify_steps: 3,
            drafted: 10,
            accepted: 5,
        });
        let names = |transcript: &Transcript| {
            let (rid, form) = (RequestId::new("r"), ReplyForm::new(None, None));
            let reply = serde_json::to_value(Reply::new(&rid, &form, transcript, None));
            let meta = reply.expect("plain data")["meta_info"].clone();
            let mut meta = meta.as_object().cloned().expect("an object");
            meta.retain(|name, _| name.starts_with("spec_"));
            Value::Object(meta)
        };
        assert_eq!(names(&transcript), json!({}), "the answer is not whole");
        transcript.end = Some(TranscriptEnd {
            reason: FinishReason::StopToken(2),
            e2e_latency_s: 0.25,
            prompt: Default::default(),
            embedding: None,
            timings: None,
            accept_histogram: [1, 0, 1, 1].into(),
        });
        let expected = json!({
            "spec_accept_rate": 0.5, "spec_accept_length": 3.0, "spec_accept_token_num": 5,
            "spec_draft_token_num": 10, "spec_verify_ct": 3, "spec_accept_histogram": [1, 0, 1, 1],
        });
        assert_eq!(names(&transcript), expected);
    }

    #[test]
    fn the_last_answer_of_a_batch_member_has_its_index_and_latency() {
        let mut transcript = transcript();
        let end = TranscriptEnd {
            reason: FinishReason::StopToken(2),
            e2e_latency_s: 0.25,
            prompt: Default::default(),
            embedding: None,
            timings: None,
            accept_histogram: Default::default(),
        };
        transcript.end = Some(end);
        let expected = json!({
            "text": "a",
            "output_ids": [97],
            "meta_info": {
                "id": "r", "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 2,
                "completion_tokens": 1, "cached_tokens": 1, "num_retractions": 3,
                "weight_version": "default", "e2e_latency": 0.25,
            },
            "index": 4,
        });
        check(&ReplyForm::new(None, None), &transcript, Some(4), expected);
    }
}
