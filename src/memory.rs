//! Lets the memory of large bodies go back to the system.
//!
//! Called by the commands that serve, before anything else. Replaces the process by itself, with two
//! more variables in its environment; the process id stays.
//!
//! glibc gives blocks from 128 KiB on back as soon as they are freed, but raises that bound to the
//! largest one it has freed (up to 32 MiB): after some large request bodies they stay resident for
//! ever, which `max_memory` would take for load. Only the environment at the start fixes the bound.
//! After 120 bodies of 31 MiB, 8 at a time: 293 MiB and growing without it, 20 MiB with the first of
//! the two variables, for 13 to 30 % more processor time on such a body (on a busy machine).

/// Blocks from here on have pages of their own; what is held for each stream is smaller.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_PAGES: (&str, &str) = ("MALLOC_MMAP_THRESHOLD_", "1048576");
/// So much may lie free at the end of the heap; with a bound fixed it would be 128 KiB, which busy
/// streams would give back and take again all the time.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAY_LIE_FREE: (&str, &str) = ("MALLOC_TRIM_THRESHOLD_", "16777216");

/// Does it, unless it is done or the operator has set the bound.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn goes_back() {
    use std::os::unix::process::CommandExt as _;
    if std::env::var_os(OWN_PAGES.0).is_some() {
        return;
    }
    let mut arguments = std::env::args_os();
    let (Some(name), Ok(program)) = (arguments.next(), std::env::current_exe()) else { return };
    let mut again = std::process::Command::new(program);
    again.arg0(name).args(arguments).envs([OWN_PAGES, MAY_LIE_FREE]);
    // Comes back only if it could not be done; then it goes on as it is.
    let _could_not = again.exec();
}

/// Other systems' allocators do it by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) const fn goes_back() {}
