//! A file system of limited size, for tests of full disks; also for those of the ledger, in the library.

use std::path::Path;
use std::process::Command;

/// Gone with the value. Needs root, as `make test` has in its container.
pub(crate) struct Small(tempfile::TempDir);

impl Small {
    pub(crate) fn new(size: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let options = format!("size={size}");
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path()).status();
        assert!(status.expect("mount").success(), "this test mounts a small file system and must run as root");
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
