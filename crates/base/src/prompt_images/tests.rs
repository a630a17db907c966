//! Tests of images in prompts.

use super::*;

const BEGIN: u32 = 6;
const PAD: u32 = 9;
const END: u32 = 7;
const TEXT: u32 = 5;

/// Text tokens, images of these grids between marks, and more text tokens, with the images' table.
fn prompt(grids: &[(u32, u32)], n_text: (usize, usize)) -> (Vec<u32>, Vec<PromptImage>) {
    let mut tokens = vec![TEXT; n_text.0];
    let mut images = Vec::new();
    for (index, (rows, columns)) in (0..).zip(grids) {
        let (start, n_vectors) = (tokens.len() as u32, (rows * columns) as usize);
        tokens.push(BEGIN);
        tokens.extend(std::iter::repeat_n(PAD, n_vectors));
        tokens.push(END);
        let vectors = PromptVectors::new(2, vec![0.5; 2 * n_vectors]).expect("valid vectors");
        images.push(PromptImage {
            positions: start..tokens.len() as u32,
            pad: PAD,
            digest: ImageDigest([index; 32]),
            grid: ImageGrid {
                rows: *rows,
                columns: *columns,
            },
            vectors: Some(Arc::new(vectors)),
            input: None,
        });
    }
    tokens.extend(std::iter::repeat_n(TEXT, n_text.1));
    (tokens, images)
}

fn table(tokens: &[u32], images: &[PromptImage]) -> PromptImages {
    PromptImages::new(tokens, images).expect("valid images")
}

/// Positions before the image, in it (with its marks) and after it, from `get_rope_index` of transformers 5.
#[rustfmt::skip]
const ROTARY: [[u32; 3]; 20] = [
    [0, 0, 0], [1, 1, 1], [2, 2, 2],
    [3, 3, 3], [3, 3, 4], [3, 3, 5], [3, 3, 6], [3, 3, 7],
    [3, 4, 3], [3, 4, 4], [3, 4, 5], [3, 4, 6], [3, 4, 7],
    [3, 5, 3], [3, 5, 4], [3, 5, 5], [3, 5, 6], [3, 5, 7],
    [8, 8, 8], [9, 9, 9],
];

#[test]
fn rotary_positions_are_those_of_transformers() {
    let (tokens, images) = prompt(&[(3, 5)], (2, 1));
    let images = table(&tokens, &images);
    let got: Vec<[u32; 3]> = (0..20).map(|index| images.rotary_position(index)).collect();
    assert_eq!(got, ROTARY);
    // The output continues with the same shift.
    assert_eq!(images.rotary_position(1_000_000), [999_990; 3]);
}

#[test]
fn rotary_positions_add_up_over_images() {
    let grids = [(2, 1), (2, 3), (1, 1), (7, 4), (1, 9)];
    let (tokens, images) = prompt(&grids, (0, 3));
    let images = table(&tokens, &images);
    let mut expected: Vec<[u32; 3]> = Vec::new();
    // As `get_rope_index` computes them: each part begins after the largest number before it.
    let next = |so_far: &[[u32; 3]]| so_far.iter().flatten().max().map_or(0, |max| max + 1);
    for (rows, columns) in grids {
        let begin = next(&expected);
        expected.push([begin; 3]);
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        expected.extend(cells.map(|(row, column)| [0, row, column].map(|at| begin + 1 + at)));
        let end = next(&expected);
        expected.push([end; 3]);
    }
    for _ in 0..3 {
        let text = next(&expected);
        expected.push([text; 3]);
    }
    let got: Vec<[u32; 3]> = (0..tokens.len() as u32)
        .map(|index| images.rotary_position(index))
        .collect();
    assert_eq!(got, expected);
    let is_bounded =
        |(index, position): (usize, &[u32; 3])| position.iter().all(|at| *at as usize <= index);
    assert!(got.iter().enumerate().all(is_bounded));
}

