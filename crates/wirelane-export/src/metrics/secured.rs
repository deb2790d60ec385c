//! Access from other hosts: TLS with a certificate, and a bearer token.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use subtle::ConstantTimeEq as _;

use crate::{Error, Result};

/// Time between two looks at the files.
const LOOKS: Duration = Duration::from_secs(1);
/// Maximum size of a file in bytes.
const LONGEST_FILE: u64 = 1 << 20;
/// Length of a token in characters: a shorter one could be guessed.
const TOKEN: std::ops::RangeInclusive<usize> = 16..=4096;

/// The place of the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// In a file.
    File(PathBuf),
    /// In an environment variable of this name.
    Variable(String),
}

/// The files of TLS and of the token.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The certificate chain of this host, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
    /// The token.
    pub token: Token,
}

/// TLS and token for access from other hosts.
#[derive(Clone)]
pub struct Secured {
    /// TLS 1.3, without session tickets: each connection is one request.
    pub(super) tls: Arc<ServerConfig>,
    token: Arc<[u8]>,
}

impl std::fmt::Debug for Secured {
    /// Omits the token, which would appear in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secured").finish_non_exhaustive()
    }
}

impl Secured {
    /// Reads the certificate, its key and the token.
    ///
    /// # Errors
    /// [`Error::Target`], with the file's or variable's name: if it cannot be read, has invalid contents, or, for the key
    /// and the token, is accessible for others than its owner and its group.
    pub fn read(Sources { certificate, key, token }: &Sources) -> Result<Secured> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&read(certificate, false)?)
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| wrong(certificate, format!("not a PEM certificate: {error}")))?;
        if chain.is_empty() {
            return Err(wrong(
                certificate,
                "no PEM certificate in it: expected a block that begins with BEGIN CERTIFICATE",
            ));
        }
        let private = PrivateKeyDer::from_pem_slice(&read(key, true)?)
            .map_err(|error| wrong(key, format!("not a PEM private key: {error}")))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
        let mut config = config.map_err(|error| {
            wrong(certificate, format!("it cannot be used with the key {}: {error}", key.display()))
        })?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let (text, source) = match token {
            Token::File(path) => (read(path, true)?, path.display().to_string()),
            Token::Variable(name) => {
                let source = format!("environment variable {}", name.escape_debug());
                let value = std::env::var_os(name).ok_or_else(|| Error::Target {
                    target: source.clone(),
                    reason: "it is not set: expected the token in it".to_owned(),
                })?;
                (value.into_encoded_bytes(), source)
            }
        };
        let text = text.trim_ascii();
        if !TOKEN.contains(&text.len()) || !text.iter().all(u8::is_ascii_graphic) {
            let reason = format!(
                "a token is of {} to {} letters, digits and signs, without blanks, as 'openssl rand -hex 32' makes",
                TOKEN.start(),
                TOKEN.end()
            );
            return Err(Error::Target { target: source, reason });
        }
        Ok(Secured { tls: Arc::new(config), token: text.into() })
    }

    /// Whether a request's head has the token (`Authorization: Bearer TOKEN`, RFC 6750). The comparison takes constant
    /// time.
    pub(super) fn admits(&self, head: &[u8]) -> bool {
        let mut lines = head.split(|byte| *byte == b'\n').skip(1).filter_map(|line| {
            let colon = line.iter().position(|byte| *byte == b':')?;
            let (name, value) = line.split_at(colon);
            name.eq_ignore_ascii_case(b"authorization").then(|| value[1..].trim_ascii())
        });
        // Two Authorization headers are ambiguous.
        let (Some(value), None) = (lines.next(), lines.next()) else { return false };
        let Some((scheme, given)) = value.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(given.trim_ascii().ct_eq(&self.token))
    }
}

/// Size, inode and time of change of a file.
type Stamp = (u64, u64, i64, i64);

/// TLS and token whose files are read again when they change, as certificates are renewed.
#[derive(Debug)]
pub(super) struct Renewed {
    sources: Sources,
    stamps: Option<Vec<Stamp>>,
    looked: Instant,
    pub(super) secured: Secured,
}

