//! Whose memory it is: the allocator, and how the system backs what it has.
//!
//! Called by the commands that serve, before anything else. Touches a setting of the process.
//!
//! With glibc's own allocator a short request takes more processor time, and the memory of large request
//! bodies stays for ever, unless the environment says otherwise before the process starts.

/// For C as well, that is for SQLite.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Of the buffers of an open stream most pages are never touched; in huge ones all of them would be
/// resident. Where that cannot be said, streams need more memory and work all the same.
pub(crate) fn in_small_pages() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};
    use weir::admission::load::{give_back, resident};

    #[test]
    fn b3_what_is_free_goes_back_when_it_is_asked_for() {
        const BYTES: usize = 64 * 1024 * 1024;
        let before = resident().unwrap();
        drop(std::hint::black_box(vec![1_u8; BYTES]));
        let until = Instant::now() + Duration::from_secs(30);
        while resident().unwrap() > before + BYTES as u64 / 4 {
            assert!(Instant::now() < until, "it stays");
            give_back();
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }
}
