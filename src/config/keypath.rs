//! The place of a value by its keys, as messages print it: `models[0].targets[0].provider`.
//!
//! Used by every stage of the loading. Touches nothing.

use std::fmt;

/// The keys from the top of the file down to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Item(usize),
}

impl KeyPath {
    pub(super) const fn root() -> Self {
        Self(Vec::new())
    }

    pub(super) fn key(&self, key: &str) -> Self {
        self.and(Step::Key(key.to_owned()))
    }

    pub(super) fn item(&self, at: usize) -> Self {
        self.and(Step::Item(at))
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Whether `other` is this value or part of it.
    pub(super) fn holds(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }

    fn and(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Item(index) => write!(f, "[{index}]")?,
                Step::Key(key) => {
                    if at > 0 {
                        f.write_str(".")?;
                    }
                    if is_plain(key) { f.write_str(key)? } else { write!(f, "{key:?}")? }
                }
            }
        }
        Ok(())
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}
