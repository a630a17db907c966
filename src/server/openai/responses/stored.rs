//! Routes that read and delete stored responses.

use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::http::header::ContentType;
use actix_web::web::{Data, Path, Query};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::ids::ResponseId;
use super::replay;
use super::store::{Owner, StoredItem, StoredResponse};
use crate::error::ApiError;
use crate::sse;
use crate::state::AppState;
use crate::whole;

/// Items of a page if the client sends no `limit`.
pub(super) const PAGE_ITEMS: usize = 20;
pub(super) const MAX_PAGE_ITEMS: usize = 100;

#[derive(Deserialize)]
pub(crate) struct ReplayQuery {
    stream: Option<String>,
    starting_after: Option<String>,
}

impl ReplayQuery {
    /// The number of the first requested event, if the client wants events.
    fn first_event(&self) -> Result<Option<usize>, ApiError> {
        const NAME: &str = "starting_after";
        let stream = self.stream.as_deref();
        let is_stream = match stream {
            Some("true") => true,
            None | Some("false") => false,
            Some(_) => return Err(ApiError::field("stream", "stream must be true or false")),
        };
        let Some(after) = &self.starting_after else {
            return Ok(is_stream.then_some(0));
        };
        let after: Option<usize> = after.parse().ok();
        match after.and_then(|after| after.checked_add(1)) {
            Some(first) if is_stream => Ok(Some(first)),
            Some(_) => {
                let text = "starting_after needs stream=true: send both";
                Err(ApiError::field(NAME, text))
            }
            None => {
                let text = "starting_after must be the number of an event, at least 0";
                Err(ApiError::field(NAME, text))
            }
        }
    }
}

pub(crate) async fn retrieve(
    state: Data<AppState>,
    id: Path<String>,
    query: Query<ReplayQuery>,
) -> Result<HttpResponse, ApiError> {
    let stored = find(&state, &id)?;
    if let Some(first) = query.first_event()? {
        return replay(&state, stored, first).await;
    }
    let json = stored.json.clone();
    Ok(HttpResponse::Ok()
        .content_type(ContentType::json())
        .body(whole::in_pieces(json)))
}

async fn replay(
    state: &AppState,
    stored: Arc<StoredResponse>,
    first: usize,
) -> Result<HttpResponse, ApiError> {
    let charge = state.answers().charge_bytes(replay::bytes(&stored))?;
    let write = whole::on_thread(move || {
        let mut out = Vec::new();
        for event in replay::events(&stored).into_iter().skip(first) {
            sse::write_named(&mut out, event.name, &event.json);
        }
        out
    });
    let events = write.await.map_err(|_| whole::aborted())?;
    Ok(sse::whole(events, charge))
}

pub(crate) async fn delete(
    state: Data<AppState>,
    id: Path<String>,
) -> Result<HttpResponse, ApiError> {
    let is_there = state
        .responses()
        .forget(&ResponseId::from_client(&id), &Owner::Anyone);
    if is_there {
        let deleted = json!({"id": *id, "object": "response", "deleted": true});
        Ok(HttpResponse::Ok().json(deleted))
    } else {
        Err(ApiError::no_such_response(&id))
    }
}

/// Refuses `POST /v1/responses/{id}/cancel`: stored responses have ended, and nothing runs in the background.
pub(crate) async fn cancel(
    state: Data<AppState>,
    id: Path<String>,
) -> Result<HttpResponse, ApiError> {
    find(&state, &id)?;
    Err(ApiError::invalid(
        "only background responses can be cancelled, and this one has ended: to cancel a running response, close its \
         connection",
    ))
}

#[derive(Deserialize)]
pub(crate) struct Page {
    limit: Option<String>,
    order: Option<String>,
    after: Option<String>,
}

#[derive(Serialize)]
struct ItemList<'a> {
    object: &'static str,
    data: Vec<&'a RawValue>,
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
    has_more: bool,
}

/// Answers `GET /v1/responses/{id}/input_items`, by default the newest first.
pub(crate) async fn input_items(
    state: Data<AppState>,
    id: Path<String>,
    page: Query<Page>,
) -> Result<HttpResponse, ApiError> {
    let stored = find(&state, &id)?;
    let limit = page.items()?;
    let mut items: Vec<&StoredItem> = stored.input.iter().collect();
    if page.is_descending()? {
        items.reverse();
    }
    if let Some(after) = &page.after {
        let Some(index) = items.iter().position(|item| item.id == *after) else {
            let remedy = "send the id of an input item of this response as `after`";
            return Err(ApiError::no_such_item("after".to_owned(), after, remedy));
        };
        items.drain(..=index);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let data: serde_json::Result<Vec<&RawValue>> = items
        .iter()
        .map(|item| serde_json::from_str(&item.json))
        .collect();
    let list = ItemList {
        object: "list",
        data: data.expect("items are kept as JSON"),
        first_id: items.first().map(|item| item.id.as_str()),
        last_id: items.last().map(|item| item.id.as_str()),
        has_more,
    };
    let json = serde_json::to_vec(&list).expect("lists have string keys only");
    Ok(HttpResponse::Ok()
        .content_type(ContentType::json())
        .body(whole::in_pieces(json)))
}

impl Page {
    fn items(&self) -> Result<usize, ApiError> {
        let Some(limit) = &self.limit else {
            return Ok(PAGE_ITEMS);
        };
        match limit.parse() {
            Ok(limit @ 1..=MAX_PAGE_ITEMS) => Ok(limit),
            _ => {
                let text = format!("limit must be a number from 1 to {MAX_PAGE_ITEMS}");
                Err(ApiError::field("limit", text))
            }
        }
    }

    fn is_descending(&self) -> Result<bool, ApiError> {
        match self.order.as_deref() {
            None | Some("desc") => Ok(true),
            Some("asc") => Ok(false),
            Some(_) => Err(ApiError::field("order", "order must be asc or desc")),
        }
    }
}

fn find(state: &AppState, id: &str) -> Result<Arc<StoredResponse>, ApiError> {
    let found = state
        .responses()
        .find(&ResponseId::from_client(id), &Owner::Anyone);
    found.ok_or_else(|| ApiError::no_such_response(id))
}
