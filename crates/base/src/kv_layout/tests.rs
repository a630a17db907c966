//! Tests of KV layout sizes against hand-computed values.

use super::*;

fn pages(heads: usize, key_dim: usize, values: Values) -> PagedKv {
    PagedKv {
        heads,
        key_dim,
        values,
        labels: 0,
        dtype: KvDtype::BF16,
    }
}

/// Qwen3.5-9B: eight times three layers of gated delta net and one of attention.
fn hybrid() -> KvLayout {
    let state = LayerKv::State {
        bytes: 4 * (32 * 128 * 128 + 3 * 8192),
        heads: StateHeads {
            count: 32,
            bytes: 4 * 128 * 128,
        },
    };
    let full = LayerKv::Pages(pages(4, 256, Values::Own { dim: 256 }));
    KvLayout::new([state, state, state, full].repeat(8))
}

#[test]
fn sizes_match_published_models() {
    let own = |dim| Values::Own { dim };
    let latent = pages(1, 576, Values::InKeys { dim: 512 });
    let table = [
        // Llama 3 8B, DeepSeek-V2-Lite, and keys that are wider than the values.
        (KvLayout::uniform(32, pages(8, 128, own(128))), 131_072, 0),
        (KvLayout::uniform(27, latent), 31_104, 0),
        (KvLayout::uniform(2, pages(3, 192, own(128))), 3_840, 0),
        (hybrid(), 32_768, (50 << 20) + (1 << 18)),
    ];
    for (layout, bytes_per_token, state_bytes) in table {
        assert_eq!(layout.bytes_per_token(), bytes_per_token, "{layout:?}");
        assert_eq!(layout.state_bytes(), state_bytes, "{layout:?}");
    }
}

#[test]
fn layers_with_equal_windows_get_window_pages() {
    let own = pages(4, 256, Values::Own { dim: 256 });
    let gemma = KvLayout::uniform(34, own);
    // Gemma 3 4B: five layers with a window, then one without.
    let windows: Vec<Option<usize>> = (1..=34)
        .map(|layer| (layer % 6 != 0).then_some(1024))
        .collect();
    let windowed = gemma.windowed(&windows).expect("equal windows");
    assert_eq!((gemma.bytes_per_token(), gemma.window()), (139_264, None));
    assert_eq!(windowed.bytes_per_token(), 20_480);
    assert_eq!(windowed.window_bytes_per_token() * 1024, 116 << 20);
    assert_eq!(windowed.window(), Some(1024));
    assert_eq!(windowed.kinds().len(), 2);
    let mut others = windows;
    others[0] = Some(512);
    assert_eq!(gemma.windowed(&others), None);
    assert_eq!(gemma.windowed(&[None; 34]), None);
    assert_eq!(hybrid().windowed(&[Some(8); 32]), None);
}

#[test]
fn block_planes_are_the_buffers_of_all_layers() {
    let latent = pages(1, 96, Values::InKeys { dim: 64 });
    let own = pages(2, 128, Values::Own { dim: 64 });
    let int8 = PagedKv {
        dtype: KvDtype::Int8,
        ..own
    };
    let layers = [latent, own, int8].map(LayerKv::Pages);
    let layout = KvLayout::new([&layers[..], &[LayerKv::Shared(1)]].concat());
    let planes = layout.block_planes(16).expect("all layers keep pages");
    assert_eq!(
        planes,
        [
            16 * 96 * 2,
            16 * 2 * 128 * 2,
            16 * 2 * 64 * 2,
            16 * 2 * 128,
            16 * 2 * 64,
            16 * 2 * 6 * 2
        ]
    );
    let bytes = layout.bytes_per_token() as usize * 16;
    assert_eq!(planes.iter().sum::<usize>(), bytes);
    let window = KvLayout::new(vec![LayerKv::Window {
        pages: own,
        tokens: 8,
    }]);
    let refusal = window.block_planes(16).expect_err("no window pages");
    assert!(
        refusal.contains("does not support the sliding window of layer 0"),
        "{refusal}"
    );
    assert_eq!(
        hybrid().state_planes()[..4],
        [2_195_456, 2_195_456, 2_195_456, 0]
    );
}

#[test]
fn values_in_keys_have_no_buffer() {
    let buffers = |values| -> Vec<(&str, u64)> {
        let buffers = pages(2, 96, values).buffers();
        buffers
            .map(|buffer| (buffer.name, buffer.bytes_per_token()))
            .collect()
    };
    assert_eq!(
        buffers(Values::Own { dim: 64 }),
        [("k", 2 * 96 * 2), ("v", 2 * 64 * 2)]
    );
    assert_eq!(buffers(Values::InKeys { dim: 64 }), [("k", 2 * 96 * 2)]);
}

#[test]
fn layers_with_labels_have_a_third_buffer() {
    let layout = hybrid().with_labels(|layer| if layer == 7 { 32 } else { 0 });
    let labels = 4 * 32 * 2;
    assert_eq!(layout.bytes_per_token(), 32_768 + labels);
    let buffers = |layer: usize| layout.layers()[layer].pages().map(PagedKv::buffers);
    let names: Vec<&str> = buffers(7).into_iter().flatten().map(|b| b.name).collect();
    assert_eq!(names, ["k", "v", "label"]);
    assert_eq!(buffers(3).into_iter().flatten().count(), 2);
    let described = layout.layers()[7].to_string();
    assert_eq!(
        described,
        "4 heads, keys of 256, values of 256, double-sparsity labels of 32 channels, bfloat16"
    );
}

#[test]
fn quantised_layers_count_their_scales() {
    let int8 = |pages: PagedKv| PagedKv {
        dtype: KvDtype::Int8,
        ..pages
    };
    let own = |dim| Values::Own { dim };
    let table = [
        // One byte per element and a two-byte scale per 32 elements: 0.531 of the size in bfloat16.
        (pages(8, 128, own(128)), 8 * 2 * (128 + 4 * 2)),
        (pages(1, 576, Values::InKeys { dim: 512 }), 576 + 18 * 2),
        (pages(4, 80, own(96)), 4 * (80 + 96 + 6 * 2)),
        (pages(2, 40, own(40)), 2 * 2 * (40 + 2 * 2)),
    ];
    for (pages, bytes) in table {
        let pages = int8(pages);
        assert_eq!(pages.bytes_per_token(), bytes, "{pages}");
        let elements = bytes as usize - SCALE_BYTES * pages.scales_per_token();
        assert_eq!(pages.elements_per_token(), elements, "{pages}");
    }
    assert_eq!(
        int8(pages(1, 96, own(64))).to_string(),
        "1 head, keys of 96, values of 64, int8 with 5 bfloat16 scales per token"
    );
}

#[test]
fn kinds_of_layers_are_counted_and_described() {
    let lines = hybrid().kinds();
    let lines: Vec<String> = lines
        .iter()
        .map(|(count, kind)| format!("{count}: {kind}"))
        .collect();
    assert_eq!(
        lines,
        [
            "24: a state of 2195456 bytes per sequence",
            "8: 4 heads, keys of 256, values of 256, bfloat16"
        ]
    );
    let latent = pages(1, 576, Values::InKeys { dim: 512 });
    assert_eq!(
        latent.to_string(),
        "1 head, keys of 576, values in the first 512 elements of each key, bfloat16"
    );
}
