//! What is wrong with a request body: the sentence, code and member for the client.

/// Why a body is refused with 400 (B1, B2). `Display` is the sentence for the client: it names
/// places and members, and holds nothing of the body's content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// A byte sequence that is no UTF-8.
    #[error("The request body is not valid UTF-8 at byte {at}. Send JSON encoded as UTF-8.")]
    NotUtf8 {
        /// Offset of the first bad byte.
        at: usize,
    },
    /// Nothing but white space.
    #[error("The request body is empty. Send a JSON object.")]
    Empty,
    /// The text breaks JSON's grammar.
    #[error("The request body is not valid JSON at line {line}, column {column} (byte {at}).")]
    Malformed {
        /// From 1.
        line: usize,
        /// In bytes, from 1.
        column: usize,
        /// Offset of the byte that cannot stand there, or of the one before it.
        at: usize,
    },
    /// The text stops before its end.
    #[error("The request body is incomplete JSON: it ends at line {line}, column {column} (byte {at}).")]
    Unfinished {
        /// From 1.
        line: usize,
        /// In bytes, from 1.
        column: usize,
        /// The body's length.
        at: usize,
    },
    /// Nested past what Weir follows.
    #[error("The request body is nested too deeply at byte {at}.")]
    TooDeep {
        /// Offset of the bracket that is one too many.
        at: usize,
    },
    /// Valid JSON, but no object.
    #[error("The request body must be a JSON object.")]
    NotAnObject,
    /// A member that must be there is not.
    #[error("\"{param}\" is required.")]
    Missing {
        /// The member.
        param: &'static str,
    },
    /// A member has the wrong type or value.
    #[error("\"{param}\" must be {expected}.")]
    Wrong {
        /// The member, as a path.
        param: &'static str,
        /// What it should have been.
        expected: &'static str,
    },
    /// A member that Weir reads stands there twice: the upstream might take the other one.
    #[error("\"{param}\" appears more than once. Send it once.")]
    Duplicate {
        /// The member, as a path.
        param: &'static str,
    },
}

impl BodyError {
    /// The member at fault, for the envelope's `param`.
    #[must_use]
    pub const fn param(&self) -> Option<&'static str> {
        match self {
            Self::Missing { param } | Self::Wrong { param, .. } | Self::Duplicate { param } => Some(param),
            Self::NotUtf8 { .. }
            | Self::Empty
            | Self::Malformed { .. }
            | Self::Unfinished { .. }
            | Self::TooDeep { .. }
            | Self::NotAnObject => None,
        }
    }

    /// The envelope's `code`.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotUtf8 { .. } | Self::Empty | Self::Malformed { .. } | Self::Unfinished { .. } => "invalid_json",
            Self::TooDeep { .. } => "json_too_deep",
            Self::NotAnObject => "invalid_type",
            Self::Missing { .. } => "missing_required_parameter",
            Self::Wrong { .. } => "invalid_value",
            Self::Duplicate { .. } => "duplicate_parameter",
        }
    }
}
