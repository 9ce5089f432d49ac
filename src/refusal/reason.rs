//! The table of everything that Weir itself answers.

use super::limit::Limited;
use super::{Refusal, anthropic_type, openai_type};
use crate::admission::facts::BodyError;
use crate::admission::keys::KeyError;
use crate::protocol::{Endpoint, Protocol};
use std::borrow::Cow;
use std::time::Duration;

/// What a client is asked to wait when load, not a limit of its own, is the cause.
const LOAD_RETRY: Duration = Duration::from_secs(1);

/// A model name in a sentence is cut here; longer ones are no names of ours.
const MAX_SHOWN_NAME: usize = 128;

/// Why Weir answers by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No valid key (G1). One body for every cause (B311).
    Key(KeyError),
    /// The key may not be used from the client's address (G1).
    IpNotAllowed,
    /// No model or alias of that name.
    ModelNotFound {
        /// As the client sent it.
        model: String,
    },
    /// The key does not name the model.
    ModelNotAllowed {
        /// As the client sent it.
        model: String,
    },
    /// The key is switched off (C2).
    KeyOff,
    /// The model, or every target of it, is switched off (C2).
    ModelOff {
        /// As the client sent it.
        model: String,
    },
    /// The model is not served at that endpoint.
    EndpointNotServed {
        /// As the client sent it.
        model: String,
        /// Where it was asked for.
        endpoint: Endpoint,
    },
    /// A path that Weir does not serve (A10).
    UnknownPath,
    /// The path is served, but not with that method (B3).
    MethodNotAllowed {
        /// The `allow` header.
        allow: &'static str,
    },
    /// The query says what cannot be asked (M6).
    Query,
    /// What the body says (B1, B2).
    Body(BodyError),
    /// Larger than `max_body` (B1).
    BodyTooLarge {
        /// In bytes.
        limit: u64,
    },
    /// Not received within `server.request_body` (B1).
    BodyTimeout,
    /// The body ended before its announced length.
    BodyIncomplete,
    /// The body's chunks are malformed.
    BodyChunks,
    /// A `content-encoding` that is not gzip or zstd (B1).
    UnsupportedEncoding,
    /// The compressed body could not be decoded.
    Undecodable,
    /// An `expect` that is not `100-continue`.
    Expectation,
    /// `max_held_bytes` is used up (F2).
    HeldBytes,
    /// `max_connections`, `max_streams` or `max_memory` (B3), or every target's `max_concurrent` (A1).
    Overloaded,
    /// Shutting down (C3).
    Draining,
    /// The ledger cannot be written (L5).
    Ledger,
    /// `Upgrade` or `/v1/realtime` (A12).
    UpgradeRequired,
    /// `background: true` where it is off (A12).
    Background,
    /// A stored response or conversation that is unknown or another key's (A12).
    StoredNotFound {
        /// The request's member or `id` for one in the path.
        param: &'static str,
    },
    /// The shared store of limits is away (G4).
    LimitStore,
    /// A limit of the key or model, or a budget of the key (G2, G3).
    Limited(Limited),
    /// Every target: no connection, or none that lived to an answer.
    UpstreamConnect,
    /// A clock ran out before the answer began (S1), or `non_stream` or `total`.
    UpstreamTimeout {
        /// Which.
        clock: Clock,
    },
    /// Broken off or unreadable before any content, or an empty reply (A2).
    UpstreamBroken,
    /// The last upstream status, with no error body that could be shown (A7).
    UpstreamStatus {
        /// As the upstream sent it.
        status: u16,
        /// As the upstream sent it.
        retry_after: Option<Duration>,
    },
    /// Bad credentials or used-up money at the provider: the operator's trouble (A6).
    UpstreamAccount,
    /// A fault of Weir's own.
    Internal,
}

/// A clock of S1, by its name in the config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// `connect`
    Connect,
    /// `send`
    Send,
    /// `first_byte`
    FirstByte,
    /// `idle`
    Idle,
    /// `first_content`
    FirstContent,
    /// `non_stream`
    NonStream,
    /// `total`
    Total,
}

impl Clock {
    /// The record's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Send => "send",
            Self::FirstByte => "first_byte",
            Self::Idle => "idle",
            Self::FirstContent => "first_content",
            Self::NonStream => "non_stream",
            Self::Total => "total",
        }
    }
}

