//! What is wrong or odd in the operator's file, and how it is said: place, key, cause, remedy (STYLE.md).
//!
//! Made by every stage of the loading. Holds no value of the file but names, never a secret.

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
