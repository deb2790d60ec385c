//! Requests to ClickHouse's HTTP interface.

use std::net::SocketAddr;
use std::time::Duration;

use ureq::Agent;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use wirelane_store::Table;
use wirelane_store::shipping::{Rows, parquet};

use crate::ddl::SHIPMENTS_NAME;
use crate::place::{Destination, Shipment, json_lines};
use crate::{Error, Result, Secrets, Target};

/// Limit of opening a connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Largest answer in bytes.
const LONGEST: u64 = 64 << 20;

/// Settings of every request. A block is not divided, and its rows are in order, so that a repetition has the same blocks;
/// unknown columns are refused instead of dropped; and the answer comes when all is done.
const SETTINGS: [(&str, &str); 8] = [
    ("async_insert", "0"),
    ("wait_end_of_query", "1"),
    ("deduplicate_blocks_in_dependent_materialized_views", "1"),
    ("input_format_skip_unknown_fields", "0"),
    ("input_format_null_as_default", "1"),
    ("input_format_parquet_preserve_order", "1"),
    ("min_insert_block_size_rows", "1000000000"),
    ("min_insert_block_size_bytes", "100000000000"),
];

/// Connections to a target.
pub struct Client {
    target: Target,
    agent: Agent,
    password: Option<String>,
}

impl std::fmt::Debug for Client {
    /// Omits the password, which would appear in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("target", &self.target).finish_non_exhaustive()
    }
}

/// Addresses that were resolved before privileges were dropped.
#[derive(Debug)]
struct Resolved(Vec<SocketAddr>);

impl Resolver for Resolved {
    fn resolve(
        &self,
        _: &Uri,
        _: &Config,
        _: NextTimeout,
    ) -> std::result::Result<ResolvedSocketAddrs, ureq::Error> {
        let mut found = self.empty();
        // The list has room for 16.
        for address in self.0.iter().take(16) {
            found.push(*address);
        }
        Ok(found)
    }
}

impl Client {
    /// Resolves the host; no connection is opened yet. `patience`: the limit of a whole request.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the host cannot be resolved, [`Error::File`] if there is no certificate among the
    /// authorities.
    pub fn new(target: Target, secrets: &Secrets, patience: Duration) -> Result<Client> {
        let mut tls = TlsConfig::builder();
        if let Some(pem) = &secrets.authorities {
            let found: Vec<_> = parse_pem(pem)
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            if found.is_empty() {
                let reason = "no PEM certificate in it: expected a block that begins with BEGIN CERTIFICATE"
                    .to_owned();
                return Err(Error::File { path: "--ca".to_owned(), reason });
            }
            tls = tls.root_certs(RootCerts::new_with_certs(&found));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(patience))
            .user_agent(concat!("wirelane/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls.build())
            .build();
        let resolved = Resolved(target.resolve()?);
        let agent = Agent::with_parts(config, DefaultConnector::default(), resolved);
        Ok(Client { target, agent, password: secrets.password.clone() })
    }

    /// The target.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Runs a statement with this body, and returns the answer.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Refused`].
    pub(crate) fn post(&self, query: &str, token: Option<&str>, body: &[u8]) -> Result<String> {
        let token = token.map(|token| ("insert_deduplication_token", token));
        let settings: Vec<_> = SETTINGS.into_iter().chain(token).collect();
        let answer = self.request(query, &settings, body)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Answers a question in Parquet. No setting is changed, which some accounts may not.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::Refused`].
    pub fn ask(&self, question: &str) -> Result<Vec<u8>> {
        // Without it an error may follow a part of the answer; it is no setting.
        self.request(&format!("{question} FORMAT Parquet"), &[("wait_end_of_query", "1")], b"")
    }

    fn request(&self, query: &str, parameters: &[(&str, &str)], body: &[u8]) -> Result<Vec<u8>> {
        let mut request = self
            .agent
            .post(self.target.url())
            .header("X-ClickHouse-User", &self.target.user)
            .content_type("application/octet-stream");
        if let Some(password) = &self.password {
            request = request.header("X-ClickHouse-Key", password);
        }
        // Without the database's name in the request the database may be created by it: queries name it.
        for (name, value) in parameters {
            request = request.query(name, value);
        }
        let unreachable = |error: ureq::Error| Error::Unreachable(format!("{}: {error}", self.target));
        let mut response = request.query("query", query).send(body).map_err(unreachable)?;
        let status = response.status().as_u16();
        let is_exception = response.headers().contains_key("X-ClickHouse-Exception-Code");
        let answer = response.body_mut().with_config().limit(LONGEST).read_to_vec().map_err(unreachable)?;
        match status == 200 && !is_exception {
            true => Ok(answer),
            false => {
                let answer = String::from_utf8_lossy(&answer);
                let message = answer.lines().next().unwrap_or_default().chars().take(500).collect();
                Err(Error::Refused { status, message })
            }
        }
    }
}

impl Destination for Client {
    /// Applies the schema: what [`crate::ddl::statements`] prints.
    fn create(&mut self) -> Result<()> {
        for statement in crate::ddl::statements(&self.target.database) {
            self.post(&statement, None, b"")?;
        }
        Ok(())
    }

    /// Checks that the tables of the server have all columns.
    fn check(&mut self) -> Result<()> {
        let database = &self.target.database;
        let query = format!(
            "SELECT concat(table, '.', name) FROM system.columns WHERE database = '{database}' FORMAT TabSeparated"
        );
        let answer = self.post(&query, None, b"")?;
        let found: std::collections::HashSet<&str> = answer.lines().collect();
        let missing = crate::ddl::columns().into_iter().find(|column| !found.contains(column.as_str()));
        match missing {
            Some(missing) => Err(Error::Schema(format!("the database {database} has no column {missing}"))),
            None => Ok(()),
        }
    }

    fn send(&mut self, table: Table, rows: &Rows, probe: &str, token: &str) -> Result<()> {
        let query = format!("INSERT INTO {}.{} FORMAT Parquet", self.target.database, table.name());
        self.post(&query, Some(token), &parquet(table, probe, rows.batches())?)?;
        Ok(())
    }

    fn describe(&mut self, shipments: &[Shipment<'_>], token: &str) -> Result<()> {
        let query = format!("INSERT INTO {}.{SHIPMENTS_NAME} FORMAT JSONEachRow", self.target.database);
        self.post(&query, Some(&format!("{token}-shipment")), &json_lines(shipments)?)?;
        Ok(())
    }
}