impl Reason {
    /// The record's word for the cause.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Key(error) => error.word(),
            Self::IpNotAllowed => "ip_not_allowed",
            Self::KeyOff => "key_off",
            Self::ModelOff { .. } => "model_off",
            Self::ModelNotFound { .. } => "model_not_found",
            Self::ModelNotAllowed { .. } => "model_not_allowed",
            Self::EndpointNotServed { .. } => "endpoint_not_served",
            Self::UnknownPath => "unknown_path",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::Query => "invalid_query",
            Self::Body(_) => "invalid_body",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::BodyTimeout => "body_timeout",
            Self::BodyIncomplete => "body_incomplete",
            Self::BodyChunks => "body_chunks",
            Self::UnsupportedEncoding => "unsupported_encoding",
            Self::Undecodable => "undecodable_body",
            Self::Expectation => "expectation",
            Self::HeldBytes => "held_bytes",
            Self::Overloaded => "overloaded",
            Self::Draining => "draining",
            Self::Ledger => "ledger",
            Self::UpgradeRequired => "upgrade_required",
            Self::Background => "background",
            Self::StoredNotFound { .. } => "stored_not_found",
            Self::Limited(limited) => limited.word(),
            Self::LimitStore => "limit_store",
            Self::UpstreamConnect => "upstream_connect",
            Self::UpstreamTimeout { clock } => clock.word(),
            Self::UpstreamBroken => "upstream_broken",
            Self::UpstreamStatus { .. } => "upstream_status",
            Self::UpstreamAccount => "upstream_account",
            Self::Internal => "internal",
        }
    }

    /// The answer for a client of that protocol.
    #[must_use]
    pub fn refusal(&self, protocol: Protocol) -> Refusal {
        let status = self.status(protocol);
        let mut refusal = Refusal {
            status,
            openai_type: openai_type(status),
            code: Some(self.code()),
            anthropic_type: anthropic_type(status),
            message: self.message(),
            param: None,
            retry_after: None,
            should_retry: None,
            allow: None,
        };
        self.details(&mut refusal);
        refusal
    }

    const fn status(&self, protocol: Protocol) -> u16 {
        match self {
            Self::Query
            | Self::Body(_)
            | Self::BodyIncomplete
            | Self::BodyChunks
            | Self::Undecodable
            | Self::Background => 400,
            Self::Key(_) => 401,
            Self::IpNotAllowed | Self::KeyOff | Self::ModelNotAllowed { .. } => 403,
            Self::ModelNotFound { .. }
            | Self::EndpointNotServed { .. }
            | Self::UnknownPath
            | Self::StoredNotFound { .. } => 404,
            Self::MethodNotAllowed { .. } => 405,
            Self::BodyTimeout => 408,
            Self::BodyTooLarge { .. } => 413,
            Self::UnsupportedEncoding => 415,
            Self::Expectation => 417,
            Self::UpgradeRequired => 426,
            Self::Limited(limited) => limited.status(protocol),
            Self::Internal => 500,
            Self::UpstreamConnect | Self::UpstreamBroken => 502,
            Self::HeldBytes
            | Self::Overloaded
            | Self::Draining
            | Self::Ledger
            | Self::LimitStore
            | Self::ModelOff { .. }
            | Self::UpstreamAccount => 503,
            Self::UpstreamTimeout { .. } => 504,
            Self::UpstreamStatus { status, .. } => match (*status, protocol) {
                // Anthropic's own status, which the other protocols' clients do not know.
                (529, Protocol::Chat | Protocol::Responses) => 503,
                (status @ 400..=599, _) => status,
                _ => 502,
            },
        }
    }

    const fn code(&self) -> &'static str {
        match self {
            Self::Key(_) => "invalid_api_key",
            Self::IpNotAllowed => "ip_not_authorized",
            Self::KeyOff => "key_disabled",
            Self::ModelOff { .. } => "model_unavailable",
            // OpenAI's own word for both.
            Self::ModelNotFound { .. } | Self::ModelNotAllowed { .. } => "model_not_found",
            Self::EndpointNotServed { .. } => "unsupported_endpoint",
            Self::UnknownPath => "unknown_url",
            Self::MethodNotAllowed { .. } => "method_not_supported",
            Self::Query => "invalid_query",
            Self::Body(error) => error.code(),
            Self::BodyTooLarge { .. } => "request_too_large",
            Self::BodyTimeout => "request_timeout",
            Self::BodyIncomplete => "incomplete_body",
            Self::BodyChunks => "malformed_chunks",
            Self::UnsupportedEncoding => "unsupported_encoding",
            Self::Undecodable => "undecodable_body",
            Self::Expectation => "unsupported_expectation",
            Self::HeldBytes | Self::Overloaded => "server_overloaded",
            Self::Draining => "server_draining",
            Self::Ledger | Self::LimitStore => "server_unavailable",
            Self::UpgradeRequired => "upgrade_required",
            Self::Background => "unsupported_parameter",
            Self::StoredNotFound { .. } => "not_found",
            Self::Limited(limited) => limited.code(),
            Self::UpstreamStatus { status: 429, .. } => "rate_limit_exceeded",
            Self::UpstreamConnect => "upstream_unavailable",
            Self::UpstreamTimeout { .. } => "upstream_timeout",
            Self::UpstreamBroken => "upstream_broken",
            Self::UpstreamStatus { status: 503 | 529, .. } => "upstream_overloaded",
            Self::UpstreamStatus { .. } => "upstream_error",
            Self::UpstreamAccount => "upstream_account",
            Self::Internal => "internal_error",
        }
    }

    fn message(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Key(_) => {
                "Missing or invalid API key. Send a valid key as \"authorization: Bearer KEY\" or \"x-api-key: KEY\"."
            }
            Self::IpNotAllowed => "This API key may not be used from your address.",
            Self::KeyOff => "This API key is switched off at the moment. Ask the operator.",
            Self::ModelOff { model } => {
                return Cow::Owned(format!("The model `{}` is switched off at the moment.", shown(model)));
            }
            Self::ModelNotFound { model } => {
                return Cow::Owned(format!("The model `{}` does not exist. GET /v1/models lists yours.", shown(model)));
            }
            Self::ModelNotAllowed { model } => {
                let model = shown(model);
                let text = format!("This API key may not use the model `{model}`. GET /v1/models lists yours.");
                return Cow::Owned(text);
            }
            Self::EndpointNotServed { model, endpoint } => {
                let text = format!("The model `{}` is not served at {}.", shown(model), endpoint.path());
                return Cow::Owned(text);
            }
            Self::UnknownPath => "Unknown URL. Check the path, and that the base URL ends as your SDK wants it.",
            Self::MethodNotAllowed { allow } => {
                return Cow::Owned(format!("This URL does not take that method. Use {allow}."));
            }
            Self::Query => "The only parameter is days, a number from 1 to 366.",
            Self::Body(error) => return Cow::Owned(error.to_string()),
            Self::BodyTooLarge { limit } => {
                return Cow::Owned(format!("The request body is larger than the limit of {limit} bytes."));
            }
            Self::BodyTimeout => "The request body did not arrive in time.",
            Self::BodyIncomplete => "The request body ended before its announced length.",
            Self::BodyChunks => "The request body's chunked transfer encoding is malformed.",
            Self::UnsupportedEncoding => {
                "The request's content-encoding is not supported. Send the body plain, or as gzip or zstd."
            }
            Self::Undecodable => "The request body could not be decoded by its content-encoding.",
            Self::Expectation => "The only expectation supported is \"expect: 100-continue\".",
            Self::HeldBytes | Self::Overloaded => "The server is overloaded. Please try again shortly.",
            Self::Draining => "The server is shutting down. Please try again.",
            Self::Ledger | Self::LimitStore => "The server cannot take requests at the moment. Please try again later.",
            Self::UpgradeRequired => "WebSocket and other upgrades are not supported. Use HTTP streaming instead.",
            Self::Background => "\"background\" is not supported. Send the request without it.",
            Self::StoredNotFound { .. } => "No such stored object. It may have expired, or belong to another key.",
            Self::Limited(limited) => return Cow::Owned(limited.message()),
            Self::UpstreamConnect => "The model's server could not be reached. Please try again later.",
            Self::UpstreamTimeout { .. } => "The model did not answer in time. Please try again later.",
            Self::UpstreamBroken => "The model's answer broke off before it began. Please try again later.",
            Self::UpstreamStatus { status, .. } => super::upstream::sentence(*status),
            Self::UpstreamAccount => {
                "The model is unavailable because of a problem with the service's account. The operator has been told."
            }
            Self::Internal => "Internal error. Please try again, and give the request id to the operator if it stays.",
        })
    }

    /// What differs from the table by status, and the headers.
    fn details(&self, refusal: &mut Refusal) {
        match self {
            Self::Body(error) => refusal.param = error.param(),
            Self::ModelNotFound { .. } | Self::ModelNotAllowed { .. } | Self::EndpointNotServed { .. } => {
                refusal.param = Some("model");
            }
            Self::MethodNotAllowed { allow } => refusal.allow = Some(allow),
            Self::Query => refusal.param = Some("days"),
            Self::Background => refusal.param = Some("background"),
            Self::StoredNotFound { param } => refusal.param = Some(param),
            Self::ModelOff { .. } => {
                refusal.param = Some("model");
                refusal.should_retry = Some(false);
            }
            Self::HeldBytes | Self::Overloaded | Self::Draining => {
                refusal.retry_after = Some(LOAD_RETRY);
                refusal.should_retry = Some(true);
            }
            Self::Ledger | Self::LimitStore => {
                refusal.anthropic_type = "api_error";
                refusal.retry_after = Some(Duration::from_secs(10));
            }
            Self::Limited(limited) => limited.details(refusal),
            Self::UpstreamStatus { retry_after, .. } => {
                refusal.retry_after = *retry_after;
                refusal.should_retry = Some(false);
            }
            Self::UpstreamAccount => {
                refusal.anthropic_type = "api_error";
                refusal.should_retry = Some(false);
            }
            Self::UpstreamConnect | Self::UpstreamTimeout { .. } | Self::UpstreamBroken => {
                refusal.should_retry = Some(false);
            }
            Self::Key(_)
            | Self::KeyOff
            | Self::IpNotAllowed
            | Self::UnknownPath
            | Self::BodyTooLarge { .. }
            | Self::BodyTimeout
            | Self::BodyIncomplete
            | Self::BodyChunks
            | Self::UnsupportedEncoding
            | Self::Undecodable
            | Self::Expectation
            | Self::UpgradeRequired
            | Self::Internal => {}
        }
    }
}

/// A client's own word in a sentence: one line, cut at a character.
fn shown(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_SHOWN_NAME).collect()
}
