//! Tests of 4-bit codes whose scales f16 cannot represent.

use half::bf16;
use safetensors::Dtype as Element;
use souffleur_kernels::dtype::{Dtype, Quantization};

use super::{SIZES, broken, folders_of, logits, relative_error};
use crate::quantised::{f32s, fine_kinds};

#[test]
fn scales_are_exact_in_float32_and_int8_but_rounded_in_bfloat16() {
    for (kind, config, quantise) in fine_kinds() {
        let model = ("llama", SIZES);
        let folders = folders_of(model, &config, quantise, |tensor, values| {
            tensor.dtype = Element::F32;
            tensor.data = f32s(values);
        });
        let (quantised, plain) = (folders.quantised.path(), folders.plain.path());
        let expected = logits(plain, Dtype::F32, None);
        assert_eq!(logits(quantised, Dtype::F32, None), expected, "{kind}");
        let int8 = Some(Quantization::Int8);
        assert_eq!(
            logits(quantised, Dtype::BF16, int8),
            logits(plain, Dtype::BF16, int8),
            "{kind} in int8"
        );
        // In bf16 the scales are rounded to f16, and activations to eight bits.
        let expected = logits(plain, Dtype::BF16, None);
        let error = relative_error(&logits(quantised, Dtype::BF16, None), &expected);
        assert!(error > 0.0 && error < 0.03, "{kind}: {error}");
    }
}

#[test]
fn scales_beyond_f16_are_refused_by_name() {
    let large = broken("packed", "weight_scale", |scales| {
        let scales = scales.as_mut().unwrap();
        scales.data[..2].copy_from_slice(&bf16::from_f32(131_072.0).to_le_bytes());
    });
    let small = broken("packed", "weight_scale", |scales| {
        let scales = scales.as_mut().unwrap();
        for scale in scales.data.chunks_exact_mut(2) {
            scale.copy_from_slice(&bf16::from_f32(3e-6).to_le_bytes());
        }
    });
    for (error, words) in [(large, "131072"), (small, "no scale above")] {
        for text in ["layers.0.mlp.down_proj.weight_scale", words, "f16"] {
            assert!(error.contains(text), "{text}: {error}");
        }
    }
}
