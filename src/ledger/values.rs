//! Binds the values of one row to a statement, one after the other and without copies of them.
//!
//! Called for every row that is written. Touches nothing but the statement it is given.

use super::row::{integer, micros};
use rusqlite::Statement;
use rusqlite::types::{ToSqlOutput, ValueRef};
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use uuid::Uuid;

/// The parameters of a statement, in their order; [`Values::execute`] tells what went wrong.
pub(super) struct Values<'s, 'c> {
    statement: &'s mut Statement<'c>,
    bound: usize,
    failed: Option<rusqlite::Error>,
}

impl<'s, 'c> Values<'s, 'c> {
    /// None bound yet.
    pub(super) const fn of(statement: &'s mut Statement<'c>) -> Self {
        Self { statement, bound: 0, failed: None }
    }

    /// Text without NUL, which PostgreSQL cannot hold.
    pub(super) fn text(self, text: Option<&str>) -> Self {
        match text {
            Some(text) if text.contains('\0') => self.verbatim(Some(&text.replace('\0', ""))),
            text => self.verbatim(text),
        }
    }

    /// Text as it is: from the operator's file, or made here.
    pub(super) fn verbatim(self, text: Option<&str>) -> Self {
        self.bind(text.map_or(ValueRef::Null, |text| ValueRef::Text(text.as_bytes())))
    }

    /// A request's id.
    pub(super) fn id(self, id: Uuid) -> Self {
        self.verbatim(Some(id.hyphenated().encode_lower(&mut Uuid::encode_buffer())))
    }

    /// A client's address.
    pub(super) fn address(self, address: Option<IpAddr>) -> Self {
        match address {
            None => self.verbatim(None),
            Some(IpAddr::V4(address)) => self.verbatim(Some(&dotted(address))),
            Some(IpAddr::V6(address)) => self.verbatim(Some(&address.to_string())),
        }
    }

    /// A JSON text.
    pub(super) fn json(mut self, value: &impl Serialize) -> Self {
        match serde_json::to_string(value) {
            Ok(json) => self.verbatim(Some(&json)),
            Err(error) => {
                self.failed = Some(rusqlite::Error::ToSqlConversionFailure(error.into()));
                self
            }
        }
    }

    /// A number with a sign.
    pub(super) fn integer(self, number: impl Into<Option<i64>>) -> Self {
        self.bind(number.into().map_or(ValueRef::Null, ValueRef::Integer))
    }

    /// A count.
    pub(super) fn number(self, number: impl Into<Option<u64>>) -> Self {
        self.integer(number.into().map(integer))
    }

    /// Counts.
    pub(super) fn numbers(self, numbers: impl IntoIterator<Item = Option<u64>>) -> Self {
        numbers.into_iter().fold(self, Self::number)
    }

    /// Microseconds.
    pub(super) fn time(self, time: impl Into<Option<Duration>>) -> Self {
        self.integer(time.into().map(micros))
    }

    /// Runs the statement; how many rows it changed.
    pub(super) fn execute(self) -> rusqlite::Result<usize> {
        debug_assert!(self.failed.is_some() || self.bound == self.statement.parameter_count());
        self.failed.map_or_else(|| self.statement.raw_execute(), Err)
    }

    fn bind(mut self, value: ValueRef<'_>) -> Self {
        self.bound += 1;
        if self.failed.is_none() {
            self.failed = self.statement.raw_bind_parameter(self.bound, ToSqlOutput::Borrowed(value)).err();
        }
        self
    }
}

/// As `Display` has it, for a fifth of the instructions: it is written twice per request.
fn dotted(address: Ipv4Addr) -> String {
    let mut text = String::with_capacity("255.255.255.255".len());
    for (index, octet) in address.octets().into_iter().enumerate() {
        if index > 0 {
            text.push('.');
        }
        if octet >= 100 {
            text.push(char::from(b'0' + octet / 100));
        }
        if octet >= 10 {
            text.push(char::from(b'0' + octet / 10 % 10));
        }
        text.push(char::from(b'0' + octet % 10));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_it_is_displayed() {
        for octet in 0..=u8::MAX {
            let address = Ipv4Addr::new(octet, 255 - octet, octet / 3, octet);
            assert_eq!(dotted(address), address.to_string());
        }
    }
}
