//! Mounts endpoints: sets their methods and the middleware that checks access before their handlers.

use actix_web::dev::Handler;
use actix_web::middleware::from_fn;
use actix_web::web;
use actix_web::{FromRequest, HttpRequest, Responder};

use super::error::{self, ApiError};
use super::{anthropic, guard, key, methods, ollama, track};

pub(super) fn get<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    require_key(cfg, resource(path, web::get().to(handler), "GET, HEAD"));
}

/// As [`get`], for admins: it requires the admin key, if the server has one.
pub(super) fn get_admin<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let route = web::get().to(handler).wrap(from_fn(key::check_admin));
    require_key(cfg, resource(path, route, "GET, HEAD"));
}

/// As [`get`], for a path that needs no key.
pub(super) fn open<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    require_nothing(cfg, resource(path, web::get().to(handler), "GET, HEAD"));
}

/// As [`open`], for a page to which other sites may link.
pub(super) fn page<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F, page: guard::Page)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let resource = resource(path, web::get().to(handler), "GET, HEAD");
    require_nothing(cfg, resource.app_data(page));
}

pub(super) fn post<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let route = web::post().to(handler).wrap(from_fn(guard::require_json));
    require_key(cfg, resource(path, route, "POST"));
}

/// As [`post`], for Anthropic's clients: errors have Anthropic's form, and answers have the header `request-id`.
pub(super) fn post_anthropic<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let route = web::post().to(handler).wrap(from_fn(guard::require_json));
    let resource = resource(path, route, "POST").wrap(from_fn(key::check));
    let resource = resource
        .wrap(guard::cors())
        .wrap(from_fn(guard::check))
        .wrap(from_fn(methods::adapt));
    let resource = resource.wrap(from_fn(anthropic::adapt));
    cfg.service(resource.wrap(from_fn(track::track)));
}

/// As [`get`], for Ollama's clients: errors have Ollama's form.
pub(super) fn get_ollama<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    for_ollama(cfg, resource(path, web::get().to(handler), "GET, HEAD"));
}

/// As [`post`], for Ollama's clients: errors have Ollama's form, and only pages must declare their bodies as JSON.
pub(super) fn post_ollama<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let route = web::post().to(handler);
    let route = route.wrap(from_fn(guard::require_json_from_pages));
    for_ollama(cfg, resource(path, route, "POST"));
}

fn for_ollama(cfg: &mut web::ServiceConfig, resource: actix_web::Resource) {
    let resource = resource.wrap(from_fn(key::check)).wrap(guard::cors());
    let resource = resource
        .wrap(from_fn(guard::check))
        .wrap(from_fn(methods::adapt))
        .wrap(from_fn(ollama::adapt));
    cfg.service(resource.wrap(from_fn(track::track)));
}

/// As [`post`], for operations that affect every client: it requires the admin key, if the server has one.
pub(super) fn post_admin<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let route = web::post().to(handler).wrap(from_fn(guard::require_json));
    let route = route.wrap(from_fn(key::check_admin));
    require_key(cfg, resource(path, route, "POST"));
}

/// As [`post_admin`], for both POST and PUT, as in SGLang.
pub(super) fn set_admin<F, A>(cfg: &mut web::ServiceConfig, path: &str, handler: F)
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let route = |route: actix_web::Route| {
        let route = route.to(handler.clone()).wrap(from_fn(guard::require_json));
        route.wrap(from_fn(key::check_admin))
    };
    let put = route(web::put());
    require_key(
        cfg,
        resource(path, route(web::post()), "POST, PUT").route(put),
    );
}

/// Mounts an endpoint that requires the API key, if the server has one. The last `wrap` runs first, so refused
/// requests are tracked too, CORS preflights need no key, and a web page can read the error for a wrong key.
pub(super) fn require_key(cfg: &mut web::ServiceConfig, resource: actix_web::Resource) {
    let resource = resource.wrap(from_fn(key::check)).wrap(guard::cors());
    let resource = resource.wrap(from_fn(guard::check));
    let resource = resource.wrap(from_fn(methods::adapt));
    cfg.service(resource.wrap(from_fn(track::track)));
}

/// As [`require_key`], for an endpoint that needs no key.
fn require_nothing(cfg: &mut web::ServiceConfig, resource: actix_web::Resource) {
    let resource = resource.wrap(guard::cors());
    let resource = resource.wrap(from_fn(guard::check));
    let resource = resource.wrap(from_fn(methods::adapt));
    cfg.service(resource.wrap(from_fn(track::track)));
}

pub(super) fn resource(
    path: &str,
    route: actix_web::Route,
    allow: &'static str,
) -> actix_web::Resource {
    let refuse = move |request: HttpRequest| async move {
        Err::<&str, ApiError>(error::method_not_allowed(&request, allow))
    };
    // An invalid query string gets an error in the form of all other errors.
    let queries = web::QueryConfig::default()
        .error_handler(|error, _| ApiError::invalid(format!("invalid query: {error}")).into());
    web::resource(path)
        .app_data(queries)
        .route(route)
        .default_service(web::to(refuse))
}
