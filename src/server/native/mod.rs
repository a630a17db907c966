//! `POST /generate`: SGLang's native request and response.
//!
//! Streams carry the text and tokens so far, as SGLang does by default: each chunk can be read alone.

mod call;
mod reply;

use actix_web::HttpResponse;
use actix_web::web::Data;

pub(super) use call::{
    NativeCall, check_size, read_sampling, rid as read_rid, samples_of, texts, tokens,
};
pub(super) use reply::{Meta, Shape};

use super::body::JsonBody;
use super::error::ApiError;
use super::lanes::{Lane, finish_all};
use super::sse::{self, Chunks, Render};
use super::state::AppState;
use super::transcript::{News, Transcript};
use crate::ids::RequestId;
use reply::Reply;

/// Answers `POST /generate`.
pub(super) async fn generate(
    state: Data<AppState>,
    body: JsonBody,
) -> Result<HttpResponse, ApiError> {
    let loaded = state.serving()?;
    let call = NativeCall::parse(body.0, state.config().max_batch_requests)?;
    let rids: Vec<RequestId> = call
        .requests
        .iter()
        .map(|request| request.rid.clone())
        .collect();
    let shapes: Vec<Shape> = call.shapes(&loaded.words);
    let lanes = Lane::open_all(&state, call.requests)?;
    if call.stream {
        let transcripts = rids.iter().map(|_| Transcript::default()).collect();
        let render = Cumulative {
            rids,
            shapes,
            transcripts,
            is_batch: call.is_batch,
        };
        return sse::respond(lanes, render, state.config().sse_keep_alive_s).await;
    }
    let transcripts = finish_all(lanes).await?;
    let replies = rids.iter().zip(&shapes).zip(&transcripts);
    let replies: Vec<Reply<'_>> = replies
        .map(|((rid, shape), transcript)| Reply::new(rid, shape, transcript, None))
        .collect();
    Ok(match replies.first() {
        Some(only) if !call.is_batch => HttpResponse::Ok().json(only),
        _ => HttpResponse::Ok().json(replies),
    })
}

/// Streams what each request has given so far.
struct Cumulative {
    rids: Vec<RequestId>,
    shapes: Vec<Shape>,
    transcripts: Vec<Transcript>,
    is_batch: bool,
}

impl Render for Cumulative {
    fn news(&mut self, index: usize, news: News, out: &mut Chunks) {
        if news.is_empty() {
            return;
        }
        let transcript = &mut self.transcripts[index];
        transcript.push(news);
        let shown_index = self.is_batch.then_some(index);
        out.data(&Reply::new(
            &self.rids[index],
            &self.shapes[index],
            transcript,
            shown_index,
        ));
    }
}
