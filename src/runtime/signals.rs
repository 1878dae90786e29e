//! SIGTERM and SIGINT: the first asks for an orderly shutdown, a second one ends the process at once. Those that come together with
//! the first are one with it: `timeout`, and shells, signal the process and then its group.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Signals within this time of the first are not a second one.
const TOGETHER: Duration = Duration::from_millis(100);

pub struct Signals {
    came: Receiver<()>,
}

impl Signals {
    pub fn install() -> io::Result<Self> {
        let next_ends = Arc::new(AtomicBool::new(false));
        let (mut pipe, sender) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&next_ends))?;
            low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        let (first, came) = mpsc::channel();
        let watch = move || {
            if pipe.read_exact(&mut [0]).is_ok() {
                // Nobody waits any more when the broker has failed meanwhile.
                let _ = first.send(());
                thread::sleep(TOGETHER);
                next_ends.store(true, SeqCst);
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(watch)?;
        Ok(Self { came })
    }

    /// Sleeps until a signal has come (true) or the time is over.
    pub fn wait(&self, time: Duration) -> bool {
        self.came.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
    }
}
