//! A rule file as a tree of values with their positions.
//!
//! The reader has its own tree instead of that of the `toml` crate: rules may also be given as words
//! (`id=7 src=192.0.2.1`), and a stored value does not borrow from the text.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use toml_parser::Source;
use toml_parser::lexer::TokenKind;

use crate::names::shown;

/// A value, and its byte range in the text.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub span: Range<usize>,
    pub value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Number(i64),
    Truth(bool),
    Fraction(f64),
    List(Vec<Node>),
    Table(Vec<Entry>),
    /// A value of a type that no field of a rule file has; the name of the type.
    Other(&'static str),
}

/// A key of a table with its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub key: String,
    /// Offset of the key.
    pub at: usize,
    pub node: Node,
}

/// A syntax error: its offset and description.
pub(super) type Fault = (usize, String);

/// Maximum nesting of tables and arrays, except for tables of headers. Rules need 5.
const DEEPEST: usize = 32;

impl Node {
    /// Reads TOML. The readable parts of a faulty text are returned together with the faults.
    pub fn of_toml(text: &str) -> (Node, Vec<Fault>) {
        if let Some(at) = too_deep(text) {
            let nothing = Node { span: 0..0, value: Value::Table(Vec::new()) };
            return (nothing, vec![(at, format!("nothing in a rule file is nested deeper than {DEEPEST}"))]);
        }
        let (root, errors) = DeTable::parse_recoverable(text);
        let faults = errors
            .iter()
            .map(|error| (error.span().map_or(0, |span| span.start), error.message().to_owned()))
            .collect();
        let span = root.span();
        (Node { span, value: table(root.get_ref()) }, faults)
    }

    /// Reads words of the form `key=value`. A value of digits is a number (`0x` for hexadecimal), a value with commas
    /// is a list, any other value is a text; a key with a dot is a key in a table.
    ///
    /// # Errors
    /// The first word that does not have this form.
    pub fn of_words(text: &str) -> Result<Node, Fault> {
        let mut entries: Vec<Entry> = Vec::new();
        for word in text.split_whitespace() {
            // The word borrows from `text`, so its offset is the difference of the pointers.
            let at = word.as_ptr().addr() - text.as_ptr().addr();
            let Some((key, value)) = word.split_once('=') else {
                return Err((at, format!("'{}' is not FIELD=VALUE", shown(word))));
            };
            let node = word_value(value, at + key.len() + 1);
            let (table, key) = match key.split_once('.') {
                Some((table, key)) => (Some(table), key),
                None => (None, key),
            };
            let inside = match table {
                None => &mut entries,
                Some(table) => table_of(&mut entries, table, at),
            };
            if inside.iter().any(|entry| entry.key == key) {
                return Err((at, format!("'{}' is there twice", shown(word))));
            }
            inside.push(Entry { key: key.to_owned(), at, node });
        }
        Ok(Node { span: 0..text.len(), value: Value::Table(entries) })
    }

    /// A single word, or a field of CSV.
    pub fn of_word(text: &str) -> Node {
        Node { span: 0..text.len(), value: one_word(text) }
    }

    /// The entries of a table; empty for other values.
    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Table(entries) => entries,
            _ => &[],
        }
    }

    /// The entry of a table with this key.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// The elements of a list; for other values, the value itself.
    pub fn elements(&self) -> &[Node] {
        match &self.value {
            Value::List(elements) => elements,
            _ => std::slice::from_ref(self),
        }
    }

    /// The type of the value, for messages.
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Text(_) => "a string",
            Value::Number(_) => "a number",
            Value::Truth(_) => "true or false",
            Value::Fraction(_) => "a number with a fraction",
            Value::List(_) => "an array",
            Value::Table(_) => "a table",
            Value::Other(kind) => kind,
        }
    }
}

/// The offset at which a text exceeds [`DEEPEST`], if any. The `toml` crate limits the nesting of brackets and of dots
/// separately, and a text with dots in brackets overflows a thread's stack when it is read and when it is dropped.
fn too_deep(text: &str) -> Option<usize> {
    // For each open bracket, and for the top level, the number of dots in the current element.
    let mut open = vec![0usize];
    for token in Source::new(text).lex() {
        let outside = open.len() == 1;
        match token.kind() {
            TokenKind::LeftSquareBracket | TokenKind::LeftCurlyBracket => open.push(0),
            TokenKind::RightSquareBracket | TokenKind::RightCurlyBracket if !outside => {
                open.pop();
            }
            TokenKind::Dot => open.last_mut().into_iter().for_each(|dots| *dots += 1),
            TokenKind::Comma => open.last_mut().into_iter().for_each(|dots| *dots = 0),
            TokenKind::Newline if outside => open[0] = 0,
            _ => continue,
        }
        if open.len() + open.iter().sum::<usize>() > DEEPEST {
            return Some(token.span().start());
        }
    }
    None
}

/// The entries of the table with this name among `entries`; the table is added if it is missing.
fn table_of<'a>(entries: &'a mut Vec<Entry>, name: &str, at: usize) -> &'a mut Vec<Entry> {
    let is_table = |entry: &Entry| entry.key == name && matches!(entry.node.value, Value::Table(_));
    let position = entries.iter().position(is_table).unwrap_or_else(|| {
        let node = Node { span: at..at, value: Value::Table(Vec::new()) };
        entries.push(Entry { key: name.to_owned(), at, node });
        entries.len() - 1
    });
    match &mut entries[position].node.value {
        Value::Table(inside) => inside,
        _ => unreachable!("it was a table when it was found, or was made as one"),
    }
}

fn word_value(text: &str, at: usize) -> Node {
    let span = at..at + text.len();
    if !text.contains(',') {
        return Node { span, value: one_word(text) };
    }
    let mut list = Vec::new();
    let mut start = at;
    for part in text.split(',') {
        list.push(Node { span: start..start + part.len(), value: one_word(part) });
        start += part.len() + 1;
    }
    Node { span, value: Value::List(list) }
}

fn one_word(text: &str) -> Value {
    match text {
        "true" => Value::Truth(true),
        "false" => Value::Truth(false),
        _ if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().map_or(Value::Other("a number beyond 64 bits"), Value::Number)
        }
        _ if text.starts_with("0x") => match i64::from_str_radix(&text[2..], 16) {
            Ok(number @ 0..) => Value::Number(number),
            _ => Value::Text(text.to_owned()),
        },
        _ => Value::Text(text.to_owned()),
    }
}

fn table(table: &DeTable<'_>) -> Value {
    let mut entries: Vec<Entry> = table
        .iter()
        .map(|(key, value)| Entry {
            key: key.get_ref().clone().into_owned(),
            at: key.span().start,
            node: node(value),
        })
        .collect();
    // The crate sorts entries by name; mistakes are reported in the order of the file.
    entries.sort_by_key(|entry| entry.at);
    Value::Table(entries)
}

fn node(value: &Spanned<DeValue<'_>>) -> Node {
    let read = match value.get_ref() {
        DeValue::String(text) => Value::Text(text.clone().into_owned()),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) => Value::Number(number),
            Err(_) => Value::Other("a number beyond 64 bits"),
        },
        DeValue::Float(number) => match number.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() => Value::Fraction(number),
            _ => Value::Other("a number with a fraction"),
        },
        DeValue::Boolean(truth) => Value::Truth(*truth),
        DeValue::Datetime(_) => Value::Other("a date or a time"),
        DeValue::Array(list) => Value::List(list.iter().map(node).collect()),
        DeValue::Table(entries) => table(entries),
    };
    Node { span: value.span(), value: read }
}
