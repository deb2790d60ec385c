//! Statements over the files of a store against the same over a table of SQLite's own with the same rows.

use std::path::Path;

use rusqlite::types::Value as Plain;

use super::super::fixture::{settings, store};
use super::*;
use crate::Table;
use crate::query::{functions, listed};

#[test]
fn a_plan_survives_its_text() {
    let conditions = OPERATORS.iter().enumerate().map(|(at, (operator, _))| (at * 17, *operator));
    let plan = Plan { used: u64::MAX - 5, conditions: conditions.collect() };
    assert_eq!(Plan::parse(&plan.to_string()), Some(plan));
    let all = Plan { used: 1 << 63, conditions: Vec::new() };
    assert_eq!(Plan::parse(&all.to_string()), Some(all.clone()));
    assert!(all.is_used(63) && all.is_used(90) && !all.is_used(62));
}

/// A database with the flows of a store, and a copy of them that is a table of SQLite's own.
fn database(folder: &Path) -> Connection {
    let files = listed(folder).unwrap();
    let source = Source::new(Table::Flows, &files, &settings(folder, 64), None);
    let connection = Connection::open_in_memory().unwrap();
    functions::register(&connection).unwrap();
    register(&connection, source, Cause::default(), 64 << 20).unwrap();
    connection.execute_batch("CREATE TABLE copy AS SELECT * FROM flows").unwrap();
    connection
}

fn asked(connection: &Connection, sql: &str) -> Vec<Vec<Plain>> {
    let mut statement = connection.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| (0..columns).map(|at| row.get(at)).collect());
    rows.unwrap().collect::<Result<_>>().unwrap_or_else(|error| panic!("{sql}: {error}"))
}

const CONDITIONS: [&str; 26] = [
    "src = '10.1.1.1' OR dst = '10.1.1.1'",
    "src = '10.1.1.1' OR bytes = 7 OR dst_port = 40 AND protocol = 2",
    "src IN ('10.1.1.1', '10.2.2.2', '2001:db8:1::1')",
    "bytes IN (SELECT bytes * 2 FROM TABLE WHERE bytes < 99)",
    "src_port >= 10 AND src_port < 20",
    "bytes BETWEEN 998 AND 1001",
    "application = 'APP1' COLLATE NOCASE",
    "application >= 'app2'",
    "application IS NULL",
    "application <> 'app1'",
    "NOT (protocol = 1)",
    "direction IS NOT 'rx'",
    "src_port = '7'",
    "src_port > 7.5",
    "src_port < 4294967296 AND protocol > -1",
    "bytes = NULL",
    "start_time > '1970-01-01 00:00:03' AND end_time <= '1970-01-01 00:00:05.000005'",
    "start_time = '1970-01-01 00:00:01'",
    "start_time = '1970-01-01T00:00:01'",
    "end_time > '1970-01-01'",
    "end_time < '1970-01-02' AND end_time > '1970-01-01 00:00:07.5'",
    "date = '1970-01-01' AND hour = 0",
    "date > '1970' AND hour < 1",
    "hour = 3",
    "schema_version = 1",
    "src LIKE '10.1.%' AND in_network(dst, '10.2.0.0/16')",
];

const JOINS: [&str; 7] = [
    "SELECT count(*), sum(a.bytes) FROM TABLE a JOIN TABLE b ON a.src = b.dst WHERE a.bytes < 200 AND b.bytes < 500",
    "SELECT count(*), count(b.bytes) FROM TABLE a LEFT JOIN TABLE b ON b.bytes = a.reverse_bytes WHERE a.bytes < 300",
    "SELECT count(*) FROM TABLE a WHERE a.bytes < 500 AND EXISTS \
     (SELECT 1 FROM TABLE b WHERE b.bytes = a.bytes * 2 AND b.protocol = 1)",
    "SELECT count(*) FROM TABLE a, TABLE b WHERE a.bytes < 50 AND b.bytes < 50 AND a.src < b.src",
    "SELECT count(*) FROM TABLE a JOIN TABLE b USING (start_time) WHERE a.bytes < 90",
    "SELECT a.bytes, (SELECT max(b.bytes) FROM TABLE b WHERE b.src = a.src OR b.dst = a.src) FROM TABLE a WHERE a.bytes < 9 ORDER BY 1",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40) \
     SELECT sum(f.packets) FROM n JOIN TABLE f ON f.bytes = n.i",
];

#[test]
fn a_store_answers_as_a_table_of_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    store(folder.path());
    let connection = database(folder.path());
    let sums = "count(*), sum(bytes), sum(packets), min(src), max(end_time), count(DISTINCT application)";
    let mut found = 0;
    let conditions = CONDITIONS.iter().map(|condition| format!("SELECT {sums} FROM TABLE WHERE {condition}"));
    for statement in conditions.chain(JOINS.map(str::to_owned)) {
        let ours = asked(&connection, &statement.replace("TABLE", "flows"));
        assert_eq!(ours, asked(&connection, &statement.replace("TABLE", "copy")), "{statement}");
        found += usize::from(ours.first().is_some_and(|row| row[0] != Plain::Integer(0)));
    }
    assert!(found + 4 >= CONDITIONS.len() + JOINS.len(), "{found} statements have found anything");
}
