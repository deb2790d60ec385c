//! ClickHouse's engine (chdb) behind an HTTP door, and processes that ship to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use wirelane_tests::numbers::{LIMIT, column};
use wirelane_tests::{Child, Finished, Signal, repository, wirelane_binary};

use super::{ask, run};

/// The server: an engine with its data in a folder.
pub struct Door {
    folder: PathBuf,
    port: String,
    account: Vec<String>,
    /// File with a certificate and its key; `None`: without TLS.
    pub certificate: Option<PathBuf>,
    process: Option<Child>,
}

impl Door {
    /// Starts a server; `None`: there is no engine, and the test is left out.
    pub fn start(test: &str, folder: &Path, account: &[&str]) -> Option<Door> {
        let python = repository().join("target/fleet/bin/python3");
        let found = Command::new(&python).args(["-c", "import chdb"]).output();
        if !found.is_ok_and(|output| output.status.success()) {
            println!("left out: {test} (no engine of ClickHouse: scripts/setup fleet)");
            return None;
        }
        fs::create_dir_all(folder).unwrap();
        let account = account.iter().map(|&word| word.to_owned()).collect();
        let (folder, port) = (folder.to_owned(), "0".to_owned());
        let mut door = Door { folder, port, account, certificate: None, process: None };
        door.open();
        Some(door)
    }

    /// Starts the server again, on the same port over the same data.
    pub fn open(&mut self) {
        let python = repository().join("target/fleet/bin/python3");
        let mut command = Command::new(python);
        command.arg(repository().join("tests/src/door.py")).arg(&self.folder).args(&self.account);
        command.envs(self.certificate.iter().map(|file| ("DOOR_TLS", file)));
        let process = Child::spawn(command.env("DOOR_PORT", &self.port)).unwrap();
        self.port = process.next_line(LIMIT).unwrap().unwrap();
        self.process = Some(process);
    }

    /// Kills the server.
    pub fn kill(&mut self) {
        let process = self.process.take().unwrap();
        process.signal(Signal::Kill).unwrap();
        process.finish(LIMIT).unwrap();
    }

    /// Orders a fault, or with 0 its end.
    pub fn order(&self, fault: &str, value: u32) {
        fs::write(self.folder.join(format!("{fault}.order")), value.to_string()).unwrap();
        fs::rename(self.folder.join(format!("{fault}.order")), self.folder.join(fault)).unwrap();
    }

    fn scheme(&self) -> &'static str {
        if self.certificate.is_some() { "https" } else { "http" }
    }

    /// The target of shipping.
    pub fn to(&self) -> String {
        let user = self.account.first().map_or("default", String::as_str);
        format!("clickhouse+{}://{user}@127.0.0.1:{}/fleet", self.scheme(), self.port)
    }

    /// The answer to a query.
    pub fn ask(&self, sql: &str) -> String {
        let mut command = Command::new("curl");
        command.args(["-sS", "-X", "POST", "--get", "--data-urlencode"]).arg(format!("query={sql}"));
        if let [user, password] = &self.account[..] {
            command.arg("-H").arg(format!("X-ClickHouse-User: {user}"));
            command.arg("-H").arg(format!("X-ClickHouse-Key: {password}"));
        }
        let output =
            command.arg("-k").arg(format!("{}://127.0.0.1:{}/", self.scheme(), self.port)).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Compares the sums of the flows, of both roll-ups and of the batches with the store's.
    pub fn has_all_of(&self, db: &Path) {
        let sql = "SELECT count(*) AS n, sum(packets) AS p, sum(bytes) AS b FROM flows";
        let row = &ask(db, &[sql])[0];
        let [n, p, b] = ["n", "p", "b"].map(|name| column(row, name));
        let sums = |columns: &str, table: &str| {
            self.ask(&format!("SELECT {columns} FROM fleet.{table} FORMAT TabSeparated")).replace('\t', " ")
        };
        assert_eq!(sums("count(), sum(packets), sum(bytes)", "flows"), format!("{n} {p} {b}"));
        for table in ["flows_1m", "flows_1h"] {
            assert_eq!(
                sums("sum(flows), sum(packets), sum(bytes)", table),
                format!("{n} {p} {b}"),
                "{table}"
            );
        }
        let ledgers = column(&ask(db, &["SELECT count(*) AS n FROM ledgers"])[0], "n");
        assert_eq!(sums("sum(rows)", "shipments WHERE kind = 'shipped'"), (n + ledgers).to_string());
        assert_eq!(sums("count()", "shipments WHERE kind NOT IN ('shipped', 'interrupted')"), "0");
        // Each killed writer is known, and no other. There is no live one.
        let marks = fs::read_dir(db.join(".writers")).map_or(0, |entries| {
            let names = entries.map(|entry| entry.unwrap().file_name());
            names.filter(|name| !name.to_string_lossy().starts_with('.')).count()
        });
        assert_eq!(sums("count()", "shipments WHERE kind = 'interrupted'"), marks.to_string());
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            let _ = process.signal(Signal::Kill);
            let _ = process.finish(LIMIT);
        }
    }
}

/// Words of a command that ships a store.
pub fn words<'a>(db: &'a Path, to: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [
        &["ship", db.to_str().unwrap(), "--to", to, "--json", "--interval", "100ms", "--batch-age", "10ms"],
        more,
    ]
    .concat()
}

/// Ships a store.
pub fn ship(db: &Path, to: &str, more: &[&str]) -> Finished {
    let finished = run(&words(db, to, more));
    crate::json_schemas::check_all("ship", &finished.json().unwrap());
    finished
}

/// Starts a process that ships a store until it is ended.
pub fn shipping(db: &Path, to: &str) -> Child {
    let mut command = Command::new(wirelane_binary().unwrap());
    Child::spawn(command.args(words(db, to, &["--patience", "2s"]))).unwrap()
}

/// The first line of status that is wanted.
pub fn wait_for(child: &Child, wanted: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if let Some(line) = child.next_json(LIMIT).unwrap()
            && wanted(&line)
        {
            return line;
        }
    }
    panic!("no such line of status");
}
