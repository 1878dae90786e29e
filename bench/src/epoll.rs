//! An epoll set, level-triggered unless said otherwise. Each `unsafe` block is one system call on descriptors that are open and on memory that is borrowed for
//! the call.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

pub struct Epoll {
    set: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// A set that reports up to `batch` descriptors per wait.
    pub fn new(batch: usize) -> io::Result<Self> {
        let set = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let set = unsafe { OwnedFd::from_raw_fd(set) };
        Ok(Self { set, events: vec![libc::epoll_event { events: 0, u64: 0 }; batch] })
    }

    /// Reports `token` from now on while there is something to read.
    pub fn add(&self, descriptor: &impl AsRawFd, token: u64) -> io::Result<()> {
        self.watch(descriptor, libc::EPOLLIN, token)
    }

    /// Reports `token` each time that something comes, the end too, and when a socket that was full has room again.
    pub fn add_edge_triggered(&self, descriptor: &impl AsRawFd, token: u64) -> io::Result<()> {
        self.watch(descriptor, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET, token)
    }

    fn watch(&self, descriptor: &impl AsRawFd, events: i32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        check(unsafe { libc::epoll_ctl(self.set.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor.as_raw_fd(), &mut event) })?;
        Ok(())
    }

    /// Waits for something to read, at most so long (`None`: for ever); how many tokens [`Epoll::token`] then has.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let timeout_ms = timeout.map_or(-1, |timeout| i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX));
        let (events, room) = (self.events.as_mut_ptr(), self.events.len() as i32);
        match check(unsafe { libc::epoll_wait(self.set.as_raw_fd(), events, room, timeout_ms) }) {
            Ok(count) => Ok(count as usize),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// The token of the `index`-th descriptor that the last wait reported.
    pub fn token(&self, index: usize) -> u64 {
        self.events[index].u64
    }

    /// Whether the peer of the `index`-th descriptor has sent its last byte or is gone.
    pub fn is_ending(&self, index: usize) -> bool {
        self.events[index].events & (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0
    }

    /// Where a wait writes what it finds, for a request to the ring that waits in its place.
    pub fn events(&mut self) -> &mut [libc::epoll_event] {
        &mut self.events
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.set.as_raw_fd()
    }
}

/// One recv(2) that never blocks.
pub fn receive(socket: &impl AsRawFd, into: &mut [u8]) -> io::Result<usize> {
    let count = unsafe { libc::recv(socket.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
}

/// One send(2) that never blocks and raises no SIGPIPE.
pub fn send(socket: &impl AsRawFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let count = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
}

/// listen(2) again with a longer backlog than the standard library asks for.
pub fn lengthen_backlog(listener: &impl AsRawFd, backlog: i32) -> io::Result<()> {
    check(unsafe { libc::listen(listener.as_raw_fd(), backlog) })?;
    Ok(())
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
