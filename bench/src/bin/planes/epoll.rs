//! Edge-triggered epoll with the plain system calls, and what may come before it sleeps.

use crate::sockets::{Connections, EdgeSet, set_busy_poll};
use corelane_bench::epoll::{receive, send};
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// `spin`: how long it looks before it sleeps. `busy_poll`: how long the kernel polls the device, if it has one to poll.
pub fn run(listener: &TcpListener, spin: Option<Duration>, busy_poll: Option<Duration>) -> io::Result<()> {
    let mut set = EdgeSet::new(64)?;
    set.add(listener.as_raw_fd())?;
    let mut connections = Connections::default();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let until = spin.map(|spin| Instant::now() + spin);
        let count = loop {
            let may_sleep = until.is_none_or(|until| Instant::now() >= until);
            match set.wait(may_sleep)? {
                0 => {}
                count => break count,
            }
        };
        for index in 0..count {
            let descriptor = set.events[index].u64 as i32;
            if descriptor == listener.as_raw_fd() {
                connections.accept(listener, |socket| {
                    busy_poll.map_or(Ok(()), |time| set_busy_poll(socket, time))?;
                    set.add(socket)
                })?;
                continue;
            }
            // SAFETY: it is closed only below, and events are of sockets that are open.
            let socket = unsafe { BorrowedFd::borrow_raw(descriptor) };
            let goes_on = loop {
                match receive(&socket, &mut buffer) {
                    Ok(0) => break false,
                    Ok(count) if !send(&socket, &buffer[..count]).is_ok_and(|sent| sent == count) => break false,
                    Ok(count) if count == buffer.len() => {}
                    Ok(_) => break true,
                    Err(error) => break error.kind() == ErrorKind::WouldBlock,
                }
            };
            if !goes_on {
                connections.close(descriptor);
            }
        }
    }
}
