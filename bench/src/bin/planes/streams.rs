//! glommio's own streams: a task for each connection, parked through glommio's reactor.

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::net::TcpListener;
use glommio::{LocalExecutorBuilder, Placement};
use std::io;
use std::net::SocketAddr;

pub fn run(listen: SocketAddr) -> io::Result<()> {
    let executor = LocalExecutorBuilder::new(Placement::Unbound).io_memory(4 << 20).spawn(move || serve(listen));
    executor.map_err(io::Error::other)?.join().map_err(io::Error::other)?
}

async fn serve(listen: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(listen).map_err(io::Error::other)?;
    println!("listening on {}", listener.local_addr().map_err(io::Error::other)?);
    loop {
        let mut stream = listener.accept().await.map_err(io::Error::other)?;
        stream.set_nodelay(true).map_err(io::Error::other)?;
        let echo = async move {
            let mut buffer = vec![0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..count]).await.is_err() {
                    break;
                }
            }
        };
        glommio::spawn_local(echo).detach();
    }
}
