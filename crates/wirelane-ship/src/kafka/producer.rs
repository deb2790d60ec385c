//! Messages of batches, and their acknowledgements.

use std::net::ToSocketAddrs as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use wirelane::escape::printable;
use wirelane_store::Table;
use wirelane_store::shipping::{Rows, json_lines};

use super::KafkaTarget;
use super::message::{Texts, flows};
use crate::ddl::SHIPMENTS_NAME;
use crate::place::{Destination, Shipment};
use crate::{Error, Result, Secrets};

/// How long brokers are looked for at the beginning of a session, at most.
const LOOK: Duration = Duration::from_secs(5);
/// How long acknowledgements are waited for before errors are looked at.
const POLL: Duration = Duration::from_millis(10);
/// Memory in KiB of messages that wait for an acknowledgement.
const WAITING_KIB: u32 = 64 << 10;
/// Headers of a message.
const HEADERS: [&str; 2] = ["wirelane-batch", "wirelane-row"];

/// A topic, and the session in which messages are sent.
pub(crate) struct Kafka {
    target: KafkaTarget,
    config: ClientConfig,
    patience: Duration,
    session: Option<BaseProducer<Reports>>,
}

impl std::fmt::Debug for Kafka {
    /// Omits the configuration, which has the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kafka").field("target", &self.target).finish_non_exhaustive()
    }
}

/// Answers of brokers since the last look.
#[derive(Default)]
struct Answers {
    /// Why a message was not written.
    failed: Option<Error>,
    /// Trouble with connections, which may pass.
    trouble: Option<String>,
}

#[derive(Default)]
struct Reports(Mutex<Answers>);

impl Reports {
    fn with<T>(&self, work: impl FnOnce(&mut Answers) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ClientContext for Reports {
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!("librdkafka: {facility}: {}", printable(message));
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        let is_refused = matches!(
            code,
            Some(RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SaslAuthenticationFailed)
        );
        self.with(|answers| match is_refused {
            true => {
                answers.failed.get_or_insert(Error::Place { message: reason.to_owned(), is_final: true });
            }
            // The reason is with the error before.
            false if code == Some(RDKafkaErrorCode::AllBrokersDown) && answers.trouble.is_some() => {}
            false => answers.trouble = Some(reason.to_owned()),
        });
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            self.with(|answers| {
                let failed = refused(error, answers.trouble.as_deref());
                answers.failed.get_or_insert(failed);
            });
        }
    }
}

/// An error of librdkafka, with the trouble that explains it.
fn refused(error: &KafkaError, trouble: Option<&str>) -> Error {
    use RDKafkaErrorCode as Code;
    let code = error.rdkafka_error_code();
    let mut message = code.map_or_else(|| error.to_string(), |code| code.to_string());
    if matches!(code, Some(Code::UnknownTopic | Code::UnknownTopicOrPartition)) {
        message += ": --create creates the topics";
    }
    if let Some(trouble) = trouble {
        message += &format!("; {trouble}");
    }
    let is_final = matches!(
        code,
        Some(
            Code::UnknownTopic
                | Code::UnknownTopicOrPartition
                | Code::TopicAuthorizationFailed
                | Code::ClusterAuthorizationFailed
                | Code::InvalidTopic
                | Code::MessageSizeTooLarge
                | Code::PolicyViolation
        )
    );
    Error::Place { message, is_final }
}

