//! The pages for people: the operator's console and the page of a key's holder (M5, M6).
//!
//! Asked by the admin application (`/console`) and the gateway (`/weir`). Touches nothing: the files are in the binary.
//! They load nothing from elsewhere, and their policy lets them load nothing.

use http::{HeaderName, header};

/// Nothing inline, nothing from elsewhere, in nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asset {
    /// Its content type.
    pub kind: &'static str,
    /// Its content.
    pub body: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

impl Asset {
    /// The headers besides its length.
    #[must_use]
    pub const fn headers(&self) -> [(HeaderName, &'static str); 5] {
        [
            (header::CONTENT_TYPE, self.kind),
            (header::CACHE_CONTROL, "no-cache"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
        ]
    }
}

/// The console's files, by their path on the admin listener.
#[must_use]
pub fn console(path: &str) -> Option<Asset> {
    match path.strip_prefix("/console")? {
        "" | "/" => Some(Asset { kind: HTML, body: include_str!("console.html") }),
        "/console.js" => Some(Asset { kind: JS, body: include_str!("console.js") }),
        "/list.js" => Some(Asset { kind: JS, body: include_str!("list.js") }),
        "/detail.js" => Some(Asset { kind: JS, body: include_str!("detail.js") }),
        file => common(file),
    }
}

/// The files of a key holder's page, by their path on the clients' listener.
#[must_use]
pub fn holder(path: &str) -> Option<Asset> {
    match path.strip_prefix("/weir")? {
        "" | "/" => Some(Asset { kind: HTML, body: include_str!("holder.html") }),
        "/holder.js" => Some(Asset { kind: JS, body: include_str!("holder.js") }),
        file => common(file),
    }
}

fn common(file: &str) -> Option<Asset> {
    Some(match file {
        "/style.css" => Asset { kind: CSS, body: include_str!("style.css") },
        "/shared.js" => Asset { kind: JS, body: include_str!("shared.js") },
        "/charts.js" => Asset { kind: JS, body: include_str!("charts.js") },
        "/icon.svg" => Asset { kind: SVG, body: include_str!("icon.svg") },
        "/uplot.js" => Asset { kind: JS, body: include_str!("vendor/uPlot.iife.min.js") },
        "/uplot.css" => Asset { kind: CSS, body: include_str!("vendor/uPlot.min.css") },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m5_all_that_the_pages_name_is_there_and_nothing_is_inline_or_from_elsewhere() {
        for (root, page, find) in [("/console", "/console", console as fn(&str) -> _), ("/weir", "/weir", holder)] {
            let html = find(page).unwrap().body;
            assert!(!html.contains("style=") && !html.contains("onclick="), "{page}");
            for (name, quote) in html.match_indices("src=\"").chain(html.match_indices("href=\"")) {
                let rest = &html[name + quote.len()..];
                let path = &rest[..rest.find('"').unwrap()];
                assert!(
                    path.starts_with('#') || path.starts_with(&format!("{root}/")) && find(path).is_some(),
                    "{path}"
                );
            }
            for script in html.split("<script").skip(1) {
                assert!(script.contains("src=") && script.contains("></script>"), "an inline script in {page}");
            }
            assert!(!html.contains("<style"), "an inline style in {page}");
        }
        assert!(
            console("/console/secret").is_none() && console("/consolex").is_none() && holder("/v1/models").is_none()
        );
    }
}
