//! Plain epoll, edge-triggered: one receive and one send per event, each a system call.

use crate::sockets::{self, Connections, OWED_BYTES_MAX};
use corelane_bench::epoll::{Epoll, receive, send};
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

const LISTENER: u64 = u64::MAX;

struct Connection {
    stream: TcpStream,
    /// Received, and not yet taken back.
    owed: Vec<u8>,
}

pub fn serve(port: u16) -> io::Result<()> {
    let listener = sockets::listen(port)?;
    let mut set = Epoll::new(1024)?;
    set.add(&listener, LISTENER)?;
    let mut connections = Connections::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        for index in 0..set.wait(None)? {
            let token = set.token(index);
            if token == LISTENER {
                while let Some(stream) = sockets::accept(&listener)? {
                    let socket = stream.as_raw_fd();
                    set.add_edge_triggered(&stream, socket as u64)?;
                    connections.insert(socket, Connection { stream, owed: Vec::new() });
                }
            } else if let Some(connection) = connections.get(token as i32)
                && connection.echo(set.is_ending(index), &mut buffer).is_err()
            {
                connections.remove(token as i32);
            }
        }
    }
}

impl Connection {
    /// Sends back what there is; an error if that was the end.
    fn echo(&mut self, is_ending: bool, buffer: &mut [u8]) -> io::Result<()> {
        loop {
            if !self.owed.is_empty() {
                let sent = send_some(&self.stream, &self.owed)?;
                self.owed.drain(..sent);
            }
            let count = match receive(&self.stream, buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let received = &buffer[..count];
            let sent = if self.owed.is_empty() { send_some(&self.stream, received)? } else { 0 };
            self.owed.extend_from_slice(&received[sent..]);
            if self.owed.len() > OWED_BYTES_MAX {
                return Err(ErrorKind::OutOfMemory.into());
            }
            // A receive that leaves room has emptied the socket, but for its end.
            if count < buffer.len() && !is_ending {
                return Ok(());
            }
        }
    }
}

/// As much as the socket takes.
fn send_some(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match send(stream, bytes) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}
