//! What is wrong or odd in the operator's file, and how it is said: place, key, cause, remedy (STYLE.md).
//!
//! Made by every stage of the loading. Quotes names of the file, never a value that could be a secret.

use super::keypath::KeyPath;
use std::fmt;

/// One thing wrong or odd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file as the operator named it.
    pub file: String,
    /// From 1; 0 when no line is to blame.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// Such as `models[0].targets[0].provider`; empty for the whole file.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Everything that is wrong with a file, in the order of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Never empty.
    pub findings: Vec<Finding>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, finding) in self.findings.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{finding}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Report {}

/// Where something stands in the text, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Place {
    pub(super) const START: Self = Self { line: 1, column: 1 };
}

/// Findings while they are being collected, with the key path of each.
pub(super) struct Findings {
    file: String,
    list: Vec<(KeyPath, Finding)>,
}

impl Findings {
    pub(super) fn new(file: &str) -> Self {
        Self { file: file.to_owned(), list: Vec::new() }
    }

    pub(super) fn add(&mut self, at: Place, path: &KeyPath, message: String) {
        let finding =
            Finding { file: self.file.clone(), line: at.line, column: at.column, path: path.to_string(), message };
        self.list.push((path.clone(), finding));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether something was found at this value or inside of it.
    pub(super) fn touch(&self, path: &KeyPath) -> bool {
        self.list.iter().any(|(other, _)| path.holds(other))
    }

    /// Whether something was found at this very value.
    pub(super) fn is_at(&self, path: &KeyPath) -> bool {
        self.list.iter().any(|(other, _)| path == other)
    }

    /// In the order of the lines.
    pub(super) fn sorted(self) -> Vec<Finding> {
        let mut list: Vec<Finding> = self.list.into_iter().map(|(_, finding)| finding).collect();
        list.sort_by_key(|finding| (finding.line, finding.column));
        list
    }
}
