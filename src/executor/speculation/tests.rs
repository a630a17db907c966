use std::sync::Arc;

use souffleur_base::ids::{RowId, SeqId};
use souffleur_state::pool::pages::PageRun;
use souffleur_state::pooling::Pooling;
use souffleur_state::prompt_vectors::PromptVectors;
use souffleur_state::sampling::SamplingParams;
use souffleur_state::speculation::{DraftSource, DraftText};
use souffleur_state::step::RowStart;

use super::{MakeProposer, NgramProposers};

const PROPOSERS: NgramProposers = NgramProposers {
    max_match: 12,
    capacity: 1000,
    vocab_size: 100,
};

fn start(tokens: &[u32], prompt_tokens: u32, n_query_tokens: Option<u32>) -> RowStart {
    let sampling = SamplingParams {
        speculative_num_draft_tokens: n_query_tokens,
        ..SamplingParams::default()
    };
    let prediction = DraftText {
        source: DraftSource::Prediction,
        tokens: [50, 51, 52].into(),
    };
    RowStart {
        row: RowId::new(0),
        seq: SeqId::new(0),
        tokens: tokens.into(),
        prompt_tokens,
        sampling: Arc::new(sampling),
        grammar: None,
        vectors: None,
        images: None,
        pooling: None,
        draft_texts: [prediction].into(),
        prefix: PageRun::empty(),
        state: None,
    }
}

/// The drafts for a row that starts.
fn drafts(start: &RowStart) -> Vec<u32> {
    let mut drafts = Vec::new();
    let mut proposer = PROPOSERS.make(start).expect("the row has drafts");
    proposer.propose(3, &mut drafts);
    drafts
}

#[test]
fn rows_have_drafts_from_their_texts() {
    assert_eq!(drafts(&start(&[1, 2, 3, 1, 2], 5, Some(4))), [50, 51, 52]);
    assert_eq!(drafts(&start(&[1, 2, 3, 1, 2], 4, Some(4))), [3, 1, 2]);
    assert_eq!(drafts(&start(&[1, 2, 3, 50], 3, Some(2))), [51, 52]);
    // A token beyond the vocabulary is an image's.
    let with_image = start(&[1, 2, 3, 1 << 30, 1, 2], 4, Some(8));
    assert_eq!(drafts(&with_image), [3]);
}

#[test]
fn rows_without_drafts_have_no_proposer() {
    let tokens = [1, 2, 3];
    for n_query_tokens in [None, Some(0), Some(1)] {
        assert!(PROPOSERS.make(&start(&tokens, 3, n_query_tokens)).is_none());
    }
    let vectors = PromptVectors::new(1, vec![0.0; 3]).expect("the vectors are sound");
    let with_vectors = RowStart {
        vectors: Some(Arc::new(vectors)),
        ..start(&tokens, 3, Some(8))
    };
    assert!(PROPOSERS.make(&with_vectors).is_none());
    let with_pooling = RowStart {
        pooling: Some(Pooling::Last),
        ..start(&tokens, 3, Some(8))
    };
    assert!(PROPOSERS.make(&with_pooling).is_none());
}
