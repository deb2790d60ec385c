//! Mutual authentication: certificates of one authority on both sides, TLS 1.3 with rustls.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::HANDSHAKE;
use super::wire::Wire;

/// Files of one side, all PEM.
#[derive(Clone, Debug)]
pub struct Files {
    /// Certificate, followed by the intermediate ones up to the authority's.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// The authority's certificate.
    pub ca: PathBuf,
}

impl Files {
    fn chain(&self) -> Result<Vec<CertificateDer<'static>>> {
        certificates(&self.cert)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>> {
        PrivateKeyDer::from_pem_file(&self.key).with_context(|| format!("the key {}", self.key.display()))
    }

    fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca)? {
            roots
                .add(certificate)
                .with_context(|| format!("the authority's certificate {}", self.ca.display()))?;
        }
        Ok(roots)
    }

    fn unusable(&self) -> String {
        format!("the certificate {} with the key {}", self.cert.display(), self.key.display())
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let named = || format!("the certificate {}", path.display());
    let found = CertificateDer::pem_file_iter(path).with_context(named)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().with_context(named)?;
    ensure!(
        !found.is_empty(),
        "{} has no certificate: it should be PEM, from BEGIN CERTIFICATE",
        path.display()
    );
    Ok(found)
}

/// TLS configuration of a manager.
#[derive(Clone, Debug)]
pub struct Manager(Arc<ClientConfig>);

impl Manager {
    /// Loads these files.
    ///
    /// # Errors
    /// The first unusable file, and the reason.
    pub fn new(files: &Files) -> Result<Manager> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_protocol_versions(&[&TLS13])?.with_root_certificates(files.roots()?);
        let config = builder.with_client_auth_cert(files.chain()?, files.key()?);
        Ok(Manager(Arc::new(config.with_context(|| files.unusable())?)))
    }

    /// Connects to the agent of this name or address.
    pub fn connect(&self, host: &str, mut socket: TcpStream) -> Result<Wire> {
        let name = ServerName::try_from(host.to_owned())
            .with_context(|| format!("{host} is no name of a machine"))?;
        let mut tls = ClientConnection::new(Arc::clone(&self.0), name)?;
        shake(&mut socket, |socket| {
            tls.complete_io(socket)?;
            Ok(tls.is_handshaking())
        })
        .with_context(|| {
            format!("its certificate is to be signed by the authority of --ca, and for {host}")
        })?;
        Ok(Wire::new(StreamOwned::new(tls, socket.try_clone()?), socket))
    }
}

/// TLS configuration of an agent.
#[derive(Clone, Debug)]
pub struct Listening(Arc<ServerConfig>);

impl Listening {
    /// Loads these files.
    pub fn new(files: &Files) -> Result<Listening> {
        let provider = Arc::new(ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(files.roots()?), Arc::clone(&provider));
        let verifier = verifier.build().with_context(|| files.ca.display().to_string())?;
        let builder = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
        let config =
            builder.with_client_cert_verifier(verifier).with_single_cert(files.chain()?, files.key()?);
        let mut config = config.with_context(|| files.unusable())?;
        // No session resumption: the certificates are checked at each connection.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Listening(Arc::new(config)))
    }

    /// Accepts a connection.
    pub fn accept(&self, mut socket: TcpStream) -> Result<Wire> {
        let mut tls = ServerConnection::new(Arc::clone(&self.0))?;
        let shaken = shake(&mut socket, |socket| {
            tls.complete_io(socket)?;
            Ok(tls.is_handshaking())
        });
        if let Err(error) = shaken {
            // rustls has sent an alert. If the socket were closed now, with unread data, a reset would discard the
            // alert.
            linger(&mut socket);
            return Err(error);
        }
        Ok(Wire::new(StreamOwned::new(tls, socket.try_clone()?), socket))
    }
}

/// Alert of the other side about this side's certificate, if that is the reason for the end of the connection.
pub fn refused(error: &anyhow::Error) -> Option<String> {
    let alert = |cause: &(dyn std::error::Error + 'static)| {
        let inner = cause.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref::<rustls::Error>()?;
        if let rustls::Error::AlertReceived(alert) = inner { Some(format!("{alert:?}")) } else { None }
    };
    error.chain().find_map(alert)
}

/// Continues until the handshake is complete or its maximum duration is over, however slowly the other side sends.
fn shake(
    socket: &mut TcpStream,
    mut step: impl FnMut(&mut Timed<'_>) -> std::io::Result<bool>,
) -> Result<()> {
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(HANDSHAKE))?;
    let mut timed = Timed { socket, end: Instant::now() + HANDSHAKE };
    while step(&mut timed)? {}
    Ok(())
}

/// A connection with a deadline.
struct Timed<'a> {
    socket: &'a mut TcpStream,
    end: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        let over = || {
            std::io::Error::new(ErrorKind::TimedOut, format!("the handshake takes longer than {HANDSHAKE:?}"))
        };
        if left.is_zero() {
            return Err(over());
        }
        self.socket.set_read_timeout(Some(left))?;
        self.socket
            .read(into)
            .map_err(|error| if error.kind() == ErrorKind::WouldBlock { over() } else { error })
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.socket.flush()
    }
}

/// Reads until the other side closes, for at most a second.
fn linger(socket: &mut TcpStream) {
    let end = Instant::now() + Duration::from_secs(1);
    let _ = socket.shutdown(Shutdown::Write);
    let _ = socket.set_read_timeout(Some(Duration::from_millis(200)));
    let mut rest = [0; 1024];
    while Instant::now() < end && socket.read(&mut rest).is_ok_and(|bytes| bytes > 0) {}
}
