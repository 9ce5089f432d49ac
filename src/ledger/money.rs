//! Money as integers: nano-USD for amounts, atto-USD for prices of one unit (L3).
//!
//! Used by prices, rows and reports. Touches nothing. No float: decimals are read digit by digit.

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

/// Price of one token or call in atto-USD, 10⁻¹⁸ USD: fine enough for every published price.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Atto(pub u128);

/// Decimal places of a price per million tokens that atto-USD per token can hold.
const PER_MILLION: u32 = 12;
/// Decimal places of a price per token or call.
const PER_UNIT: u32 = 18;
/// 1,000 USD for one token or call; beyond is a slip of the pen, and sums could overflow.
const MAX_PRICE: u128 = 1_000 * 10_u128.pow(PER_UNIT);
/// More digits than any price has, few enough for 128 bits.
const MAX_DIGITS: usize = 30;

/// A decimal that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDecimal {
    /// Not digits with at most one point.
    #[error("not a decimal such as \"1.25\"")]
    Syntax,
    /// Below zero.
    #[error("a price cannot be negative")]
    Negative,
    /// Finer or larger than can be held.
    #[error("out of range: at most 1000 USD for one token, at most 12 decimals per million tokens")]
    Range,
}

/// A non-negative decimal: `digits` × 10^−`places`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    digits: u128,
    /// Negative: zeros follow the digits.
    places: i32,
}

impl Decimal {
    /// One.
    pub const ONE: Self = Self { digits: 1, places: 0 };

    /// Reads `12`, `0.375`, `3e-06`.
    pub fn parse(text: &str) -> Result<Self, BadDecimal> {
        if text.starts_with('-') {
            return Err(BadDecimal::Negative);
        }
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i32 = exponent.parse().map_err(|_| BadDecimal::Syntax)?;
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if whole.len() + fraction.len() == 0 || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit())
        {
            return Err(BadDecimal::Syntax);
        }
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        if digits.len() > MAX_DIGITS || exponent.abs() > 40 {
            return Err(BadDecimal::Range);
        }
        let places = i32::try_from(fraction.len()).map_err(|_| BadDecimal::Range)? - exponent;
        let digits = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| BadDecimal::Syntax)? };
        Ok(Self { digits, places })
    }

    /// USD per million tokens, exactly.
    pub fn per_million(self) -> Result<Atto, BadDecimal> {
        self.scaled(PER_MILLION)
            .and_then(|(price, rest)| if rest == 0 { in_range(price) } else { Err(BadDecimal::Range) })
    }

    /// USD per call, exactly.
    pub fn per_call(self) -> Result<Atto, BadDecimal> {
        self.scaled(PER_UNIT).and_then(|(price, rest)| if rest == 0 { in_range(price) } else { Err(BadDecimal::Range) })
    }

    /// USD per token or call; what is finer than atto-USD (an artefact of floats in price lists) is cut off.
    pub fn per_unit(self) -> Result<Atto, BadDecimal> {
        self.scaled(PER_UNIT).and_then(|(price, _)| in_range(price))
    }

    /// As an amount of USD, if nano-USD hold it exactly.
    #[must_use]
    pub fn nano(self) -> Option<Nano> {
        let (amount, rest) = self.scaled(9).ok()?;
        if rest == 0 { i64::try_from(amount).ok().map(Nano) } else { None }
    }

    /// As a whole number, if it is one.
    #[must_use]
    pub fn whole(self) -> Option<u64> {
        let (number, rest) = self.scaled(0).ok()?;
        if rest == 0 { u64::try_from(number).ok() } else { None }
    }

    /// `self` × 10^`places`, and what is left below one.
    fn scaled(self, places: u32) -> Result<(u128, u128), BadDecimal> {
        let shift = i64::from(places) - i64::from(self.places);
        let power = u32::try_from(shift.unsigned_abs()).map_err(|_| BadDecimal::Range)?;
        let Some(factor) = 10_u128.checked_pow(power) else {
            return if shift < 0 || self.digits == 0 { Ok((0, self.digits)) } else { Err(BadDecimal::Range) };
        };
        if shift < 0 {
            return Ok((self.digits / factor, self.digits % factor));
        }
        self.digits.checked_mul(factor).map(|number| (number, 0)).ok_or(BadDecimal::Range)
    }
}

const fn in_range(price: u128) -> Result<Atto, BadDecimal> {
    if price > MAX_PRICE { Err(BadDecimal::Range) } else { Ok(Atto(price)) }
}

/// `sum` × `markup` in nano-USD, rounded half up once; `None` if it is more than fits.
#[must_use]
pub fn round(sum: Atto, markup: Decimal) -> Option<Nano> {
    let places = u32::try_from(i64::from(markup.places) + 9).ok()?;
    let divisor = 10_u128.checked_pow(places)?;
    let product = sum.0.checked_mul(markup.digits)?;
    let (whole, rest) = (product / divisor, product % divisor);
    let rounded = if rest >= divisor - rest { whole.checked_add(1)? } else { whole };
    i64::try_from(rounded).ok().map(Nano)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l3_decimals_are_read_exactly() {
        for (text, expected) in [
            ("3", Ok(3_000_000_000_000)),
            ("3.75", Ok(3_750_000_000_000)),
            ("0.000000000001", Ok(1)),
            ("3e-06", Ok(3_000_000)),
            ("1.0", Ok(1_000_000_000_000)),
            ("0", Ok(0)),
            (".5", Ok(500_000_000_000)),
            ("0.0000000000001", Err(BadDecimal::Range)),
            ("1e12", Err(BadDecimal::Range)),
            ("-1", Err(BadDecimal::Negative)),
            ("", Err(BadDecimal::Syntax)),
            (".", Err(BadDecimal::Syntax)),
            ("1.2.3", Err(BadDecimal::Syntax)),
            ("1,5", Err(BadDecimal::Syntax)),
            ("1e", Err(BadDecimal::Syntax)),
            ("NaN", Err(BadDecimal::Syntax)),
            ("99999999999999999999999999999999999999999", Err(BadDecimal::Range)),
        ] {
            let price = Decimal::parse(text).and_then(Decimal::per_million).map(|atto| atto.0);
            assert_eq!(price, expected, "{text}");
        }
    }

    #[test]
    fn l3_a_float_artefact_in_a_price_list_is_cut_below_atto() {
        let price = Decimal::parse("4.6000000000000004e-07").and_then(Decimal::per_unit);
        assert_eq!(price, Ok(Atto(460_000_000_000)));
    }

    #[test]
    fn l3_rounded_half_up_once() {
        let markup = |text| Decimal::parse(text).unwrap();
        for (atto, by, nano) in [
            (499_999_999, "1", 0),
            (500_000_000, "1", 1),
            (1_499_999_999, "1", 1),
            (1_500_000_000, "1", 2),
            (1_000_000_000, "1.5", 2),
            (1_250_000_000, "1.2", 2),
            (1_249_999_999, "1.2", 1),
            (7_000_000_000, "1e1", 70),
        ] {
            assert_eq!(round(Atto(atto), markup(by)), Some(Nano(nano)), "{atto} x {by}");
        }
        assert_eq!(round(Atto(u128::MAX), Decimal::ONE), None);
    }

    #[test]
    fn l3_amounts_print_nine_decimals() {
        assert_eq!(Nano(54_399_000).to_string(), "0.054399000");
        assert_eq!(Nano(-1).to_string(), "-0.000000001");
        assert_eq!(Nano(i64::MIN).to_string(), "-9223372036.854775808");
    }
}
