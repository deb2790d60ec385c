//! Targets: `kafka://USER@BROKER:PORT,BROKER/TOPIC`.

use crate::target::{host_port, is_name};
use crate::{Error, Result};

/// Form of a target, for errors.
const FORM: &str = "kafka://USER@BROKER:PORT,BROKER:PORT/TOPIC, with ?framing=none at the end for messages without their length";
/// Port of brokers that do not name theirs.
const PORT: u16 = 9092;
/// Longest name of a topic (Kafka's limit is 249, with the suffix of a table).
const LONGEST: usize = 230;

/// A topic of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaTarget {
    /// Name of the user, if the brokers ask for one (SASL/PLAIN).
    pub user: Option<String>,
    /// Brokers that are asked for the others: hosts and ports.
    pub brokers: Vec<(String, u16)>,
    /// Topic of flows, and beginning of the names of the other topics.
    pub topic: String,
    /// Whether messages of flows begin with their length.
    pub delimited: bool,
}

impl KafkaTarget {
    pub(crate) fn parse(text: &str) -> Result<KafkaTarget> {
        let wrong = |reason: &str| Error::Target {
            target: text.to_owned(),
            reason: reason.to_owned(),
            expected: FORM.to_owned(),
        };
        let rest = match text.split_once("://") {
            Some(("kafka", rest)) => rest,
            Some(("kafka+tls", _)) => {
                return Err(wrong(
                    "there is no TLS to brokers (librdkafka takes OpenSSL for it): use a proxy or a tunnel",
                ));
            }
            _ => return Err(wrong("an unknown kind of target")),
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (brokers, topic) = rest.split_once('/').ok_or_else(|| wrong("the topic is missing"))?;
        let (user, brokers) = match brokers.rsplit_once('@') {
            Some((user, _)) if user.contains(':') => {
                return Err(wrong("a password does not belong on a command line: give --password-file"));
            }
            Some((user, _)) if !is_name(user, b"-._@") => return Err(wrong("an invalid name of a user")),
            Some((user, brokers)) => (Some(user.to_owned()), brokers),
            None => (None, brokers),
        };
        let brokers = brokers.split(',').map(|broker| host_port(broker, PORT));
        let brokers = brokers.collect::<std::result::Result<Vec<_>, _>>().map_err(wrong)?;
        if !is_name(topic, b"._-") || topic.len() > LONGEST || topic.starts_with('.') {
            return Err(wrong("names of topics are of letters, digits, '.', '_' and '-'"));
        }
        let topic = topic.to_owned();
        let mut target = KafkaTarget { user, brokers, topic, delimited: true };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option {
                "framing=delimited" => target.delimited = true,
                "framing=none" => target.delimited = false,
                _ => return Err(wrong("unknown options: they are framing=delimited and framing=none")),
            }
        }
        Ok(target)
    }

    pub(crate) fn name(&self) -> String {
        let (host, port) = &self.brokers[0];
        format!("kafka_{}_{port}_{}", host.replace(':', "-"), self.topic)
    }

    /// The topic of a table.
    pub fn topic_of(&self, table: &str) -> String {
        if table == "flows" { self.topic.clone() } else { format!("{}-{table}", self.topic) }
    }

    /// The brokers as librdkafka takes them.
    pub(crate) fn servers(&self) -> String {
        let shown = |(host, port): &(String, u16)| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        self.brokers.iter().map(shown).collect::<Vec<_>>().join(",")
    }
}

impl std::fmt::Display for KafkaTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        write!(f, "kafka://{user}{}/{}", self.servers(), self.topic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_and_written() {
        for (text, shown, name) in [
            ("kafka://b/t", "kafka://b:9092/t", "kafka_b_9092_t"),
            ("kafka://b1:9,b2/wire.lane", "kafka://b1:9,b2:9092/wire.lane", "kafka_b1_9_wire.lane"),
            ("kafka://u@[::1]:9093/t", "kafka://u@[::1]:9093/t", "kafka_--1_9093_t"),
        ] {
            let target = KafkaTarget::parse(text).unwrap();
            assert_eq!((target.to_string().as_str(), target.name().as_str()), (shown, name));
            assert_eq!(KafkaTarget::parse(shown).unwrap(), target);
        }
        let target = KafkaTarget::parse("kafka://u@b/t?framing=none").unwrap();
        assert!(!target.delimited);
        assert_eq!([target.topic_of("flows"), target.topic_of("calls")], ["t", "t-calls"]);
        for wrong in [
            "kafka://b",
            "kafka://b/",
            "kafka:///t",
            "kafka://b,/t",
            "kafka://b:0/t",
            "kafka://u:p@b/t",
            "kafka://b/../t",
            "kafka://b/t?framing=other",
            "kafka+tls://b/t",
        ] {
            assert!(KafkaTarget::parse(wrong).is_err(), "{wrong}");
        }
    }
}
