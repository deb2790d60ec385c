//! Calls of file decoders, which may panic on a damaged file.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Guarded calls that run. The decoder's threads are not known here, so that the panic hook is silent for all threads
/// meanwhile.
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// Decrements [`RUNNING`], also after a panic.
struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        // Relaxed: the hook reads a number, and orders nothing by it.
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs a decoder without a panic message on standard error.
///
/// # Errors
/// The panic's message.
pub(crate) fn guarded<T>(decoder: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if RUNNING.load(Ordering::Relaxed) == 0 {
                print(info);
            }
        }));
    });
    RUNNING.fetch_add(1, Ordering::Relaxed);
    let _running = Running;
    catch_unwind(AssertUnwindSafe(decoder))
        .map_err(|panic| format!("the decoder failed: {}", message(&*panic)))
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        assert_eq!(guarded(|| 7), Ok(7));
        assert_eq!(guarded(|| panic!("too wide")), Err::<(), _>("the decoder failed: too wide".into()));
        assert_eq!(guarded(|| panic!("{} bits", 80)), Err::<(), _>("the decoder failed: 80 bits".into()));
        // Calls of other tests end; one that is counted for ever would not.
        let start = std::time::Instant::now();
        while RUNNING.load(Ordering::Relaxed) > 0 {
            assert!(start.elapsed().as_secs() < 120, "a call is still counted");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
