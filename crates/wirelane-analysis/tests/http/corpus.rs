//! The corpus of real captures: no crash, correct sums, and the transactions on which tshark and Suricata agree.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use wirelane::{FileOptions, FileSource};
use wirelane_analysis::http::{HttpSettings, HttpTable, Transaction};

use crate::wire::feed;

/// Folder of the corpus; `None` after a message that the test is skipped.
fn corpus(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("WIRELANE_CORPUS")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus"), PathBuf::from);
    if folder.join("MANIFEST.tsv").is_file() {
        return Some(folder);
    }
    println!("left out: {test} (no corpus)");
    None
}

fn json(path: &Path) -> Value {
    let mut bytes = fs::read(path).unwrap();
    if path.extension().is_some_and(|extension| extension == "gz") {
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut plain).unwrap();
        bytes = plain;
    }
    serde_json::from_slice(&bytes).unwrap()
}

fn transactions(path: &Path, settings: HttpSettings) -> Vec<Transaction> {
    // tshark dissects tunnels, too.
    let mut table = HttpTable::new(HttpSettings { inner: true, ..settings });
    // A damaged capture counts up to the damage.
    match FileSource::open(path, FileOptions::as_written()) {
        Ok(mut source) => feed(&mut source, &mut table),
        Err(_) => Vec::new(),
    }
}

/// Number of transactions by method, target and status; `-` if one half is missing.
type Pairs = BTreeMap<String, usize>;

fn ours(transactions: &[Transaction]) -> Pairs {
    let mut pairs = Pairs::new();
    for transaction in transactions {
        let request = transaction.request.as_ref().map_or("- -".into(), |request| {
            format!(
                "{} {}",
                String::from_utf8_lossy(&request.method),
                String::from_utf8_lossy(&request.target)
            )
        });
        let status = transaction.response.as_ref().filter(|response| response.status > 0);
        let status = status.map_or("-".into(), |response| response.status.to_string());
        *pairs.entry(format!("{request} {status}")).or_default() += 1;
    }
    pairs
}

/// The same from tshark's list, in which each request names the frame of its response. 1xx responses are left out.
fn tsharks(truth: &Value) -> Pairs {
    let text = |value: &Value, name: &str| match &value[name] {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => String::new(),
    };
    let list = |name: &str| truth["http_tshark"][name].as_array().cloned().unwrap_or_default();
    let mut statuses: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for response in list("responses") {
        let status = text(&response, "status");
        if !status.starts_with('1') || status == "101" {
            statuses.entry(response["frame"].as_u64().unwrap()).or_default().push(status);
        }
    }
    let mut pairs = Pairs::new();
    for request in list("requests") {
        let frame = request["response_frame"].as_u64();
        let answers = frame.and_then(|frame| statuses.get_mut(&frame));
        let status = answers.filter(|answers| !answers.is_empty()).map(|answers| answers.remove(0));
        let status = status.unwrap_or_else(|| "-".into());
        *pairs
            .entry(format!("{} {} {status}", text(&request, "method"), text(&request, "uri")))
            .or_default() += 1;
    }
    for status in statuses.into_values().flatten() {
        *pairs.entry(format!("- - {status}")).or_default() += 1;
    }
    pairs
}

/// Battery: I10
#[test]
fn transactions_of_the_corpus_are_those_that_tshark_and_suricata_agree_on() {
    let Some(corpus) = corpus("transactions_of_the_corpus_are_those_that_tshark_and_suricata_agree_on")
    else {
        return;
    };
    let manifest = fs::read_to_string(corpus.join("MANIFEST.tsv")).unwrap();
    let (mut compared, mut same, mut pairs, mut all) = (0, 0, 0, 0);
    let mut differ = BTreeMap::new();
    for line in manifest.lines().skip(1) {
        let column: Vec<&str> = line.split('\t').collect();
        let (id, path, truth) = (column[0], corpus.join(column[1]), corpus.join(column[14]));
        let found = transactions(&path, HttpSettings::default());
        // With minimal memory, the sums are still correct.
        transactions(&path, HttpSettings { memory: 0, ..HttpSettings::default() });
        all += found.len();
        if !column[14].contains(".json") {
            continue;
        }
        let truth = json(&truth);
        let agree = &truth["http_agreement"];
        if agree["requests_equal"] != true || agree["statuses_equal"] != true {
            continue;
        }
        compared += 1;
        let (ours, theirs) = (ours(&found), tsharks(&truth));
        if ours == theirs {
            same += 1;
            pairs += found.len();
        } else {
            differ.insert(id.to_owned(), (ours, theirs));
        }
    }
    println!("{all} transactions; {same} of {compared} captures are the same, {pairs} transactions in these");
    for (id, (ours, theirs)) in &differ {
        let only = |one: &Pairs, other: &Pairs| {
            let more = one.iter().filter(|(pair, n)| other.get(*pair) != Some(*n));
            more.map(|(pair, n)| format!("{n} {pair}")).collect::<Vec<_>>()
        };
        println!("{id}\n  ours {:?}\n  theirs {:?}", only(ours, theirs), only(theirs, ours));
    }
    let unexplained: Vec<_> =
        differ.keys().filter(|id| !EXPLAINED.iter().any(|(known, _)| known == id)).collect();
    assert!(unexplained.is_empty(), "{unexplained:#?}");
    let no_more: Vec<_> = EXPLAINED.iter().filter(|(id, _)| !differ.contains_key(*id)).collect();
    assert!(no_more.is_empty(), "the same by now: {no_more:#?}");
    assert!(compared >= 140 && same + EXPLAINED.len() == compared, "{same} of {compared}");
}

/// Captures with different results, and the reasons.
const EXPLAINED: [(&str, &str); 7] = [
    ("suricata--bug-5437-02", "within ERSPAN, whose inside is not looked at without --inner"),
    (
        "suricata--http-protocol-nodup",
        "many requests in one packet: tshark's list has one response for all of them, we pair each",
    ),
    ("suricata--http1-noint-status", "a status that is no number, of which tshark takes the first digit"),
    (
        "tcpflow--test5-lines-randomized",
        "a whole connection is shuffled, its FIN comes before its SYN: one half is lost",
    ),
    ("tcpflow--test5-lines-randomized2", "the same"),
    ("wireshark--http-ooo2", "a head without its end: we log what there is of the request, tshark nothing"),
    ("zeek--mixed-vlan-mpls", "HTTP/0.9, which is not recognised"),
];
