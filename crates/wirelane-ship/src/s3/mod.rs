//! A bucket of S3 as a place to ship to, and to ask.
//!
//! A batch becomes an object for each probe and hour, named after the batch's token, in folders as Hive has them:
//! `PREFIX/flows/probe=edge-1/date=2026-11-23/hour=04/TOKEN.parquet`. An object is put only if there is none of its name, so
//! that a repetition changes nothing. `PREFIX/shipments/date=2026-11-23/TOKEN.json` describes the batch.

#[cfg(feature = "s3")]
mod bucket;

use crate::target::{host_port, is_name};
use crate::{Error, Result};

#[cfg(feature = "s3")]
pub(crate) use bucket::Bucket;
#[cfg(feature = "s3")]
pub use bucket::remote;

/// Form of a target, for errors.
const FORM: &str =
    "s3://KEY@BUCKET/PREFIX, with ?region=eu-central-1 or &endpoint=https://HOST:PORT at the end";

/// A server of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Endpoint {
    tls: bool,
    host: String,
    port: u16,
}

/// A folder in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Target {
    /// Id of the access key; `None`: that of the environment.
    key: Option<String>,
    /// Name of the bucket.
    pub bucket: String,
    /// Folder of the store in the bucket; empty: none.
    pub prefix: String,
    region: String,
    endpoint: Endpoint,
}

impl S3Target {
    /// Parses a target. What it does not say is taken from the usual variables: `AWS_REGION`, `AWS_ENDPOINT_URL`.
    ///
    /// # Errors
    /// [`Error::Target`].
    pub fn parse(text: &str) -> Result<S3Target> {
        let wrong = |reason: &str| Error::Target {
            target: text.to_owned(),
            reason: reason.to_owned(),
            expected: FORM.to_owned(),
        };
        let rest = text.strip_prefix("s3://").ok_or_else(|| wrong("an unknown kind of target"))?;
        let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let (key, bucket) = match bucket.rsplit_once('@') {
            Some((key, _)) if key.contains(':') => {
                return Err(wrong("a secret key does not belong on a command line: give --password-file"));
            }
            Some((key, _)) if !is_name(key, b"-_") => return Err(wrong("an invalid id of an access key")),
            Some((key, bucket)) => (Some(key.to_owned()), bucket),
            None => (None, bucket),
        };
        if !is_name(bucket, b"-.") || bucket.len() > 63 {
            return Err(wrong("an invalid name of a bucket"));
        }
        let prefix = prefix.trim_end_matches('/');
        let is_part = |part: &str| is_name(part, b"._-") && !part.bytes().all(|byte| byte == b'.');
        if !prefix.is_empty() && !prefix.split('/').all(is_part) {
            return Err(wrong("names of folders are of letters, digits, '.', '_' and '-'"));
        }
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (mut region, mut endpoint) = (None, None);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("region", value)) => region = Some(value.to_owned()),
                Some(("endpoint", value)) => endpoint = Some(value.to_owned()),
                _ => return Err(wrong("unknown options: they are region and endpoint")),
            }
        }
        let region = region.or_else(|| variable("AWS_REGION")).or_else(|| variable("AWS_DEFAULT_REGION"));
        let region = region.unwrap_or_else(|| "us-east-1".to_owned());
        if !is_name(&region, b"-") {
            return Err(wrong("an invalid name of a region"));
        }
        let endpoint = endpoint.or_else(|| variable("AWS_ENDPOINT_URL"));
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let (tls, place) = match endpoint.trim_end_matches('/').split_once("://") {
            Some(("https", place)) => (true, place),
            Some(("http", place)) => (false, place),
            _ => return Err(wrong("an invalid endpoint")),
        };
        let (host, port) = host_port(place, if tls { 443 } else { 80 }).map_err(wrong)?;
        let [bucket, prefix] = [bucket, prefix].map(str::to_owned);
        Ok(S3Target { key, bucket, prefix, region, endpoint: Endpoint { tls, host, port } })
    }

    pub(crate) fn name(&self) -> String {
        let Endpoint { host, port, .. } = &self.endpoint;
        let folder = self.prefix.replace('/', "+");
        format!("s3_{}_{port}_{}+{folder}", host.replace(':', "-"), self.bucket)
    }

    /// Port of the server.
    pub fn port(&self) -> u16 {
        self.endpoint.port
    }
}

impl std::fmt::Display for S3Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_and_written() {
        let target =
            S3Target::parse("s3://AKIA1@b.c/a/d/?region=eu-west-3&endpoint=http://[::1]:9000").unwrap();
        assert_eq!(target.to_string(), "s3://b.c/a/d");
        assert_eq!(target.name(), "s3_--1_9000_b.c+a+d");
        assert_eq!((target.key.as_deref(), target.region.as_str()), (Some("AKIA1"), "eu-west-3"));
        assert_eq!(target.endpoint, Endpoint { tls: false, host: "::1".to_owned(), port: 9000 });
        let target = S3Target::parse("s3://b?region=eu-west-3&endpoint=https://h").unwrap();
        assert_eq!((target.port(), target.to_string().as_str()), (443, "s3://b"));
        for wrong in [
            "s3://",
            "s3:///p",
            "s3://k:s@b/p",
            "s3://b/a/../c",
            "s3://b/a//c",
            "s3://b/a b",
            "s3://b/p?endpoint=h",
            "s3://b/p?endpoint=http://h:0",
            "s3://b/p?region=a/b",
            "s3://b/p?other=1",
        ] {
            assert!(S3Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
