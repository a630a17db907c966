//! Tests of SGLang's gRPC scheduler service, called as the gateway smg calls it.

use serde_json::json;
use sha2::{Digest, Sha256};
use souffleur::server::grpc::proto::scheduler::generate_complete::MatchedStop;
use souffleur::server::grpc::proto::scheduler::generate_response::Response as Part;
use souffleur::server::grpc::proto::scheduler::kv_cache_event::Data;
use souffleur::server::grpc::proto::scheduler::sglang_scheduler_client::SglangSchedulerClient as Client;
use souffleur::server::grpc::proto::scheduler::{
    AbortRequest, FlushCacheRequest, GenerateComplete, GenerateRequest, GetLoadsRequest,
    GetModelInfoRequest, GetServerInfoRequest, GetTokenizerRequest, HealthCheckRequest, KvBlock,
    KvEventBatch, MultimodalInputs, SamplingParams, SubscribeKvEventsRequest, TokenizedInput,
};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use super::{GrpcWorld, rest, wait_for};
use crate::http::post;
use crate::world::World;

/// A request as smg builds it, with all non-optional numbers set.
fn request(name: &str, max_new_tokens: u32, stream: bool) -> GenerateRequest {
    GenerateRequest {
        request_id: name.to_owned(),
        tokenized: Some(TokenizedInput {
            input_ids: (10..40).collect(),
        }),
        sampling_params: Some(SamplingParams {
            temperature: 0.0,
            top_p: 1.0,
            top_k: -1,
            repetition_penalty: 1.0,
            max_new_tokens: Some(max_new_tokens),
            ignore_eos: true,
            n: 1,
            ..SamplingParams::default()
        }),
        stream,
        ..GenerateRequest::default()
    }
}

/// Runs a request; returns the tokens of its chunks, and the complete response.
fn run_request(grpc: &GrpcWorld, request: GenerateRequest) -> (Vec<u32>, GenerateComplete) {
    let name = request.request_id.clone();
    let responses = grpc.with(async |channel| {
        let stream = Client::new(channel).generate(request).await;
        let stream = stream.expect("a stream").into_inner();
        rest(stream).await.expect("a whole stream")
    });
    let (mut chunks, mut complete) = (Vec::new(), None);
    for response in responses {
        assert_eq!(response.request_id, name);
        assert_eq!(complete, None, "a message follows the complete response");
        match response.response.expect("a part") {
            Part::Chunk(chunk) => chunks.extend(chunk.token_ids),
            Part::Complete(whole) => complete = Some(whole),
        }
    }
    (chunks, complete.expect("a complete response"))
}

#[test]
fn chunks_add_up_to_the_complete_response_which_equals_that_over_http() {
    let grpc = GrpcWorld::new(World::new());
    let sampling = json!({"max_new_tokens": 20, "temperature": 0, "ignore_eos": true});
    let ids: Vec<u32> = (10..40).collect();
    let call = json!({"input_ids": ids, "sampling_params": sampling});
    let expected = post(grpc.world.addr, "/generate", &call).ok();
    for stream in [true, false] {
        let (chunks, whole) = run_request(&grpc, request("a", 20, stream));
        assert_eq!(json!(whole.output_ids), expected["output_ids"]);
        if stream {
            assert_eq!(chunks, whole.output_ids)
        } else {
            assert!(chunks.is_empty())
        }
        assert_eq!(whole.finish_reason, "length");
        let counts = (
            whole.prompt_tokens,
            whole.completion_tokens,
            whole.cached_tokens,
        );
        assert_eq!(counts, (30, 20, 29));
    }
    let stop = expected["output_ids"][3].as_u64().expect("a token") as u32;
    let mut request = request("b", 20, true);
    let params = request.sampling_params.as_mut().expect("parameters");
    params.stop_token_ids = vec![stop];
    params.ignore_eos = false;
    let (_, whole) = run_request(&grpc, request);
    assert_eq!(whole.finish_reason, "stop");
    assert!(matches!(
        whole.matched_stop,
        Some(MatchedStop::MatchedTokenId(_))
    ));
    grpc.world.wait_until_idle();
}

