//! The values that are written as one word: durations, sizes, addresses, statuses, names, secrets.
//!
//! Each has one reader, used by the shape check and by serde, and one JSON Schema.
//! Touches nothing; messages never repeat the value, since it could be a secret in the wrong place.

use super::model::StatusRange;
use super::provider::BaseUrl;
use super::secret::Secret;
use crate::ledger::money::{Decimal, Nano};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

/// Keeps every sum with a clock in range.
const MAX_DURATION: Duration = Duration::from_hours(3660 * 24);
/// Labels and log fields carry names.
const MAX_NAME_CHARS: usize = 200;
/// The member of a schema that names the word.
pub(super) const KEYWORD: &str = "x-weir-word";

/// One kind of word.
pub(super) trait Word: Sized {
    /// Its name in the schema.
    const NAME: &'static str;
    /// What a value of it must match; the reader may be stricter.
    const PATTERN: &'static str;
    /// JSON types besides a string that other readers of the file will see.
    const ALSO: Option<&'static str> = None;
    /// What to write.
    const WANTED: &'static str;

    /// The value, unless it is none.
    fn read(text: &str) -> Option<Self>;
}

/// Declares words as newtypes that serde and schemars know.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident($inner:ty);)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub(super) struct $name(pub(super) $inner);

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    let text = Cow::<'de, str>::deserialize(deserializer)?;
                    Self::read(&text).ok_or_else(|| de::Error::custom(Self::WANTED))
                }
            }

            impl schemars::JsonSchema for $name {
                fn inline_schema() -> bool {
                    true
                }

                fn schema_name() -> Cow<'static, str> {
                    Self::NAME.into()
                }

                fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                    let types = match Self::ALSO {
                        None => serde_json::json!("string"),
                        Some(other) => serde_json::json!(["string", other]),
                    };
                    let pattern = format!("\\$\\{{|{}", Self::PATTERN); // or `${NAME}`, which only Weir can look up
                    schemars::json_schema!({ "type": types, "pattern": pattern, KEYWORD: Self::NAME })
                }
            }
        )*

        /// Whether a text is a good word of the kind that a schema names; else what to write instead.
        pub(super) fn check(name: &str, text: &str) -> Result<(), &'static str> {
            $(
                if name == $name::NAME {
                    return $name::read(text).map(drop).ok_or($name::WANTED);
                }
            )*
            Ok(())
        }
    };
}

words! {
    /// `10s`, `500ms`, `5m`.
    Span(Duration);
    /// A span, or `off`.
    SpanOrOff(Option<Duration>);
    /// `32MiB`, or bytes.
    Size(u64);
    /// `429`, `5xx`, `500-504`.
    Statuses(StatusRange);
    /// Address and port.
    Address(SocketAddr);
    /// The last moment of a day, or a moment.
    Until(SystemTime);
    /// An address or a network.
    Network(ipnet::IpNet);
    /// An HTTP method.
    Method(http::Method);
    /// A header's name.
    Header(http::HeaderName);
    /// Already resolved.
    SecretText(Secret);
    /// Already resolved; may be empty.
    SecretOrEmpty(Option<Secret>);
    /// 64 hex digits.
    Sha256([u8; 32]);
    /// A share of requests, in thousandths.
    Share(u16);
    /// Where a provider is.
    Url(BaseUrl);
    /// A name: not empty, not long, printable.
    Name(String);
    /// A path of the file system.
    FilePath(String);
    /// A time zone by its name.
    Zone(jiff::tz::TimeZone);
    /// A decimal that money is multiplied with.
    Factor(String);
    /// An amount of USD.
    Usd(Nano);
    /// A request path, below the base URL.
    UrlPath(String);
    /// The text of a keepalive comment.
    Comment(String);
    /// Where a web page is from.
    WebOrigin(String);
}

