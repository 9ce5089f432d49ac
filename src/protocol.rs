//! The names of the wire: the three streaming protocols and the other endpoints Weir routes.
//!
//! Used by every stage. Touches nothing.

use std::fmt;

/// One of the three streaming protocols (DESIGN section 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// OpenAI Chat Completions, `/v1/chat/completions`.
    Chat,
    /// OpenAI Responses, `/v1/responses`.
    Responses,
    /// Anthropic Messages, `/v1/messages`.
    Messages,
}

impl Protocol {
    /// All protocols, in the order documents list them.
    pub const ALL: [Self; 3] = [Self::Chat, Self::Responses, Self::Messages];

    /// The word used in the config, in labels and in the ledger.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Messages => "messages",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A POST endpoint that is routed by the `model` in its body (A10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/responses`
    Responses,
    /// `/v1/messages`
    Messages,
    /// `/v1/completions`: handled as chat, `text` being output.
    Completions,
    /// `/v1/embeddings`
    Embeddings,
    /// `/v1/messages/count_tokens`
    CountTokens,
    /// `/v1/responses/input_tokens`
    InputTokens,
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 7] = [
        Self::Chat,
        Self::Responses,
        Self::Messages,
        Self::Completions,
        Self::Embeddings,
        Self::CountTokens,
        Self::InputTokens,
    ];

    /// The path that clients call, and by default the path below a provider's base URL.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
            Self::Completions => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::CountTokens => "/v1/messages/count_tokens",
            Self::InputTokens => "/v1/responses/input_tokens",
        }
    }

    /// The word used in the config (`paths:`), in labels and in the ledger.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::CountTokens => "count_tokens",
            Self::InputTokens => "input_tokens",
        }
    }

    /// The endpoint of a request path, exactly as clients send it.
    #[must_use]
    pub fn of_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.path() == path)
    }

    /// Whose error envelope, events and usage words it speaks.
    #[must_use]
    pub const fn protocol(self) -> Protocol {
        match self {
            Self::Chat | Self::Completions | Self::Embeddings => Protocol::Chat,
            Self::Responses | Self::InputTokens => Protocol::Responses,
            Self::Messages | Self::CountTokens => Protocol::Messages,
        }
    }

    /// Whether `stream: true` means anything there.
    #[must_use]
    pub const fn streams(self) -> bool {
        match self {
            Self::Chat | Self::Responses | Self::Messages | Self::Completions => true,
            Self::Embeddings | Self::CountTokens | Self::InputTokens => false,
        }
    }
}
