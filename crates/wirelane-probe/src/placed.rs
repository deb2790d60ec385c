//! TOML deserializer for serde that gives each value its position in the text.
//!
//! The `toml` crate has this, too, behind a feature that no other crate here enables: with it serde is built with other
//! features, and all its dependents again. This version only needs value types and positions.

use std::fmt;
use std::path::Path;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};
use serde::{Deserialize, forward_to_deserialize_any};
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use wirelane::escape::printable;
use wirelane::rules::Mistake;

use crate::config::Mistakes;

/// A value, and its position in the text.
#[derive(Clone, Copy, Debug)]
pub struct At<T> {
    /// Byte offset in the text.
    pub start: usize,
    /// The value.
    pub value: T,
}

impl<T> At<T> {
    /// The value.
    pub fn get_ref(&self) -> &T {
        &self.value
    }
}

/// Struct name by which a value requests its position. No table of a configuration has it.
const PLACE: &str = "$place";
const START: &str = "$start";
const VALUE: &str = "$value";

/// A mistake with its position.
#[derive(Debug)]
pub struct Fault {
    /// Byte offset in the text; `None` until it is known.
    pub at: Option<usize>,
    /// Reason, and the allowed values.
    pub reason: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(reason: T) -> Fault {
        Fault { at: None, reason: reason.to_string() }
    }
}

impl Fault {
    /// Sets the position, unless a more precise one is known.
    fn here(mut self, at: usize) -> Fault {
        self.at.get_or_insert(at);
        self
    }
}

/// Parses a text.
///
/// # Errors
/// The first mistake.
pub fn read<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, Fault> {
    let table = DeTable::parse(text).map_err(|error| Fault {
        at: error.span().map(|span| span.start),
        reason: error.message().to_owned(),
    })?;
    let access = Table::new(table.get_ref(), text.len());
    T::deserialize(MapAccessDeserializer::new(access)).map_err(|fault| fault.here(0))
}

/// Mistakes in a text with line and column instead of byte offsets, in the order of the text.
pub fn mistakes(text: &str, path: &Path, mut found: Vec<(usize, String)>) -> Mistakes {
    found.sort_by_key(|(at, _)| *at);
    let mistake = |(at, reason): &(usize, String)| {
        let before = &text.as_bytes()[..(*at).min(text.len())];
        let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let column = String::from_utf8_lossy(&before[line_start..]).chars().count() + 1;
        // The reason may quote the text, and is written to a terminal.
        Mistake {
            path: path.to_owned(),
            line: before.iter().filter(|byte| **byte == b'\n').count() + 1,
            column,
            reason: printable(reason).into_owned(),
        }
    };
    Mistakes(found.iter().map(mistake).collect())
}

/// A value of the text.
#[derive(Clone, Copy)]
struct Node<'v, 't> {
    value: &'v DeValue<'t>,
    start: usize,
}

impl<'v, 't> Node<'v, 't> {
    fn new(value: &'v Spanned<DeValue<'t>>) -> Node<'v, 't> {
        Node { value: value.get_ref(), start: value.span().start }
    }

    fn any<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            DeValue::String(text) => visitor.visit_str(text),
            DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) => visitor.visit_i64(number),
                Err(_) => Err(de::Error::custom("this number is beyond 64 bits")),
            },
            DeValue::Float(number) => match number.as_str().parse() {
                Ok(number) => visitor.visit_f64(number),
                Err(_) => Err(de::Error::custom("expected a number")),
            },
            DeValue::Boolean(truth) => visitor.visit_bool(*truth),
            DeValue::Datetime(_) => {
                Err(de::Error::custom("dates and times of TOML are not supported: write text"))
            }
            DeValue::Array(list) => visitor.visit_seq(Array(list.iter())),
            DeValue::Table(table) => visitor.visit_map(Table::new(table, self.start)),
        }
    }
}

