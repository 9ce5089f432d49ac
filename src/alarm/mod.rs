//! Decides which troubles a person is told of at once, and when: what begins, what lasts, what is over (`alerts:`).
//!
//! Called once a second by the server's task, which sends what comes out. Touches only its own fields: no clock, no IO.

pub mod courier;
pub mod signs;

#[cfg(test)]
mod tests;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

/// A trouble, or its absence, that is shorter than this is not told: disks hiccup, targets are throttled for a second.
const HOLD: Duration = Duration::from_secs(3);
/// What lasts is told again after this, as a person may have slept through the first one.
const REMIND: Duration = Duration::from_mins(15);

/// What a person must see at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// L5: no row can be written.
    Ledger,
    /// A6: a provider refuses our key or wants money.
    Account,
    /// A8: nobody is left to answer for a model.
    Model,
}

impl Kind {
    /// The notice's `alert`.
    const fn word(self) -> &'static str {
        match self {
            Self::Ledger => "ledger_broken",
            Self::Account => "provider_account",
            Self::Model => "model_down",
        }
    }

    const fn what_to_do(self) -> &'static str {
        match self {
            Self::Ledger => {
                "Look at space and permissions of the ledger's folder; Weir tries again by itself. Run `weir ledger verify` afterwards."
            }
            Self::Account => {
                "Look at the provider's billing page and at api_key in the config; a new key is in force with a reload."
            }
            Self::Model => {
                "Look at /api/targets and at the results in weir_attempts_total: one provider's incident, or the gateway's own network."
            }
        }
    }
}

/// How it stands with something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stand {
    /// It is broken.
    Bad,
    /// It was, and nobody has tried since.
    Unsure,
    /// It works.
    Good,
}

/// What was seen of one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sign {
    /// What could be wrong with it.
    pub kind: Kind,
    /// Its name in the config.
    pub subject: String,
    /// How it stands.
    pub stand: Stand,
    /// A sentence that says so; no secret.
    pub summary: String,
}

/// What a person is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    kind: Kind,
    firing: bool,
    since: SystemTime,
    subject: String,
    summary: String,
}

impl Notice {
    /// As it is sent.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "alert": self.kind.word(),
            "state": if self.firing { "firing" } else { "resolved" },
            "since": humantime::format_rfc3339_seconds(self.since).to_string(),
            "subject": self.subject,
            "summary": self.summary,
            "what_to_do": if self.firing { self.kind.what_to_do() } else { "Nothing; it is over." },
        })
    }

    /// For the log: what it is about.
    #[must_use]
    pub fn about(&self) -> (&'static str, &str) {
        (self.kind.word(), &self.subject)
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Bad, but not for long enough to be told.
    Suspected { from: Instant },
    /// Told, at last then; good for so long.
    Told { at: Instant, good_from: Option<Instant> },
}

#[derive(Clone, Copy, Debug)]
struct Trouble {
    phase: Phase,
    since: SystemTime,
}

/// What is wrong, and was told.
#[derive(Debug, Default)]
pub struct Alarms(BTreeMap<(Kind, String), Trouble>);

impl Alarms {
    /// Takes one look at everything, `clock` being the time of day; answers what a person is to be told now. What is
    /// no longer among the signs has left the config, and with it its trouble.
    #[must_use]
    pub fn look(&mut self, now: Instant, clock: SystemTime, signs: Vec<Sign>) -> Vec<Notice> {
        let mut notices = Vec::new();
        let mut before = std::mem::take(&mut self.0);
        for Sign { kind, subject, stand, summary } in signs {
            let key = (kind, subject);
            let trouble = before.remove(&key).or_else(|| {
                (stand == Stand::Bad).then_some(Trouble { phase: Phase::Suspected { from: now }, since: clock })
            });
            let Some(trouble) = trouble else { continue };
            let (phase, told) = step(trouble.phase, stand, now);
            if let Some(firing) = told {
                let subject = key.1.clone();
                notices.push(Notice { kind, firing, since: trouble.since, subject, summary });
            }
            if let Some(phase) = phase {
                self.0.insert(key, Trouble { phase, ..trouble });
            }
        }
        for ((kind, subject), trouble) in before {
            if matches!(trouble.phase, Phase::Told { .. }) {
                let summary = format!("{subject} is no longer in the config");
                notices.push(Notice { kind, firing: false, since: trouble.since, subject, summary });
            }
        }
        notices
    }
}

/// The next phase, if it goes on, and whether it is told as firing (`true`) or over.
fn step(phase: Phase, stand: Stand, now: Instant) -> (Option<Phase>, Option<bool>) {
    let held = |from: Instant| now.saturating_duration_since(from) >= HOLD;
    match (phase, stand) {
        (Phase::Suspected { from }, Stand::Bad) if held(from) => {
            (Some(Phase::Told { at: now, good_from: None }), Some(true))
        }
        (Phase::Suspected { .. }, Stand::Bad) => (Some(phase), None),
        (Phase::Suspected { .. }, Stand::Unsure | Stand::Good) => (None, None),
        (Phase::Told { at, .. }, Stand::Bad) if now.saturating_duration_since(at) >= REMIND => {
            (Some(Phase::Told { at: now, good_from: None }), Some(true))
        }
        (Phase::Told { at, .. }, Stand::Bad | Stand::Unsure) => (Some(Phase::Told { at, good_from: None }), None),
        (Phase::Told { good_from: Some(from), .. }, Stand::Good) if held(from) => (None, Some(false)),
        (Phase::Told { at, good_from }, Stand::Good) => {
            (Some(Phase::Told { at, good_from: good_from.or(Some(now)) }), None)
        }
    }
}