#[test]
fn positions_have_keys_marks_and_vectors() {
    let (tokens, images) = prompt(&[(1, 2), (2, 1)], (1, 2));
    let images = table(&tokens, &images);
    let keyed = images.keyed(&tokens, |span| {
        let name = u32::from(span.digest().0[0]) << 8;
        move |offset: u32, mark: Option<u32>| name | offset | u32::from(mark.is_some()) << 16
    });
    let is_image: Vec<bool> = keyed.iter().map(|token| is_key(*token)).collect();
    let expected: Vec<bool> = (0..11).map(|at| images.at(at).is_some()).collect();
    assert_eq!(is_image, expected);
    let first = KEY_BIT | FIRST_BIT;
    assert_eq!(keyed[1..4], [first | 0x10000, KEY_BIT | 1, KEY_BIT | 2]);
    assert_eq!(keyed[5..7], [first | 0x10100, KEY_BIT | 0x101]);
    let output = [keyed.to_vec(), vec![3]].concat();
    assert_eq!(
        *images.inputs(&output),
        [TEXT, BEGIN, 0, 0, END, BEGIN, 0, 0, END, TEXT, TEXT, 3]
    );
    assert_eq!(images.text_tokens(&keyed), [TEXT; 3]);
    assert_eq!(images.spans()[1].mark_at(5), Some(BEGIN));
    assert_eq!(images.spans()[1].mark_at(6), None);
}

/// The runs of a chunk, with the vectors' values in place of the vectors.
fn runs(images: &PromptImages, positions: Range<u32>) -> Vec<(usize, Vec<f32>)> {
    let mut runs = Vec::new();
    images.for_each_run(positions, 100, |run| {
        runs.push((run.first_token, run.values().to_vec()));
    });
    runs
}

#[test]
fn every_chunk_gets_the_vectors_of_its_positions_once() {
    // The second image has a mark within, as images of several rows have in some models.
    let tokens = [5, 6, 9, 9, 7, 9, 9, 8, 9, 5];
    let image = |positions: Range<u32>, rows: u32, columns: u32, first: u32| PromptImage {
        positions,
        pad: 9,
        digest: ImageDigest([0; 32]),
        grid: ImageGrid { rows, columns },
        vectors: Some(Arc::new(
            PromptVectors::new(
                1,
                (first..first + rows * columns)
                    .map(|at| at as f32)
                    .collect(),
            )
            .expect("valid vectors"),
        )),
        input: None,
    };
    let images = table(&tokens, &[image(1..5, 1, 2, 20), image(5..9, 3, 1, 30)]);
    assert!(images.spans()[0].is_contiguous() && !images.spans()[1].is_contiguous());
    let all = [
        (102, vec![20.0, 21.0]),
        (105, vec![30.0, 31.0]),
        (108, vec![32.0]),
    ];
    assert_eq!(runs(&images, 0..10), all);
    for cut in 1..10 {
        let mut values = Vec::new();
        for (first, end) in [(0, cut), (cut, 10)] {
            for (at, run) in runs(&images, first..end) {
                let position = at - 100 + first as usize;
                values.extend((position..).zip(run));
            }
        }
        let expected = [(2, 20.0), (3, 21.0), (5, 30.0), (6, 31.0), (8, 32.0)];
        assert_eq!(values, expected, "cut at {cut}");
    }
    let without = PromptImage {
        vectors: None,
        ..image(1..5, 1, 2, 0)
    };
    let partly = table(&tokens, &[without, image(5..9, 3, 1, 30)]);
    assert_eq!((images.cached_until(), partly.cached_until()), (0, 4));
    assert_eq!(runs(&partly, 0..8), [(105, vec![30.0, 31.0])]);
    let encoded = images.spans()[0].vectors().cloned();
    let filled = partly.with_vectors(|index| encoded.clone().filter(|_| index == 0));
    assert_eq!(
        (filled.cached_until(), runs(&filled, 0..10)),
        (0, all.to_vec())
    );
    let emptied = filled.without_vectors();
    assert_eq!(
        (emptied.cached_until(), runs(&emptied, 0..10)),
        (9, Vec::new())
    );
    let unfilled = partly.with_vectors(|_| None);
    assert_eq!(unfilled.cached_until(), 4);
    let sizes = images
        .spans()
        .iter()
        .map(|span| (span.n_vectors(), span.vectors_end()));
    assert_eq!(sizes.collect::<Vec<_>>(), [(2, 4), (3, 9)]);
}

