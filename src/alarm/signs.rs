//! How it stands with what a person must know of: the ledger, the providers' accounts, the models (L5, A6, A8).
//!
//! Called by the server's task, once a second. Reads what others keep; changes nothing.

use super::{Kind, Sign, Stand};
use crate::gateway::Shared;
use crate::ledger::Health;
use crate::route::{Route, Target};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// One sign for the ledger, one for each provider that a model uses, one for each model.
#[must_use]
pub fn all(shared: &Shared, now: Instant) -> Vec<Sign> {
    let live = shared.live.load();
    let mut signs = vec![ledger(&shared.ledger.health())];
    let mut providers: BTreeMap<&str, &Arc<Target>> = BTreeMap::new();
    for target in live.models().flat_map(|route| &route.targets) {
        // All targets of a provider share its accounts.
        providers.insert(&target.config.provider.name, target);
    }
    signs.extend(providers.into_iter().map(|(name, target)| account(name, target, now)));
    signs.extend(live.models().map(|route| model(route, now)));
    signs
}

fn ledger(health: &Health) -> Sign {
    let (stand, summary) = match health {
        Health::Ok => (Stand::Good, "the ledger can be written".to_owned()),
        Health::Broken { cause, .. } => (Stand::Bad, format!("the ledger cannot be written: {cause}")),
    };
    Sign { kind: Kind::Ledger, subject: "ledger".to_owned(), stand, summary }
}

fn account(name: &str, target: &Target, now: Instant) -> Sign {
    let (all, refused) =
        (target.accounts.len(), target.accounts.iter().filter(|account| !account.is_healthy()).count());
    let stand = if refused == 0 {
        Stand::Good
    } else if target.accounts.iter().any(|account| account.is_cooling(now)) {
        Stand::Bad
    } else {
        Stand::Unsure
    };
    let summary = match stand {
        Stand::Good => format!("{name} takes its keys again"),
        Stand::Bad | Stand::Unsure => {
            format!("{name} refuses {refused} of {all} keys, or their account is used up")
        }
    };
    Sign { kind: Kind::Account, subject: name.to_owned(), stand, summary }
}

/// What operators have switched off is no trouble.
fn model(route: &Route, now: Instant) -> Sign {
    let on: Vec<_> = route.targets.iter().filter(|target| !target.health.is_off()).collect();
    let stand = if on.is_empty() || on.iter().any(|target| target.is_healthy()) {
        Stand::Good
    } else if on.iter().all(|target| target.is_cooling(now)) {
        Stand::Bad
    } else {
        Stand::Unsure
    };
    let summary = match stand {
        Stand::Good => format!("a target of {} works", route.name),
        Stand::Bad | Stand::Unsure => format!("all {} targets of {} are down", on.len(), route.name),
    };
    Sign { kind: Kind::Model, subject: route.name.to_string(), stand, summary }
}
