//! SQLite over the tables of a store: a database in memory, whose tables are virtual.
//!
//! SQLite sorts and groups in temporary files beyond a part of the memory limit. A statement may read, and nothing else: the
//! authorizer refuses all that would write, or open other files.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::config::DbConfig;
use rusqlite::fallible_iterator::FallibleIterator as _;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Batch, Connection, OpenFlags, Statement};

use super::cell::{Cell, Column, Kind, Row, is_time, parse_time};
use super::noted::Noted;
use super::scan::{Failure, Source};
use super::{AskSettings, Failed, HELD, Remote, functions, mistake, noted, rows};
use crate::Table;
use crate::paths::Stored;

/// The part of the memory limit that a sort may take; a statement may have several.
const SORTED: usize = 4;
/// Longest text of a result in bytes.
const LONGEST: i32 = 64 << 20;

/// The failure that ended a scan, which SQLite reports as text only.
#[derive(Clone, Debug, Default)]
pub(super) struct Cause(Arc<Mutex<Option<Failure>>>);

impl Cause {
    pub(super) fn set(&self, why: Failure) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    fn take(&self) -> Option<Failure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A database with the tables over these files, and those of what was noted of files.
pub(super) struct Engine {
    connection: Connection,
    cause: Cause,
    memory_mib: usize,
}

impl Engine {
    pub(super) fn new(
        settings: &AskSettings,
        files: &[(Table, Stored)],
        noted: Option<&Noted>,
        remote: Option<&Remote>,
    ) -> rusqlite::Result<Engine> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_in_memory_with_flags(flags)?;
        // By default SQLite takes an unknown name in double quotes as text.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
        let cache_kib = (settings.memory_mib << 10) / SORTED;
        connection.pragma_update(None, "cache_size", -(cache_kib.min(1 << 30) as i64))?;
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LONGEST)?;
        functions::register(&connection)?;
        let cause = Cause::default();
        for table in Table::ALL {
            let source = Source::new(table, files, settings, remote);
            rows::register(&connection, source, cause.clone(), settings.memory_mib << 20)?;
        }
        if let Some(noted) = noted {
            noted::register(&connection, settings, noted)?;
        }
        connection.authorizer(Some(authorize))?;
        Ok(Engine { connection, cause, memory_mib: settings.memory_mib })
    }

    /// Columns of the answer to a statement.
    pub(super) fn columns(&self, sql: &str) -> rusqlite::Result<Vec<Column>> {
        Ok(columns(&self.connection.prepare(sql)?))
    }

    /// Runs a statement. `each` receives the columns and up to [`HELD`] rows a call; the last call may have no rows.
    pub(super) fn run(
        &self,
        sql: &str,
        each: &mut impl FnMut(&[Column], &[Row]) -> crate::Result<()>,
    ) -> Result<(), Failed> {
        let failed = |error: rusqlite::Error| match self.cause.take() {
            Some(Failure::File(why)) => Failed::Perhaps(why),
            Some(Failure::Memory) => mistake::too_large(self.memory_mib, "a join"),
            None => mistake::failed(&error, sql, self.memory_mib),
        };
        let described = described(sql);
        let mut statements = Batch::new(&self.connection, described.as_deref().unwrap_or(sql));
        let Some(mut statement) = statements.next().map_err(failed)? else {
            return Err(mistake::wrong("SQL is empty", None, None));
        };
        if !matches!(statements.next(), Ok(None)) {
            return Err(mistake::wrong("SQL has more than one statement", None, None));
        }
        let columns = columns(&statement);
        let mut rows = statement.raw_query();
        let mut held: Vec<Row> = Vec::new();
        while let Some(row) = rows.next().map_err(failed)? {
            let cells = columns
                .iter()
                .enumerate()
                .map(|(at, column)| row.get_ref(at).map(|value| cell(column.kind, value)));
            held.push(cells.collect::<rusqlite::Result<_>>().map_err(failed)?);
            if held.len() >= HELD {
                each(&columns, &held).map_err(Failed::Finally)?;
                held.clear();
            }
        }
        each(&columns, &held).map_err(Failed::Finally)
    }
}

/// The query for `DESCRIBE TABLE`.
fn described(sql: &str) -> Option<String> {
    let mut words = sql.trim().trim_end_matches(';').split_whitespace();
    let (verb, name) = (words.next()?, words.next()?);
    let is_name = |name: &str| name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    let is_one = verb.eq_ignore_ascii_case("describe") && is_name(name) && words.next().is_none();
    is_one.then(|| {
        format!(
            "SELECT name AS column_name, replace(type, ' TEXT', '') AS data_type FROM pragma_table_info('{name}')"
        )
    })
}

fn columns(statement: &Statement<'_>) -> Vec<Column> {
    let kind = |declared: Option<&str>| match declared {
        Some("TEXT") => Kind::Text,
        Some("INTEGER" | "REAL") => Kind::Number,
        Some("BOOLEAN") => Kind::Flag,
        Some("TIMESTAMP TEXT") => Kind::Time,
        _ => Kind::Any,
    };
    statement.columns().iter().map(|column| Column::new(column.name(), kind(column.decl_type()))).collect()
}

/// A value as a cell; texts of times that an expression returns are times.
fn cell(kind: Kind, value: ValueRef<'_>) -> Cell<'static> {
    match value {
        ValueRef::Null => Cell::Null,
        ValueRef::Integer(number) if kind == Kind::Flag => Cell::Flag(number != 0),
        ValueRef::Integer(number) => Cell::Int(number),
        ValueRef::Real(number) => Cell::Real(number),
        ValueRef::Text(text) | ValueRef::Blob(text) => {
            let text = String::from_utf8_lossy(text);
            if matches!(kind, Kind::Time | Kind::Any)
                && is_time(&text)
                && let Some(us) = parse_time(&text)
            {
                return Cell::Time(us);
            }
            Cell::Text(text.into_owned().into())
        }
    }
}

/// Allows to read, and nothing else.
fn authorize(context: AuthContext<'_>) -> Authorization {
    match context.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Function { function_name } if function_name != "load_extension" => Authorization::Allow,
        AuthAction::Pragma { pragma_name: "table_info" | "table_xinfo" | "table_list", .. } => {
            Authorization::Allow
        }
        _ => Authorization::Deny,
    }
}
