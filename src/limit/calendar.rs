//! Which day and month it is where the ledger's days begin, and when they end (L4, G2).
//!
//! Called by the limiter, once per request. Reads no clock: the moment comes in.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// A day of the ledger with its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Day {
    /// As the ledger writes it, `2026-11-30`.
    pub date: String,
    /// As the ledger's days of its month begin, `2026-11`.
    pub month: String,
    /// Its place among all days; grows.
    pub number: i64,
    /// Its month's place among all months; grows.
    pub month_number: i64,
    /// Its first moment.
    pub begins: SystemTime,
    /// The first moment of the next day.
    pub ends: SystemTime,
    /// The first moment of the next month.
    pub month_ends: SystemTime,
}

/// Days of one time zone; remembers the last one asked for.
#[derive(Debug)]
pub struct Calendar(Mutex<(TimeZone, Option<Arc<Day>>)>);

impl Calendar {
    /// Days that begin at midnight there.
    #[must_use]
    pub const fn new(zone: TimeZone) -> Self {
        Self(Mutex::new((zone, None)))
    }

    /// Days begin at midnight there from now on.
    pub fn rezone(&self, zone: TimeZone) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (zone, None);
    }

    /// The day of a moment.
    #[must_use]
    pub fn day(&self, moment: SystemTime) -> Arc<Day> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (zone, last) = &mut *known;
        if let Some(day) = last.as_ref().filter(|day| (day.begins..day.ends).contains(&moment)) {
            return Arc::clone(day);
        }
        let day = Arc::new(Day::find(zone, moment));
        *last = Some(Arc::clone(&day));
        day
    }
}

impl Day {
    fn find(zone: &TimeZone, moment: SystemTime) -> Self {
        /// Where a time zone cannot be reckoned with, far beyond any ledger.
        const A_DAY: Duration = Duration::from_hours(24);
        let stamp = jiff::Timestamp::try_from(moment).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let date = zone.to_datetime(stamp).date();
        let ends = date.tomorrow().ok().and_then(|next| begins(zone, next)).unwrap_or(moment + A_DAY);
        let month_ends = date.last_of_month().tomorrow().ok().and_then(|next| begins(zone, next));
        let number = date.since(jiff::civil::date(1970, 1, 1)).map_or(0, |span| i64::from(span.get_days()));
        Self {
            date: date.to_string(),
            month: format!("{:04}-{:02}", date.year(), date.month()),
            number,
            month_number: i64::from(date.year()) * 12 + i64::from(date.month()),
            begins: begins(zone, date).unwrap_or(moment),
            ends,
            month_ends: month_ends.unwrap_or(ends),
        }
    }
}

/// The first moment of a day; where midnight is skipped, the first that there is.
fn begins(zone: &TimeZone, date: Date) -> Option<SystemTime> {
    let stamp = zone.to_timestamp(date.at(0, 0, 0, 0)).ok()?;
    SystemTime::try_from(stamp).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(text: &str) -> SystemTime {
        SystemTime::try_from(text.parse::<jiff::Timestamp>().unwrap()).unwrap()
    }

    #[test]
    fn l4_days_and_months_begin_where_the_ledger_says() {
        for (zone, at, date, ends, month_ends) in [
            ("UTC", "2026-11-30T23:59:59Z", "2026-11-30", "2026-12-01T00:00:00Z", "2026-12-01T00:00:00Z"),
            ("UTC", "2026-12-31T00:00:00Z", "2026-12-31", "2027-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("Europe/Berlin", "2026-11-30T23:30:00Z", "2026-12-01", "2026-12-01T23:00:00Z", "2026-12-31T23:00:00Z"),
            // The day of 25 hours.
            ("Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-25", "2026-10-25T23:00:00Z", "2026-10-31T23:00:00Z"),
            ("America/New_York", "2026-03-01T04:59:59Z", "2026-02-28", "2026-03-01T05:00:00Z", "2026-03-01T05:00:00Z"),
        ] {
            let day = Calendar::new(TimeZone::get(zone).unwrap()).day(moment(at));
            assert_eq!(day.date, date, "{zone} {at}");
            assert!(day.date.starts_with(&day.month));
            assert_eq!((day.ends, day.month_ends), (moment(ends), moment(month_ends)), "{zone} {at}");
        }
    }

    #[test]
    fn l4_a_day_is_remembered_until_it_ends() {
        let calendar = Calendar::new(TimeZone::UTC);
        let last = calendar.day(moment("2026-11-30T23:59:59.999Z"));
        let next = calendar.day(moment("2026-12-01T00:00:00Z"));
        assert_eq!((next.number, next.month_number), (last.number + 1, last.month_number + 1));
        assert_eq!(calendar.day(moment("2026-11-30T00:00:00Z")), last, "a clock may step back");
    }
}
