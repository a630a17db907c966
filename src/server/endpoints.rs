//! Lists all routes: the path, the handler and the OpenAPI operation of each.

use actix_web::dev::Handler;
use actix_web::middleware::from_fn;
use actix_web::web::{self, Data, ServiceConfig};
use actix_web::{FromRequest, HttpRequest, HttpResponse, Responder};
use utoipa::openapi::path::HttpMethod;

use super::config::ServerConfig;
use super::endpoint::{Access, Describe, Endpoint};
use super::error::ApiError;
use super::openai::responses;
use super::openapi::{self, page};
use super::state::AppState;
use super::{
    abort, anthropic, console, debug, flush, generate, guard, health, internal_state, live,
    llama_cpp, loads, mount, ollama, openai, pause, policy, rerank, score, sessions, tokenize, ws,
};

pub(super) fn all() -> Vec<Endpoint> {
    let mut all = generation();
    all.extend(control());
    all.extend(status());
    all.extend(pages());
    all.extend(aliases());
    all.extend(of_ollama());
    // These come before the path of a single model, which also matches an empty name.
    for path in ["/v1/models", "/v1/models/"] {
        all.insert(0, get(path, health::models, health::models_operation));
    }
    all
}

/// Paths that generate or score, and those of stored responses.
fn generation() -> Vec<Endpoint> {
    vec![
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
        post(
            "/infill",
            llama_cpp::infill::fill,
            llama_cpp::infill::operation,
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
    ]
}

/// Paths that change the engine's state, and the WebSocket.
fn control() -> Vec<Endpoint> {
    vec![
        post("/abort_request", abort::abort_request, abort::operation),
        post_admin("/set_policy", policy::set_policy, policy::operation),
        post_admin("/flush_cache", flush::flush_cache, flush::operation),
        post_admin("/pause_generation", pause::pause, pause::operation),
        post_admin(
            "/continue_generation",
            pause::resume,
            pause::resume_operation,
        ),
        post_admin("/open_session", sessions::open, sessions::open_operation),
        post_admin("/close_session", sessions::close, sessions::close_operation),
        set_internal_state(),
        get("/v1/ws/generate", ws::connect, ws::operation),
    ]
}

/// Paths that read the state of models and of the server, and the OpenAPI document.
fn status() -> Vec<Endpoint> {
    vec![
        get("/v1/models/{id:.*}", health::model, health::model_operation),
        open("/health", health::health, health::health_operation),
        open(
            "/health_generate",
            health::health_generate,
            health::generate_operation,
        ),
        open("/ready", health::ready, health::ready_operation),
        open("/metrics", health::metrics, health::metrics_operation),
        get(
            "/debug/prefix/{rid:.+}",
            debug::prefix::prefix,
            debug::prefix::operation,
        ),
        get_admin(
            "/debug/actors",
            debug::actors::actors,
            debug::actors::operation,
        ),
        get_admin(
            "/debug/engine",
            debug::engine::engine,
            debug::engine::operation,
        ),
        get_admin(
            "/debug/requests",
            debug::requests::requests,
            debug::requests::operation,
        ),
        get_admin(
            "/debug/requests/{rid:.+}",
            debug::requests::request,
            debug::requests::request_operation,
        ),
        get_admin("/console/live", live::watch, live::operation),
        open("/openapi.json", document, openapi::operation),
    ]
}

/// Pages for browsers, and their files.
fn pages() -> Vec<Endpoint> {
    let docs_are_on = |config: &ServerConfig| config.api_docs;
    let console_is_on = |config: &ServerConfig| config.console;
    let mut all = vec![
        linked("/", console::page, console::page_operation, console_is_on),
        linked("/docs", page::index, page::index_operation, docs_are_on),
        open("/docs/{file}", page::file, page::file_operation),
    ];
    all.extend(console::FILES.iter().map(console_file));
    all
}

fn aliases() -> Vec<Endpoint> {
    let mut all = Vec::from(["/v1/responses", "/responses"].map(responses_at));
    for path in ["/v1/rerank", "/rerank", "/v2/rerank"] {
        all.push(post(path, rerank::rerank, rerank::operation));
    }
    for path in ["/tokenize", "/v1/tokenize"] {
        all.push(post(path, tokenize::tokenize, tokenize::operation));
    }
    for path in ["/detokenize", "/v1/detokenize"] {
        all.push(post(path, tokenize::detokenize, tokenize::decode_operation));
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
    all.push(get(
        "/props",
        llama_cpp::props::props,
        llama_cpp::props::operation,
    ));
    all.push(post(
        "/apply-template",
        llama_cpp::template::apply,
        llama_cpp::template::operation,
    ));
    all.push(get("/get_load", loads::get_load, loads::get_load_operation));
    all
}

fn of_ollama() -> Vec<Endpoint> {
    vec![
        get_ollama(
            "/api/version",
            ollama::version,
            ollama::docs::version_operation,
        ),
        get_ollama("/api/tags", ollama::tags, ollama::docs::tags_operation),
        get_ollama("/api/ps", ollama::ps, ollama::docs::ps_operation),
        post_ollama("/api/show", ollama::show, ollama::docs::show_operation),
        post_ollama("/api/chat", ollama::chat, ollama::docs::chat_operation),
        post_ollama(
            "/api/generate",
            ollama::generate,
            ollama::docs::generate_operation,
        ),
        post_ollama("/api/embed", ollama::embed, ollama::docs::embed_operation),
        post_ollama(
            "/api/embeddings",
            ollama::embeddings,
            ollama::docs::embeddings_operation,
        ),
    ]
}

async fn document(request: HttpRequest, state: Data<AppState>) -> Result<HttpResponse, ApiError> {
    openapi::answer(&request, &state, &all())
}

fn get<F, A>(path: &'static str, handler: F, describe: Describe) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let mount = move |cfg: &mut ServiceConfig| mount::get(cfg, path, handler.clone());
    Endpoint::new(path, vec![(HttpMethod::Get, describe)], mount)
}

fn get_admin<F, A>(path: &'static str, handler: F, describe: Describe) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let mount = move |cfg: &mut ServiceConfig| mount::get_admin(cfg, path, handler.clone());
    Endpoint::new(path, vec![(HttpMethod::Get, describe)], mount).with(Access::Admin)
}

fn open<F, A>(path: &'static str, handler: F, describe: Describe) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let mount = move |cfg: &mut ServiceConfig| mount::open(cfg, path, handler.clone());
    Endpoint::new(path, vec![(HttpMethod::Get, describe)], mount).with(Access::Open)
}

/// As [`open`], for a page to which other sites may link; `is_on` says whether the server has it.
fn linked<F, A>(
    path: &'static str,
    handler: F,
    describe: Describe,
    is_on: fn(&ServerConfig) -> bool,
) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let page = guard::Page { is_on };
    let mount = move |cfg: &mut ServiceConfig| mount::page(cfg, path, handler.clone(), page);
    Endpoint::new(path, vec![(HttpMethod::Get, describe)], mount).with(Access::Page)
}

fn console_file(file: &'static console::File) -> Endpoint {
    let answer =
        move |request: HttpRequest, state: Data<AppState>| console::file(file, request, state);
    open(file.path, answer, file.describe)
}

fn post<F, A>(path: &'static str, handler: F, describe: Describe) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let mount = move |cfg: &mut ServiceConfig| mount::post(cfg, path, handler.clone());
    Endpoint::new(path, vec![(HttpMethod::Post, describe)], mount)
}

fn post_anthropic<F, A>(path: &'static str, handler: F, describe: Describe) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let mount = move |cfg: &mut ServiceConfig| mount::post_anthropic(cfg, path, handler.clone());
    Endpoint::new(path, vec![(HttpMethod::Post, describe)], mount).with_error("AnthropicError")
}

fn get_ollama<F, A>(path: &'static str, handler: F, describe: Describe) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let mount = move |cfg: &mut ServiceConfig| mount::get_ollama(cfg, path, handler.clone());
    Endpoint::new(path, vec![(HttpMethod::Get, describe)], mount).with_error("OllamaError")
}

fn post_ollama<F, A>(path: &'static str, handler: F, describe: Describe) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let mount = move |cfg: &mut ServiceConfig| mount::post_ollama(cfg, path, handler.clone());
    Endpoint::new(path, vec![(HttpMethod::Post, describe)], mount).with_error("OllamaError")
}

fn post_admin<F, A>(path: &'static str, handler: F, describe: Describe) -> Endpoint
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let mount = move |cfg: &mut ServiceConfig| mount::post_admin(cfg, path, handler.clone());
    Endpoint::new(path, vec![(HttpMethod::Post, describe)], mount).with(Access::Admin)
}

fn set_internal_state() -> Endpoint {
    const PATH: &str = "/set_internal_state";
    let describe: Describe = internal_state::operation;
    let methods = vec![(HttpMethod::Post, describe), (HttpMethod::Put, describe)];
    let mount = |cfg: &mut ServiceConfig| mount::set_admin(cfg, PATH, internal_state::set);
    Endpoint::new(PATH, methods, mount).with(Access::Admin)
}

/// OpenAI's responses: by POST, or over a WebSocket.
fn responses_at(path: &'static str) -> Endpoint {
    let mount = move |cfg: &mut ServiceConfig| {
        let connect = web::get().to(ws::connect_responses);
        let create = web::post().to(responses::create);
        let create = create.wrap(from_fn(guard::require_json));
        let resource = mount::resource(path, connect, "GET, HEAD, POST");
        mount::require_key(cfg, resource.route(create));
    };
    let methods: Vec<(HttpMethod, Describe)> = vec![
        (HttpMethod::Post, responses::operation),
        (HttpMethod::Get, ws::responses_operation),
    ];
    Endpoint::new(path, methods, mount)
}

fn stored_response() -> Endpoint {
    const PATH: &str = "/v1/responses/{id}";
    let mount = |cfg: &mut ServiceConfig| {
        let read = web::get().to(responses::retrieve);
        let resource = mount::resource(PATH, read, "GET, HEAD, DELETE");
        mount::require_key(cfg, resource.route(web::delete().to(responses::delete)));
    };
    let methods: Vec<(HttpMethod, Describe)> = vec![
        (HttpMethod::Get, responses::read_operation),
        (HttpMethod::Delete, responses::delete_operation),
    ];
    Endpoint::new(PATH, methods, mount)
}
