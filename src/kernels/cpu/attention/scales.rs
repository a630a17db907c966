//! The scales of quantised keys and values, and of queries and weights. Floats have none.

/// The scales of a block; not read for floats.
#[derive(Clone, Copy)]
pub struct Scales {
    /// Scales of the keys, `[groups of a key, BLOCK]`.
    pub keys: *const f32,
    /// Scales of the values, `[value_groups, BLOCK]`.
    pub values: *const f32,
    /// Whether all of these are finite.
    pub are_finite: bool,
    /// Scales of the queries, `[rows]`.
    pub queries: *const f32,
    /// Scales of the weights, `[rows, value_groups]`.
    pub weights: *mut f32,
    /// Groups of a value.
    pub value_groups: usize,
}

impl Scales {
    /// The scales of floats: none.
    pub const NONE: Self = Self {
        keys: std::ptr::null(),
        values: std::ptr::null(),
        are_finite: true,
        queries: std::ptr::null(),
        weights: std::ptr::null_mut(),
        value_groups: 0,
    };

    /// The scales from `row` on.
    #[inline(always)]
    pub fn starting_at(self, row: usize) -> Self {
        Self {
            queries: self.queries.wrapping_add(row),
            weights: self.weights.wrapping_add(row * self.value_groups),
            ..self
        }
    }
}
