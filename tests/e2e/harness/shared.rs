//! Where the material lies that is not part of this project: recorded streams of real providers.

use std::path::PathBuf;

/// The folder `shared` beside the project, or `WEIR_SHARED`. Missing, it is a failure, unless
/// `WEIR_NO_SHARED=1` says that one knows: then `None`, and the test is over.
pub(crate) fn shared() -> Option<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared");
    let folder = std::env::var_os("WEIR_SHARED").map_or(beside, PathBuf::from);
    if folder.join("captures/index.json").is_file() {
        return Some(folder);
    }
    assert!(
        std::env::var_os("WEIR_NO_SHARED").is_some_and(|value| value == "1"),
        "{} has no captures: put the shared material there, name its place in WEIR_SHARED, or set WEIR_NO_SHARED=1 \
         to go without these tests",
        folder.display()
    );
    println!("WEIR_NO_SHARED=1: this test was NOT run");
    None
}
