//! Servers that clients reach through the proxy, or must not.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crate::harness::TIMEOUT;

/// A server on a free port of loopback.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    received: Arc<Mutex<Vec<u8>>>,
}

/// One connection, seen by its server.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    received: Arc<Mutex<Vec<u8>>>,
}

impl Origin {
    /// Has `handle` serve each connection, on a thread of its own.
    pub(crate) fn serve(handle: impl Fn(Peer) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, received) = (Arc::default(), Arc::default());
        let (counter, record, handle) = (
            Arc::clone(&connections),
            Arc::clone(&received),
            Arc::new(handle),
        );
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                AtomicUsize::fetch_add(&counter, 1, Ordering::SeqCst);
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                let peer = Peer {
                    stream,
                    received: Arc::clone(&record),
                };
                let handle = Arc::clone(&handle);
                thread::spawn(move || handle(peer));
            }
        });
        Self {
            address,
            connections,
            received,
        }
    }

    /// Sends back what it is sent.
    pub(crate) fn echo() -> Self {
        Self::serve(|mut peer| {
            while let Some(bytes) = peer.read() {
                if peer.stream.write_all(&bytes).is_err() {
                    break;
                }
            }
        })
    }

    /// Answers each request with its own head and body, in the body.
    pub(crate) fn http() -> Self {
        Self::serve(|mut peer| {
            while let Some(request) = peer.request() {
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{request}",
                    request.len()
                );
                peer.stream.write_all(answer.as_bytes()).unwrap();
            }
        })
    }

    /// Answers every request with `response`, and closes.
    pub(crate) fn fixed(response: &'static str) -> Self {
        Self::serve(move |mut peer| {
            peer.request().expect("a request");
            peer.stream.write_all(response.as_bytes()).unwrap();
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Everything that any connection has sent so far.
    pub(crate) fn received(&self) -> String {
        String::from_utf8_lossy(&self.received.lock().unwrap()).into_owned()
    }
}

impl Peer {
    /// What comes next; `None` at the end.
    pub(crate) fn read(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 64 * 1024];
        let length = self
            .stream
            .read(&mut bytes)
            .ok()
            .filter(|&length| length > 0)?;
        bytes.truncate(length);
        self.received.lock().unwrap().extend_from_slice(&bytes);
        Some(bytes)
    }

    /// The next request, with its body where `Content-Length` or chunks announce one.
    pub(crate) fn request(&mut self) -> Option<String> {
        let mut request = Vec::new();
        loop {
            request.extend(self.read()?);
            let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
            let Some(head_end) = text.find("\r\n\r\n").map(|at| at + 4) else {
                continue;
            };
            let length = text
                .split("content-length: ")
                .nth(1)
                .and_then(|rest| rest.split("\r\n").next());
            let whole = if text[..head_end].contains("transfer-encoding") {
                text.ends_with("0\r\n\r\n")
            } else {
                request.len() >= head_end + length.map_or(0, |length| length.parse().unwrap())
            };
            if whole {
                return Some(String::from_utf8_lossy(&request).into_owned());
            }
        }
    }
}
