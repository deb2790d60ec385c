//! Totals of flows by one to three columns.

use ahash::RandomState;
use arrow::array::cast::AsArray as _;
use arrow::array::{Array, Int64Array, RecordBatch, StringArray};
use hashbrown::HashTable;

use super::super::cell::{Cell, Row};
use super::whole;

/// Maximum number of keys.
const KEYS: usize = 3;

/// How a column is a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyKind {
    Number,
    Text,
    /// Text; flows without it are not counted.
    Known,
    /// The lower one of two numbers; flows without them are not counted.
    Lower(&'static str),
    /// The start of the step, in microseconds, that contains a time.
    Step(i64),
    /// The number of the step, in nanoseconds, in which a flow has ended, by its start and this column.
    EndStep(&'static str, i64),
}

/// The columns by which flows are summed.
#[derive(Clone, Debug)]
pub(super) struct Keys(Vec<(&'static str, KeyKind)>);

impl Keys {
    pub(super) fn new(keys: &[(&'static str, KeyKind)]) -> Keys {
        Keys(keys.to_vec())
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = KeyKind> {
        self.0.iter().map(|(_, kind)| *kind)
    }

    /// All columns that are read.
    pub(super) fn columns(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().flat_map(|(name, kind)| {
            let second = match kind {
                KeyKind::Lower(second) | KeyKind::EndStep(second, _) => Some(*second),
                _ => None,
            };
            [Some(*name), second].into_iter().flatten()
        })
    }
}

/// Sums over both directions of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) flows: i64,
    pub(super) packets: i64,
    pub(super) bytes: i64,
}

impl Total {
    /// Adds with wrap-around on overflow.
    fn add(&mut self, more: &Total) {
        self.flows = self.flows.wrapping_add(more.flows);
        self.packets = self.packets.wrapping_add(more.packets);
        self.bytes = self.bytes.wrapping_add(more.bytes);
    }
}

/// Values of the keys: a number, or the position of a text.
type Values = [i64; KEYS];
/// NULL as a value; no column has this number.
const NULL: i64 = i64::MIN;

/// Texts, each with its position.
#[derive(Debug, Default)]
struct Texts {
    random: RandomState,
    known: HashTable<u32>,
    texts: Vec<Box<str>>,
    size: usize,
}

impl Texts {
    fn position(&mut self, text: &str) -> i64 {
        let Texts { random, known, texts, size } = self;
        let hash = |text: &str| random.hash_one(text);
        let is_equal = |at: &u32| *texts[*at as usize] == *text;
        if let Some(at) = known.find(hash(text), is_equal) {
            return i64::from(*at);
        }
        let at = texts.len() as u32;
        known.insert_unique(hash(text), at, |at| hash(&texts[*at as usize]));
        texts.push(text.into());
        *size += text.len() + size_of::<Box<str>>() + 8;
        i64::from(at)
    }
}

/// A column of a batch.
enum Input {
    Number(Int64Array),
    Text(StringArray),
    Pair(Int64Array, Int64Array),
}

/// Totals by the values of keys.
#[derive(Debug)]
pub(super) struct Groups {
    keys: Keys,
    /// Senders of packets choose the keys: the hash has a secret seed.
    random: RandomState,
    totals: HashTable<(Values, Total)>,
    texts: [Texts; KEYS],
}

impl Groups {
    pub(super) fn new(keys: Keys) -> Groups {
        Groups { keys, random: RandomState::new(), totals: HashTable::new(), texts: Default::default() }
    }

    /// Approximate memory in bytes.
    pub(super) fn size(&self) -> usize {
        self.totals.allocation_size() + self.texts.iter().map(|texts| texts.size).sum::<usize>()
    }

    fn put(&mut self, values: Values, total: &Total) {
        let random = &self.random;
        let hash = |values: &Values| random.hash_one(values);
        let entry = self.totals.entry(hash(&values), |(known, _)| *known == values, |(known, _)| hash(known));
        entry.and_modify(|(_, known)| known.add(total)).or_insert((values, *total));
    }

    /// Adds flows, with the columns of the keys and then those of the sums.
    pub(super) fn add(&mut self, flows: &RecordBatch) {
        let mut columns = flows.columns().iter();
        let mut inputs = Vec::with_capacity(KEYS);
        for kind in self.keys.kinds() {
            let mut number = || columns.next().and_then(whole);
            let input = match kind {
                KeyKind::Number | KeyKind::Step(_) => number().map(Input::Number),
                KeyKind::Lower(_) | KeyKind::EndStep(..) => {
                    number().zip(number()).map(|(first, second)| Input::Pair(first, second))
                }
                KeyKind::Text | KeyKind::Known => {
                    columns.next().map(|column| Input::Text(column.as_string::<i32>().clone()))
                }
            };
            inputs.extend(input.map(|input| (kind, input)));
        }
        let sums: Vec<Int64Array> = columns.filter_map(whole).collect();
        let [packets, bytes, back_packets, back_bytes] = sums.as_slice() else { return };
        let kinds = inputs.len();
        if kinds != self.keys.0.len() {
            return;
        }
        // The last text of each key and its position: neighbours are often equal.
        let mut last: [Option<(&str, i64)>; KEYS] = [None; KEYS];
        'rows: for row in 0..flows.num_rows() {
            let mut values = [NULL; KEYS];
            for (at, (kind, input)) in inputs.iter().enumerate() {
                values[at] = match (input, kind) {
                    (Input::Number(column), KeyKind::Step(step)) => {
                        at_row(column, row).map_or(NULL, |time| time - time.rem_euclid(*step))
                    }
                    (Input::Number(column), _) => at_row(column, row).unwrap_or(NULL),
                    (Input::Pair(first, second), kind) => {
                        match (at_row(first, row).zip(at_row(second, row)), kind) {
                            (Some((start, length)), KeyKind::EndStep(_, step)) => {
                                start.saturating_add(length).saturating_sub(1).max(0) / step
                            }
                            (Some((first, second)), _) => first.min(second),
                            (None, _) => continue 'rows,
                        }
                    }
                    (Input::Text(column), KeyKind::Known) if column.is_null(row) => continue 'rows,
                    (Input::Text(column), _) if column.is_null(row) => NULL,
                    (Input::Text(column), _) => {
                        let text = column.value(row);
                        match last[at] {
                            Some((known, position)) if known == text => position,
                            _ => {
                                let position = self.texts[at].position(text);
                                last[at] = Some((text, position));
                                position
                            }
                        }
                    }
                };
            }
            let sum = |there: &Int64Array, back: &Int64Array| {
                at_row(there, row).unwrap_or(0).wrapping_add(at_row(back, row).unwrap_or(0))
            };
            let total =
                Total { flows: 1, packets: sum(packets, back_packets), bytes: sum(bytes, back_bytes) };
            self.put(values, &total);
        }
    }

    /// Adds the totals of another thread.
    pub(super) fn merge(&mut self, other: Groups) {
        let texts = other.texts;
        for (mut values, total) in other.totals {
            for (at, (_, kind)) in self.keys.0.iter().enumerate() {
                if matches!(kind, KeyKind::Text | KeyKind::Known) && values[at] != NULL {
                    values[at] = self.texts[at].position(&texts[at].texts[values[at] as usize]);
                }
            }
            self.put(values, &total);
        }
    }

    /// All totals with the cells of their keys.
    pub(super) fn into_totals(self) -> impl Iterator<Item = (Row, Total)> {
        let (keys, texts) = (self.keys, self.texts);
        self.totals.into_iter().map(move |(values, total)| {
            let cells = keys.kinds().enumerate().map(|(at, kind)| match (values[at], kind) {
                (NULL, _) => Cell::Null,
                (position, KeyKind::Text | KeyKind::Known) => {
                    Cell::Text(texts[at].texts[position as usize].to_string().into())
                }
                (us, KeyKind::Step(_)) => Cell::Time(us),
                (number, _) => Cell::Int(number),
            });
            (cells.collect(), total)
        })
    }
}

/// The number in this row.
fn at_row(column: &Int64Array, row: usize) -> Option<i64> {
    column.is_valid(row).then(|| column.value(row))
}
