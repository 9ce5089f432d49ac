//! What operators have switched off at runtime (C2): keys and models here, targets in their health.
//!
//! Changed by the admin API, asked once per request. Outlives reloads, not the process.

use arc_swap::ArcSwap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a switch belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Switch {
    /// A virtual key, by name.
    Key,
    /// A public model, by name.
    Model,
}

/// All that is off.
#[derive(Debug, Default)]
pub struct Switches {
    off: ArcSwap<BTreeSet<(Switch, String)>>,
}

impl Switches {
    /// Whether it is off.
    #[must_use]
    pub fn is_off(&self, kind: Switch, name: &str) -> bool {
        let off = self.off.load();
        // Nothing is off, nearly always.
        !off.is_empty() && off.iter().any(|(other, named)| *other == kind && named == name)
    }

    /// Switches; answers whether that changed anything.
    pub fn set(&self, kind: Switch, name: &str, off: bool) -> bool {
        let entry = (kind, name.to_owned());
        let before = self.off.rcu(|all| {
            let mut all = BTreeSet::clone(all);
            if off {
                all.insert(entry.clone());
            } else {
                all.remove(&entry);
            }
            Arc::new(all)
        });
        before.contains(&entry) != off
    }

    /// The names that are off.
    #[must_use]
    pub fn names(&self, kind: Switch) -> Vec<String> {
        self.off.load().iter().filter(|(other, _)| *other == kind).map(|(_, name)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c2_a_switch_is_of_one_kind_and_name() {
        let switches = Switches::default();
        assert!(!switches.is_off(Switch::Model, "sol"));
        assert!(switches.set(Switch::Model, "sol", true) && !switches.set(Switch::Model, "sol", true));
        assert!(switches.is_off(Switch::Model, "sol"));
        assert!(!switches.is_off(Switch::Key, "sol") && !switches.is_off(Switch::Model, "so"));
        assert_eq!(switches.names(Switch::Model), ["sol"]);
        assert!(switches.set(Switch::Model, "sol", false) && switches.names(Switch::Model).is_empty());
    }
}
