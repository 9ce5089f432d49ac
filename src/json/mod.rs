//! Walks JSON bytes once, without building anything.
//!
//! Called by the meter (events), the admission (request bodies) and the normaliser. Touches
//! only the bytes it is given.
//!
//! The simple version is `serde_json::Value`: parse all, look at a few members. This one visits
//! each value exactly once, descends only where asked and jumps over strings with `memchr`, so
//! that the cost of an event is close to the cost of finding its end. It is lenient inside
//! values that are skipped (it checks nesting and string ends, not number grammar); who needs
//! the whole grammar checked runs `serde_json` over the bytes (B1).

use memchr::memchr2;
use std::borrow::Cow;

#[cfg(test)]
mod tests;

/// Deeper than any request or event seen; past it the text is refused, not followed.
const MAX_DEPTH: u32 = 512;

/// Words of a string that are looked at here.
const NEAR: usize = 4;

/// The text is not JSON, or nested too deeply; `at` is the byte where reading stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not JSON at byte {at}")]
pub struct Malformed {
    /// Offset from the start of the text.
    pub at: usize,
}

type Result<T> = std::result::Result<T, Malformed>;

/// What the next value is, told by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `{`
    Object,
    /// `[`
    Array,
    /// `"`
    String,
    /// A digit or `-`
    Number,
    /// `true` or `false`
    Bool,
    /// `null`
    Null,
}

/// The inside of a JSON string as it stands in the text, escapes and all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<'a> {
    raw: &'a [u8],
    escaped: bool,
}

impl<'a> Text<'a> {
    /// The bytes between the quotes, as sent.
    #[must_use]
    pub const fn raw(self) -> &'a [u8] {
        self.raw
    }

    /// Whether nothing stands between the quotes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.raw.is_empty()
    }

    /// Whether the string, unescaped, is `word`.
    #[must_use]
    pub fn is(self, word: &str) -> bool {
        if self.escaped { self.decoded().is_some_and(|text| text == word) } else { self.raw == word.as_bytes() }
    }

    /// The name for a `match`: unescaped members of interest are plain ASCII, so a name that was
    /// sent with escapes is decoded first and anything undecodable is the empty name.
    #[must_use]
    pub fn name(self) -> Cow<'a, str> {
        self.decoded().unwrap_or_default()
    }

    /// The name for a `match`, as bytes: as it stands in the text, or decoded if it holds escapes
    /// (empty if it cannot be). Cheaper than [`Self::name`]: nothing is checked.
    #[must_use]
    pub fn bytes(self) -> Cow<'a, [u8]> {
        if !self.escaped {
            return Cow::Borrowed(self.raw);
        }
        match self.name() {
            Cow::Borrowed(name) => Cow::Borrowed(name.as_bytes()),
            Cow::Owned(name) => Cow::Owned(name.into_bytes()),
        }
    }

    /// The string with its escapes resolved; `None` if it is not valid UTF-8 or not a valid JSON string.
    #[must_use]
    pub fn decoded(self) -> Option<Cow<'a, str>> {
        if !self.escaped {
            return std::str::from_utf8(self.raw).ok().map(Cow::Borrowed);
        }
        let mut quoted = Vec::with_capacity(self.raw.len().saturating_add(2));
        quoted.push(b'"');
        quoted.extend_from_slice(self.raw);
        quoted.push(b'"');
        serde_json::from_slice::<String>(&quoted).ok().map(Cow::Owned)
    }
}

