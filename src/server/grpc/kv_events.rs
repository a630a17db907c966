//! The events of the cache, in the form of smg's scheduler service.

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

/// The only rank.
const DP_RANK: i32 = 0;

/// The batches after the one of this number, until the server drains or the client leaves.
pub(super) fn subscribe(state: &AppState, after: u64) -> Result<Responses<KvEventBatch>, Status> {
    let engine = &state.serving().map_err(status)?.engine;
    let subscription = engine.subscribe_kv_events(after).map_err(refused)?;
    let block_size = engine.kv_events().map_or(1, |info| info.block_size);
    let telling = Telling {
        subscription,
        block_size,
        next_event: 1,
    };
    let batches = stream::unfold(telling, |mut telling| async move {
        let batch = telling.subscription.next().await?;
        Some((Ok::<_, Status>(telling.tell(batch)), telling))
    });
    let mut draining = state.drain_signal();
    let drains = async move {
        // An error means that the state is gone.
        let _ = draining.wait_for(|drains| *drains).await;
    };
    Ok(Box::pin(batches.take_until(drains)))
}

fn refused(error: SubscribeError) -> Status {
    let text = error.to_string();
    match error {
        // A client with this status does not retry.
        SubscribeError::Off => Status::unimplemented(text),
        SubscribeError::TooMany => Status::resource_exhausted(text),
        SubscribeError::Stopped => Status::unavailable(text),
    }
}

struct Telling {
    subscription: KvEventSubscription,
    block_size: usize,
    next_event: u64,
}

impl Telling {
    fn tell(&mut self, batch: NumberedEvents) -> KvEventBatch {
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

/// The event, unless its blocks are in a named namespace: there is no field for a salt or an `extra_key`, and smg would
/// send others' prompts to them.
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
        let Some(Data::Stored(told)) = data_of(blocks(false), 2) else {
            panic!("it is published");
        };
        let of = |block_hash, token_ids: [u32; 2]| KvBlock {
            block_hash,
            token_ids: token_ids.to_vec(),
            block_size: 2,
        };
        assert_eq!(told.blocks, [of(7, [1, 2]), of(-8, [3, 4])]);
        assert_eq!(told.parent_block_hash, Some(6));
    }

    #[test]
    fn blocks_of_named_namespaces_are_not_told() {
        assert_eq!(data_of(blocks(true), 2), None);
    }

    #[test]
    fn without_events_nobody_is_to_ask_again() {
        let code = refused(SubscribeError::Off).code();
        assert_eq!(code, tonic::Code::Unimplemented);
    }
}
