//! Conditions that are checked before rows are decoded: by the statistics of a row group, then by their own columns.

use arrow::array::{Array, ArrayRef, BooleanArray, Int32Array, Int64Array, Scalar, StringArray};
use arrow::array::{Datum, TimestampMicrosecondArray};
use arrow::compute::kernels::cmp;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use parquet::file::statistics::Statistics;

/// A comparison of a column with a value. Rows without a value in the column do not meet it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Condition {
    /// Position of the column.
    pub(super) column: usize,
    operator: Operator,
    value: Value,
}

/// How a column is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Operator {
    Equal,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

/// With what a column is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Value {
    /// A number, or microseconds since 1970.
    Int(i64),
    Text(String),
}

/// The rows of a row group that meet a condition, as far as its statistics say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    All,
    Some,
    None,
}

impl Condition {
    pub(in super::super) fn new(column: usize, operator: Operator, value: Value) -> Condition {
        Condition { column, operator, value }
    }

    /// The verdict on a row group.
    pub(super) fn judge(&self, statistics: &Statistics) -> Verdict {
        let has_nulls = statistics.null_count_opt() != Some(0);
        let verdict = match (&self.value, statistics) {
            (Value::Int(value), Statistics::Int32(known)) => {
                let bounds = known.min_opt().zip(known.max_opt());
                bounds.map(|(min, max)| self.within(value, &i64::from(*min), &i64::from(*max)))
            }
            (Value::Int(value), Statistics::Int64(known)) => {
                known.min_opt().zip(known.max_opt()).map(|(min, max)| self.within(value, min, max))
            }
            (Value::Text(value), Statistics::ByteArray(known)) => {
                let bounds = known.min_opt().zip(known.max_opt());
                bounds.map(|(min, max)| {
                    let verdict = self.within(&value.as_bytes(), &min.data(), &max.data());
                    // Bounds of long texts are cut off, and no value of the column then.
                    let exact = known.min_is_exact() && known.max_is_exact();
                    if verdict == Verdict::All && !exact { Verdict::Some } else { verdict }
                })
            }
            _ => None,
        };
        match verdict {
            Some(Verdict::All) if has_nulls => Verdict::Some,
            Some(verdict) => verdict,
            None => Verdict::Some,
        }
    }

    /// The verdict on values from `min` to `max`.
    fn within<T: PartialOrd>(&self, value: &T, min: &T, max: &T) -> Verdict {
        let (none, all) = match self.operator {
            Operator::Equal => (value < min || value > max, value == min && value == max),
            Operator::Less => (min >= value, max < value),
            Operator::AtMost => (min > value, max <= value),
            Operator::Greater => (max <= value, min > value),
            Operator::AtLeast => (max < value, min >= value),
        };
        match (none, all) {
            (true, _) => Verdict::None,
            (_, true) => Verdict::All,
            _ => Verdict::Some,
        }
    }

    /// The verdict on a file, all of whose rows have this value.
    pub(super) fn judge_text(&self, text: &str) -> Verdict {
        match &self.value {
            Value::Text(value) => self.within(&value.as_str(), &text, &text),
            Value::Int(_) => Verdict::Some,
        }
    }

    /// The same for a number.
    pub(super) fn judge_number(&self, number: i64) -> Verdict {
        match &self.value {
            Value::Int(value) => self.within(value, &number, &number),
            Value::Text(_) => Verdict::Some,
        }
    }

    /// Rows that meet the condition.
    pub(super) fn rows(&self, column: &ArrayRef) -> Result<BooleanArray, ArrowError> {
        let value: ArrayRef = match (&self.value, column.data_type()) {
            (Value::Int(value), DataType::Int32) => match i32::try_from(*value) {
                Ok(value) => std::sync::Arc::new(Int32Array::from(vec![value])),
                // Compared as the numbers that they are.
                Err(_) => return self.rows(&arrow::compute::cast(column, &DataType::Int64)?),
            },
            (Value::Int(value), DataType::Timestamp(..)) => {
                std::sync::Arc::new(TimestampMicrosecondArray::from(vec![*value]))
            }
            (Value::Int(value), _) => std::sync::Arc::new(Int64Array::from(vec![*value])),
            (Value::Text(value), _) => std::sync::Arc::new(StringArray::from(vec![value.as_str()])),
        };
        let value = Scalar::new(value);
        let (column, value): (&dyn Datum, &dyn Datum) = (column, &value);
        match self.operator {
            Operator::Equal => cmp::eq(column, value),
            Operator::Less => cmp::lt(column, value),
            Operator::AtMost => cmp::lt_eq(column, value),
            Operator::Greater => cmp::gt(column, value),
            Operator::AtLeast => cmp::gt_eq(column, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const OPERATORS: [Operator; 5] =
        [Operator::Equal, Operator::Less, Operator::AtMost, Operator::Greater, Operator::AtLeast];

    #[test]
    fn a_verdict_is_that_of_the_rows() {
        for operator in OPERATORS {
            for value in -1..=6 {
                let condition = Condition::new(0, operator, Value::Int(value));
                for (min, max) in [(0, 5), (2, 2), (3, 4)] {
                    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(min..=max));
                    let rows = condition.rows(&column).unwrap();
                    let verdict = condition.within(&value, &min, &max);
                    match rows.true_count() {
                        0 => assert_ne!(verdict, Verdict::All, "{condition:?} {min} {max}"),
                        some if some == rows.len() => assert_ne!(verdict, Verdict::None, "{condition:?}"),
                        _ => assert_eq!(verdict, Verdict::Some, "{condition:?} {min} {max}"),
                    }
                    if min == max {
                        assert_ne!(verdict, Verdict::Some, "a single value decides");
                    }
                }
            }
        }
    }

    #[test]
    fn nulls_and_cut_bounds_are_no_proof() {
        let condition = Condition::new(0, Operator::AtLeast, Value::Int(3));
        let with = |nulls| Statistics::int32(Some(3), Some(9), None, nulls, false);
        assert_eq!(condition.judge(&with(Some(0))), Verdict::All);
        assert_eq!(condition.judge(&with(Some(1))), Verdict::Some);
        assert_eq!(condition.judge(&with(None)), Verdict::Some);
        assert_eq!(condition.judge(&Statistics::int32(Some(1), Some(2), None, None, false)), Verdict::None);
        assert_eq!(condition.judge(&Statistics::int32(None, None, None, Some(0), false)), Verdict::Some);
        let column: ArrayRef = Arc::new(Int32Array::from(vec![Some(3), None, Some(2)]));
        assert_eq!(condition.rows(&column).unwrap().true_count(), 1);
        let wide = Condition::new(0, Operator::Less, Value::Int(i64::MAX));
        assert_eq!(wide.rows(&column).unwrap().true_count(), 2);
    }
}
