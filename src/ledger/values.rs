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
    pub(super) fn text(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) if text.contains('\0') => self.verbatim(Some(&text.replace('\0', ""))),
            text => self.verbatim(text),
        }
    }

    /// Text as it is: from the operator's file, or made here.
    pub(super) fn verbatim(&mut self, text: Option<&str>) -> &mut Self {
        self.bind(text.map_or(ValueRef::Null, |text| ValueRef::Text(text.as_bytes())))
    }

    /// A request's id.
    pub(super) fn id(&mut self, id: Uuid) -> &mut Self {
        self.verbatim(Some(id.hyphenated().encode_lower(&mut Uuid::encode_buffer())))
    }

    /// A client's address.
    pub(super) fn address(&mut self, address: Option<IpAddr>) -> &mut Self {
        match address {
            None => self.verbatim(None),
            Some(IpAddr::V4(address)) => self.verbatim(Some(&dotted(address))),
            Some(IpAddr::V6(address)) => self.verbatim(Some(&address.to_string())),
        }
    }

    /// A JSON text.
    pub(super) fn json(&mut self, value: &impl Serialize) -> &mut Self {
        match serde_json::to_string(value) {
            Ok(json) => self.verbatim(Some(&json)),
            Err(error) => {
                self.failed = Some(rusqlite::Error::ToSqlConversionFailure(error.into()));
                self
            }
        }
    }

    /// A number with a sign.
    pub(super) fn integer(&mut self, number: impl Into<Option<i64>>) -> &mut Self {
        self.bind(number.into().map_or(ValueRef::Null, ValueRef::Integer))
    }

    /// A count.
    pub(super) fn number(&mut self, number: impl Into<Option<u64>>) -> &mut Self {
        self.integer(number.into().map(integer))
    }

    /// Counts.
    pub(super) fn numbers(&mut self, numbers: impl IntoIterator<Item = Option<u64>>) -> &mut Self {
        for number in numbers {
            self.number(number);
        }
        self
    }

    /// Microseconds.
    pub(super) fn time(&mut self, time: impl Into<Option<Duration>>) -> &mut Self {
        self.integer(time.into().map(micros))
    }

    /// Runs the statement; how many rows it changed.
    pub(super) fn execute(&mut self) -> rusqlite::Result<usize> {
        debug_assert!(self.failed.is_some() || self.bound == self.statement.parameter_count());
        self.failed.take().map_or_else(|| self.statement.raw_execute(), Err)
    }

    fn bind(&mut self, value: ValueRef<'_>) -> &mut Self {
        self.bound += 1;
        if self.failed.is_none() {
            let bound = self.statement.raw_bind_parameter(self.bound, ToSqlOutput::Borrowed(value));
            if let Err(error) = bound {
                self.failed = Some(error);
            }
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
