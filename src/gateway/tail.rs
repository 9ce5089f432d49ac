//! Finds the usage of a reply that is too large to be held (F6, F9).
//!
//! Fed by the reply while it passes. Touches only its own bytes. Every provider writes `usage` behind
//! what it generated, or before it (then it is in the first part, which was held anyway).

use crate::json::{Kind, Walker};
use memchr::memmem;

/// Behind the last `usage` lie a few small members at most.
const KEPT: usize = 64 * 1024;
const NAME: &[u8] = b"\"usage\"";

/// The last bytes of a body.
#[derive(Debug, Default)]
pub(super) struct Tail(Vec<u8>);

impl Tail {
    /// The next bytes of it.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let fresh = bytes.get(bytes.len().saturating_sub(KEPT)..).unwrap_or_default();
        self.0.extend_from_slice(fresh);
        if self.0.len() > 2 * KEPT {
            self.0.drain(..self.0.len() - KEPT);
        }
    }

    /// A reply that says nothing but the usage; `head` is the body's beginning.
    pub(super) fn usage(&self, head: &[u8]) -> Option<Vec<u8>> {
        let found = last_usage(&self.0).or_else(|| last_usage(head))?;
        Some([b"{\"usage\":", found, b"}"].concat())
    }
}

/// The last object by that name. Inside of a string its quotes would be escaped, so it is a member.
fn last_usage(text: &[u8]) -> Option<&[u8]> {
    memmem::rfind_iter(text, NAME).find_map(|at| {
        let rest = text.get(at + NAME.len()..)?.trim_ascii_start().strip_prefix(b":")?;
        let mut walker = Walker::new(rest);
        if walker.peek().ok()? != Kind::Object {
            return None;
        }
        walker.skip().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(body: &str, size: usize, head: usize) -> Option<String> {
        let mut tail = Tail::default();
        body.as_bytes().chunks(size).for_each(|chunk| tail.push(chunk));
        tail.usage(&body.as_bytes()[..head.min(body.len())]).map(|json| String::from_utf8(json).unwrap())
    }

    #[test]
    fn f6_the_usage_of_a_large_reply_wherever_reads_are_cut() {
        let filler = "0.123,".repeat(100_000);
        let table = [
            (
                format!(r#"{{"data":[{filler}1],"model":"m","usage":{{"prompt_tokens":7}}}}"#),
                Some(r#"{"prompt_tokens":7}"#),
            ),
            (format!(r#"{{"usage" : {{"input_tokens":8}},"data":[{filler}1]}}"#), Some(r#"{"input_tokens":8}"#)),
            (format!(r#"{{"a":"\"usage\":{{\"x\":1}}","data":[{filler}1]}}"#), None),
            (format!(r#"{{"data":[{filler}1],"usage":null}}"#), None),
            (format!(r#"{{"data":[{filler}1],"usage":{{"prompt_tok"#), None),
        ];
        for (body, expected) in table {
            for size in [1, 1_000, 100_000, 10_000_000] {
                let expected = expected.map(|usage| format!(r#"{{"usage":{usage}}}"#));
                assert_eq!(usage(&body, size, 1_000), expected, "{} by {size}", &body[..40]);
            }
        }
    }
}
