//! Whose memory it is: the allocator, and how the system backs what it has.
//!
//! Called by the commands that serve, before anything else. Touches a setting of the process.
//!
//! glibc's own allocator costs a short request a quarter more time: what one thread makes and another
//! frees (records, which the ledger's thread drops) takes the locks of its arenas. It also keeps large
//! request bodies for ever, unless the environment says otherwise before the process starts.

/// For C as well, that is for SQLite.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Of the buffers of an open stream most pages are never touched; in huge ones all of them would be
/// resident, 95 KiB instead of 36. Where that cannot be said, streams need more memory and work all the same.
pub(crate) fn in_small_pages() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
