//! Virtual tables of SQLite over the files of a store ([`Scan`]).
//!
//! SQLite says which columns a query uses, and which comparisons its rows have to meet; both restrict what is decoded, and
//! SQLite checks the comparisons again. A scan that is repeated, as for each row of the other table of a join, is read once
//! and then kept in memory with an index of the column that the join compares.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use rusqlite::ffi::{sqlite3_vtab, sqlite3_vtab_cursor};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::vtab::{
    Context, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConnection, VTabCursor,
};
use rusqlite::{Connection, Error, Result};

use super::cell::{Cell, cell, parse_time, time};
use super::engine::Cause;
use super::scan::{Condition, Failure, Operator, Scan, Source, Value};

/// Approximate bytes of a row in the files, from which SQLite's planner has the number of rows.
const ROW: u64 = 50;

/// Registers a table under its name.
pub(super) fn register(connection: &Connection, source: Source, cause: Cause, memory: usize) -> Result<()> {
    const MODULE: Module<'_, Rows> = Module::eponymous_only_module();
    let name = source.table.name();
    connection.create_module(name, &MODULE, Some(Shared { source: Arc::new(source), cause, memory }))
}

/// State shared by a table and its cursors.
#[derive(Clone, Debug)]
struct Shared {
    source: Arc<Source>,
    cause: Cause,
    /// Limit in bytes of what is kept for a join.
    memory: usize,
}

/// A table.
#[repr(C)]
struct Rows {
    base: sqlite3_vtab,
    shared: Shared,
}

// SAFETY: the first field is sqlite3_vtab, and the layout is that of C.
unsafe impl<'vtab> VTab<'vtab> for Rows {
    type Aux = Shared;
    type Cursor = Cursor<'vtab>;

    fn connect(
        _: &mut VTabConnection,
        aux: Option<&Shared>,
        _: &[u8],
        _: &[u8],
        _: &[u8],
        _: &[&[u8]],
    ) -> Result<(Cow<'static, std::ffi::CStr>, Rows)> {
        let shared = aux.ok_or_else(|| Error::ModuleError("no table".to_owned()))?.clone();
        let columns: Vec<String> = shared
            .source
            .columns
            .iter()
            .map(|field| format!("\"{}\" {}", field.name(), declared(field.data_type())))
            .collect();
        let schema = CString::new(format!("CREATE TABLE x({})", columns.join(", ")))?;
        Ok((Cow::Owned(schema), Rows { base: sqlite3_vtab::default(), shared }))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        let known: Vec<_> = info
            .constraints()
            .enumerate()
            .filter(|(_, constraint)| constraint.is_usable())
            .filter_map(|(at, it)| Some((at, usize::try_from(it.column()).ok()?, operator(it.operator())?)))
            .collect();
        let mut plan = Plan { used: info.col_used(), conditions: Vec::new() };
        for (at, column, operator) in known {
            let Some(field) = self.shared.source.columns.get(column) else { continue };
            let is_comparable = match field.data_type() {
                // Comparisons of text by other rules than its bytes are SQLite's alone.
                DataType::Utf8 | DataType::Timestamp(..) => info.collation(at)? == "BINARY",
                DataType::Int32 | DataType::Int64 => true,
                _ => false,
            };
            // Rows of old files have a version that is not in them. For each value of `IN` the table would be read once.
            let is_of_old_files = field.name() == "schema_version";
            if !is_comparable || is_of_old_files || info.is_in_constraint(at)? {
                continue;
            }
            plan.conditions.push((column, operator));
            info.constraint_usage(at).set_argv_index(plan.conditions.len() as c_int);
        }
        let rows = (self.shared.source.size() / ROW).max(1) as f64;
        let equal = plan.conditions.iter().filter(|(_, operator)| *operator == Operator::Equal).count();
        info.set_estimated_rows((rows / 10f64.powi(equal.min(6) as i32)) as i64 + 1);
        // A scan reads all rows, whatever is found: two scans for the two sides of `OR` never cost less than one.
        info.set_estimated_cost(rows);
        info.set_idx_str(&plan.to_string());
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<Cursor<'vtab>> {
        Ok(Cursor {
            base: sqlite3_vtab_cursor::default(),
            shared: self.shared.clone(),
            plan: None,
            rows: Found::End,
            kept: None,
            _table: PhantomData,
        })
    }
}