impl Word for Span {
    const NAME: &'static str = "duration";
    const PATTERN: &'static str = "^[0-9]+ *[a-zA-Z]";
    const WANTED: &'static str = "write a duration with its unit, such as 500ms, 10s, 5m or 1h";

    fn read(text: &str) -> Option<Self> {
        if text.trim() == "0" {
            return None; // humantime takes a bare 0, the schema does not
        }
        humantime::parse_duration(text).ok().filter(|span| *span <= MAX_DURATION).map(Self)
    }
}

impl Word for SpanOrOff {
    const NAME: &'static str = "duration_or_off";
    const PATTERN: &'static str = "^([0-9]+ *[a-zA-Z]|off$)";
    const WANTED: &'static str = "write a duration with its unit, such as 10s, or off";

    fn read(text: &str) -> Option<Self> {
        if text == "off" {
            return Some(Self(None));
        }
        Span::read(text).map(|span| Self(Some(span.0)))
    }
}

impl Word for Size {
    const NAME: &'static str = "size";
    const PATTERN: &'static str = "^[0-9]";
    const ALSO: Option<&'static str> = Some("integer");
    const WANTED: &'static str = "write a size such as 32MiB, 512KiB or a number of bytes";

    fn read(text: &str) -> Option<Self> {
        /// A pebibyte: beyond any machine, and sums of sizes stay in range.
        const MAX: u64 = 1 << 50;
        if !text.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        text.parse::<bytesize::ByteSize>().ok().map(|size| size.as_u64()).filter(|size| *size <= MAX).map(Self)
    }
}

impl Word for Statuses {
    const NAME: &'static str = "statuses";
    const PATTERN: &'static str = "^([45][0-9][0-9](-[45][0-9][0-9])?|[45]xx)$";
    const ALSO: Option<&'static str> = Some("integer");
    const WANTED: &'static str = "write a status from 400 to 599, such as 429, 5xx or 500-504";

    fn read(text: &str) -> Option<Self> {
        let range = match (text, text.split_once('-')) {
            ("4xx", _) => StatusRange { from: 400, to: 499 },
            ("5xx", _) => StatusRange { from: 500, to: 599 },
            (_, Some((from, to))) => StatusRange { from: status(from)?, to: status(to)? },
            (_, None) => StatusRange { from: status(text)?, to: status(text)? },
        };
        (range.from <= range.to).then_some(Self(range))
    }
}

fn status(text: &str) -> Option<u16> {
    if text.len() != 3 {
        return None;
    }
    text.parse().ok().filter(|status| (400..600).contains(status))
}

impl Word for Address {
    const NAME: &'static str = "address";
    const PATTERN: &'static str = ":[0-9]+$";
    const WANTED: &'static str = "write an IP address and a port, such as 0.0.0.0:8080, 127.0.0.1:8080 or [::]:8080";

    fn read(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }
}

impl Word for Until {
    const NAME: &'static str = "until";
    const PATTERN: &'static str = "^[0-9]{4}-[0-9]{2}-[0-9]{2}";
    const WANTED: &'static str =
        "write a day such as 2027-12-31 (its end, UTC) or a moment such as 2027-12-31T18:00:00Z";

    fn read(text: &str) -> Option<Self> {
        /// The last moment of a day, from its first.
        const DAY: Duration = Duration::from_nanos(24 * 60 * 60 * 1_000_000_000 - 1);
        let moment = if text.len() == 10 {
            humantime::parse_rfc3339(&format!("{text}T00:00:00Z")).ok()?.checked_add(DAY)?
        } else {
            humantime::parse_rfc3339(text).ok()?
        };
        Some(Self(moment))
    }
}

impl Word for Network {
    const NAME: &'static str = "network";
    const PATTERN: &'static str = "^[0-9a-fA-F:.]+(/[0-9]+)?$";
    const WANTED: &'static str = "write an address or a network, such as 203.0.113.7, 203.0.113.0/24 or 2001:db8::/32";

