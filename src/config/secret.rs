//! A secret of the operator, and where values come from outside the file: the environment, other files.
//!
//! Called while the file is read. The only place of Weir that reads the environment (see clippy.toml).

use std::cell::RefCell;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A secret of the operator: prints as stars.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The secret itself; for the header that carries it, never for a log or an error.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

/// Larger than any API key; a file beyond it is the wrong file.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// What the file may refer to.
pub(super) struct Outside<'a> {
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    /// Where relative paths start.
    pub(super) base_dir: &'a Path,
    /// The files that were asked for, found or not.
    pub(super) files: &'a RefCell<Vec<PathBuf>>,
}

impl Outside<'_> {
    /// Replaces each `${NAME}`; a `$` before anything else stays.
    ///
    /// # Errors
    /// A sentence that names the variable, never its value.
    pub(super) fn expand(&self, written: &str) -> Result<String, String> {
        let mut text = String::with_capacity(written.len());
        let mut rest = written;
        while let Some((before, after)) = rest.split_once("${") {
            let Some((name, after)) = after.split_once('}') else {
                return Err("`${` without its `}`; write ${NAME}".to_owned());
            };
            if !is_variable(name) {
                return Err(
                    "between `${` and `}` stands the name of an environment variable, such as ${OPENAI_API_KEY}"
                        .to_owned(),
                );
            }
            let Some(value) = (self.env)(name) else {
                return Err(format!("the environment variable {name} is not set; set it where Weir is started"));
            };
            text.push_str(before);
            text.push_str(&value);
            rest = after;
        }
        text.push_str(rest);
        Ok(text)
    }

    /// A secret, from the file that `file:` names if it was written so.
    ///
    /// # Errors
    /// A sentence that may name the file or the variable, never the secret.
    pub(super) fn secret(&self, written: &str) -> Result<String, String> {
        let text = self.expand(written)?;
        // Only what was written is repeated: the operator may have put the secret itself into the path.
        let (text, from) = match (text.strip_prefix("file:"), written.strip_prefix("file:")) {
            (Some(path), Some(written)) => (self.read(path, written)?, format!("the file {written} is")),
            _ if is_one_variable(written) => (text, format!("{written} is")),
            _ => (text, "the value is".to_owned()),
        };
        if text.trim().is_empty() {
            return Err(format!("{from} empty; put the secret there"));
        }
        if !text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) || text.trim() != text {
            return Err(format!(
                "{from} not fit for an HTTP header: only printable ASCII, without line breaks or spaces around it"
            ));
        }
        Ok(text)
    }

    fn read(&self, path: &str, written: &str) -> Result<String, String> {
        let remedy = "put the secret there, readable for Weir alone";
        let mut text = String::new();
        let full = self.base_dir.join(path);
        self.files.borrow_mut().push(full.clone());
        let file = std::fs::File::open(full)
            .map_err(|error| format!("cannot open the file {written} ({}); {remedy}", error.kind()))?;
        file.take(MAX_SECRET_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|error| format!("cannot read the file {written} ({}); {remedy}", error.kind()))?;
        if text.len() as u64 > MAX_SECRET_BYTES {
            return Err(format!("the file {written} is too large for a secret; {remedy}"));
        }
        let end = text.trim_end_matches(['\n', '\r']).len();
        text.truncate(end);
        Ok(text)
    }
}

/// The process environment. A value that is not UTF-8 counts as not set.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
pub(super) fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// `${NAME}` and nothing else.
fn is_one_variable(written: &str) -> bool {
    written.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')).is_some_and(is_variable)
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
