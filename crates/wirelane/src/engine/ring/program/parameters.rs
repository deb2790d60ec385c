//! Parameters of users' programs: `const volatile` variables in the read-only data of an object file, which rule files set
//! before the program is linked. So the verifier knows their values, and programs with different ones are different
//! programs.

use libbpf_rs::btf::types::{Const, Int, IntEncoding, Typedef, Var, Volatile};
use libbpf_rs::btf::{Btf, BtfKind, BtfType, ReferencesType as _};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use wirelane_rules::parameters::refuse;
use wirelane_rules::{Parameter, ParameterValue};

use super::super::log;
use crate::error::{Error, Result};

/// A parameter of an object file.
#[derive(Debug)]
struct Variable {
    name: String,
    encoding: IntEncoding,
    /// Place of its bytes in the file.
    start: usize,
    size: usize,
}

/// Sets parameters in the bytes of an object file.
///
/// # Errors
/// [`Error::Rules`] with all parameters that it does not have, or not of this type.
pub(super) fn set(bytes: &mut [u8], parameters: &[&Parameter]) -> Result<()> {
    if parameters.is_empty() {
        return Ok(());
    }
    let variables = variables(bytes)?;
    let mut mistakes = Vec::new();
    for parameter in parameters {
        let encoded = variables.iter().find(|one| one.name == parameter.name).map_or_else(
            || Err(unknown(&variables)),
            |variable| Ok((variable.start, variable.encoded(parameter.value)?)),
        );
        match encoded {
            Ok((start, value)) => {
                if let Some(place) = bytes.get_mut(start..start + value.len()) {
                    place.copy_from_slice(&value);
                }
            }
            Err(reason) => mistakes.push(parameter.mistake(&reason)),
        }
    }
    Ok(refuse(mistakes)?)
}

fn unknown(variables: &[Variable]) -> String {
    let names: Vec<&str> = variables.iter().map(|one| one.name.as_str()).collect();
    match &names[..] {
        [] => "it has no parameters; STATE_PARAMETER() of <wirelane/state.h> defines one".to_owned(),
        names => format!("it has no such parameter; expected one of {}", names.join(", ")),
    }
}

impl Variable {
    /// The bytes of a value, or the reason why it cannot be one.
    fn encoded(&self, value: ParameterValue) -> std::result::Result<Vec<u8>, String> {
        let bits = 8 * self.size as u32;
        let number = match (self.encoding, value) {
            (IntEncoding::Bool, ParameterValue::Truth(truth)) => i128::from(truth),
            (IntEncoding::Bool, ParameterValue::Number(_)) => {
                return Err(format!("{value} is a number; expected true or false"));
            }
            (_, ParameterValue::Truth(_)) => {
                return Err(format!("{value} is not a number; expected {}", self.range()));
            }
            (_, ParameterValue::Number(number)) => i128::from(number),
        };
        let (first, last) = limits(self.encoding, bits);
        if number < first || number > last {
            return Err(format!("{number} is not in its range; expected {}", self.range()));
        }
        let all = number.to_le_bytes();
        let mut bytes = all.get(..self.size).unwrap_or_default().to_vec();
        if cfg!(target_endian = "big") {
            bytes.reverse();
        }
        Ok(bytes)
    }

    fn range(&self) -> String {
        let (first, last) = limits(self.encoding, 8 * self.size as u32);
        format!("a number from {first} to {last}")
    }
}

/// The smallest and the largest number of a type.
fn limits(encoding: IntEncoding, bits: u32) -> (i128, i128) {
    match encoding {
        IntEncoding::Signed => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => (0, (1 << bits) - 1),
    }
}

/// The parameters of an object file.
fn variables(bytes: &[u8]) -> Result<Vec<Variable>> {
    let failed = |e| Error::bpf("reading the parameters of a plug-in or steering program", e);
    let Ok(file) = object::File::parse(bytes) else { return Ok(Vec::new()) };
    let Some(section) = file.section_by_name(".rodata") else { return Ok(Vec::new()) };
    let Some((start, _)) = section.file_range() else { return Ok(Vec::new()) };
    let (types, _) = log::listening(|| Btf::from_raw("program", bytes));
    let Some(types) = types.map_err(failed)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for symbol in file.symbols().filter(|symbol| symbol.section_index() == Some(section.index())) {
        let Ok(name) = symbol.name() else { continue };
        let variable = types.type_by_kind::<Var<'_>>().find(|one| one.name().is_some_and(|own| own == name));
        let Some(encoding) = variable.and_then(|one| parameter(one.referenced_type())) else { continue };
        let (start, size) = ((start + symbol.address()) as usize, symbol.size() as usize);
        if matches!(size, 1 | 2 | 4 | 8) {
            found.push(Variable { name: name.to_owned(), encoding, start, size });
        }
    }
    found.sort_by(|one: &Variable, other| one.name.cmp(&other.name));
    Ok(found)
}

/// The encoding of a `const volatile` integer; `None`: another type.
fn parameter(mut of: BtfType<'_>) -> Option<IntEncoding> {
    let mut is_volatile = false;
    loop {
        is_volatile |= of.kind() == BtfKind::Volatile;
        of = match of.kind() {
            BtfKind::Int => return Int::try_from(of).ok().filter(|_| is_volatile).map(|int| int.encoding),
            BtfKind::Volatile => Volatile::try_from(of).ok()?.referenced_type(),
            BtfKind::Const => Const::try_from(of).ok()?.referenced_type(),
            BtfKind::Typedef => Typedef::try_from(of).ok()?.referenced_type(),
            _ => return None,
        };
    }
}
