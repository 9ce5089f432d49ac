//! What all chunks of an answer are called: id, time and model (N2).
//!
//! Used by the chat dialect. Touches only its own fields.

use crate::json::Walker;

/// As JSON.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) id: Vec<u8>,
    pub(super) created: Vec<u8>,
    pub(super) model: Vec<u8>,
}

/// What one chunk says of it, each only if it says something.
#[derive(Debug, Default)]
pub(super) struct Found<'t> {
    pub(super) id: Option<&'t [u8]>,
    pub(super) created: Option<&'t [u8]>,
    pub(super) model: Option<&'t [u8]>,
}

impl<'t> Found<'t> {
    /// `None`: not an object.
    pub(super) fn read(text: &'t [u8]) -> Option<Self> {
        let mut found = Self::default();
        let was_object = Walker::new(text).object(|walker, name| {
            let raw = walker.skip()?;
            let said = raw.first() == Some(&b'"') && raw.len() > 2;
            match &*name.bytes() {
                b"id" => found.id = Some(raw).filter(|_| said),
                b"created" => found.created = Some(raw).filter(|raw| is_time(raw)),
                b"model" => found.model = Some(raw).filter(|_| said),
                _ => {}
            }
            Ok(())
        });
        was_object.is_ok_and(|was| was).then_some(found)
    }

    /// With what is missing from `fallback`.
    pub(super) fn or(self, fallback: &Identity) -> Identity {
        Identity {
            id: self.id.unwrap_or(&fallback.id).to_vec(),
            created: self.created.unwrap_or(&fallback.created).to_vec(),
            model: self.model.unwrap_or(&fallback.model).to_vec(),
        }
    }
}

fn is_time(raw: &[u8]) -> bool {
    raw != b"0" && raw.iter().all(u8::is_ascii_digit)
}