/// Reads one JSON text from front to back.
#[derive(Debug)]
pub struct Walker<'a> {
    text: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'a> Walker<'a> {
    /// Starts before the first value of `text`.
    #[must_use]
    pub const fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    /// The offset of the next unread byte. Right after [`Self::peek`] it is the value's first byte.
    #[must_use]
    pub const fn at(&self) -> usize {
        self.at
    }

    /// The kind of the next value, which stays unread; leading white space is passed.
    pub fn peek(&mut self) -> Result<Kind> {
        self.white();
        match self.text.get(self.at) {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b't' | b'f') => Ok(Kind::Bool),
            Some(b'n') => Ok(Kind::Null),
            _ => Err(self.malformed()),
        }
    }

    /// Calls `visit` with each member's name, in order, if the next value is an object, and passes
    /// over any other value. `visit` must consume the member's value (by any method here).
    /// Answers whether it was an object.
    pub fn object(&mut self, mut visit: impl FnMut(&mut Self, Text<'a>) -> Result<()>) -> Result<bool> {
        if self.peek()? != Kind::Object {
            self.skip()?;
            return Ok(false);
        }
        self.open()?;
        if self.closes(b'}') {
            return Ok(true);
        }
        loop {
            self.white();
            let name = self.quoted()?;
            self.white();
            self.expect(b':')?;
            visit(self, name)?;
            if self.more(b'}')? {
                return Ok(true);
            }
        }
    }

    /// Calls `visit` before each element if the next value is an array, and passes over any other
    /// value. `visit` must consume the element. Answers whether it was an array.
    pub fn array(&mut self, mut visit: impl FnMut(&mut Self) -> Result<()>) -> Result<bool> {
        if self.peek()? != Kind::Array {
            self.skip()?;
            return Ok(false);
        }
        self.open()?;
        if self.closes(b']') {
            return Ok(true);
        }
        loop {
            visit(self)?;
            if self.more(b']')? {
                return Ok(true);
            }
        }
    }

    /// The next value if it is a string; any other value is passed over.
    pub fn string(&mut self) -> Result<Option<Text<'a>>> {
        if self.peek()? == Kind::String {
            return self.quoted().map(Some);
        }
        self.skip()?;
        Ok(None)
    }

    /// The next value if it is `true` or `false`; any other value is passed over.
    pub fn boolean(&mut self) -> Result<Option<bool>> {
        let raw = self.skip()?;
        Ok(match raw {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        })
    }

    /// Passes over the next value; whether something is in it: `false` for `null`, `false` and an
    /// empty string, array or object.
    pub fn filled(&mut self) -> Result<bool> {
        let kind = self.peek()?;
        let raw = self.skip()?;
        Ok(match kind {
            Kind::String => raw.len() > 2,
            Kind::Object | Kind::Array => raw
                .get(1..raw.len().saturating_sub(1))
                .is_some_and(|inside| inside.iter().any(|byte| !byte.is_ascii_whitespace())),
            Kind::Number => true,
            Kind::Bool => raw == b"true",
            Kind::Null => false,
        })
    }

    /// Passes over the next value and returns its bytes, quotes and brackets included.
    pub fn skip(&mut self) -> Result<&'a [u8]> {
        let kind = self.peek()?;
        let start = self.at;
        match kind {
            Kind::String => {
                self.quoted()?;
            }
            Kind::Object | Kind::Array => self.skip_nested()?,
            Kind::Number => self.skip_while(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E')),
            Kind::Bool | Kind::Null => {
                self.skip_while(|byte| byte.is_ascii_lowercase());
                if !matches!(self.since(start), b"true" | b"false" | b"null") {
                    return Err(Malformed { at: start });
                }
            }
        }
        Ok(self.since(start))
    }

    /// Nothing but white space is left.
    pub fn end(&mut self) -> Result<()> {
        self.white();
        if self.at == self.text.len() { Ok(()) } else { Err(self.malformed()) }
    }

    fn since(&self, start: usize) -> &'a [u8] {
        self.text.get(start..self.at).unwrap_or_default()
    }

    const fn malformed(&self) -> Malformed {
        Malformed { at: self.at }
    }

    /// Most JSON on the wire has none: one look is enough then.
    fn white(&mut self) {
        if self.text.get(self.at).is_some_and(|byte| *byte > b' ') {
            return;
        }
        self.skip_while(|byte| matches!(byte, b' ' | b'\n' | b'\r' | b'\t'));
    }

    fn skip_while(&mut self, wanted: impl Fn(u8) -> bool) {
        while self.text.get(self.at).is_some_and(|byte| wanted(*byte)) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.text.get(self.at) != Some(&byte) {
            return Err(self.malformed());
        }
        self.at += 1;
        Ok(())
    }

    fn open(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.malformed());
        }
        self.at += 1;
        Ok(())
    }

    /// An empty object or array: passes its closing byte.
    fn closes(&mut self, close: u8) -> bool {
        self.white();
        let closes = self.text.get(self.at) == Some(&close);
        if closes {
            self.at += 1;
            self.depth -= 1;
        }
        closes
    }

    /// After a member or element: passes the comma (more to come) or the closing byte (the end).
    fn more(&mut self, close: u8) -> Result<bool> {
        self.white();
        match self.text.get(self.at) {
            Some(b',') => {
                self.at += 1;
                Ok(false)
            }
            Some(byte) if *byte == close => {
                self.at += 1;
                self.depth -= 1;
                Ok(true)
            }
            _ => Err(self.malformed()),
        }
    }

    fn quoted(&mut self) -> Result<Text<'a>> {
        self.expect(b'"')?;
        let start = self.at;
        let rest = self.text.get(start..).unwrap_or_default();
        let Some((len, escaped)) = string_end(rest) else {
            self.at = self.text.len();
            return Err(self.malformed());
        };
        self.at += len;
        let raw = self.since(start);
        self.at += 1;
        Ok(Text { raw, escaped })
    }

    fn skip_nested(&mut self) -> Result<()> {
        let floor = self.depth;
        loop {
            match self.text.get(self.at) {
                Some(b'{' | b'[') => self.open()?,
                Some(b'}' | b']') => {
                    self.at += 1;
                    self.depth -= 1;
                    if self.depth == floor {
                        return Ok(());
                    }
                }
                Some(b'"') => {
                    self.quoted()?;
                }
                Some(_) => self.at += 1,
                None => return Err(self.malformed()),
            }
        }
    }
}

