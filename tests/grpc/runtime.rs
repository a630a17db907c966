//! Tests of SGLang's gRPC runtime service, called as Dynamo's sidecar calls it.

use serde_json::json;
use souffleur::server::ApiKey;
use souffleur::server::grpc::proto::runtime::sglang_service_client::SglangServiceClient;
use souffleur::server::grpc::proto::runtime::{
    AbortRequest, FlushCacheRequest, GenerateRequest, GetLoadRequest, GetModelInfoRequest,
    GetServerInfoRequest, HealthCheckRequest, ListModelsRequest, SamplingParams,
};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request};

use super::{GrpcWorld, parse, rest, wait_for};
use crate::http::post;
use crate::world::{World, block_on, wait_until};

type Client = SglangServiceClient<Channel>;

fn request(max_new_tokens: i32) -> GenerateRequest {
    GenerateRequest {
        input_ids: (10..40).collect(),
        sampling_params: Some(SamplingParams {
            temperature: Some(0.0),
            max_new_tokens: Some(max_new_tokens),
            ignore_eos: Some(true),
            ..SamplingParams::default()
        }),
        stream: Some(true),
        ..GenerateRequest::default()
    }
}

#[test]
fn tokens_equal_those_over_http_and_are_sent_once() {
    let grpc = GrpcWorld::new(World::new());
    let sampling = json!({"max_new_tokens": 20, "temperature": 0, "ignore_eos": true});
    let ids: Vec<i32> = (10..40).collect();
    let call = json!({"input_ids": ids, "sampling_params": sampling});
    let expected = post(grpc.world.addr, "/generate", &call).ok();
    for stream in [Some(true), None] {
        let responses = grpc.with(async |channel| {
            let mut client = Client::new(channel);
            let request = GenerateRequest {
                stream,
                ..request(20)
            };
            let stream = client.generate(request).await.expect("a stream");
            rest(stream.into_inner()).await.expect("a whole stream")
        });
        let ids: Vec<i32> = responses
            .iter()
            .flat_map(|response| response.output_ids.clone())
            .collect();
        assert_eq!(json!(ids), expected["output_ids"]);
        let (last, others) = responses.split_last().expect("responses");
        assert!(last.finished && others.iter().all(|response| !response.finished));
        assert_eq!(others.is_empty(), stream.is_none());
        let reason = parse(&last.meta_info["finish_reason"]);
        assert_eq!(reason, json!({"type": "length", "length": 20}));
        for (name, count) in [("prompt_tokens", 30), ("completion_tokens", 20)] {
            assert_eq!(parse(&last.meta_info[name]), count, "{name}");
        }
        let cached = parse(&last.meta_info["cached_tokens"]);
        assert_eq!(cached, 29, "all but the last token of the prompt");
    }
    grpc.world.wait_until_idle();
}

#[test]
fn invalid_requests_are_refused_with_their_field() {
    let grpc = GrpcWorld::new(World::new());
    // Either the service refuses the request, or the engine ends the stream with an error.
    let refused = |request: GenerateRequest| {
        let outcome = grpc.with(async |channel| {
            let mut client = Client::new(channel);
            let stream = client.generate(request).await?;
            rest(stream.into_inner()).await
        });
        outcome.expect_err("a refusal")
    };
    let sampling = |change: fn(&mut SamplingParams)| {
        let mut request = request(5);
        change(request.sampling_params.as_mut().expect("parameters"));
        request
    };
    for (request, part) in [
        (
            sampling(|params| params.temperature = Some(-1.0)),
            "temperature",
        ),
        (sampling(|params| params.top_p = Some(f32::NAN)), "top_p"),
        (
            sampling(|params| params.max_new_tokens = Some(-1)),
            "max_new_tokens",
        ),
        (sampling(|params| params.n = Some(2)), "2 samples"),
        (
            GenerateRequest {
                input_ids: vec![-1],
                ..request(5)
            },
            "input_ids",
        ),
        (
            GenerateRequest {
                input_ids: vec![10; 500_000],
                ..request(5)
            },
            "the input (500000 tokens) is longer",
        ),
        (
            sampling(|params| params.stop_token_ids = vec![1; 5000]),
            "stop_token_ids has 5000 entries",
        ),
        (
            GenerateRequest {
                return_logprob: Some(true),
                ..request(5)
            },
            "return_logprob",
        ),
    ] {
        let status = refused(request);
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(part), "{part}: {status:?}");
    }
    grpc.world.wait_until_idle();
}

#[test]
fn requests_of_clients_that_disconnect_or_abort_are_cancelled() {
    let grpc = GrpcWorld::new(World::new());
    grpc.with(async |channel| {
        let mut client = Client::new(channel);
        let stream = client.generate(request(60_000)).await;
        let mut stream = stream.expect("a stream").into_inner();
        let first = stream.message().await.expect("a message");
        assert!(!first.expect("a response").finished);
        drop(stream);
        wait_for(&grpc.world, 0).await;
        let named = GenerateRequest {
            rid: Some("named".to_owned()),
            ..request(60_000)
        };
        let stream = client.generate(named).await.expect("a stream");
        wait_for(&grpc.world, 1).await;
        let abort = AbortRequest {
            rid: "named".to_owned(),
            abort_all: false,
        };
        let aborted = client.abort(abort).await.expect("an answer");
        assert!(aborted.into_inner().success);
        let responses = rest(stream.into_inner()).await.expect("a whole stream");
        let last = responses.last().expect("a response");
        let reason = parse(&last.meta_info["finish_reason"]);
        assert_eq!(reason["type"], "abort");
    });
    grpc.world.wait_until_idle();
}

