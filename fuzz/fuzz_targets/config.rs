//! Config files: whatever is in one, it is read or refused with at least one finding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|text: &str| {
    // Secrets in files would be read from wherever the text says.
    if text.contains("file:") {
        return;
    }
    if let Err(report) = weir::config::parse(text, "fuzz.yaml", &|_| Some("value".to_owned()), Path::new(".")) {
        assert!(!report.findings.is_empty());
    }
});
