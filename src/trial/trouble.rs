//! What went wrong with a trial, in the operator's words, and what to do about it.
//!
//! Called by the trial. Touches nothing; prints no secret.

use crate::config::Provider;
use crate::meter::UpstreamError;
use crate::outcome::Failure;
use crate::protocol::Protocol;
use crate::refusal::ErrorParts;

/// Of an upstream's words, this many characters are shown.
const MAX_TOLD: usize = 300;

/// Why a trial did not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// As attempts, metrics and records call it.
    pub word: &'static str,
    /// What the upstream said of it, without the provider's keys.
    pub told: Option<String>,
    /// What to look at.
    pub remedy: String,
}

impl Trouble {
    /// In words.
    pub(super) fn of(failure: Failure, told: Option<String>, provider: &Provider) -> Self {
        let told = told.map(|mut told| {
            for key in provider.api_keys.iter().filter(|key| !key.expose().is_empty()) {
                told = told.replace(key.expose(), "****");
            }
            let line: String = told.split_whitespace().collect::<Vec<_>>().join(" ");
            line.chars().take(MAX_TOLD).collect()
        });
        Self { word: failure.word(), told, remedy: remedy(failure, &provider.name) }
    }
}

/// What an answer that is no stream comes to, and the upstream's words in it.
pub(super) fn of_reply(protocol: Protocol, status: u16, body: &[u8]) -> (Failure, Option<String>) {
    let parts = ErrorParts::read(status, body);
    let told = UpstreamError::from_json(protocol, body).and_then(|error| error.message);
    let failure = match status {
        200..=299 => Failure::NotAnAnswer,
        _ if parts.is_account_trouble() => Failure::Account(status),
        408 | 429 | 500..=599 => Failure::Status(status),
        _ => Failure::ClientStatus(status),
    };
    (failure, told)
}

fn remedy(failure: Failure, provider: &str) -> String {
    let section = format!("providers.{provider}");
    match failure {
        Failure::Resolve => {
            format!("the host of {section}.base_url has no address; correct it, or look at this machine's resolver")
        }
        Failure::Connect => {
            format!("nobody answers there; is the server running, and are {section}.base_url and ca right?")
        }
        Failure::ConnectTimeout => {
            "no connection in time; look at firewalls and routes, or raise timeouts.connect".to_owned()
        }
        Failure::Send | Failure::SendTimeout | Failure::Head | Failure::Broken => {
            format!(
                "the connection broke; is {section}.base_url (http or https, its port, http2) what the server speaks?"
            )
        }
        Failure::FirstByte
        | Failure::Idle
        | Failure::FirstContent
        | Failure::NoOutput
        | Failure::Total
        | Failure::NonStream => {
            let key = if matches!(failure, Failure::Total) { "total" } else { failure.word() };
            format!("the model was silent for too long; look at the server, or raise timeouts.{key} of this model")
        }
        Failure::Account(402) => format!("the provider wants money: see the billing page of {provider}"),
        Failure::Account(_) => format!(
            "the provider refuses the key or its account is used up: check {section}.api_key, auth and the billing page"
        ),
        Failure::Status(429) => "the provider's rate limit is reached; wait, or add a key under api_keys".to_owned(),
        Failure::Status(_) | Failure::ErrorEvent(_) => {
            "the provider is in trouble; try again, and see its status page".to_owned()
        }
        Failure::ClientStatus(403) => format!("the provider forbids it: may the key of {section} use this model?"),
        Failure::ClientStatus(404 | 405) => {
            format!("there is no such model or path; check the target's model and {section}.base_url and paths")
        }
        Failure::ClientStatus(_) | Failure::ClientErrorEvent(_) => {
            "the provider refuses the request; check the target's model and the model's protocols".to_owned()
        }
        Failure::NotAnAnswer => {
            format!("a success that is no stream; does {section}.base_url point at an API, and does it know `stream`?")
        }
        Failure::Empty => "the stream ended without output; look at the server's log".to_owned(),
        Failure::TooLarge => "one event is larger than any model's; is this an API of the model's protocol?".to_owned(),
        Failure::Busy | Failure::Draining | Failure::Revoked | Failure::Ledger => "try again".to_owned(),
    }
}
