//! The ranking criterion of channels.

/// The ranking criterion of a key's channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelType {
    /// The size of the product of query and key.
    #[default]
    Qk,
    /// The size of the query.
    Q,
    /// The size of the key.
    K,
}

impl ChannelType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Qk, Self::Q, Self::K];

    /// The name on the command line, and in a file's keys.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qk => "qk",
            Self::Q => "q",
            Self::K => "k",
        }
    }
}