#[test]
fn a_flush_empties_the_cache_of_an_idle_engine() {
    let grpc = GrpcWorld::new(World::new());
    run_request(&grpc, request("a", 5, false));
    grpc.world.wait_until_idle();
    let flushed = grpc.with(async |channel| {
        let mut client = Client::new(channel);
        let answer = client.flush_cache(FlushCacheRequest::default()).await;
        answer.expect("an answer").into_inner()
    });
    assert!(flushed.success, "{}", flushed.message);
    let (_, whole) = run_request(&grpc, request("b", 5, false));
    assert_eq!(whole.cached_tokens, 0);
    grpc.world.wait_until_idle();
}

#[test]
fn invalid_requests_are_refused_with_their_field() {
    let grpc = GrpcWorld::new(World::new());
    let changed = |change: fn(&mut GenerateRequest)| {
        let mut request = request("a", 5, true);
        change(&mut request);
        request
    };
    for (request, part) in [
        (
            changed(|request| request.return_logprob = true),
            "return_logprob",
        ),
        (
            changed(|request| request.lora_id = "a".to_owned()),
            "lora_id",
        ),
        (
            changed(|request| request.mm_inputs = Some(MultimodalInputs::default())),
            "mm_inputs",
        ),
        (changed(|request| request.tokenized = None), "tokenized"),
    ] {
        let outcome = grpc.with(async |channel| {
            let stream = Client::new(channel).generate(request).await?;
            rest(stream.into_inner()).await
        });
        let status = outcome.expect_err("a refusal");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(part), "{part}: {status:?}");
    }
    grpc.world.wait_until_idle();
}

#[test]
fn a_request_counts_as_load_until_it_is_aborted_by_its_id() {
    let grpc = GrpcWorld::new(World::new());
    grpc.with(async |channel| {
        let mut client = Client::new(channel);
        let stream = client.generate(request("named", 60_000, true)).await;
        let stream = stream.expect("a stream").into_inner();
        wait_for(&grpc.world, 1).await;
        let loads = client.get_loads(GetLoadsRequest::default()).await;
        let loads = loads.expect("an answer").into_inner();
        assert_eq!((loads.dp_rank_count, loads.loads.len()), (1, 1));
        let load = &loads.loads[0];
        assert_eq!((load.num_running_reqs, load.num_total_reqs), (1, 1));
        assert!(load.num_used_tokens >= 30 && load.max_total_num_tokens > 60_000);
        assert!(load.queues.is_some());
        let abort = AbortRequest {
            request_id: "named".to_owned(),
        };
        let aborted = client.abort(abort.clone()).await.expect("an answer");
        assert!(aborted.into_inner().success);
        let last = rest(stream).await.expect("a whole stream").pop();
        let Some(Part::Complete(whole)) = last.and_then(|last| last.response) else {
            panic!("no complete response");
        };
        assert_eq!(whole.finish_reason, "abort");
        wait_for(&grpc.world, 0).await;
        let again = client.abort(abort).await.expect("an answer");
        assert!(!again.into_inner().success, "no request has the id");
    });
    grpc.world.wait_until_idle();
}

#[test]
fn health_model_and_server_info_are_given() {
    let grpc = GrpcWorld::new(World::new());
    grpc.with(async |channel| {
        let mut client = Client::new(channel);
        let health = client.health_check(HealthCheckRequest {}).await;
        assert!(health.expect("an answer").into_inner().healthy);
        let model = client.get_model_info(GetModelInfoRequest {}).await;
        let model = model.expect("an answer").into_inner();
        assert_eq!(model.served_model_name, "tiny");
        assert!(model.is_generation && !model.tokenizer_path.is_empty());
        assert!(model.max_context_length > model.max_req_input_len);
        let server = client.get_server_info(GetServerInfoRequest {}).await;
        let server = server.expect("an answer").into_inner();
        assert_eq!(
            (server.server_type.as_str(), server.active_requests),
            ("grpc", 0)
        );
        assert!(server.max_total_num_tokens > 0 && !server.is_paused);
    });
}

