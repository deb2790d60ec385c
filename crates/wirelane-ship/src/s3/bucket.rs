//! Requests to a bucket.

use std::collections::BTreeMap;
use std::net::ToSocketAddrs as _;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::{HttpClient, HttpConnector};
use object_store::path::Path;
use object_store::{ClientOptions, Error as StoreError, ObjectStore as _, PutMode, PutOptions, RetryConfig};
use tokio::runtime::Runtime;
use wirelane_store::Table;
use wirelane_store::query::Remote;
use wirelane_store::shipping::{Rows, folder_of, hour_of, parquet};

use super::{Endpoint, S3Target};
use crate::ddl::SHIPMENTS_NAME;
use crate::place::{Destination, Shipment, json_lines};
use crate::{Error, Result, Secrets};

/// Limit of opening a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Repetitions of a request of a query. Shipping repeats whole batches.
const REPEATED: usize = 3;

/// A bucket as a place to ship to.
#[derive(Debug)]
pub(crate) struct Bucket {
    target: S3Target,
    store: AmazonS3,
    /// Started with the first request, after the sandbox.
    runtime: Option<Runtime>,
}

/// Gives the client, whose host was resolved before privileges were dropped.
#[derive(Debug)]
struct Resolved(reqwest::Client);

impl HttpConnector for Resolved {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.0.clone()))
    }
}

/// Resolves the host, and reads the credentials.
fn open(target: &S3Target, secrets: &Secrets, patience: Duration, retries: usize) -> Result<AmazonS3> {
    let wrong = |reason: String| Error::Place { message: format!("{target}: {reason}"), is_final: true };
    let Endpoint { tls, host, port } = &target.endpoint;
    let found = (host.as_str(), *port).to_socket_addrs();
    let addresses: Vec<_> =
        found.map_err(|error| Error::Unreachable(format!("{target}: {host}: {error}")))?.collect();
    let mut client = reqwest::Client::builder()
        .use_rustls_tls()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(patience)
        .connect_timeout(CONNECT)
        // Options of sockets that the sandbox does not allow: requests have a limit of time.
        .tcp_keepalive(None)
        .tcp_keepalive_interval(None)
        .tcp_keepalive_retries(None)
        .tcp_user_timeout(None)
        .user_agent(concat!("wirelane/", env!("CARGO_PKG_VERSION")))
        .resolve_to_addrs(host, &addresses);
    if let Some(pem) = &secrets.authorities {
        let found = reqwest::Certificate::from_pem_bundle(pem)
            .map_err(|error| Error::File { path: "--ca".to_owned(), reason: error.to_string() })?;
        client = client.tls_built_in_root_certs(false);
        client = found.into_iter().fold(client, reqwest::ClientBuilder::add_root_certificate);
    }
    let client = client.build().map_err(|error| wrong(error.to_string()))?;
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (key, secret) = match (&target.key, &secrets.password) {
        (Some(key), Some(secret)) => (Some(key.clone()), Some(secret.clone())),
        (None, None) => (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")),
        (key, _) => {
            let lacks =
                if key.is_some() { "--password-file with its secret key" } else { "the id of the key" };
            return Err(wrong(format!("{lacks} is missing: expected s3://KEY@BUCKET and --password-file")));
        }
    };
    let (Some(key), Some(secret)) = (key, secret) else {
        return Err(wrong(
            "no credentials: expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, or s3://KEY@BUCKET and \
             --password-file"
                .to_owned(),
        ));
    };
    let scheme = if *tls { "https" } else { "http" };
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let mut store = AmazonS3Builder::new()
        .with_bucket_name(&target.bucket)
        .with_region(&target.region)
        .with_endpoint(format!("{scheme}://{host}:{port}"))
        .with_allow_http(!tls)
        .with_access_key_id(key)
        .with_secret_access_key(secret)
        .with_retry(RetryConfig { max_retries: retries, ..RetryConfig::default() })
        .with_http_connector(Resolved(client));
    if let (Some(token), None) = (variable("AWS_SESSION_TOKEN"), &target.key) {
        store = store.with_token(token);
    }
    store.build().map_err(|error| wrong(error.to_string()))
}

/// A store in a bucket, for questions.
///
/// # Errors
/// [`Error::Unreachable`] if the host cannot be resolved, [`Error::Place`] without credentials, [`Error::File`].
pub fn remote(target: &S3Target, secrets: &Secrets, patience: Duration) -> Result<Remote> {
    let store = open(target, secrets, patience, REPEATED)?;
    Ok(Remote::new(Arc::new(store), &target.bucket, &target.prefix)?)
}

impl Bucket {
    /// Opens no connection, and starts no thread.
    pub(crate) fn new(target: S3Target, secrets: &Secrets, patience: Duration) -> Result<Bucket> {
        let store = open(&target, secrets, patience, 0)?;
        Ok(Bucket { target, store, runtime: None })
    }

    /// Puts an object, unless there is one of its name: that is the same one.
    fn put(&mut self, path: &str, bytes: Vec<u8>) -> Result<()> {
        let runtime = match self.runtime.take() {
            Some(runtime) => runtime,
            None => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        };
        let runtime = &*self.runtime.insert(runtime);
        let whole = match self.target.prefix.as_str() {
            "" => path.to_owned(),
            prefix => format!("{prefix}/{path}"),
        };
        let path = Path::parse(&whole).map_err(|error| Error::Bug(error.to_string()))?;
        let options = PutOptions::from(PutMode::Create);
        match runtime.block_on(self.store.put_opts(&path, bytes.into(), options)) {
            Ok(_) | Err(StoreError::AlreadyExists { .. }) => Ok(()),
            Err(error) => {
                let is_final = matches!(
                    error,
                    StoreError::NotFound { .. }
                        | StoreError::PermissionDenied { .. }
                        | StoreError::Unauthenticated { .. }
                        | StoreError::NotSupported { .. }
                        | StoreError::NotImplemented { .. }
                );
                let message = error.to_string().lines().collect::<Vec<_>>().join(" ");
                let message = message.chars().take(500).collect();
                Err(Error::Place { message, is_final })
            }
        }
    }
}

impl Destination for Bucket {
    /// There is no schema; the bucket is there.
    fn create(&mut self) -> Result<()> {
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        Ok(())
    }

    fn send(&mut self, table: Table, rows: &Rows, probe: &str, token: &str) -> Result<()> {
        let mut objects: BTreeMap<(&str, i64), Vec<_>> = BTreeMap::new();
        for (file, batches) in &rows.files {
            let its = file.probe.as_deref().unwrap_or(probe);
            let hour = hour_of(&file.path).unwrap_or_default();
            objects.entry((its, hour)).or_default().extend(batches);
        }
        for ((probe, hour), batches) in objects {
            let bytes = parquet(table, probe, batches.into_iter())?;
            let folder = folder_of(hour);
            self.put(&format!("{}/probe={probe}/{folder}/{token}.parquet", table.name()), bytes)?;
        }
        Ok(())
    }

    fn describe(&mut self, shipments: &[Shipment<'_>], token: &str) -> Result<()> {
        // Rows of a batch are of one day.
        let hour = shipments.first().map_or(0, |row| row.hour / 3600);
        let folder = folder_of(hour);
        let date = folder.split('/').next().unwrap_or_default();
        self.put(&format!("{SHIPMENTS_NAME}/{date}/{token}.json"), json_lines(shipments)?)
    }
}
