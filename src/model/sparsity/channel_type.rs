//! The criterion by which a key's channels are ranked for double sparsity.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelType {
    /// Magnitude of the product of query and key.
    #[default]
    Qk,
    /// Magnitude of the query.
    Q,
    /// Magnitude of the key.
    K,
}

impl ChannelType {
    pub const ALL: [Self; 3] = [Self::Qk, Self::Q, Self::K];

    /// The name on the command line, and in the keys of a channel file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qk => "qk",
            Self::Q => "q",
            Self::K => "k",
        }
    }
}