#[test]
fn invalid_images_are_refused_by_their_place() {
    let (tokens, images) = prompt(&[(2, 2), (1, 2)], (1, 1));
    type Edit = fn(&mut Vec<PromptImage>);
    let refused: [(&str, Edit); 9] = [
        ("images has 0", |images| images.clear()),
        ("images[1] is at positions 7 to 99 of 12", |images| {
            images[1].positions.end = 99;
        }),
        ("images[1] is at positions 6 to 11", |images| {
            images[1].positions.start = 6;
        }),
        ("images[0] is at positions 7 to 7", |images| {
            images[0].positions = 7..7;
        }),
        ("images[1] is at positions 1 to 7", |images| {
            images.swap(0, 1)
        }),
        ("images[0] has 0 pad tokens with id 8", |images| {
            images[0].pad = 8
        }),
        (
            "images[0] has 4 pad tokens with id 9, but a grid of 0 rows",
            |images| {
                images[0].grid.rows = 0;
            },
        ),
        ("images[0] has 4 pad tokens", |images| {
            images[0].grid = ImageGrid {
                rows: u32::MAX,
                columns: u32::MAX,
            };
        }),
        ("images[1] has 4 vectors for 2 pad tokens", |images| {
            images[1].vectors = images[0].vectors.clone();
        }),
    ];
    for (expected, edit) in refused {
        let mut images = images.clone();
        edit(&mut images);
        let error = PromptImages::new(&tokens, &images).expect_err("invalid images");
        assert!(
            error.to_string().contains(expected),
            "{error}, expected {expected}"
        );
    }
    let many = vec![images[0].clone(); MAX_IMAGES + 1];
    let error = PromptImages::new(&tokens, &many).expect_err("too many images");
    assert!(error.to_string().contains("must have 1 to 1024"), "{error}");
}

#[test]
fn runs_of_keys_are_shown_as_images() {
    let key = |name: u32| KEY_BIT | name << 13 | 77;
    let first = |name: u32| key(name) | FIRST_BIT;
    let decode = |tokens: &[u32]| format!("<{tokens:?}>");
    let tokens = [1, 2, first(0x3f2a), key(9), 3];
    assert_eq!(decode_around(&tokens, decode), "<[1, 2]>[image 3f2a…]<[3]>");
    assert_eq!(decode_around(&[key(0xffff)], decode), "[image ffff…]");
    // Adjacent images, and the end of one.
    let tokens = [key(7), key(8), first(1), key(2), first(1), first(0xabcd), 3];
    let expected = "[image 0007…][image 0001…][image 0001…][image abcd…]<[3]>";
    assert_eq!(decode_around(&tokens, decode), expected);
    assert_eq!(decode_around(&[4, 5], decode), "<[4, 5]>");
    assert_eq!(decode_around(&[], decode), "");
}

#[test]
fn vectors_are_kept_whole_without_marks_and_across_images_that_touch() {
    let (tokens, mut images) = prompt(&[(2, 2), (1, 3)], (2, 1));
    let marked = table(&tokens, &images);
    assert_eq!(marked.runs(), [3..7, 9..12]);
    assert_eq!(marked.whole(), None);
    let whole = marked.clone().kept_whole();
    assert_eq!(whole.whole().map(|runs| runs.to_vec()), Some(marked.runs()));
    // The parts of the engine that copy the table keep them.
    for copy in [whole.without_vectors(), whole.with_vectors(|_| None)] {
        assert_eq!(copy.whole(), whole.whole());
    }
    let cuts: Vec<u32> = (0..15).filter(|end| marked.cuts_run(*end)).collect();
    assert_eq!(cuts, [4, 5, 6, 10, 11]);
    // Marks between rows of an image divide it, and images without marks are one run.
    let tokens = [TEXT, PAD, PAD, END, PAD, PAD, PAD, PAD, TEXT];
    images[0].positions = 1..6;
    images[1].positions = 6..8;
    images[1].grid.columns = 2;
    images[1].vectors = None;
    let touching = table(&tokens, &images);
    assert_eq!(touching.runs(), [1..3, 4..8]);
    let cuts: Vec<u32> = (0..10).filter(|end| touching.cuts_run(*end)).collect();
    assert_eq!(cuts, [2, 5, 6, 7]);
}

#[test]
fn a_log_has_runs_without_images() {
    let runs = [4..9, 20..22].to_vec();
    let none = PromptImages::with_whole(None, runs.clone());
    assert!(none.spans().is_empty() && none.cached_until() == 0);
    assert_eq!(none.whole().map(|runs| runs.to_vec()), Some(runs));
}

#[test]
fn true_ids_are_those_of_the_prompt() {
    let (tokens, images) = prompt(&[(1, 2), (2, 2)], (2, 1));
    let images = table(&tokens, &images).without_vectors();
    for (position, token) in (0..).zip(&tokens) {
        let is_text = *token == TEXT;
        assert_eq!(images.id_at(position), (!is_text).then_some(*token));
    }
    assert_eq!(images.id_at(tokens.len() as u32), None);
}
