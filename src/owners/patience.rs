//! When a background response is asked for that nobody has fetched (A12).
//!
//! Read by both stores of the map, whose statements count the asks. Touches nothing.

/// Seconds from its making to the first time. Most have ended by then, and most clients have fetched them.
pub(super) const FIRST: i64 = 30;

/// In SQL: the seconds from one time to the next, by how often it was asked for before.
pub(super) const NEXT: &str = "CASE asked WHEN 0 THEN 60 WHEN 1 THEN 120 WHEN 2 THEN 300 ELSE 600 END";

/// So often, then it is given up; by [`NEXT`], a day.
pub(super) const MOST: i64 = 147;
