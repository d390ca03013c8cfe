//! How late the kernel may wake a thread from its sleep.

use std::io;
use std::num::NonZeroU64;

/// Lets the calling thread's sleeps end on time: Linux may put them off by 50 us otherwise.
///
/// # Errors
/// When the kernel refuses: sleeps stay as they are.
pub fn narrow() -> io::Result<()> {
    let nanosecond = NonZeroU64::MIN;
    Ok(rustix::thread::set_current_timer_slack(Some(nanosecond))?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn narrowed_slack_is_a_nanosecond_for_this_thread_alone() {
        let usual_ns = rustix::thread::current_timer_slack().unwrap();
        std::thread::spawn(|| {
            super::narrow().unwrap();
            assert_eq!(rustix::thread::current_timer_slack(), Ok(1));
        })
        .join()
        .unwrap();
        assert_eq!(rustix::thread::current_timer_slack(), Ok(usual_ns));
    }
}
