//! The table of all routes: where each handler is mounted, and what the document says of it.

use actix_web::dev::Handler;
use actix_web::middleware::from_fn;
use actix_web::web::{self, ServiceConfig};
use actix_web::{FromRequest, Responder};
use utoipa::openapi::path::{HttpMethod, Operation};

use super::openai::responses;
use super::openapi::{self, Facts, page};
use super::{
    abort, anthropic, debug, flush, generate, guard, health, internal_state, loads, openai, pause,
    policy, score, sessions, tokenize, ws,
};

/// The key that a method asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Everybody.
    Open,
    /// Those who have the key, if there is one.
    Key,
    /// The admin, if there is one.
    Admin,
}

/// The description of a method of a path.
pub(super) type Operate = fn(&Facts) -> Operation;

/// A path with all of its methods.
pub(super) struct Endpoint {
    /// As actix-web matches it.
    pub(super) path: &'static str,
    pub(super) access: Access,
    /// The schema of its errors.
    pub(super) error: &'static str,
    pub(super) methods: Vec<(HttpMethod, Operate)>,
    mount: Box<dyn Fn(&mut ServiceConfig)>,
}

/// Every path of the server.
pub(super) fn all() -> Vec<Endpoint> {
    let mut all = vec![
        post("/generate", generate::generate, generate::operation),
        post(
            "/v1/completions",
            openai::completions::create,
            openai::completions::operation,
        ),
        post(
            "/v1/chat/completions",
            openai::chat::create,
            openai::chat::operation,
        ),
        post(
            "/v1/embeddings",
            openai::embeddings::create,
            openai::embeddings::operation,
        ),
        post("/v1/score", score::score, score::operation),
        post_anthropic("/v1/messages", anthropic::create, anthropic::operation),
        post_anthropic(
            "/v1/messages/count_tokens",
            anthropic::count_tokens,
            anthropic::count_operation,
        ),
        post(
            "/v1/responses/input_tokens",
            responses::input_tokens,
            responses::count_operation,
        ),
        post(
            "/v1/responses/{id}/cancel",
            responses::cancel,
            responses::cancel_operation,
        ),
        get(
            "/v1/responses/{id}/input_items",
            responses::input_items,
            responses::items_operation,
        ),
        stored_response(),
        post("/abort_request", abort::abort_request, abort::operation),
        post_admin("/set_policy", policy::set_policy, policy::operation),
        post_admin("/flush_cache", flush::flush_cache, flush::operation),
        post_admin("/pause_generation", pause::pause, pause::operation),
        post_admin("/continue_generation", pause::go_on, pause::go_on_operation),
        post_admin("/open_session", sessions::open, sessions::open_operation),
        post_admin("/close_session", sessions::close, sessions::close_operation),
        set_internal_state(),
        get("/v1/ws/generate", ws::connect, ws::operation),
        get("/v1/models/{id:.*}", health::model, health::model_operation),
        open("/health", health::health, health::health_operation),
        open(
            "/health_generate",
            health::health_generate,
            health::generate_operation,
        ),
        open("/ready", health::ready, health::ready_operation),
        open("/metrics", health::metrics, health::metrics_operation),
        get("/debug/prefix/{rid:.+}", debug::prefix, debug::operation),
        open("/openapi.json", openapi::json, openapi::operation),
        open("/docs", page::index, page::index_operation),
        open("/docs/{file}", page::file, page::file_operation),
    ];
    all.extend(["/v1/responses", "/responses"].map(responses_at));
    for path in ["/tokenize", "/v1/tokenize"] {
        all.push(post(path, tokenize::tokenize, tokenize::operation));
    }
    for path in ["/detokenize", "/v1/detokenize"] {
        all.push(post(path, tokenize::detokenize, tokenize::back_operation));
    }
    // Before the path of a single model, which matches an empty name too.
    for path in ["/v1/models", "/v1/models/"] {
        all.insert(0, get(path, health::models, health::models_operation));
    }
    for path in ["/model_info", "/get_model_info"] {
        all.push(get(path, health::model_info, health::model_info_operation));
    }
    for path in ["/server_info", "/get_server_info"] {
        all.push(get(
            path,
            health::server_info,
            health::server_info_operation,
        ));
    }
    for path in ["/v1/loads", "/loads"] {
        all.push(get(path, loads::loads, loads::operation));
    }
    all.push(get("/get_load", loads::get_load, loads::get_load_operation));
    all
}

