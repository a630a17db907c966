//! Names of the tensors that make up a quantised matrix.

/// Suffixes of a quantised module's tensors, without `weight`.
const PARTS: [&str; 9] = [
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_shape",
];

pub fn part_names(name: &str) -> impl Iterator<Item = String> {
    PARTS
        .into_iter()
        .filter_map(|part| Some(format!("{}.{part}", name.strip_suffix(".weight")?)))
}