impl Renewed {
    /// Reads the files.
    ///
    /// # Errors
    /// As [`Secured::read`].
    pub(super) fn read(sources: Sources) -> Result<Renewed> {
        let stamps = sources.stamps();
        let secured = Secured::read(&sources)?;
        Ok(Renewed { sources, stamps, looked: Instant::now(), secured })
    }

    /// Reads the files again if one of them has changed. If they have a mistake, as while only one of two is there, those
    /// of before stay in use until there is another change.
    pub(super) fn look(&mut self) {
        if self.looked.elapsed() < LOOKS {
            return;
        }
        self.looked = Instant::now();
        // Files that are missing are being replaced, or this user may not see them.
        let Some(stamps) = self.sources.stamps() else { return };
        if self.stamps.as_ref() == Some(&stamps) {
            return;
        }
        self.stamps = Some(stamps);
        match Secured::read(&self.sources) {
            Ok(secured) => {
                self.secured = secured;
                tracing::info!("{}: read again", self.sources.certificate.display());
            }
            Err(error) => {
                tracing::warn!("metrics: {error}; the certificate and the token of before stay in use");
            }
        }
    }
}

impl Sources {
    /// The files.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let token = match &self.token {
            Token::File(path) => Some(path.as_path()),
            Token::Variable(_) => None,
        };
        [self.certificate.as_path(), &self.key].into_iter().chain(token)
    }

    /// The state of the files; `None`: one of them cannot be seen.
    fn stamps(&self) -> Option<Vec<Stamp>> {
        let stamp = |path: &Path| {
            let meta = path.metadata().ok()?;
            Some((meta.size(), meta.ino(), meta.ctime(), meta.ctime_nsec()))
        };
        self.files().map(stamp).collect()
    }
}

fn wrong(path: &Path, reason: impl Into<String>) -> Error {
    Error::Target { target: path.display().to_string(), reason: reason.into() }
}

/// Contents of a file. A secret file is refused if others could read or replace it.
fn read(path: &Path, is_secret: bool) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| wrong(path, error.to_string());
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode();
    if is_secret && mode & 0o007 != 0 {
        return Err(wrong(path, format!("is readable by others (mode {:04o}); run chmod 600", mode & 0o777)));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(wrong(path, format!("it has more than {LONGEST_FILE} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_the_one_and_nothing_else() {
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_protocol_versions(&[&TLS13]).unwrap().with_no_client_auth();
        let nobody = Arc::new(rustls::server::ResolvesServerCertUsingSni::new());
        let tls = Arc::new(config.with_cert_resolver(nobody));
        let secured = Secured { tls, token: b"0123456789abcdef"[..].into() };
        let head = |headers: &str| format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        for (headers, admitted) in [
            ("Authorization: Bearer 0123456789abcdef\r\n", true),
            ("authorization:bearer   0123456789abcdef  \r\n", true),
            ("", false),
            ("Authorization: Bearer 0123456789abcdeF\r\n", false),
            ("Authorization: Bearer 0123456789abcde\r\n", false),
            ("Authorization: Bearer 0123456789abcdef0\r\n", false),
            ("Authorization: Bearer \r\n", false),
            ("Authorization: Bearer\r\n", false),
            ("Authorization: Basic 0123456789abcdef\r\n", false),
            ("Authorization: 0123456789abcdef\r\n", false),
            ("X-Authorization: Bearer 0123456789abcdef\r\n", false),
            ("Authorization: Bearer 0123456789abcdef\r\nAuthorization: Bearer x\r\n", false),
            ("\u{0}Authorization\u{0}: Bearer 0123456789abcdef\r\n", false),
        ] {
            assert_eq!(secured.admits(head(headers).as_bytes()), admitted, "{headers:?}");
        }
        // A header in the request line does not count.
        assert!(!secured.admits(b"Authorization: Bearer 0123456789abcdef\r\n\r\n"));
        assert!(!format!("{secured:?}").contains("0123"));
    }
}
