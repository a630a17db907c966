//! GGUF's tensor element types with their block sizes, including types without kernels.

#[derive(Debug, PartialEq, Eq)]
pub struct ElementType {
    pub id: u32,
    pub name: &'static str,
    pub block_elements: usize,
    pub block_bytes: usize,
}

const fn element(
    id: u32,
    name: &'static str,
    block_elements: usize,
    block_bytes: usize,
) -> ElementType {
    ElementType {
        id,
        name,
        block_elements,
        block_bytes,
    }
}

/// All types except those that GGUF has removed.
static TYPES: [ElementType; 34] = [
    element(0, "F32", 1, 4),
    element(1, "F16", 1, 2),
    element(2, "Q4_0", 32, 18),
    element(3, "Q4_1", 32, 20),
    element(6, "Q5_0", 32, 22),
    element(7, "Q5_1", 32, 24),
    element(8, "Q8_0", 32, 34),
    element(9, "Q8_1", 32, 36),
    element(10, "Q2_K", 256, 84),
    element(11, "Q3_K", 256, 110),
    element(12, "Q4_K", 256, 144),
    element(13, "Q5_K", 256, 176),
    element(14, "Q6_K", 256, 210),
    element(15, "Q8_K", 256, 292),
    element(16, "IQ2_XXS", 256, 66),
    element(17, "IQ2_XS", 256, 74),
    element(18, "IQ3_XXS", 256, 98),
    element(19, "IQ1_S", 256, 50),
    element(20, "IQ4_NL", 32, 18),
    element(21, "IQ3_S", 256, 110),
    element(22, "IQ2_S", 256, 82),
    element(23, "IQ4_XS", 256, 136),
    element(24, "I8", 1, 1),
    element(25, "I16", 1, 2),
    element(26, "I32", 1, 4),
    element(27, "I64", 1, 8),
    element(28, "F64", 1, 8),
    element(29, "IQ1_M", 256, 56),
    element(30, "BF16", 1, 2),
    element(34, "TQ1_0", 256, 54),
    element(35, "TQ2_0", 256, 66),
    element(39, "MXFP4", 32, 17),
    element(40, "NVFP4", 64, 36),
    element(41, "Q1_0", 128, 18),
];

impl ElementType {
    pub fn from_id(id: u32) -> Option<&'static Self> {
        TYPES.iter().find(|known| known.id == id)
    }

    /// `None` for partial blocks or overflow.
    pub fn bytes_of(&self, elements: usize) -> Option<usize> {
        let blocks = elements / self.block_elements;
        elements
            .is_multiple_of(self.block_elements)
            .then(|| blocks.checked_mul(self.block_bytes))
            .flatten()
    }
}