    fn read(text: &str) -> Option<Self> {
        text.parse().or_else(|_| text.parse::<std::net::IpAddr>().map(Into::into)).ok().map(Self)
    }
}

impl Word for Method {
    const NAME: &'static str = "method";
    const PATTERN: &'static str = "^(GET|POST|PUT|PATCH|DELETE|HEAD)$";
    const WANTED: &'static str = "use GET, POST, PUT, PATCH, DELETE or HEAD";

    fn read(text: &str) -> Option<Self> {
        let known = matches!(text, "GET" | "POST" | "PUT" | "PATCH" | "DELETE" | "HEAD");
        http::Method::from_bytes(text.as_bytes()).ok().filter(|_| known).map(Self)
    }
}

impl Word for Header {
    const NAME: &'static str = "header";
    const PATTERN: &'static str = "^[-!#$%&'*+.^_`|~0-9A-Za-z]+$";
    const WANTED: &'static str = "write the name of a header, such as x-team";

    fn read(text: &str) -> Option<Self> {
        http::HeaderName::from_bytes(text.as_bytes()).ok().map(Self)
    }
}

impl Word for SecretText {
    const NAME: &'static str = "secret";
    const PATTERN: &'static str = "^[ -~]+$";
    const WANTED: &'static str = "write ${NAME} for an environment variable, file:PATH, or the text itself";

    fn read(text: &str) -> Option<Self> {
        http::HeaderValue::from_str(text).ok().map(|_| Self(Secret::new(text.to_owned())))
    }
}

impl Word for SecretOrEmpty {
    const NAME: &'static str = "secret_or_empty";
    const PATTERN: &'static str = "^[ -~]*$";
    const WANTED: &'static str = "write \"\", ${NAME} for an environment variable, file:PATH, or the text itself";

    fn read(text: &str) -> Option<Self> {
        if text.is_empty() { Some(Self(None)) } else { SecretText::read(text).map(|secret| Self(Some(secret.0))) }
    }
}

impl Word for Sha256 {
    const NAME: &'static str = "sha256";
    const PATTERN: &'static str = "^[0-9a-fA-F]{64}$";
    const WANTED: &'static str =
        "write the 64 hex digits that `printf %s \"$KEY\" | sha256sum` prints for the client's key";

    fn read(text: &str) -> Option<Self> {
        if text.len() != 64 {
            return None; // const_hex takes a leading 0x
        }
        const_hex::decode_to_array(text).ok().map(Self)
    }
}

impl Word for Share {
    const NAME: &'static str = "share";
    const PATTERN: &'static str = "^(all|off|0|1|0?\\.[0-9]+|[01]\\.0*)$";
    const ALSO: Option<&'static str> = Some("number");
    const WANTED: &'static str = "write all, off, or a share from 0 to 1 such as 0.1";

    fn read(text: &str) -> Option<Self> {
        match text {
            "all" => return Some(Self(1000)),
            "off" => return Some(Self(0)),
            _ => {}
        }
        let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share))?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
        let permille = (share * 1000.0).ceil() as u16; // the least share is not off
        Some(Self(permille))
    }
}

impl Word for Url {
    const NAME: &'static str = "url";
    const PATTERN: &'static str = "^https?://[^@#/]+(/[^#]*)?$";
    const WANTED: &'static str =
        "write http:// or https://, the host, if need be :port and /path, without user:password@ and without #";

    fn read(text: &str) -> Option<Self> {
        BaseUrl::read(text).map(Self)
    }
}

impl Word for Name {
    const NAME: &'static str = "name";
    const PATTERN: &'static str = "^[^\\s].{0,199}$";
    const WANTED: &'static str = "write a name: 1 to 200 printable characters, no spaces around it";

    fn read(text: &str) -> Option<Self> {
        let good = !text.is_empty()
            && text.trim() == text
            && text.chars().count() <= MAX_NAME_CHARS
            && !text.chars().any(char::is_control);
        good.then(|| Self(text.to_owned()))
    }
}

