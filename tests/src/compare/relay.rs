//! The least that a CONNECT proxy can do: what any other is measured against.
//!
//! It decides nothing and resolves nothing. It reads the head of the request, dials that port of
//! loopback, copies the first bytes, and splices what proves to be bulk through a pipe of 1 MiB.

use std::{cell::RefCell, future::poll_fn, io, net::Ipv4Addr, rc::Rc};

use anyhow::Context;
use rustix::{
    net::Shutdown,
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::{TcpListener, TcpSocket, TcpStream},
    task::{LocalSet, spawn_local},
};

/// Serves on `listener` until it is killed.
pub fn serve(listener: std::net::TcpListener) -> anyhow::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("start an event loop")?;
    runtime.block_on(LocalSet::new().run_until(async {
        let listener = TcpListener::from_std(listener)?;
        let scratch = Rc::new(RefCell::new(vec![0; COPY]));
        loop {
            let (client, _) = listener.accept().await?;
            let scratch = Rc::clone(&scratch);
            // Whoever goes away in the middle is measured by the other end.
            drop(spawn_local(async move { tunnel(client, &scratch).await }));
        }
    }))
}

async fn tunnel(mut client: TcpStream, scratch: &RefCell<Vec<u8>>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut head = Vec::with_capacity(512);
    while !head.ends_with(b"\r\n\r\n") {
        if client.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let Some(port) = allowed_port(&head) else {
        client.write_all(b"HTTP/1.1 403 no\r\n\r\n").await?;
        return client.shutdown().await;
    };
    drop(head);
    let far = TcpSocket::new_v4()?;
    far.set_nodelay(true)?;
    let far = far.connect((Ipv4Addr::LOCALHOST, port).into()).await?;
    client.write_all(b"HTTP/1.1 200 ok\r\n\r\n").await?;
    let (up, down) = tokio::join!(carry(&client, &far, scratch), carry(&far, &client, scratch));
    up.and(down)
}

/// The port of the request's target, unless its host begins like one that is denied.
fn allowed_port(head: &[u8]) -> Option<u16> {
    let head = std::str::from_utf8(head).ok()?;
    let target = head.split(' ').nth(1)?;
    let (host, port) = target.rsplit_once(':')?;
    port.parse().ok().filter(|_| !host.starts_with("denied"))
}

async fn carry(from: &TcpStream, to: &TcpStream, scratch: &RefCell<Vec<u8>>) -> io::Result<()> {
    let mut copied = 0;
    while copied < PROOF {
        poll_fn(|cx| from.poll_read_ready(cx)).await?;
        let rest = {
            let mut scratch = scratch.borrow_mut();
            let length = match from.try_read(&mut scratch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                other => other?,
            };
            if length == 0 {
                return Ok(rustix::net::shutdown(to, Shutdown::Write)?);
            }
            copied += length;
            let bytes = scratch.get(..length).unwrap_or_default();
            let written = match to.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                other => other?,
            };
            bytes.get(written..).unwrap_or_default().to_vec()
        };
        write_all(to, &rest).await?;
    }
    splice_all(from, to).await
}

async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        poll_fn(|cx| to.poll_write_ready(cx)).await?;
        match to.try_write(bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn splice_all(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let size = fcntl_setpipe_size(&writer, PIPE)?;
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        poll_fn(|cx| from.poll_read_ready(cx)).await?;
        let filling = || Ok(splice(from, None, &writer, None, size, flags)?);
        let mut left = match from.try_io(Interest::READABLE, filling) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            other => other?,
        };
        if left == 0 {
            return Ok(rustix::net::shutdown(to, Shutdown::Write)?);
        }
        while left > 0 {
            let emptying = || Ok(splice(&reader, None, to, None, left, flags)?);
            match to.try_io(Interest::WRITABLE, emptying) {
                Ok(moved) => left -= moved,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll_fn(|cx| to.poll_write_ready(cx)).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

const COPY: usize = 64 * 1024;
const PROOF: usize = 256 * 1024;
const PIPE: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_target_that_is_not_denied_has_a_port() {
        for (head, port) in [
            ("CONNECT bench.test:7 HTTP/1.1\r\n\r\n", Some(7)),
            ("CONNECT denied.test:7 HTTP/1.1\r\n\r\n", None),
            ("CONNECT bench.test HTTP/1.1\r\n\r\n", None),
            ("x", None),
        ] {
            assert_eq!(allowed_port(head.as_bytes()), port, "{head}");
        }
    }
}