/// Type of a column in SQL. Times are text for SQLite, which compares them as such.
fn declared(kind: &DataType) -> &'static str {
    match kind {
        DataType::Int32 | DataType::Int64 => "INTEGER",
        DataType::Float64 => "REAL",
        DataType::Boolean => "BOOLEAN",
        DataType::Timestamp(..) => "TIMESTAMP TEXT",
        _ => "TEXT",
    }
}

fn operator(operator: IndexConstraintOp) -> Option<Operator> {
    match operator {
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ => Some(Operator::Equal),
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LT => Some(Operator::Less),
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_LE => Some(Operator::AtMost),
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GT => Some(Operator::Greater),
        IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_GE => Some(Operator::AtLeast),
        _ => None,
    }
}

/// Columns and comparisons that SQLite requests of a scan; as text in its plan: `USED COLUMN OPERATOR, ...` as in `5 14= 1>`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    /// Used columns as bits; the last bit is that of all from the 64th one.
    used: u64,
    conditions: Vec<(usize, Operator)>,
}

const OPERATORS: [(Operator, char); 5] = [
    (Operator::Equal, '='),
    (Operator::Less, '<'),
    (Operator::AtMost, 'l'),
    (Operator::Greater, '>'),
    (Operator::AtLeast, 'g'),
];

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.used)?;
        for (column, operator) in &self.conditions {
            let (_, letter) = OPERATORS.iter().find(|(known, _)| known == operator).unwrap_or(&OPERATORS[0]);
            write!(f, " {column}{letter}")?;
        }
        Ok(())
    }
}

impl Plan {
    fn parse(text: &str) -> Option<Plan> {
        let mut words = text.split(' ');
        let used = words.next()?.parse().ok()?;
        let conditions = words.map(|word| {
            let (operator, letter) = OPERATORS.iter().find(|(_, letter)| word.ends_with(*letter))?;
            Some((word.strip_suffix(*letter)?.parse().ok()?, *operator))
        });
        Some(Plan { used, conditions: conditions.collect::<Option<_>>()? })
    }

    fn is_used(&self, column: usize) -> bool {
        self.used & 1 << column.min(63) != 0
    }
}

/// The value that a condition compares with, if it can be checked before SQLite does: one of the column's type.
fn value(kind: &DataType, value: ValueRef<'_>) -> Option<Value> {
    match (kind, value) {
        (DataType::Int32 | DataType::Int64, ValueRef::Integer(number)) => Some(Value::Int(number)),
        (DataType::Utf8, ValueRef::Text(text)) => Some(Value::Text(str::from_utf8(text).ok()?.to_owned())),
        // Another text of the same time compares differently.
        (DataType::Timestamp(..), ValueRef::Text(text)) => {
            let text = str::from_utf8(text).ok()?;
            let us = parse_time(text)?;
            (time(us, ' ') == text).then_some(Value::Int(us))
        }
        _ => None,
    }
}

/// Rows that a cursor goes through.
#[derive(Debug)]
enum Found {
    /// As they are read.
    Read {
        from: Receiver<Result<RecordBatch, Failure>>,
        batch: RecordBatch,
        row: usize,
    },
    /// Those of what is kept.
    Kept {
        rows: Arc<[u32]>,
        at: usize,
    },
    /// All of what is kept.
    All {
        row: usize,
    },
    End,
}

/// Key of the index of a join.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    Int(i64),
    Text(Box<str>),
}

/// Rows of a repeated scan.
#[derive(Debug)]
struct Kept {
    rows: RecordBatch,
    /// Rows by the value of the column that the first comparison for equality has.
    index: Option<(usize, Index)>,
}

/// Rows by value.
type Index = HashMap<Key, Arc<[u32]>>;

