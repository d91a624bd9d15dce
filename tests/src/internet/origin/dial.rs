//! What every origin does for a guest that it works with: it dials the visitor who asks for it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    net::{TcpStream, UdpSocket},
    time::timeout,
};

/// Answers `/dial/tcp/PORT` and `/dial/udp/PORT` with how dialling that port of `peer` went.
pub(super) async fn back(path: &str, peer: IpAddr) -> Option<String> {
    let (protocol, port) = path.strip_prefix("/dial/")?.split_once('/')?;
    let to = SocketAddr::new(peer, port.parse().ok()?);
    let dialling = async {
        match protocol {
            "tcp" => connect(to).await,
            _ => exchange(to).await,
        }
    };
    Some(match timeout(ANSWER, dialling).await {
        Ok(Ok(())) => "dialled in\n".to_owned(),
        Ok(Err(error)) => format!("not dialled in: {}\n", error.kind()),
        Err(_) => "not dialled in: no answer\n".to_owned(),
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "it dials a guest, as whoever works with one would"
)]
async fn connect(to: SocketAddr) -> io::Result<()> {
    TcpStream::connect(to).await.map(drop)
}

/// Sends a datagram and waits for another.
async fn exchange(to: SocketAddr) -> io::Result<()> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(to).await?;
    socket.send(b"x").await?;
    socket.recv(&mut [0; 8]).await.map(drop)
}

/// For the visitor to answer, who waits for ours meanwhile. Kernels send few refusals in a second.
const ANSWER: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket as Blocking};

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn whoever_can_be_dialled_is_told_from_who_cannot() {
        let listener = TcpListener::bind((HERE, 0)).unwrap();
        let path = format!("/dial/tcp/{}", listener.local_addr().unwrap().port());
        assert_eq!(back(&path, HERE).await.unwrap(), "dialled in\n");
        drop(listener);
        assert!(back(&path, HERE).await.unwrap().starts_with("not dialled"));

        let socket = Blocking::bind((HERE, 0)).unwrap();
        let path = format!("/dial/udp/{}", socket.local_addr().unwrap().port());
        let echo = std::thread::spawn(move || {
            let (_, peer) = socket.recv_from(&mut [0; 8]).unwrap();
            socket.send_to(b"x", peer).unwrap();
        });
        assert_eq!(back(&path, HERE).await.unwrap(), "dialled in\n");
        echo.join().unwrap();
        assert!(back(&path, HERE).await.unwrap().starts_with("not dialled"));
    }

    #[tokio::test]
    async fn other_pages_dial_nobody() {
        for path in ["/", "/dial", "/dial/tcp/", "/dial/tcp/70000"] {
            assert_eq!(back(path, HERE).await, None, "{path}");
        }
    }
}
