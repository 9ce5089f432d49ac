//! Finds the recordings that live beside the project, not in it.
//!
//! Included by tests with `mod shared;` (or `#[path]` from elsewhere). A test that needs them fails
//! where they are missing, so that nobody takes a green run for a proof; `WEIR_NO_SHARED=1` leaves
//! those tests out, and says so.

use std::path::{Path, PathBuf};

/// The folder, or `None` where the caller was told to do without. `WEIR_SHARED` names it; otherwise it
/// is the `shared` beside the project, or beside a folder above it.
///
/// # Panics
/// If it is not there.
pub(crate) fn folder() -> Option<PathBuf> {
    let named = std::env::var_os("WEIR_SHARED").map(PathBuf::from);
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = named.or_else(|| project.ancestors().skip(1).map(|above| above.join("shared")).find(|it| it.is_dir()));
    if let Some(found) = found.filter(|found| found.join("captures/index.json").is_file()) {
        return Some(found);
    }
    if std::env::var_os("WEIR_NO_SHARED").is_some_and(|value| value == "1") {
        eprintln!("LEFT OUT: a test that needs the recordings in ../shared (WEIR_NO_SHARED=1)");
        return None;
    }
    panic!(
        "no recordings: ../shared/captures/index.json is not beside {}. Put the folder there, name it by \
         WEIR_SHARED=/path/to/shared, or leave these tests out by WEIR_NO_SHARED=1",
        project.display()
    );
}

/// A file in the folder; `None` as for [`folder`].
///
/// # Panics
/// If the file cannot be read.
pub(crate) fn read(name: &str) -> Option<Vec<u8>> {
    let path = folder()?.join(name);
    Some(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}
