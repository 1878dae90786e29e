//! glommio's streams: a task and a buffer for each connection, parked in glommio's reactor.

use crate::ring::unsupported;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::net::{TcpListener, TcpStream};
use glommio::{LocalExecutorBuilder, Placement};
use std::io;

/// In each task, and so in each connection.
const BUFFER_BYTES: usize = 512;

pub fn serve(port: u16) -> io::Result<()> {
    // Not pinned again: whoever started the server has chosen its core.
    let executor = LocalExecutorBuilder::new(Placement::Unbound)
        .io_memory(4 << 20)
        .spawn(move || accept(port))
        .map_err(|error| unsupported(format!("glommio's executor does not start: {error}")))?;
    executor.join().map_err(|error| io::Error::other(error.to_string()))?
}

async fn accept(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let stream = listener.accept().await?;
        stream.set_nodelay(true)?;
        // What it ends with is the peer's end or its failure, and both end it.
        glommio::spawn_local(echo(stream)).detach();
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count]).await?,
        }
    }
}
