//! SIGTERM and SIGINT: the first asks for an orderly shutdown, the second ends the process at once.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

pub struct Signals {
    came: Arc<AtomicBool>,
    /// Gets a byte with each signal, so that one can sleep on it.
    wake: UnixStream,
}

impl Signals {
    pub fn install() -> io::Result<Self> {
        let came = Arc::new(AtomicBool::new(false));
        let (wake, sender) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag down and raises it, the second finds it raised.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&came))?;
            flag::register(signal, Arc::clone(&came))?;
            low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(Self { came, wake })
    }

    /// Sleeps until a signal has come (true) or the time is over.
    pub fn wait(&mut self, time: Duration) -> bool {
        if !self.came.load(SeqCst) && self.wake.set_read_timeout(Some(time.max(Duration::from_millis(1)))).is_ok() {
            // Timeouts and interruptions are no news.
            let _ = self.wake.read(&mut [0; 8]);
        }
        self.came.load(SeqCst)
    }
}
