use super::*;

const LIMITS: TextLimits = TextLimits {
    own_tokens: 1000,
    other_tokens: 1000,
    max_match: 12,
    n_ids: 500,
};

fn text(source: DraftSource, tokens: &[u32]) -> DraftText {
    DraftText {
        source,
        tokens: tokens.into(),
    }
}

fn prediction(tokens: &[u32]) -> DraftText {
    text(DraftSource::Prediction, tokens)
}

/// Proposes at most five tokens.
fn propose(proposer: &mut TextProposer) -> (Vec<u32>, Proposal) {
    let mut drafts = vec![77];
    let proposal = proposer.propose(5, &mut drafts);
    assert_eq!(drafts.remove(0), 77);
    assert_eq!(proposal.n_tokens, drafts.len());
    (drafts, proposal)
}

#[track_caller]
fn check(proposer: &mut TextProposer, expected: &[u32], source: DraftSource, matched: usize) {
    let (drafts, proposal) = propose(proposer);
    let found = (&drafts[..], proposal.source, proposal.matched);
    assert_eq!(found, (expected, source, matched));
}

#[test]
fn nothing_is_proposed_without_an_occurrence() {
    for prompt in [&[][..], &[1], &[1, 2, 3, 4]] {
        let mut proposer = TextProposer::new(prompt, &[], LIMITS);
        assert_eq!(propose(&mut proposer), (vec![], Proposal::default()));
    }
}

#[test]
fn a_copy_of_the_prompt_is_followed() {
    let prompt: Vec<u32> = (1..100).collect();
    let mut proposer = TextProposer::new(&prompt, &[], LIMITS);
    proposer.extend(&[10, 11]);
    check(
        &mut proposer,
        &[12, 13, 14, 15, 16],
        DraftSource::OwnText,
        2,
    );
    proposer.extend(&[12, 13, 14]);
    check(
        &mut proposer,
        &[15, 16, 17, 18, 19],
        DraftSource::OwnText,
        5,
    );
    proposer.extend(&[400, 51, 52]);
    check(
        &mut proposer,
        &[53, 54, 55, 56, 57],
        DraftSource::OwnText,
        2,
    );
}

#[test]
fn a_loop_fills_all_drafts() {
    let mut proposer = TextProposer::new(&[9, 1, 2, 1, 2], &[], LIMITS);
    check(&mut proposer, &[1, 2, 1, 2, 1], DraftSource::OwnText, 2);
    proposer.extend(&[1, 2, 1]);
    let (drafts, _) = propose(&mut proposer);
    assert_eq!(drafts, [2, 1, 2, 1, 2]);
}

#[test]
fn a_prediction_is_proposed_from_its_start() {
    let predicted: Vec<u32> = (100..120).collect();
    let prompt = [1, 2, 3, 1, 2];
    let mut proposer = TextProposer::new(&prompt, &[prediction(&predicted)], LIMITS);
    let first = [100, 101, 102, 103, 104];
    check(&mut proposer, &first, DraftSource::Prediction, 0);
    // A proposal that no step has taken changes nothing.
    check(&mut proposer, &first, DraftSource::Prediction, 0);
    proposer.extend(&[100]);
    let second = [101, 102, 103, 104, 105];
    check(&mut proposer, &second, DraftSource::Prediction, 1);
    proposer.extend(&[101, 300, 110, 111]);
    let resumed = [112, 113, 114, 115, 116];
    check(&mut proposer, &resumed, DraftSource::Prediction, 2);
    proposer.extend(&(112..117).collect::<Vec<u32>>());
    check(&mut proposer, &[117, 118, 119], DraftSource::Prediction, 7);
    proposer.extend(&[117, 118, 119]);
    assert!(propose(&mut proposer).0.is_empty());
}

#[test]
fn a_resumed_row_aligns_its_output_with_the_prediction() {
    let mut proposer = TextProposer::new(&[1, 2, 3], &[prediction(&[4, 5, 6])], LIMITS);
    proposer.extend(&[4]);
    check(&mut proposer, &[5, 6], DraftSource::Prediction, 1);
}

#[test]
fn a_wrong_prediction_is_left_at_once() {
    let mut proposer = TextProposer::new(&[1, 2, 3, 1], &[prediction(&[4, 5, 6])], LIMITS);
    proposer.extend(&[2]);
    check(&mut proposer, &[3, 1, 2, 3, 1], DraftSource::OwnText, 2);
}

#[test]
fn the_longest_match_is_taken_and_of_equal_ones_the_best_source() {
    let texts = [
        prediction(&[99, 7, 8, 20]),
        text(DraftSource::Grammar, &[7, 8, 30]),
    ];
    let mut proposer = TextProposer::new(&[6, 7, 8, 40, 1], &texts, LIMITS);
    proposer.extend(&[7, 8]);
    check(&mut proposer, &[20], DraftSource::Prediction, 2);
    let mut proposer = TextProposer::new(&[6, 7, 8, 40, 1], &texts, LIMITS);
    proposer.extend(&[6, 7, 8]);
    check(&mut proposer, &[40, 1, 6, 7, 8], DraftSource::OwnText, 3);
    let mut proposer = TextProposer::new(&[6, 7, 8, 40, 1], &texts[1..], LIMITS);
    proposer.extend(&[7, 8]);
    check(&mut proposer, &[40, 1, 7, 8, 40], DraftSource::OwnText, 2);
    let mut proposer = TextProposer::new(&[1, 3], &texts[1..], LIMITS);
    proposer.extend(&[7, 8]);
    check(&mut proposer, &[30], DraftSource::Grammar, 2);
}

#[test]
fn drafts_end_at_the_end_of_their_text() {
    let texts = [[1, 2, 3].as_slice(), &[], &[4, 5, 6]];
    let texts = texts.map(|tokens| text(DraftSource::Grammar, tokens));
    let mut proposer = TextProposer::new(&[], &texts, LIMITS);
    proposer.extend(&[1, 2]);
    check(&mut proposer, &[3], DraftSource::Grammar, 2);
    proposer.extend(&[3]);
    assert!(propose(&mut proposer).0.is_empty());
    proposer.extend(&[4, 5]);
    check(&mut proposer, &[6], DraftSource::Grammar, 2);
}

#[test]
fn keys_of_images_are_not_proposed() {
    let key = 1 << 30;
    let prompt = [1, 2, 3, key, key + 1, 4, 1];
    let mut proposer = TextProposer::new(&prompt, &[], LIMITS);
    proposer.extend(&[2]);
    check(&mut proposer, &[3], DraftSource::OwnText, 2);
    proposer.extend(&[3]);
    assert!(propose(&mut proposer).0.is_empty());
}

#[test]
fn texts_beyond_the_capacity_are_forgotten_in_part() {
    let limits = TextLimits {
        own_tokens: 256,
        other_tokens: 256,
        n_ids: 5000,
        ..LIMITS
    };
    let prompt: Vec<u32> = (0..400).collect();
    let mut proposer = TextProposer::new(&prompt, &[prediction(&prompt)], limits);
    assert_eq!(propose(&mut proposer).0, [0, 1, 2, 3, 4]);
    for round in 0..60 {
        proposer.extend(&[450, 451, 452 + round, 453 + round]);
        proposer.extend(&[450, 451]);
        let (drafts, proposal) = propose(&mut proposer);
        assert_eq!(proposal.source, DraftSource::OwnText);
        assert_eq!(drafts[0], 452 + round);
    }
    // The prediction was cut to 255 tokens.
    proposer.extend(&[252, 253]);
    assert_eq!(propose(&mut proposer).0, [254]);
}
