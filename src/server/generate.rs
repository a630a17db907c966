//! `POST /generate`: SGLang's native API.
//!
//! Each chunk of a stream has the whole text and all tokens so far, as in SGLang by default. The log probabilities of
//! the prompt and all alternatives come once, in the last chunk, where SGLang's clients read them. Repeated in every
//! chunk, they would make the stream's size quadratic in the output's length.

use actix_web::HttpResponse;
use actix_web::web::Data;
use serde::Serialize;

use super::body::JsonBody;
use super::call::{CallLimits, EmbedLimits};
use super::error::{ApiError, Envelope};
use super::images;
use super::lanes::{Lane, finish_all};
use super::native::{LogprobsJson, NativeCall, Reply, ReplyForm};
use super::sessions::{self, SessionParams, SessionTurn};
use super::sse::{self, Chunks, Render};
use super::state::AppState;
use super::transcript::{Transcript, Update};
use super::whole::{self, MAX_INLINE_BYTES};
use super::words::Dialect;
use souffleur_base::ids::RequestId;

pub(super) use super::native::operation;

pub(super) async fn generate(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let answer = answer(state, body).await;
    answer.map_err(|error| error.in_dialect(Dialect::Sglang))
}

async fn answer(state: Data<AppState>, body: JsonBody) -> Result<HttpResponse, ApiError> {
    let loaded = state.serving()?;
    let limits = CallLimits {
        max_requests: state.config().max_batch_requests,
        websocket: None,
        request: loaded.engine.request_limits(),
        embeds: EmbedLimits::of(&loaded.engine),
    };
    let mut fields = body.0;
    let session = SessionParams::take(&mut fields)?;
    let mut call = NativeCall::parse(fields, limits)?;
    let wanted = call.take_wanted();
    let pending = images::check(&state, &call.requests, wanted)?;
    pending
        .fetch_for_texts(&state, &mut call.requests, &mut call.charges)
        .await?;
    let rids: Vec<RequestId> = call
        .requests
        .iter()
        .map(|request| request.rid.clone())
        .collect();
    let forms: Vec<ReplyForm> = call.forms(&loaded.spelling);
    let (lanes, turn) = sessions::open_all(&state, session.as_ref(), call.requests).await?;
    let lanes = Lane::with_charges(lanes, call.charges);
    if call.stream {
        let transcripts = rids.iter().map(|_| Transcript::default()).collect();
        let logprobs = rids.iter().map(|_| LogprobsJson::default()).collect();
        let render = CumulativeStream {
            rids,
            forms,
            transcripts,
            logprobs,
            kept_logprobs: 0,
            is_batch: call.is_batch,
            turn,
        };
        return sse::respond(lanes, render, state.config().sse_keep_alive_s).await;
    }
    let charge = Lane::answer_charge(&lanes);
    let (transcripts, is_batch) = (finish_all(lanes).await?, call.is_batch);
    if let (Some(turn), Some(transcript)) = (turn, transcripts.first()) {
        turn.ended(&transcript.tokens);
    }
    let write = move |transcripts: Vec<Transcript>| {
        let replies = rids.iter().zip(&forms).zip(&transcripts);
        let replies: Vec<Reply<'_>> = replies
            .map(|((rid, form), transcript)| Reply::new(rid, form, transcript, None))
            .collect();
        match replies.first() {
            Some(only) if !is_batch => json(only),
            _ => json(&replies),
        }
    };
    Ok(whole::respond(transcripts, charge, write).await)
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("responses have string keys only")
}

/// Streams each request's output so far.
struct CumulativeStream {
    rids: Vec<RequestId>,
    forms: Vec<ReplyForm>,
    transcripts: Vec<Transcript>,
    logprobs: Vec<LogprobsJson>,
    kept_logprobs: usize,
    is_batch: bool,
    /// The turn of the call's only request in its session.
    turn: Option<SessionTurn>,
}

impl Render for CumulativeStream {
    fn update(&mut self, index: usize, update: Update, out: &mut Chunks) {
        self.kept_logprobs += update.logprob_entries();
        let is_for_later = update.is_prompt_only();
        let (rid, form) = (&self.rids[index], &self.forms[index]);
        let (transcript, logprobs) = (&mut self.transcripts[index], &mut self.logprobs[index]);
        logprobs.push(form, &update.delta.output_logprobs);
        transcript.push(update);
        if is_for_later {
            return;
        }
        let shown_index = self.is_batch.then_some(index);
        if transcript.end.is_none() {
            return logprobs.write_event(rid, form, transcript, shown_index, out);
        }
        if let Some(turn) = self.turn.take() {
            turn.ended(&transcript.tokens);
        }
        *logprobs = LogprobsJson::default();
        let whole = std::mem::take(transcript);
        if whole.json_bytes() <= MAX_INLINE_BYTES {
            return out.data(&Reply::new(rid, form, &whole, shown_index));
        }
        let (rid, form) = (rid.clone(), form.clone());
        out.data_on_thread(move || json(&Reply::new(&rid, &form, &whole, shown_index)));
    }

    fn kept_logprobs(&self) -> usize {
        self.kept_logprobs
    }

    fn fail(&mut self, error: &ApiError, out: &mut Chunks) {
        let error = error.clone().in_dialect(Dialect::Sglang);
        out.data(&Envelope {
            error: error.body(),
        });
    }
}