/// A scan of a table.
#[repr(C)]
struct Cursor<'vtab> {
    base: sqlite3_vtab_cursor,
    shared: Shared,
    /// The plan, its text, and the position of each column in the batches.
    plan: Option<(String, Plan, Vec<Option<usize>>)>,
    rows: Found,
    kept: Option<Kept>,
    _table: PhantomData<&'vtab Rows>,
}

impl Cursor<'_> {
    /// Reports a failure to SQLite, and its cause to the engine.
    fn failed(&self, why: Failure) -> Error {
        let text = format!("{why:?}");
        self.shared.cause.set(why);
        Error::ModuleError(text)
    }

    /// The next batch with rows.
    fn next_batch(&self, from: Receiver<Result<RecordBatch, Failure>>) -> Result<Found> {
        loop {
            match from.recv() {
                Ok(Ok(batch)) if batch.num_rows() == 0 => {}
                Ok(Ok(batch)) => return Ok(Found::Read { from, batch, row: 0 }),
                Ok(Err(why)) => return Err(self.failed(why)),
                // The thread has ended.
                Err(_) => return Ok(Found::End),
            }
        }
    }

    /// Reads all rows for a scan that is repeated.
    fn keep(&self, plan: &Plan, wanted: Vec<usize>, columns: &[Option<usize>]) -> Result<Kept> {
        let mut batches: Vec<RecordBatch> = Vec::new();
        let mut size = 0;
        let scan = Scan::new(&self.shared.source, wanted.clone(), Vec::new());
        for batch in scan.stream() {
            let batch = batch.map_err(|why| self.failed(why))?;
            size += batch.get_array_memory_size() + batch.num_rows() * size_of::<(Key, u32)>();
            if size > self.shared.memory {
                return Err(self.failed(Failure::Memory));
            }
            batches.push(batch);
        }
        let fields: Vec<_> = wanted
            .iter()
            .map(|column| self.shared.source.columns[*column].clone().with_nullable(true))
            .collect();
        let schema = Arc::new(arrow::datatypes::Schema::new(fields));
        let rows = match batches.is_empty() {
            true => RecordBatch::new_empty(schema),
            false => arrow::compute::concat_batches(&batches[0].schema(), &batches)
                .map_err(|error| self.failed(Failure::File(error.to_string())))?,
        };
        drop(batches);
        let equal = plan.conditions.iter().position(|(_, operator)| *operator == Operator::Equal);
        let index = equal.and_then(|at| Some((at, columns[plan.conditions[at].0]?))).map(|(at, column)| {
            let mut index: HashMap<Key, Vec<u32>> = HashMap::new();
            let column = rows.column(column);
            for row in 0..rows.num_rows() {
                if let Some(key) = key(column, row) {
                    index.entry(key).or_default().push(row as u32);
                }
            }
            (at, index.into_iter().map(|(key, rows)| (key, rows.into())).collect())
        });
        Ok(Kept { rows, index })
    }
}

/// Key of a value; NULL is equal to nothing.
fn key(column: &ArrayRef, row: usize) -> Option<Key> {
    match cell(column, row) {
        Cell::Int(number) | Cell::Time(number) => Some(Key::Int(number)),
        Cell::Text(text) => Some(Key::Text((*text).into())),
        _ => None,
    }
}

