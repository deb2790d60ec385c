//! Sums of a scan against sums computed row by row, and against those of SQLite.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use serde_json::Value;

use super::super::fixture::{FILES, ROWS, flow, settings, store};
use super::super::{AskSettings, Asker, Form};
use super::*;
use crate::Table;

fn answered(settings: AskSettings, asked: &dyn Fn(&mut Asker, &mut Vec<u8>)) -> Vec<Value> {
    let mut lines = Vec::new();
    asked(&mut Asker::open(settings).unwrap(), &mut lines);
    serde_json::Deserializer::from_slice(&lines).into_iter().collect::<Result<_, _>>().unwrap()
}

/// Rows of the scan.
fn scanned(settings: AskSettings, question: &Question, limit: u64) -> Vec<Value> {
    answered(settings, &|asker, lines| {
        let mut sink = |text: &[u8]| {
            lines.extend_from_slice(text);
            Ok(())
        };
        asker
            .answer(question, limit, Form::Json, &mut sink, &mut |path, why| panic!("{path:?}: {why}"))
            .unwrap();
    })
}

/// Rows of SQLite.
fn queried(settings: AskSettings, question: &Question, limit: u64) -> Vec<Value> {
    answered(settings, &|asker, lines| {
        let mut sink = |text: &[u8]| {
            lines.extend_from_slice(text);
            Ok(())
        };
        let sql = question.sql(limit);
        asker.ask(&sql, Form::Json, &mut sink, &mut |path, why| panic!("{path:?}: {why}")).unwrap();
    })
}

fn questions() -> Vec<Question> {
    let mut questions = vec![
        Question::Talkers,
        Question::Ports,
        Question::Pairs,
        Question::Networks { bits4: 16, bits6: 48 },
        Question::Applications,
        Question::Protocols,
        Question::Devices,
        Question::OverTime { step: 7 },
    ];
    let peers = ["10.1.0.0/16", "10.1.1.1", "2001:db8:1::/48", "2001:db8:2::104", "0.0.0.0/0"];
    questions.extend(peers.map(|peer| Question::WhoTalkedTo(Peer::parse(peer).unwrap())));
    questions
}

#[test]
fn a_scan_and_sqlite_have_the_same_answers() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path());
    let bounded = AskSettings {
        from_ns: Some(6_000_000_001),
        to_ns: Some(11_999_000_000),
        ..settings(folder.path(), 64)
    };
    let nobody = AskSettings { probe: Some("nobody".to_owned()), ..settings(folder.path(), 64) };
    for question in questions() {
        for limit in [0, 1, 20, 100_000] {
            let rows = scanned(settings(folder.path(), 64), &question, limit);
            assert_eq!(rows, queried(settings(folder.path(), 64), &question, limit), "{question:?} {limit}");
            assert!(limit == 0 || !rows.is_empty(), "{question:?}");
        }
        let rows = scanned(bounded.clone(), &question, 100_000);
        assert_eq!(rows, queried(bounded.clone(), &question, 100_000), "{question:?}");
        let is_of_one = matches!(&question, Question::WhoTalkedTo(Peer(peer)) if peer.is_one());
        let all = scanned(settings(folder.path(), 64), &question, 100_000);
        assert!(is_of_one || (!rows.is_empty() && rows != all), "{question:?}");
        assert_eq!(scanned(nobody.clone(), &question, 9), Vec::<Value>::new(), "{question:?}");
        // Without memory for the sums, SQLite answers.
        assert_eq!(
            scanned(settings(folder.path(), 0), &question, 50),
            scanned(settings(folder.path(), 64), &question, 50),
            "{question:?}"
        );
    }
}

#[test]
fn each_end_is_added_up_once_with_the_times() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path());
    for question in questions() {
        let of = |end: &str, other: Option<&str>| -> Option<String> {
            match &question {
                Question::Talkers => Some(end.to_owned()),
                Question::Networks { bits4, bits6 } => {
                    let address: Option<IpAddr> = end.parse().ok();
                    let bits = |address: &IpAddr| if address.is_ipv4() { *bits4 } else { *bits6 };
                    Some(address.map_or("none".to_owned(), |it| Network::of(it, bits(&it)).to_string()))
                }
                Question::WhoTalkedTo(Peer(peer)) => {
                    other?.parse().is_ok_and(|other| peer.contains(other)).then(|| end.to_owned())
                }
                _ => None,
            }
        };
        let mut expected = BTreeMap::<String, [i64; 3]>::new();
        for (src, dst, bytes, back) in (0..FILES * ROWS).map(flow) {
            let back = back.unwrap_or(0);
            for (end, other, sent, received) in [(&src, &dst, bytes, back), (&dst, &src, back, bytes)] {
                if let Some(name) = end.as_deref().and_then(|end| of(end, other.as_deref())) {
                    let sums = expected.entry(name).or_default();
                    *sums = [sums[0] + 1, sums[1] + sent, sums[2] + received];
                }
            }
        }
        if expected.is_empty() {
            continue;
        }
        let rows = scanned(settings(folder.path(), 64), &question, u64::MAX >> 1);
        let found: BTreeMap<String, [i64; 3]> = rows
            .iter()
            .map(|row| {
                let name =
                    row.get("address").or(row.get("network")).map_or("none", |name| name.as_str().unwrap());
                (
                    name.to_owned(),
                    ["flows", "sent_bytes", "received_bytes"].map(|sum| row[sum].as_i64().unwrap()),
                )
            })
            .collect();
        assert!(found == expected, "{question:?}");
    }
}

#[test]
fn spans_and_steps_are_those_of_all_flows() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path());
    let mut asker = Asker::open(settings(folder.path(), 64)).unwrap();
    let mut named = |path: &Path, why: &str| panic!("{path:?}: {why}");
    let last = (FILES * ROWS - 1) * 1_000_000 + 5000;
    assert_eq!(asker.span(Table::Flows, &mut named).unwrap(), Some([FILES * ROWS, 0, last, 5000]));
    assert_eq!(asker.span(Table::Calls, &mut named).unwrap(), None);
    let steps = asker.steps(3_000_000_000, &mut named).unwrap();
    assert_eq!(steps.len(), 3);
    assert_eq!((steps[0][..2].to_vec(), steps[2][..2].to_vec()), (vec![0, 3000], vec![2, 2000]));
    let bytes = |number: i64| {
        let (.., bytes, back) = flow(number);
        bytes + back.unwrap_or(0)
    };
    assert_eq!(steps[1][2], (3000..6000).map(bytes).sum::<i64>());
}
