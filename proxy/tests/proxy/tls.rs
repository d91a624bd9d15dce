//! What TLS clients say first, as rustls makes them, and a TLS server to complete them with.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::Arc,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
};

use crate::origin::Origin;

/// The first bytes of a client that encrypts its real hello, and names `front.example` outside.
pub(crate) const ECH_HELLO: &[u8] = include_bytes!("../hellos/rustls-ech.bin");

/// A certificate for one name, its key, and a client that trusts it.
pub(crate) struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    pub(crate) fn of(name: &str) -> Self {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        Self {
            certificate: made.cert.der().clone(),
            key,
        }
    }

    /// A server that greets whoever completes a handshake.
    pub(crate) fn origin(&self) -> Origin {
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .unwrap();
        let config = Arc::new(config);
        Origin::serve(move |peer| {
            let server = ServerConnection::new(Arc::clone(&config)).unwrap();
            // A client that is refused on its way leaves the handshake open.
            let _ = StreamOwned::new(server, peer.stream).write_all(b"welcome");
        })
    }

    /// Completes a handshake for `name` on `stream` and reads the greeting.
    pub(crate) fn greeting(&self, name: &str, stream: TcpStream) -> String {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        let client = client(roots, name, true);
        let mut greeting = [0; 7];
        StreamOwned::new(client, stream)
            .read_exact(&mut greeting)
            .unwrap();
        String::from_utf8_lossy(&greeting).into_owned()
    }
}

/// The first bytes of a client that asks for `name`.
pub(crate) fn hello(name: &str) -> Vec<u8> {
    first_bytes(client(RootCertStore::empty(), name, true))
}

/// The first bytes of a client that asks for no name.
pub(crate) fn nameless_hello() -> Vec<u8> {
    first_bytes(client(RootCertStore::empty(), "unnamed.example", false))
}

fn client(roots: RootCertStore, name: &str, sni: bool) -> ClientConnection {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.enable_sni = sni;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    ClientConnection::new(Arc::new(config), name).unwrap()
}

fn first_bytes(mut client: ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}