#[test]
fn the_server_answers_the_queries_of_the_sidecar() {
    let grpc = GrpcWorld::new(World::new());
    grpc.with(async |channel| {
        let mut client = Client::new(channel);
        let healthy = client.health_check(HealthCheckRequest {}).await;
        assert!(healthy.expect("an answer").into_inner().healthy);
        let model = client.get_model_info(GetModelInfoRequest {}).await;
        let model = model.expect("an answer").into_inner();
        let info = parse(&model.json_info);
        assert_eq!(info["tokenizer_path"], model.model_path);
        let models = client.list_models(ListModelsRequest {}).await;
        let models = models.expect("an answer").into_inner().models;
        assert_eq!((models.len(), models[0].id.as_str()), (1, "tiny"));
        let server = client.get_server_info(GetServerInfoRequest {}).await;
        let info = parse(&server.expect("an answer").into_inner().json_info);
        for (name, value) in [
            ("served_model_name", json!("tiny")),
            ("page_size", json!(1)),
            ("max_running_requests", json!(32)),
            ("dp_size", json!(1)),
            ("disaggregation_mode", json!("null")),
            ("incremental_streaming_output", json!(true)),
        ] {
            assert_eq!(info[name], value, "{name}");
        }
        for name in [
            "max_total_num_tokens",
            "max_prefill_tokens",
            "context_length",
        ] {
            assert!(info[name].as_u64() > Some(0), "{name}");
        }
        let load = client.get_load(GetLoadRequest { dp_rank: None }).await;
        let load = parse(&load.expect("an answer").into_inner().json_info);
        assert_eq!(load[0]["num_reqs"], 0);
        let other = client.get_load(GetLoadRequest { dp_rank: Some(1) }).await;
        let other = other.expect_err("a refusal");
        assert_eq!(other.code(), Code::InvalidArgument);
        let flushed = client.flush_cache(FlushCacheRequest {}).await;
        assert!(flushed.expect("an answer").into_inner().success);
    });
}

#[test]
fn keys_allow_the_same_calls_as_over_http() {
    let grpc = GrpcWorld::new(World::with(|_, server| {
        server.api_key = ApiKey::new("sk-client").ok();
        server.admin_api_key = ApiKey::new("sk-admin").ok();
    }));
    let with_key = |key: &str| {
        let mut request = Request::new(FlushCacheRequest {});
        let value = MetadataValue::try_from(format!("Bearer {key}")).expect("a printable key");
        request.metadata_mut().insert("authorization", value);
        request
    };
    for (request, code) in [
        (Request::new(FlushCacheRequest {}), Code::Unauthenticated),
        (with_key("sk-other"), Code::Unauthenticated),
        (with_key("sk-client"), Code::Unauthenticated),
        (with_key("sk-admin"), Code::Ok),
    ] {
        let answer = grpc.with(async |channel| Client::new(channel).flush_cache(request).await);
        let got = answer.map_or_else(|status| status.code(), |_| Code::Ok);
        assert_eq!(got, code);
    }
}

#[test]
fn without_its_engine_a_server_is_unavailable_and_not_healthy() {
    let grpc = GrpcWorld::new(World::without_engine(Default::default()));
    grpc.with(async |channel| {
        let mut client = Client::new(channel);
        let healthy = client.health_check(HealthCheckRequest {}).await;
        assert!(!healthy.expect("an answer").into_inner().healthy);
        let refused = client.generate(request(5)).await.expect_err("a refusal");
        assert_eq!(refused.code(), Code::Unavailable);
    });
}

#[test]
fn a_running_stream_ends_before_the_server() {
    let mut grpc = GrpcWorld::new(World::with(|_, server| server.shutdown_deadline_s = 60));
    let (started, has_started) = std::sync::mpsc::channel();
    let url = grpc.url.clone();
    let client = std::thread::spawn(move || {
        block_on(async {
            let mut client = Client::connect(url).await.expect("a connection");
            let stream = client.generate(request(2000)).await.expect("a stream");
            started.send(()).expect("the test waits");
            rest(stream.into_inner()).await.expect("a whole stream")
        })
    });
    has_started.recv().expect("the client does not panic");
    grpc.world.stop();
    wait_until("the server drains", || grpc.world.state.is_draining());
    let responses = client.join().expect("the client does not panic");
    assert!(responses.last().is_some_and(|response| response.finished));
    let count: usize = responses
        .iter()
        .map(|response| response.output_ids.len())
        .sum();
    assert_eq!(count, 2000);
    grpc.world.join();
}
