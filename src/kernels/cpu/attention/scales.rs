//! Scales of int8 keys and values, and of the quantised queries and softmax weights.

/// Scales of the operands of an attention product; not read for float keys and values.
#[derive(Clone, Copy)]
pub struct Scales {
    /// `[groups of a key, BLOCK]`.
    pub keys: *const f32,
    /// `[value_groups, BLOCK]`.
    pub values: *const f32,
    /// Whether the scales of keys and values are finite.
    pub are_finite: bool,
    /// `[rows]`.
    pub queries: *const f32,
    /// `[rows, value_groups]`.
    pub weights: *mut f32,
    pub value_groups: usize,
}

impl Scales {
    pub const NONE: Self = Self {
        keys: std::ptr::null(),
        values: std::ptr::null(),
        are_finite: true,
        queries: std::ptr::null(),
        weights: std::ptr::null_mut(),
        value_groups: 0,
    };

    #[inline(always)]
    pub fn starting_at(self, row: usize) -> Self {
        Self {
            queries: self.queries.wrapping_add(row),
            weights: self.weights.wrapping_add(row * self.value_groups),
            ..self
        }
    }
}