impl Word for FilePath {
    const NAME: &'static str = "path";
    const PATTERN: &'static str = "^.+$";
    const WANTED: &'static str = "write the path of a file";

    fn read(text: &str) -> Option<Self> {
        (!text.trim().is_empty() && !text.contains('\0')).then(|| Self(text.to_owned()))
    }
}

impl Word for Zone {
    const NAME: &'static str = "timezone";
    const PATTERN: &'static str = "^[A-Za-z][-+_/A-Za-z0-9]*$";
    const WANTED: &'static str = "write the name of a time zone, such as UTC or Europe/Berlin";

    fn read(text: &str) -> Option<Self> {
        jiff::tz::TimeZone::get(text).ok().filter(|zone| !zone.is_unknown()).map(Self)
    }
}

impl Word for Factor {
    const NAME: &'static str = "factor";
    const PATTERN: &'static str = "^[0-9.]+$";
    const ALSO: Option<&'static str> = Some("number");
    const WANTED: &'static str = "write a decimal such as \"1.20\"; \"1\" sells at cost";

    fn read(text: &str) -> Option<Self> {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        (plain && Decimal::parse(text).is_ok()).then(|| Self(text.to_owned()))
    }
}

impl Word for Usd {
    const NAME: &'static str = "usd";
    const PATTERN: &'static str = "^[0-9.]+$";
    const ALSO: Option<&'static str> = Some("number");
    const WANTED: &'static str = "write USD as a decimal such as \"20.00\", more than 0, with at most nine decimals";

    fn read(text: &str) -> Option<Self> {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        super::limits::usd(text).filter(|_| plain).map(Self)
    }
}

impl Word for UrlPath {
    const NAME: &'static str = "url_path";
    const PATTERN: &'static str = "^/[^#\\s]*$";
    const WANTED: &'static str = "write a path that begins with /, such as /v1/files/*, without # and spaces";

    fn read(text: &str) -> Option<Self> {
        let good = text.starts_with('/') && !text.contains('#') && text.parse::<http::uri::PathAndQuery>().is_ok();
        good.then(|| Self(text.to_owned()))
    }
}

impl Word for Comment {
    const NAME: &'static str = "comment";
    const PATTERN: &'static str = "^[^\\r\\n]{0,200}$";
    const WANTED: &'static str = "write at most 200 bytes without line breaks or other control characters";

    fn read(text: &str) -> Option<Self> {
        (text.len() <= 200 && !text.chars().any(char::is_control)).then(|| Self(text.to_owned()))
    }
}

impl Word for WebOrigin {
    const NAME: &'static str = "origin";
    const PATTERN: &'static str = "^(\\*|https?://[^/]+)$";
    const WANTED: &'static str = "write an origin as browsers send it, such as https://app.example.com, or *";

    fn read(text: &str) -> Option<Self> {
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let plain = |host: &str| {
            host.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-:[]".contains(&byte))
        };
        (text == "*" || host.is_some_and(|host| !host.is_empty() && plain(host))).then(|| Self(text.to_owned()))
    }
}

/// Sizes, spans and addresses are printed as defaults in the schema.
impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DAY: u64 = 24 * 60 * 60;
        let seconds = self.0.as_secs();
        if self.0.subsec_nanos() == 0 && seconds > 0 && seconds.is_multiple_of(DAY) {
            return serializer.collect_str(&format_args!("{}d", seconds / DAY)); // never in months
        }
        serializer.collect_str(&humantime::format_duration(self.0))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const MIB: u64 = 1024 * 1024;
        serializer.collect_str(&format_args!("{}MiB", self.0 / MIB))
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            0 => serializer.serialize_str("off"),
            1000 => serializer.serialize_str("all"),
            other => serializer.serialize_f64(f64::from(other) / 1000.0),
        }
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl Serialize for FilePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl Serialize for Zone {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.iana_name().unwrap_or("UTC"))
    }
}

impl Serialize for Factor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}