impl Endpoint {
    pub(super) fn mount(&self, cfg: &mut ServiceConfig) {
        (self.mount)(cfg);
    }

    fn new(
        path: &'static str,
        methods: Vec<(HttpMethod, Operate)>,
        mount: impl Fn(&mut ServiceConfig) + 'static,
    ) -> Self {
        Self {
            path,
            access: Access::Key,
            error: "Error",
            methods,
            mount: Box::new(mount),
        }
    }

    fn with(self, access: Access) -> Self {
        Self { access, ..self }
    }
}

/// The name of a method.
pub(super) fn name(method: &HttpMethod) -> &'static str {
    match method {
        HttpMethod::Get => "GET",
        HttpMethod::Post => "POST",
        HttpMethod::Put => "PUT",
        HttpMethod::Delete => "DELETE",
        HttpMethod::Options => "OPTIONS",
        HttpMethod::Head => "HEAD",
        HttpMethod::Patch => "PATCH",
        HttpMethod::Trace => "TRACE",
    }
}

fn get<F, A>(path: &'static str, handler: F, operate: Operate) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let mount = move |cfg: &mut ServiceConfig| super::get(cfg, path, handler.clone());
    Endpoint::new(path, vec![(HttpMethod::Get, operate)], mount)
}

fn open<F, A>(path: &'static str, handler: F, operate: Operate) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let mount = move |cfg: &mut ServiceConfig| super::open(cfg, path, handler.clone());
    Endpoint::new(path, vec![(HttpMethod::Get, operate)], mount).with(Access::Open)
}

fn post<F, A>(path: &'static str, handler: F, operate: Operate) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let mount = move |cfg: &mut ServiceConfig| super::post(cfg, path, handler.clone());
    Endpoint::new(path, vec![(HttpMethod::Post, operate)], mount)
}

fn post_anthropic<F, A>(path: &'static str, handler: F, operate: Operate) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let mount = move |cfg: &mut ServiceConfig| super::post_anthropic(cfg, path, handler.clone());
    Endpoint {
        error: "AnthropicError",
        ..Endpoint::new(path, vec![(HttpMethod::Post, operate)], mount)
    }
}

fn post_admin<F, A>(path: &'static str, handler: F, operate: Operate) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let mount = move |cfg: &mut ServiceConfig| super::post_admin(cfg, path, handler.clone());
    Endpoint::new(path, vec![(HttpMethod::Post, operate)], mount).with(Access::Admin)
}

fn set_internal_state() -> Endpoint {
    const PATH: &str = "/set_internal_state";
    let operate: Operate = internal_state::operation;
    let methods = vec![(HttpMethod::Post, operate), (HttpMethod::Put, operate)];
    let mount = |cfg: &mut ServiceConfig| super::set_admin(cfg, PATH, internal_state::set);
    Endpoint::new(PATH, methods, mount).with(Access::Admin)
}

/// OpenAI's responses: by POST, or over a WebSocket.
fn responses_at(path: &'static str) -> Endpoint {
    let mount = move |cfg: &mut ServiceConfig| {
        let connect = web::get().to(ws::connect_responses);
        let create = web::post().to(responses::create);
        let create = create.wrap(from_fn(guard::takes_json));
        let resource = super::resource(path, connect, "GET, HEAD, POST");
        super::closed(cfg, resource.route(create));
    };
    let methods: Vec<(HttpMethod, Operate)> = vec![
        (HttpMethod::Post, responses::operation),
        (HttpMethod::Get, ws::responses_operation),
    ];
    Endpoint::new(path, methods, mount)
}

/// A response that is kept.
fn stored_response() -> Endpoint {
    const PATH: &str = "/v1/responses/{id}";
    let mount = |cfg: &mut ServiceConfig| {
        let read = web::get().to(responses::retrieve);
        let resource = super::resource(PATH, read, "GET, HEAD, DELETE");
        super::closed(cfg, resource.route(web::delete().to(responses::delete)));
    };
    let methods: Vec<(HttpMethod, Operate)> = vec![
        (HttpMethod::Get, responses::read_operation),
        (HttpMethod::Delete, responses::delete_operation),
    ];
    Endpoint::new(PATH, methods, mount)
}
