//! Two engines inside one actix-web app.
//!
//! Each engine has a separate thread, actix System and KV pool; the app only holds two handles. A question posted to
//! `/first` or `/second` is answered as a stream of text; a client that disconnects cancels its request.
//!
//! ```text
//! cargo run --example two_engines
//! curl -N -d 'Who are you?' http://127.0.0.1:8080/first
//! ```
//!
//! With `--check` the program calls both engines over a socket, stops the first, checks that the second still answers,
//! and ends.

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actix_web::http::StatusCode;
use actix_web::web::{self, Bytes, Data};
use actix_web::{App, HttpResponse, HttpServer, rt};
use anyhow::ensure;
use futures_util::{Stream, stream};
use serde_json::json;
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineHandle, Generation};
use souffleur::error::StartError;
use souffleur::request::{ChatPrompt, Event, GenerateRequest, Prompt};

async fn answer(engine: Data<EngineHandle>, question: String) -> HttpResponse {
    let mut request = GenerateRequest::new(Prompt::Chat(Arc::new(ChatPrompt {
        messages: json!([{ "role": "user", "content": question }]),
        tools: None,
        template_kwargs: Default::default(),
        add_generation_prompt: true,
        continue_final_message: false,
        known: None,
        images: Vec::new(),
    })));
    request.sampling.temperature = 0.0;
    request.sampling.max_new_tokens = 200;
    match engine.generate(request) {
        Ok(generation) => HttpResponse::Ok()
            .content_type("text/plain; charset=utf-8")
            .streaming(text(generation)),
        Err(error) => {
            let status = StatusCode::from_u16(error.status());
            HttpResponse::build(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
                .body(error.to_string())
        }
    }
}

/// The text of one request; dropping the stream cancels it.
fn text(generation: Generation) -> impl Stream<Item = io::Result<Bytes>> {
    stream::unfold(generation, |mut generation| async move {
        let text = match generation.next().await? {
            Event::Delta(delta) => Ok(delta.text),
            Event::Finished(end) | Event::Cancelled(end) => Ok(end.delta.text),
            Event::Failed(error) => Err(io::Error::other(error)),
        };
        Some((text.map(Bytes::from), generation))
    })
}

fn start_engine(name: &str) -> Result<EngineHandle, StartError> {
    Engine::start(EngineConfig {
        model_path: Path::new(env!("CARGO_MANIFEST_DIR")).join("models/souffleur-tiny"),
        served_model_name: Some(name.to_owned()),
        max_total_tokens: Some(8192),
        ..Default::default()
    })
}

#[actix_web::main]
async fn main() -> anyhow::Result<()> {
    let is_check = std::env::args().any(|argument| argument == "--check");
    let [first, second] = [start_engine("first")?, start_engine("second")?];
    let engines = [Data::new(first.clone()), Data::new(second.clone())];
    let listener = TcpListener::bind(("127.0.0.1", if is_check { 0 } else { 8080 }))?;
    let address = listener.local_addr()?;
    let server = HttpServer::new(move || {
        let [first, second] = engines.clone();
        App::new()
            .service(web::resource("/first").app_data(first).post(answer))
            .service(web::resource("/second").app_data(second).post(answer))
    })
    .workers(2)
    // By default, actix-web does not notice that a client has disconnected.
    .h1_allow_half_closed(false)
    .listen(listener)?
    .run();
    println!("listening on http://{address}");
    if is_check {
        let handle = server.handle();
        let serving = rt::spawn(server);
        check(address, &first).await?;
        handle.stop(true).await;
        serving.await??;
    } else {
        server.await?;
    }
    for engine in [first, second] {
        engine.shutdown(Duration::from_secs(5)).await;
    }
    Ok(())
}

async fn check(address: SocketAddr, first: &EngineHandle) -> anyhow::Result<()> {
    for path in ["/first", "/second"] {
        let reply = post(address, path).await?;
        ensure!(reply.starts_with("HTTP/1.1 200"), "{path} answered {reply}");
    }
    first.shutdown(Duration::from_secs(5)).await;
    let reply = post(address, "/first").await?;
    ensure!(
        reply.starts_with("HTTP/1.1 503"),
        "the stopped engine answered {reply}"
    );
    let reply = post(address, "/second").await?;
    ensure!(
        reply.starts_with("HTTP/1.1 200"),
        "the other engine answered {reply}"
    );
    println!("the first engine is stopped, the second still answers");
    Ok(())
}

/// Posts a question and reads the whole reply.
async fn post(address: SocketAddr, path: &'static str) -> anyhow::Result<String> {
    let exchange = move || -> io::Result<String> {
        let question = "Who are you?";
        let mut socket = TcpStream::connect(address)?;
        write!(
            socket,
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: text/plain\r\n\
             content-length: {}\r\n\r\n{question}",
            question.len(),
        )?;
        let mut reply = String::new();
        socket.read_to_string(&mut reply)?;
        Ok(reply)
    };
    let reply = web::block(exchange).await??;
    println!(
        "POST {path}: {} ({} bytes)",
        reply.lines().next().unwrap_or_default(),
        reply.len()
    );
    Ok(reply)
}
