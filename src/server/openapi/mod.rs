//! `GET /openapi.json`: describes the server's API in OpenAPI 3.1; also a page that shows the description.
//!
//! Each operation is described next to its handler, with the handler's constants; routes and document come from one
//! table (`endpoints`). Limits and defaults that can be configured are those of this server.

mod components;
pub(super) mod facts;
pub(super) mod operation;
pub(super) mod page;
pub(super) mod shape;
pub(super) mod shared;
#[cfg(test)]
mod tests;

use actix_web::http::header::{CacheControl, CacheDirective};
use actix_web::{HttpRequest, HttpResponse};
use utoipa::openapi::path::{HttpMethod, Operation, PathItem, PathsBuilder};
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{InfoBuilder, License, OpenApi, OpenApiBuilder, ServerBuilder};

use super::endpoint::{Access, Endpoint, name};
use super::error::{self, ApiError};
use super::state::AppState;
use super::track::label;
use facts::Facts;
use operation::{Group, describe, failure, failure_of_page};
use shape::free_object;

const BEARER: &str = "bearer";
const HEADER: &str = "x-api-key";
const ADMIN: &str = "admin";

const ABOUT: &str = "An LLM inference server with OpenAI's, Anthropic's, Ollama's and SGLang's APIs. Every GET also answers HEAD. \
    Null fields of a body count as absent; unknown fields are ignored, unless they would change the answer. \
    Pages of other sites are refused, unless `--allowed-origins` names them; they may link to `/` and `/docs`.";

pub(super) fn answer(
    request: &HttpRequest,
    state: &AppState,
    endpoints: &[Endpoint],
) -> Result<HttpResponse, ApiError> {
    check_is_on(request, state)?;
    let mut document = document(endpoints, &Facts::of(state));
    // If the routes are mounted in a scope, all paths begin with the scope's path.
    let scope = request.path().strip_suffix("/openapi.json");
    if let Some(scope) = scope.filter(|scope| !scope.is_empty()) {
        document.servers = Some(vec![ServerBuilder::new().url(scope).build()]);
    }
    let mut response = HttpResponse::Ok();
    response.insert_header(CacheControl(vec![CacheDirective::NoCache]));
    Ok(response.json(document))
}

pub(super) fn operation(_: &Facts) -> Operation {
    describe(Group::Server, "This document")
        .about("OpenAPI 3.1. Off with `--api-docs off`.")
        .answers(free_object(), "the document")
        .fails(404, "the document is off")
        .done()
}

fn check_is_on(request: &HttpRequest, state: &AppState) -> Result<(), ApiError> {
    if state.config().api_docs {
        Ok(())
    } else {
        Err(nothing_here(request))
    }
}

fn nothing_here(request: &HttpRequest) -> ApiError {
    error::nothing_at(request.path())
}

pub(super) fn document(endpoints: &[Endpoint], facts: &Facts) -> OpenApi {
    let mut paths = PathsBuilder::new();
    for endpoint in endpoints {
        let path = label(endpoint.path);
        for (method, describe_operation) in &endpoint.methods {
            let mut operation = describe_operation(facts);
            operation.operation_id = Some(id_of(method, &path));
            guard(&mut operation, endpoint, facts);
            paths = paths.path(&path, PathItem::new(method.clone(), operation));
        }
    }
    let tags = Group::ALL.map(|(_, name, about)| {
        TagBuilder::new()
            .name(name)
            .description(Some(about))
            .build()
    });
    let info = InfoBuilder::new()
        .title("Souffleur")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .license(Some(License::new(env!("CARGO_PKG_LICENSE"))));
    OpenApiBuilder::new()
        .info(info.build())
        .paths(paths.build())
        .components(Some(with_keys(components::all(facts))))
        .tags(Some(tags))
        .build()
}

fn with_keys(
    components: utoipa::openapi::schema::ComponentsBuilder,
) -> utoipa::openapi::schema::Components {
    let bearer = |about: &str| {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
        SecurityScheme::Http(scheme.description(Some(about)).build())
    };
    let header =
        ApiKeyValue::with_description(HEADER, "`--api-key`, as Anthropic's clients send it");
    components
        .security_scheme(BEARER, bearer("`--api-key`"))
        .security_scheme(HEADER, SecurityScheme::ApiKey(ApiKey::Header(header)))
        .security_scheme(ADMIN, bearer("`--admin-api-key`, which opens every route"))
        .build()
}

/// Documents the checks that run before a request's handler.
fn guard(operation: &mut Operation, endpoint: &Endpoint, facts: &Facts) {
    let responses = &mut operation.responses.responses;
    let about =
        "the request comes from a page of another site, or names a host that is not this server";
    let refused = match endpoint.access {
        Access::Page => failure_of_page(endpoint.error, about),
        Access::Open | Access::Key | Access::Admin => failure(endpoint.error, about),
    };
    responses.insert("403".to_owned(), refused.into());
    if matches!(endpoint.access, Access::Open | Access::Page) {
        return;
    }
    let about = "the key is missing or wrong, where the server has one";
    let refused = failure(endpoint.error, about);
    responses.insert("401".to_owned(), refused.into());
    let needs_admin = endpoint.access == Access::Admin && facts.has_admin_key;
    let mut keys = Vec::new();
    if facts.has_key && !needs_admin {
        keys.extend([BEARER, HEADER]);
    }
    if facts.has_admin_key && (facts.has_key || needs_admin) {
        keys.push(ADMIN);
    }
    let keys = keys.into_iter();
    let keys: Vec<_> = keys
        .map(|key| SecurityRequirement::new(key, [""; 0]))
        .collect();
    operation.security = (!keys.is_empty()).then_some(keys);
}

fn id_of(method: &HttpMethod, path: &str) -> String {
    let method = name(method).to_lowercase();
    let path = path.replace(['{', '}'], "").replace(['/', '-', '.'], "_");
    format!("{method}{path}")
}
