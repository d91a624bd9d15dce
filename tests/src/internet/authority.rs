//! The certificate authority of the fake internet, made anew for every lab.

use std::sync::Arc;

use anyhow::Context;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};

/// A root that clients are told to trust, and one certificate for every name there is.
///
/// One certificate serves: were the proxy to let a client reach another origin than the one it was
/// allowed, the client would not notice by the certificate. The origins do.
pub(crate) struct Authority {
    /// The root, in PEM.
    pub(crate) root: String,
    /// What origins answer a handshake with.
    pub(crate) identity: Identity,
}

/// The one certificate, for servers of either kind.
#[derive(Clone)]
pub(crate) struct Identity {
    /// Of HTTP/1.1, which say nothing of protocols.
    pub(crate) http: Arc<ServerConfig>,
    /// Of HTTP/2, which is agreed upon in the handshake (RFC 9113 §3.2).
    pub(crate) http2: Arc<ServerConfig>,
}

impl Authority {
    pub(crate) fn create(names: Vec<String>) -> anyhow::Result<Self> {
        let root_key = KeyPair::generate().context("make the root's key")?;
        let mut root = CertificateParams::new(Vec::new())?;
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        root.distinguished_name
            .push(DnType::CommonName, "sandbox-egress test root");
        let certificate = root.self_signed(&root_key).context("sign the root")?;
        let issuer = Issuer::new(root, root_key);

        let leaf_key = KeyPair::generate().context("make the origins' key")?;
        let leaf = CertificateParams::new(names)?.signed_by(&leaf_key, &issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let http = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], key)?;
        let mut http2 = http.clone();
        http2.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self {
            root: certificate.pem(),
            identity: Identity {
                http: Arc::new(http),
                http2: Arc::new(http2),
            },
        })
    }
}
