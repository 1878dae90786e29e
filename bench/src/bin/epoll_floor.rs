//! The floor that the broker's CPU per message is compared with: a single-threaded echo server on level-triggered epoll that does
//! one receive of up to 64 kB and one send per wake and allocates nothing per message.

use clap::Parser;
use corelane_bench::{epoll, process};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};

#[derive(Parser)]
#[command(about = "An epoll echo server")]
struct Arguments {
    #[arg(long)]
    listen: SocketAddr,
}

const LISTENER: u64 = u64::MAX;

fn main() -> std::io::Result<()> {
    let arguments = Arguments::parse();
    process::raise_file_limit()?;
    let listener = TcpListener::bind(arguments.listen)?;
    listener.set_nonblocking(true)?;
    epoll::lengthen_backlog(&listener, 65_535)?;
    let mut set = epoll::Epoll::new(1024)?;
    set.add(&listener, LISTENER)?;
    println!("listening on {}", listener.local_addr()?);

    let mut connections: Vec<Option<TcpStream>> = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        for index in 0..set.wait(None)? {
            let token = set.token(index);
            if token == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    let slot = connections.iter().position(Option::is_none).unwrap_or(connections.len());
                    set.add(&stream, slot as u64)?;
                    if slot == connections.len() {
                        connections.push(None);
                    }
                    connections[slot] = Some(stream);
                }
                continue;
            }
            let slot = &mut connections[token as usize];
            let Some(stream) = slot else { continue };
            let echoed = match epoll::receive(stream, &mut buffer) {
                Ok(0) => false,
                // A peer that does not read its echo is cut off: this is a floor, not a server.
                Ok(count) => epoll::send(stream, &buffer[..count]).is_ok_and(|sent| sent == count),
                Err(error) => error.kind() == ErrorKind::WouldBlock,
            };
            if !echoed {
                *slot = None;
            }
        }
    }
}
