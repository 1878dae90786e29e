//! What the planes have in common but for the ring: the listener and the table of connections.

use corelane_bench::epoll;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

/// What a connection may owe its peer. One that does not read its echo is cut off there: these are floors, not servers.
pub const OWED_BYTES_MAX: usize = 64 << 20;

/// A listener on loopback that says where it listens.
pub fn listen(port: u16) -> io::Result<TcpListener> {
    let listener = bind(port)?;
    listening(&listener)?;
    Ok(listener)
}

/// A listener on loopback that does not block.
pub fn bind(port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    listener.set_nonblocking(true)?;
    epoll::lengthen_backlog(&listener, 65_535)?;
    Ok(listener)
}

/// Whoever started the server waits for this line.
pub fn listening(listener: &TcpListener) -> io::Result<()> {
    println!("listening on {}", listener.local_addr()?);
    Ok(())
}

/// Connections by the number of their descriptor.
pub struct Connections<C>(Vec<Option<C>>);

impl<C> Connections<C> {
    pub fn new() -> Self {
        Self(Vec::new())
    }

    pub fn insert(&mut self, socket: i32, connection: C) {
        let slot = socket as usize;
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        self.0[slot] = Some(connection);
    }

    pub fn get(&mut self, socket: i32) -> Option<&mut C> {
        self.0.get_mut(socket as usize)?.as_mut()
    }

    /// Forgets a connection, which closes its socket.
    pub fn remove(&mut self, socket: i32) -> Option<C> {
        self.0.get_mut(socket as usize)?.take()
    }
}

/// The next client that waits; `None` if none does.
pub fn accept(listener: &TcpListener) -> io::Result<Option<TcpStream>> {
    match listener.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            Ok(Some(stream))
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Both directions end: whatever is armed on the socket completes, which closing it would not do.
pub fn shut(socket: &impl AsRawFd) {
    // SAFETY: no pointers.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}