impl Kafka {
    /// Resolves the brokers; no connection is opened yet. `patience`: the limit of an acknowledgement.
    pub(crate) fn new(target: KafkaTarget, secrets: &Secrets, patience: Duration) -> Result<Kafka> {
        let wrong = |reason: &str| Error::File { path: "--password-file".into(), reason: reason.into() };
        // The C library loads what it needs for it, which it could not do later.
        let found = target.brokers.iter().map(|broker| broker.to_socket_addrs());
        let failed = found.filter_map(std::result::Result::err).collect::<Vec<_>>();
        if failed.len() == target.brokers.len() {
            return Err(Error::Unreachable(format!("{target}: {}", failed[0])));
        }
        let mut config = ClientConfig::new();
        let ms = patience.as_millis().to_string();
        for (name, value) in [
            ("bootstrap.servers", target.servers().as_str()),
            ("client.id", "wirelane"),
            ("enable.idempotence", "true"),
            ("acks", "all"),
            ("compression.type", "lz4"),
            // That of the clients in Java, so that their keys are in the same partitions.
            ("partitioner", "murmur2_random"),
            ("message.timeout.ms", &ms),
            ("socket.keepalive.enable", "true"),
            ("reconnect.backoff.max.ms", "2000"),
            ("queue.buffering.max.kbytes", &WAITING_KIB.to_string()),
            ("topic.metadata.propagation.max.ms", "10000"),
        ] {
            config.set(name, value);
        }
        let protocol = if target.user.is_some() { "sasl_plaintext" } else { "plaintext" };
        config.set("security.protocol", protocol);
        if let Some(user) = &target.user {
            let password = secrets.password.as_ref().ok_or_else(|| wrong("a user needs a password"))?;
            config.set("sasl.mechanism", "PLAIN").set("sasl.username", user);
            config.set("sasl.password", password);
        }
        Ok(Kafka { target, config, patience, session: None })
    }

    /// The session; a new one is checked to reach a broker.
    fn session(&mut self) -> Result<&BaseProducer<Reports>> {
        let session = match self.session.take() {
            Some(session) => session,
            None => {
                let made = self.config.create_with_context(Reports::default());
                let session: BaseProducer<Reports> =
                    made.map_err(|error| Error::Place { message: error.to_string(), is_final: true })?;
                let found =
                    session.client().fetch_metadata(Some(&self.target.topic), LOOK.min(self.patience));
                // What went wrong is told by events.
                session.poll(10 * POLL);
                if let Err(error) = found {
                    return Err(session.context().with(|answers| {
                        let failed = answers.failed.take();
                        let trouble = answers.trouble.as_deref();
                        failed.unwrap_or_else(|| refused(&error, trouble))
                    }));
                }
                session
            }
        };
        Ok(self.session.insert(session))
    }

    /// Sends the messages of a batch, and waits until all are acknowledged. After an error the session is over.
    fn deliver(&mut self, token: &str, messages: impl FnOnce(&mut Sending<'_>) -> Result<()>) -> Result<()> {
        let end = Instant::now() + self.patience;
        let session = self.session()?;
        session.context().with(|answers| *answers = Answers::default());
        let mut sending = Sending { session, token, row: 0, end };
        let result = messages(&mut sending).and_then(|()| sending.wait());
        if result.is_err() {
            // Messages that are on their way are forgotten, also those that may arrive.
            self.session = None;
        }
        result
    }
}

/// A batch on its way.
struct Sending<'a> {
    session: &'a BaseProducer<Reports>,
    token: &'a str,
    row: u64,
    end: Instant,
}

impl Sending<'_> {
    /// Looks at the answers for a moment. An error: that of a message, or no answer came in time.
    fn look(&self, time: Duration) -> Result<()> {
        self.session.poll(time);
        let (failed, trouble) = self.session.context().with(|answers| {
            let trouble = answers.trouble.clone();
            (answers.failed.take(), trouble.unwrap_or_else(|| "no answer in time".to_owned()))
        });
        match failed {
            Some(failed) => Err(failed),
            // Messages have the same limit: this is for one that waits for room.
            None if Instant::now() > self.end + LOOK => {
                Err(Error::Place { message: trouble, is_final: false })
            }
            None => Ok(()),
        }
    }

    /// Sends a message.
    fn put(&mut self, topic: &str, key: &str, payload: &[u8]) -> Result<()> {
        let row = self.row.to_string();
        self.row += 1;
        let headers = OwnedHeaders::new()
            .insert(Header { key: HEADERS[0], value: Some(self.token) })
            .insert(Header { key: HEADERS[1], value: Some(&row) });
        let mut record = BaseRecord::to(topic).key(key).payload(payload).headers(headers);
        loop {
            let Err((error, back)) = self.session.send(record) else { return Ok(()) };
            if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                return Err(refused(&error, None));
            }
            record = back;
            self.look(POLL)?;
        }
    }

    /// Waits for all acknowledgements.
    fn wait(&self) -> Result<()> {
        while self.session.in_flight_count() > 0 {
            self.look(POLL)?;
        }
        // Reports that are complete and were not looked at.
        self.look(Duration::ZERO)
    }
}

