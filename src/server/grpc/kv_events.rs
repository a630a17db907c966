//! Streams KV cache events over the scheduler service that the gateway smg calls.

use futures_util::StreamExt;
use futures_util::stream;
use tonic::Status;

use super::answer::Responses;
use super::proto::scheduler::kv_cache_event::Data;
use super::proto::scheduler::{
    KvBlock, KvBlocksRemoved, KvBlocksStored, KvCacheCleared, KvCacheEvent, KvEventBatch,
};
use super::{i32_of, status};
use crate::state::AppState;
use souffleur_kv_events::batch::{KvEvent, StoredBlocks};
use souffleur_kv_events::{KvEventSubscription, NumberedEvents, SubscribeError};

const DP_RANK: i32 = 0;

/// Streams the batches after the number `after`, until the server drains or the client disconnects.
pub(super) fn subscribe(state: &AppState, after: u64) -> Result<Responses<KvEventBatch>, Status> {
    let engine = &state.serving().map_err(status)?.engine;
    let subscription = engine.subscribe_kv_events(after).map_err(refused)?;
    let block_size = engine.kv_events().map_or(1, |info| info.block_size);
    let messages = Messages {
        subscription,
        block_size,
        next_event: 1,
    };
    let batches = stream::unfold(messages, |mut messages| async move {
        let batch = messages.subscription.next().await?;
        Some((Ok::<_, Status>(messages.message_of(batch)), messages))
    });
    let mut draining = state.drain_signal();
    let drains = async move {
        // An error means that the server's state was dropped.
        let _ = draining.wait_for(|drains| *drains).await;
    };
    Ok(Box::pin(batches.take_until(drains)))
}

fn refused(error: SubscribeError) -> Status {
    let text = error.to_string();
    match error {
        // A client that gets this status does not retry. smg counts a worker's blocks by their ids alone, so it would
        // forget a block of one replica when another evicts its copy.
        SubscribeError::Off | SubscribeError::Replicas(_) => Status::unimplemented(text),
        SubscribeError::NoReplica(_) => Status::invalid_argument(text),
        SubscribeError::TooMany => Status::resource_exhausted(text),
        SubscribeError::Stopped => Status::unavailable(text),
    }
}

struct Messages {
    subscription: KvEventSubscription,
    block_size: usize,
    next_event: u64,
}

impl Messages {
    fn message_of(&mut self, batch: NumberedEvents) -> KvEventBatch {
        let data = batch.events.into_iter();
        let data = data.filter_map(|event| data_of(event, self.block_size));
        let events = (self.next_event..).zip(data);
        let events: Vec<_> = events
            .map(|(event_id, data)| KvCacheEvent {
                event_id,
                data: Some(data),
            })
            .collect();
        self.next_event += events.len() as u64;
        KvEventBatch {
            sequence_number: batch.number,
            timestamp: batch.time_s,
            events,
            dp_rank: Some(DP_RANK),
        }
    }
}

/// Converts an event. Stored blocks of a named namespace are left out: the message has no field for a `cache_salt` or
/// an `extra_key`, so smg would route prompts of other namespaces by these blocks.
fn data_of(event: KvEvent, block_size: usize) -> Option<Data> {
    match event {
        KvEvent::Stored(blocks) => {
            (!blocks.is_named).then(|| Data::Stored(stored(blocks, block_size)))
        }
        KvEvent::Removed(block_hashes) => Some(Data::Removed(KvBlocksRemoved { block_hashes })),
        KvEvent::Cleared => Some(Data::Cleared(KvCacheCleared {})),
    }
}

fn stored(blocks: StoredBlocks, block_size: usize) -> KvBlocksStored {
    let tokens = blocks.tokens.chunks_exact(block_size);
    let each = blocks.ids.iter().zip(tokens);
    KvBlocksStored {
        blocks: each
            .map(|(id, tokens)| KvBlock {
                block_hash: *id,
                token_ids: tokens.to_vec(),
                block_size: i32_of(block_size),
            })
            .collect(),
        parent_block_hash: blocks.parent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(is_named: bool) -> KvEvent {
        KvEvent::Stored(StoredBlocks {
            ids: vec![7, -8],
            parent: Some(6),
            tokens: vec![1, 2, 3, 4],
            cache_salt: None,
            is_named,
        })
    }

    #[test]
    fn each_block_has_its_own_tokens() {
        let Some(Data::Stored(stored)) = data_of(blocks(false), 2) else {
            panic!("the event is not published");
        };
        let of = |block_hash, token_ids: [u32; 2]| KvBlock {
            block_hash,
            token_ids: token_ids.to_vec(),
            block_size: 2,
        };
        assert_eq!(stored.blocks, [of(7, [1, 2]), of(-8, [3, 4])]);
        assert_eq!(stored.parent_block_hash, Some(6));
    }

    #[test]
    fn blocks_of_named_namespaces_are_not_published() {
        assert_eq!(data_of(blocks(true), 2), None);
    }

    #[test]
    fn a_client_does_not_retry_if_events_are_off_or_of_replicas() {
        for error in [SubscribeError::Off, SubscribeError::Replicas(2)] {
            assert_eq!(refused(error).code(), tonic::Code::Unimplemented);
        }
    }
}
