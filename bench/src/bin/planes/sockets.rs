//! The connections of a plane, and the system calls that several planes make. Each `unsafe` block is one call on descriptors that are
//! open and on memory that is borrowed for it.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The connections by their descriptors.
#[derive(Default)]
pub struct Connections(Vec<Option<TcpStream>>);

impl Connections {
    /// Accepts whoever waits.
    pub fn accept(&mut self, listener: &TcpListener, mut each: impl FnMut(RawFd) -> io::Result<()>) -> io::Result<()> {
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nodelay(true)?;
            let descriptor = stream.as_raw_fd();
            let place = descriptor as usize;
            if place >= self.0.len() {
                self.0.resize_with(place + 1, || None);
            }
            self.0[place] = Some(stream);
            each(descriptor)?;
        }
        Ok(())
    }

    pub fn close(&mut self, descriptor: RawFd) {
        self.0[descriptor as usize] = None;
    }
}

/// An epoll set, edge-triggered; a descriptor is its own token.
pub struct EdgeSet {
    set: OwnedFd,
    pub events: Vec<libc::epoll_event>,
}

impl EdgeSet {
    pub fn new(batch: usize) -> io::Result<Self> {
        let set = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let set = unsafe { OwnedFd::from_raw_fd(set) };
        Ok(Self { set, events: vec![libc::epoll_event { events: 0, u64: 0 }; batch] })
    }

    pub fn add(&self, descriptor: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, descriptor)
    }

    /// Reports it once more if there is something to read already.
    pub fn add_again(&self, descriptor: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, descriptor)
    }

    fn control(&self, operation: i32, descriptor: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: descriptor as u64 };
        check(unsafe { libc::epoll_ctl(self.set.as_raw_fd(), operation, descriptor, &mut event) })?;
        Ok(())
    }

    /// Waits; for ever if told so, else it only looks.
    pub fn wait(&mut self, for_ever: bool) -> io::Result<usize> {
        let (events, room) = (self.events.as_mut_ptr(), self.events.len() as i32);
        match check(unsafe { libc::epoll_wait(self.set.as_raw_fd(), events, room, if for_ever { -1 } else { 0 }) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            result => result.map(|count| count as usize),
        }
    }
}

impl AsRawFd for EdgeSet {
    fn as_raw_fd(&self) -> RawFd {
        self.set.as_raw_fd()
    }
}

pub fn set_busy_poll(socket: RawFd, time: Duration) -> io::Result<()> {
    let micros = time.as_micros() as i32;
    let (value, size) = (&raw const micros, size_of::<i32>() as u32);
    check(unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, value.cast(), size) })?;
    Ok(())
}

/// A page that the kernel shares, for a ring of provided buffers; for as long as the process runs.
pub fn page(bytes: usize) -> io::Result<*mut u8> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    match unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) } {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        page => Ok(page.cast()),
    }
}

/// Whether nothing came, or nothing could be taken, and the peer is well.
pub fn is_idle(error: i32) -> bool {
    matches!(error, libc::EAGAIN | libc::EINTR)
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