/// Columns of a table whose values, sorted, are the key of its messages: both directions have the same. Of the other tables
/// it is the probe.
fn key(table: Table) -> [&'static str; 2] {
    match table {
        Table::Flows | Table::Streams => ["src", "dst"],
        Table::Calls => ["caller", "callee"],
        Table::Transactions => ["client", "server"],
        Table::Measurements | Table::Alarms | Table::Ledgers => ["probe", "probe"],
    }
}

/// Two values, sorted; one, where they are the same.
fn pair(a: &str, b: &str) -> String {
    match a.cmp(b) {
        std::cmp::Ordering::Less => format!("{a} {b}"),
        std::cmp::Ordering::Equal => a.to_owned(),
        std::cmp::Ordering::Greater => format!("{b} {a}"),
    }
}

/// Sends the rows of a batch.
fn put(sending: &mut Sending<'_>, target: &KafkaTarget, table: Table, batch: &RecordBatch) -> Result<()> {
    let topic = target.topic_of(table.name());
    let [a, b] = key(table).map(|name| Texts::new(batch, name));
    let (a, b) = (a?, b?);
    if table == Table::Flows {
        // A flow has a message for each of its directions.
        let mut row = 0;
        return flows(batch, |message| {
            row += usize::from(!message.is_reverse());
            let at = row - 1;
            sending.put(&topic, &pair(a.at(at), b.at(at)), &message.bytes(target.delimited))
        });
    }
    let text = json_lines(&[batch])?;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    for (row, line) in lines.enumerate() {
        sending.put(&topic, &pair(a.at(row), b.at(row)), line)?;
    }
    Ok(())
}

impl Destination for Kafka {
    /// Creates missing topics, with the partitions and replicas that the brokers have as their defaults.
    fn create(&mut self) -> Result<()> {
        let failed = |message: String| Error::Place { message, is_final: false };
        self.session()?;
        let admin: AdminClient<DefaultClientContext> =
            self.config.create().map_err(|error: KafkaError| failed(error.to_string()))?;
        let names = Table::ALL.map(Table::name).into_iter().chain([SHIPMENTS_NAME]);
        let names: Vec<String> = names.map(|table| self.target.topic_of(table)).collect();
        let topics: Vec<NewTopic<'_>> =
            names.iter().map(|name| NewTopic::new(name, -1, TopicReplication::Fixed(-1))).collect();
        let options = AdminOptions::new().operation_timeout(Some(self.patience));
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.map_err(|error| failed(error.to_string()))?;
        let made = runtime.block_on(admin.create_topics(&topics, &options));
        for made in made.map_err(|error| refused(&error, None))? {
            match made {
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => return Err(refused(&KafkaError::AdminOp(code), Some(&topic))),
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        self.session().map(|_| ())
    }

    fn send(&mut self, table: Table, rows: &Rows, _: &str, token: &str) -> Result<()> {
        let target = self.target.clone();
        self.deliver(token, |sending| {
            rows.batches().try_for_each(|batch| put(sending, &target, table, batch))
        })
    }

    fn describe(&mut self, shipments: &[Shipment<'_>], token: &str) -> Result<()> {
        let topic = self.target.topic_of(SHIPMENTS_NAME);
        self.deliver(token, |sending| {
            for row in shipments {
                let line = serde_json::to_vec(row).map_err(|error| Error::Bug(error.to_string()))?;
                sending.put(&topic, row.probe, &line)?;
            }
            Ok(())
        })
    }
}
