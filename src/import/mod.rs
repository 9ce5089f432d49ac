//! Turns another gateway's config into Weir's, as far as it goes (`weir import`).
//!
//! Called by the command. Touches only the text it is given: it reads no environment and asks nobody.

pub mod litellm;
mod plan;
#[cfg(test)]
mod tests;
mod write;

/// What became of a config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// Weir's file, commented; it passes `weir check` once the environment variables it names are set.
    pub yaml: String,
    /// What could not be carried over and what to do about it, a line each.
    pub notes: Vec<String>,
}

/// The text is no config of that gateway.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOne {
    /// It is no YAML.
    #[error("this is no YAML: {0}")]
    Yaml(String),
    /// It is some other YAML.
    #[error("this has no model_list with a model that Weir can serve, so there is nothing to import{0}")]
    Models(String),
}