#[test]
fn the_tokenizer_is_sent_as_an_archive_whose_last_chunk_has_its_hash() {
    let grpc = GrpcWorld::new(World::new());
    let chunks = grpc.with(async |channel| {
        let stream = Client::new(channel)
            .get_tokenizer(GetTokenizerRequest {})
            .await;
        let stream = stream.expect("a stream").into_inner();
        rest(stream).await.expect("a whole stream")
    });
    let (last, others) = chunks.split_last().expect("chunks");
    assert!(others.iter().all(|chunk| chunk.sha256.is_empty()));
    let archive: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.data.clone()).collect();
    let hash: String = Sha256::digest(&archive)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(last.sha256, hash);
    let folder = grpc.world.engine().model().model_path.clone();
    let tokenizer = std::fs::read(folder.join("tokenizer.json")).expect("a tokenizer");
    let mut places = archive.windows(tokenizer.len());
    assert!(
        places.any(|place| place == tokenizer),
        "no tokenizer.json in the archive"
    );
    let weights = b"model.safetensors";
    assert!(archive.windows(weights.len()).all(|place| place != weights));
}

async fn subscribe(
    client: &mut Client<Channel>,
    start_sequence_number: u64,
) -> Result<Streaming<KvEventBatch>, Status> {
    let request = SubscribeKvEventsRequest {
        start_sequence_number,
    };
    let stream = client.subscribe_kv_events(request).await?;
    Ok(stream.into_inner())
}

async fn next(batches: &mut Streaming<KvEventBatch>) -> KvEventBatch {
    let batch = batches.message().await.expect("a message");
    batch.expect("the server does not drain")
}

fn is_clear(batch: &KvEventBatch) -> bool {
    matches!(&batch.events[..], [event] if matches!(event.data, Some(Data::Cleared(_))))
}

/// Reads until a batch stores blocks; returns the batch's number and the blocks.
async fn next_stored(batches: &mut Streaming<KvEventBatch>) -> (u64, Vec<KvBlock>) {
    loop {
        let batch = next(batches).await;
        let stored = batch.events.into_iter().find_map(|event| match event.data {
            Some(Data::Stored(stored)) => Some(stored.blocks),
            _ => None,
        });
        if let Some(blocks) = stored {
            return (batch.sequence_number, blocks);
        }
    }
}

#[test]
fn a_new_subscription_repeats_the_blocks_after_its_sequence_number() {
    let grpc = GrpcWorld::new(World::with(|engine, _| {
        let json = json!({"publisher": "zmq", "endpoint": "tcp://*:0", "block_size": 8});
        engine.kv_events_config = Some(json.to_string());
    }));
    run_request(&grpc, request("a", 4, false));
    grpc.with(async |channel| {
        let mut client = Client::new(channel);
        let mut batches = subscribe(&mut client, 0).await.expect("a stream");
        let start = next(&mut batches).await;
        assert!(is_clear(&start), "{start:?}");
        let (number, blocks) = next_stored(&mut batches).await;
        for (block, tokens) in blocks.iter().zip([10..18, 18..26]) {
            assert_eq!(block.token_ids, tokens.collect::<Vec<u32>>());
            assert_eq!(block.block_size, 8);
        }
        assert!(blocks.len() >= 2);
        // A client that lost its connection has read the batches before `number`.
        let mut again = subscribe(&mut client, number - 1).await.expect("a stream");
        assert_eq!(next_stored(&mut again).await, (number, blocks.clone()));
        // This client has seen the batches of a previous engine.
        let mut other = subscribe(&mut client, 7).await.expect("a stream");
        let start = next(&mut other).await;
        assert!(is_clear(&start) && start.sequence_number == 8, "{start:?}");
        assert_eq!(next_stored(&mut other).await.1, blocks);
        grpc.world.state.drain();
        for stream in [batches, again, other] {
            rest(stream).await.expect("a whole stream");
        }
    });
}

#[test]
fn without_kv_events_a_subscription_is_unimplemented() {
    let grpc = GrpcWorld::new(World::new());
    let refused = grpc.with(async |channel| subscribe(&mut Client::new(channel), 0).await);
    let refused = refused.expect_err("a refusal");
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(
        refused.message().contains("kv_events_config"),
        "{refused:?}"
    );
}

#[test]
fn a_subscription_to_replicas_is_unimplemented() {
    let grpc = GrpcWorld::new(World::with(|engine, _| {
        let json = json!({"publisher": "zmq", "endpoint": "tcp://*:0"});
        engine.kv_events_config = Some(json.to_string());
        engine.dp_size = 2;
    }));
    let refused = grpc.with(async |channel| subscribe(&mut Client::new(channel), 0).await);
    let refused = refused.expect_err("a refusal");
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(refused.message().contains("dp_size is 2"), "{refused:?}");
}