/// The inside of a string with its escapes resolved; as it is if there are none, or if they cannot be.
#[must_use]
pub fn unescaped(raw: &[u8]) -> Cow<'_, [u8]> {
    match memchr::memchr(b'\\', raw).and_then(|_| Text { raw, escaped: true }.decoded()) {
        Some(text) => Cow::Owned(text.into_owned().into_bytes()),
        None => Cow::Borrowed(raw),
    }
}

/// How long the inside of a string is whose first byte (after the quote) is the first of `rest`;
/// `None` if it does not end.
#[must_use]
pub fn string_len(rest: &[u8]) -> Option<usize> {
    string_end(rest).map(|(len, _)| len)
}

/// The length, and whether there are escapes.
fn string_end(rest: &[u8]) -> Option<(usize, bool)> {
    let mut len = 0;
    let mut escaped = false;
    loop {
        len += string_stop(rest.get(len..)?)?;
        if rest.get(len) == Some(&b'"') {
            return Some((len, escaped));
        }
        escaped = true;
        len += 2;
    }
}

/// Where a quote or a backslash stands. Names and most values end within a few words of eight bytes,
/// which are looked at in one go each; that is over before `memchr` has set up.
fn string_stop(rest: &[u8]) -> Option<usize> {
    let (words, _) = rest.as_chunks::<8>();
    let mut near = 0;
    for word in words.iter().take(NEAR) {
        let word = u64::from_le_bytes(*word);
        let stops = zeros(word ^ QUOTES) | zeros(word ^ BACKSLASHES);
        if stops != 0 {
            return Some(near + (stops.trailing_zeros() / 8) as usize);
        }
        near += 8;
    }
    memchr2(b'"', b'\\', rest.get(near..)?).map(|found| near + found)
}

const QUOTES: u64 = u64::from_le_bytes([b'"'; 8]);
const BACKSLASHES: u64 = u64::from_le_bytes([b'\\'; 8]);

/// The highest bit of each byte that is zero; beyond the first of them bits may be set by mistake.
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(u64::from_le_bytes([0x01; 8])) & !word & u64::from_le_bytes([0x80; 8])
}