// SAFETY: the first field is sqlite3_vtab_cursor, and the layout is that of C.
unsafe impl VTabCursor for Cursor<'_> {
    fn filter(&mut self, _: c_int, text: Option<&str>, arguments: &Filters<'_>) -> Result<()> {
        let text = text.unwrap_or_default();
        let plan = Plan::parse(text).ok_or_else(|| Error::ModuleError("no plan".to_owned()))?;
        let fields = &self.shared.source.columns;
        let wanted: Vec<usize> = (0..fields.len())
            .filter(|column| {
                plan.is_used(*column) || plan.conditions.iter().any(|(checked, _)| checked == column)
            })
            .collect();
        let values: Vec<Option<Value>> = plan
            .conditions
            .iter()
            .zip(arguments.iter())
            .map(|((column, _), argument)| value(fields[*column].data_type(), argument))
            .collect();
        let is_repeated = self.plan.as_ref().is_some_and(|(former, ..)| former == text);
        if !is_repeated {
            let columns =
                (0..fields.len()).map(|column| wanted.iter().position(|wanted| *wanted == column)).collect();
            self.plan = Some((text.to_owned(), plan.clone(), columns));
            self.kept = None;
            let conditions =
                plan.conditions.iter().zip(values).filter_map(|((column, operator), value)| {
                    Some(Condition::new(*column, *operator, value?))
                });
            let scan = Scan::new(&self.shared.source, wanted, conditions.collect());
            self.rows = Found::End;
            self.rows = self.next_batch(scan.stream())?;
            return Ok(());
        }
        if self.kept.is_none() {
            self.rows = Found::End;
            let columns = self.plan.as_ref().map(|(_, _, columns)| columns.clone()).unwrap_or_default();
            self.kept = Some(self.keep(&plan, wanted, &columns)?);
        }
        let Some(kept) = &self.kept else { return Ok(()) };
        let found = kept.index.as_ref().and_then(|(at, index)| {
            let key = match values[*at].as_ref()? {
                Value::Int(number) => Key::Int(*number),
                Value::Text(text) => Key::Text(text.as_str().into()),
            };
            Some(index.get(&key).cloned())
        });
        self.rows = match found {
            Some(Some(rows)) => Found::Kept { rows, at: 0 },
            Some(None) => Found::End,
            None if kept.rows.num_rows() == 0 => Found::End,
            None => Found::All { row: 0 },
        };
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        let kept = self.kept.as_ref().map_or(0, |kept| kept.rows.num_rows());
        match &mut self.rows {
            Found::Read { batch, row, .. } if *row + 1 < batch.num_rows() => *row += 1,
            Found::Read { .. } => {
                if let Found::Read { from, .. } = std::mem::replace(&mut self.rows, Found::End) {
                    self.rows = self.next_batch(from)?;
                }
            }
            Found::Kept { rows, at } if *at + 1 < rows.len() => *at += 1,
            Found::All { row } if *row + 1 < kept => *row += 1,
            rows => *rows = Found::End,
        }
        Ok(())
    }

    fn eof(&self) -> bool {
        matches!(self.rows, Found::End)
    }

    fn column(&self, context: &mut Context, column: c_int) -> Result<()> {
        let kept = self.kept.as_ref().map(|kept| &kept.rows);
        let (batch, row) = match (&self.rows, kept) {
            (Found::Read { batch, row, .. }, _) => (batch, *row),
            (Found::Kept { rows, at }, Some(kept)) => (kept, rows[*at] as usize),
            (Found::All { row }, Some(kept)) => (kept, *row),
            _ => return Err(Error::ModuleError("no row".to_owned())),
        };
        let columns = self.plan.as_ref().map(|(_, _, columns)| columns.as_slice()).unwrap_or_default();
        let Some(Some(column)) = columns.get(column as usize) else {
            return context.set_result(&rusqlite::types::Null);
        };
        let cell = cell(batch.column(*column), row);
        let value = match &cell {
            Cell::Null => ToSqlOutput::Borrowed(ValueRef::Null),
            Cell::Int(number) => ToSqlOutput::from(*number),
            Cell::Real(number) => ToSqlOutput::from(*number),
            Cell::Flag(flag) => ToSqlOutput::from(*flag),
            Cell::Text(text) => ToSqlOutput::from(&**text),
            Cell::Time(us) => return context.set_result(&time(*us, ' ')),
        };
        context.set_result(&value)
    }

    /// Rows have no number: files come and go, and conditions leave rows out. SQLite needs one only for a statement that
    /// names it, and where it reads a table once for each side of an `OR`, which the costs of [`Rows::best_index`] prevent.
    fn rowid(&self) -> Result<i64> {
        Err(Error::ModuleError(
            "rows of a store have no rowid; of an OR, ask for both sides with UNION".to_owned(),
        ))
    }
}

#[cfg(test)]
mod tests;
