//! Money as integers: nano-USD for amounts, atto-USD for prices of one token (L3).
//!
//! Used by prices, rows and reports. Touches nothing.

use std::fmt;

/// Nano-USD, 10⁻⁹ USD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nano(pub i64);

impl fmt::Display for Nano {
    /// USD with nine decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let amount = self.0.unsigned_abs();
        write!(f, "{sign}{}.{:09}", amount / 1_000_000_000, amount % 1_000_000_000)
    }
}
