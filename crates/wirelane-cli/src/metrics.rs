//! The options for Prometheus metrics.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use wirelane::Error;
use wirelane_export::metrics::{Endpoint, Sources, Token};

use crate::source::{self, SourceArgs};

/// Options of the metrics endpoint.
#[derive(clap::Args, Debug)]
pub struct MetricsArgs {
    /// Serve Prometheus at http://ADDRESS/metrics, as in 127.0.0.1:9464, during the capture. An address that other
    /// hosts reach needs a certificate, its key and a token, and uses https
    #[arg(long = "metrics", value_name = "ADDRESS", conflicts_with = "read", help_heading = source::OUTPUT)]
    address: Option<SocketAddr>,

    /// The certificate for that, and those between it and an authority's: PEM
    #[arg(long, value_name = "FILE", requires = "address", help_heading = source::OUTPUT)]
    metrics_cert: Option<PathBuf>,

    /// Its private key, PEM; others than the file's owner and group may not have rights to it
    #[arg(long, value_name = "FILE", requires = "address", help_heading = source::OUTPUT)]
    metrics_key: Option<PathBuf>,

    /// The token that Prometheus has to give (bearer token, 16 characters or more); others may have no rights to this file
    /// either
    #[arg(long, value_name = "FILE", requires = "address", help_heading = source::OUTPUT)]
    metrics_token_file: Option<PathBuf>,

    /// The environment variable that has the token, instead of a file
    #[arg(long, value_name = "NAME", requires = "address", conflicts_with = "metrics_token_file", help_heading = source::OUTPUT)]
    metrics_token_env: Option<String>,
}

impl MetricsArgs {
    /// Binds the endpoint, before privileges are dropped; `None` if it was not requested.
    pub fn open(&self, source: &mut SourceArgs) -> Result<Option<Endpoint>> {
        let Some(address) = self.address else { return Ok(None) };
        if !source.read.is_empty() {
            let reason = "a file is read as fast as possible: nothing can be scraped meanwhile";
            return Err(Error::BadOption { option: "--metrics", reason: reason.into() }.into());
        }
        source.rights.serves = true;
        let secured = self.secured()?;
        source.rights.reads.extend(secured.iter().flat_map(Sources::files).map(Path::to_owned));
        Ok(Some(Endpoint::bind(address, secured).map_err(told)?))
    }

    /// Environment variables with secrets.
    pub fn secrets(&self) -> Vec<String> {
        self.metrics_token_env.iter().cloned().collect()
    }

    /// TLS and token for other hosts, if given: all three or none.
    fn secured(&self) -> Result<Option<Sources>> {
        let file = self.metrics_token_file.clone().map(Token::File);
        let token = file.or_else(|| self.metrics_token_env.clone().map(Token::Variable));
        match (&self.metrics_cert, &self.metrics_key, token) {
            (None, None, None) => Ok(None),
            (Some(certificate), Some(key), Some(token)) => {
                Ok(Some(Sources { certificate: certificate.clone(), key: key.clone(), token }))
            }
            _ => {
                let reason = "--metrics-cert, --metrics-key and --metrics-token-file (or --metrics-token-env) are given together";
                Err(Error::BadOption { option: "--metrics", reason: reason.into() }.into())
            }
        }
    }
}

/// Converts an error to a usage error.
fn told(error: wirelane_export::Error) -> anyhow::Error {
    match error {
        wirelane_export::Error::Target { target, reason } => {
            Error::BadOption { option: "--metrics", reason: format!("{target}: {reason}") }.into()
        }
        other => anyhow::Error::from(other),
    }
}
