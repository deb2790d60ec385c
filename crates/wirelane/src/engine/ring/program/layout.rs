//! The keys and values of users' maps by the names of their fields, from an object's type information: `STATE_HASH()` and the
//! other macros define a struct `state_types_of_NAME` with a member `key` and a member `value`.

use libbpf_rs::btf::types::{Array, Const, Int, IntEncoding, MemberAttr, Struct, Typedef, Volatile};
use libbpf_rs::btf::{Btf, BtfKind, BtfType, HasSize as _, ReferencesType as _};
use serde_json::{Map, Value};

use super::super::log;
use crate::error::{Error, Result};

/// Structs and arrays that are followed into each other.
const DEEPEST: u32 = 8;

/// The layout of a value in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Unsigned(usize),
    Signed(usize),
    Truth,
    /// Bytes without a layout of their own.
    Bytes(usize),
    List(Box<Layout>, usize),
    /// Offset, name and layout of each member.
    Fields(Vec<(usize, String, Layout)>, usize),
}

/// The layouts of a map's keys and values in this object file; `None` if the object does not define the map.
///
/// # Errors
/// If the types cannot be read.
pub(super) fn of_map(bytes: &[u8], map: &str) -> Result<Option<(Layout, Layout)>> {
    let (types, _) = log::listening(|| Btf::from_raw("program", bytes));
    let types = types.map_err(|e| Error::bpf("reading the types of a plug-in or steering program", e))?;
    let found =
        types.as_ref().and_then(|types| types.type_by_name::<Struct<'_>>(&format!("state_types_of_{map}")));
    let Some(both) = found else { return Ok(None) };
    let member = |name: &str| {
        let member = both.iter().find(|member| member.name.is_some_and(|own| own == name))?;
        let types = types.as_ref()?;
        layout(types, types.type_by_id(member.ty)?, DEEPEST)
    };
    Ok(member("key").zip(member("value")))
}

/// The layout of a type; `None` if it has no size.
fn layout(types: &Btf<'_>, of: BtfType<'_>, deep: u32) -> Option<Layout> {
    let bytes = |size: usize| Some(Layout::Bytes(size));
    match of.kind() {
        BtfKind::Typedef => layout(types, Typedef::try_from(of).ok()?.referenced_type(), deep),
        BtfKind::Const => layout(types, Const::try_from(of).ok()?.referenced_type(), deep),
        BtfKind::Volatile => layout(types, Volatile::try_from(of).ok()?.referenced_type(), deep),
        BtfKind::Int => {
            let int = Int::try_from(of).ok()?;
            Some(match (int.encoding, int.size()) {
                (IntEncoding::Bool, 1) => Layout::Truth,
                (IntEncoding::Signed, size @ (1 | 2 | 4 | 8)) => Layout::Signed(size),
                (_, size @ (1 | 2 | 4 | 8)) => Layout::Unsigned(size),
                (_, size) => Layout::Bytes(size),
            })
        }
        BtfKind::Array if deep > 0 => {
            let array = Array::try_from(of).ok()?;
            let one = layout(types, array.contained_type(), deep - 1)?;
            let count = array.capacity();
            // Addresses and other bytes.
            if one == Layout::Unsigned(1) { bytes(count) } else { Some(Layout::List(Box::new(one), count)) }
        }
        BtfKind::Struct if deep > 0 => {
            let all = Struct::try_from(of).ok()?;
            let size = all.size();
            let mut fields = Vec::new();
            for member in all.iter() {
                let MemberAttr::Normal { offset } = member.attr else { return bytes(size) };
                let Some(name) = member.name else { return bytes(size) };
                let inner = layout(types, types.type_by_id(member.ty)?, deep - 1)?;
                fields.push((offset as usize / 8, name.to_string_lossy().into_owned(), inner));
            }
            Some(Layout::Fields(fields, size))
        }
        _ => None,
    }
}

impl Layout {
    /// Size in bytes.
    fn size(&self) -> usize {
        match self {
            Layout::Unsigned(size) | Layout::Signed(size) | Layout::Bytes(size) | Layout::Fields(_, size) => {
                *size
            }
            Layout::Truth => 1,
            Layout::List(one, count) => one.size() * count,
        }
    }

    /// These bytes as JSON: numbers, lists, and objects of fields; bytes in hexadecimal digits.
    pub(crate) fn shown(&self, bytes: &[u8]) -> Value {
        let number = || {
            let big = cfg!(target_endian = "big");
            let digit = |number: u64, at: usize| {
                number << 8 | u64::from(bytes[if big { at } else { bytes.len() - 1 - at }])
            };
            (0..bytes.len()).fold(0u64, digit)
        };
        let part =
            |at: usize, layout: &Layout| layout.shown(bytes.get(at..at + layout.size()).unwrap_or_default());
        match self {
            Layout::Unsigned(_) => number().into(),
            Layout::Signed(size) => {
                let above = 64 - 8 * *size as u32;
                ((number() << above) as i64 >> above).into()
            }
            Layout::Truth => (number() != 0).into(),
            Layout::Bytes(_) => hexadecimal(bytes).into(),
            Layout::List(one, count) => (0..*count).map(|at| part(at * one.size(), one)).collect(),
            Layout::Fields(fields, _) => {
                let fields = fields.iter().map(|(at, name, layout)| (name.clone(), part(*at, layout)));
                Value::Object(fields.collect::<Map<_, _>>())
            }
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