impl<'de> Deserializer<'de> for Node<'_, '_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.any(visitor).map_err(|fault| fault.here(self.start))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if name == PLACE {
            visitor.visit_map(Placed { node: self, given: 0 })
        } else if matches!(self.value, DeValue::Table(_)) {
            self.deserialize_any(visitor)
        } else {
            Err(Fault { at: Some(self.start), reason: "expected a table".into() })
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let DeValue::String(text) = self.value else {
            return Err(Fault { at: Some(self.start), reason: "expected text".into() });
        };
        visitor.visit_enum(Word(text)).map_err(|fault| fault.here(self.start))
    }

    /// Integers are accepted as floating-point numbers.
    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// Name of a variant without a value.
struct Word<'w>(&'w str);

impl<'de> EnumAccess<'de> for Word<'_> {
    type Error = Fault;
    type Variant = Nothing;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Nothing), Fault> {
        let name: StrDeserializer<'_, Fault> = self.0.into_deserializer();
        Ok((seed.deserialize(name)?, Nothing))
    }
}

/// Content of a variant without a value.
struct Nothing;

impl<'de> VariantAccess<'de> for Nothing {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, _: S) -> Result<S::Value, Fault> {
        Err(de::Error::custom("this takes no value"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Fault> {
        Err(de::Error::custom("this takes no value"))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], _: V) -> Result<V::Value, Fault> {
        Err(de::Error::custom("this takes no value"))
    }
}

/// The elements of an array.
struct Array<'v, 't>(std::slice::Iter<'v, Spanned<DeValue<'t>>>);

impl<'de> SeqAccess<'de> for Array<'_, '_> {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        let Some(value) = self.0.next() else { return Ok(None) };
        let node = Node::new(value);
        seed.deserialize(node).map(Some).map_err(|fault| fault.here(node.start))
    }
}

/// The entries of a table, in the order of the text.
struct Table<'v, 't> {
    entries: std::vec::IntoIter<(&'v str, usize, Node<'v, 't>)>,
    next: Option<Node<'v, 't>>,
    /// Position for missing keys: the start of the table, or its end.
    start: usize,
}

impl<'v, 't> Table<'v, 't> {
    fn new(table: &'v DeTable<'t>, start: usize) -> Table<'v, 't> {
        let entry = |(key, value): (&'v Spanned<_>, &'v Spanned<DeValue<'t>>)| {
            let name: &'v std::borrow::Cow<'t, str> = key.get_ref();
            (name.as_ref(), key.span().start, Node::new(value))
        };
        let mut entries: Vec<_> = table.iter().map(entry).collect();
        entries.sort_by_key(|(_, at, _)| *at);
        Table { entries: entries.into_iter(), next: None, start }
    }
}

impl<'de> MapAccess<'de> for Table<'_, '_> {
    type Error = Fault;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        let Some((key, at, node)) = self.entries.next() else { return Ok(None) };
        self.next = Some(node);
        let name: StrDeserializer<'_, Fault> = key.into_deserializer();
        seed.deserialize(name).map(Some).map_err(|fault| fault.here(at))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let Some(node) = self.next.take() else {
            return Err(Fault { at: Some(self.start), reason: "a value is missing".into() });
        };
        seed.deserialize(node).map_err(|fault| fault.here(node.start))
    }
}

/// A value with its position: yields the start, then the value.
struct Placed<'v, 't> {
    node: Node<'v, 't>,
    given: u8,
}

impl<'de> MapAccess<'de> for Placed<'_, '_> {
    type Error = Fault;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        let name = match self.given {
            0 => START,
            1 => VALUE,
            _ => return Ok(None),
        };
        self.given += 1;
        let name: StrDeserializer<'_, Fault> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        if self.given == 1 {
            return seed.deserialize((self.node.start as u64).into_deserializer());
        }
        seed.deserialize(self.node).map_err(|fault| fault.here(self.node.start))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for At<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<At<T>, D::Error> {
        struct Visit<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Visit<T> {
            type Value = At<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value with its place")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<At<T>, A::Error> {
                map.next_key::<String>()?;
                let start = map.next_value::<u64>()? as usize;
                map.next_key::<String>()?;
                Ok(At { start, value: map.next_value()? })
            }
        }
        deserializer.deserialize_struct(PLACE, &[START, VALUE], Visit(std::marker::PhantomData))
    }
}
