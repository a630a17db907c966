//! The command `souffleur run`: serves a model, and talks to it in the terminal.

use std::io::{IsTerminal, Write};

use actix_web::rt::System;
use actix_web::web::Data;
use clap::Args;
use souffleur::server::EngineSlot;

use super::chat::{self, Partner, TalkFlags};
use super::failure::Failure;
use super::flags::AllFlags;
use super::{local, serve, telemetry};
use crate::cli::settings::Settings;

#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    talk: TalkFlags,
    #[command(flatten)]
    pub flags: AllFlags,
}

pub fn run(args: &RunArgs, settings: Settings) -> Result<(), Failure> {
    let metrics = telemetry::install_recorder()?;
    telemetry::record_build();
    let listener = serve::listen(&settings.server)?;
    let address = listener.local_addr().map_err(Failure::failed)?;
    let is_bundled = settings.engine.model_path.as_os_str().is_empty();
    let config = local::with_text(settings.engine)?;
    let engine = local::start(config, chat::check_template)?;
    System::new().block_on(async {
        let slot = EngineSlot::default();
        slot.fill(engine.clone());
        let state = serve::state(settings.server, slot, metrics);
        let (stop, serving) = serve::spawn(listener, Data::new(state));
        // On stderr, since stdout has the answers.
        let _ = writeln!(
            std::io::stderr(),
            "serving {} at http://{}/v1 until the chat ends",
            engine.model().served_model_name,
            serve::reachable(address),
        );
        if is_bundled && std::io::stdin().is_terminal() {
            let hint = "this is the small bundled model; `souffleur plan --table` lists larger ones by memory";
            let _ = writeln!(std::io::stderr(), "{hint}");
        }
        let talked = chat::talk(&args.talk, &Partner::Engine(engine)).await;
        let _ = stop.send(());
        talked.and(serve::finish(serving.await))
    })
}
