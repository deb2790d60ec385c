//! A user's object file: whether it is one that can be linked with ours.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object::{Architecture, Object as _, ObjectKind, ObjectSection as _, ObjectSymbol as _, SectionKind};

use super::super::log::printable;
use crate::{Error, Result};

/// Version of `include/wirelane/steer.h` (`STEER_VERSION`).
const VERSION: u32 = 1;
/// What the function's name begins with; its version and its place follow.
const FUNCTION: &str = "wirelane_steer_v";
/// The function as the header names it: at place 0.
const AT_FIRST: &str = "wirelane_steer_v1_0";
/// Bytes of an object. One that does much, with its type information, has tens of thousands.
const MOST: usize = 1 << 20;

/// A steering program that can be linked with the capture program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SteeringProgram {
    /// The file, for people.
    name: Arc<str>,
    bytes: Arc<[u8]>,
}

impl SteeringProgram {
    /// Reads an object file and looks whether it is what the header makes.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::BadOption`] with what is wrong.
    pub(crate) fn read(path: &Path) -> Result<SteeringProgram> {
        let name: Arc<str> = printable(&path.to_string_lossy()).into();
        let failed = |source| Error::Io { path: PathBuf::from(&*name), source };
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MOST as u64 + 1).read_to_end(&mut bytes))
            .map_err(failed)?;
        check(&bytes).map_err(|reason| refusal(&name, &reason))?;
        Ok(SteeringProgram { name, bytes: bytes.into() })
    }

    /// The same with an object file that is in memory; `name` is for people.
    ///
    /// # Errors
    /// [`Error::BadOption`] with what is wrong.
    pub(crate) fn of_bytes(name: &str, bytes: &[u8]) -> Result<SteeringProgram> {
        let name: Arc<str> = printable(name).into();
        check(bytes).map_err(|reason| refusal(&name, &reason))?;
        Ok(SteeringProgram { name, bytes: bytes.into() })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// An error about this program.
    pub(super) fn refusal(&self, reason: &str) -> Error {
        refusal(&self.name, reason)
    }
}

fn refusal(name: &str, reason: &str) -> Error {
    Error::BadOption { option: "--steering-program", reason: format!("{name}: {reason}") }
}

const COMPILE: &str = "compile it with clang -O2 -g -target bpf -c";

/// What is wrong with an object.
fn check(bytes: &[u8]) -> std::result::Result<(), String> {
    if bytes.len() > MOST {
        return Err(format!("more than {} KiB; a steering program has a few", MOST >> 10));
    }
    let file = object::File::parse(bytes).map_err(|e| format!("not a BPF object file ({e}): {COMPILE}"))?;
    if file.architecture() != Architecture::Bpf || file.kind() != ObjectKind::Relocatable {
        return Err(format!("an object file, but not of BPF: {COMPILE}"));
    }
    if file.is_little_endian() != cfg!(target_endian = "little") {
        return Err(format!("made for machines of the other byte order: {COMPILE}"));
    }
    let mut types = false;
    for section in file.sections() {
        let name = section.name().map_err(|e| format!("a section without a name ({e})"))?;
        types |= name == ".BTF";
        if section.size() == 0 {
            continue;
        }
        let is = |kind: &str| name == kind || name.starts_with(&format!("{kind}."));
        let wrong = if name == ".maps" || name == "maps" {
            "has maps; a steering program has none: it decides by the packet alone"
        } else if is(".data") || is(".bss") || name == ".kconfig" {
            "has variables that can be written, or are filled in; a steering program has constants only (static const)"
        } else if name == "license" {
            "names a licence; leave that out: it becomes part of Wirelane's program, and has its licence (Dual BSD/GPL)"
        } else if section.kind() == SectionKind::Text && name != ".text" {
            "has a program of its own, in a section of its own; a steering program is a function, which \
             STEERING_PROGRAM() of <wirelane/steer.h> begins"
        } else if section.kind() == SectionKind::Text && section.data().is_ok_and(calls_loop) {
            "calls bpf_loop(), which is refused: the kernel would make the program longer than it may become \
             (kernel/programs/room.h); write the loop out, with a bound"
        } else {
            continue;
        };
        return Err(format!("{wrong} (section {})", printable(name)));
    }
    check_symbols(&file)?;
    if !types {
        return Err(format!("has no type information: {COMPILE} (-g makes it)"));
    }
    Ok(())
}

/// Whether instructions call the helper `bpf_loop()` (linux/bpf.h): BPF_JMP | BPF_CALL, no pseudo call, its number.
fn calls_loop(instructions: &[u8]) -> bool {
    const CALL: u8 = 0x85;
    const LOOP: u32 = 181;
    let is_call = |one: &[u8; 8]| {
        let [code, registers, _, _, number @ ..] = *one;
        code == CALL && registers >> 4 == 0 && u32::from_le_bytes(number) == LOOP
    };
    instructions.as_chunks::<8>().0.iter().any(is_call)
}

fn check_symbols(file: &object::File<'_>) -> std::result::Result<(), String> {
    let mut found = false;
    let mut version = None;
    let mut other = None;
    for symbol in file.symbols().filter(|symbol| symbol.is_global()) {
        let name = symbol.name().map_err(|e| format!("a symbol without a name ({e})"))?;
        if !symbol.is_definition() {
            return Err(format!(
                "uses '{}', which is not in it; a steering program is one source with its headers",
                printable(name)
            ));
        }
        match name.strip_prefix(FUNCTION) {
            _ if name == AT_FIRST => found = true,
            Some(rest) => version = rest.split('_').next().and_then(|version| version.parse::<u32>().ok()),
            None => other = Some(name),
        }
    }
    if let Some(version) = version {
        return Err(format!(
            "made with version {version} of <wirelane/steer.h>; this Wirelane has {VERSION}: compile it again with \
             the header that belongs to it"
        ));
    }
    if !found {
        return Err("has no steering program: STEERING_PROGRAM() of <wirelane/steer.h> begins one".into());
    }
    if let Some(name) = other {
        return Err(format!(
            "'{}' is visible outside of it, and may clash with another program's: make it static",
            printable(name)
        ));
    }
    Ok(())
}

/// The object with its function renamed for this place: one digit of its name, in the table of symbols' names and in
/// that of the types'.
pub(super) fn at_place(bytes: &[u8], place: u32) -> Vec<u8> {
    let mut renamed = bytes.to_vec();
    let Ok(file) = object::File::parse(bytes) else { return renamed };
    let name = [AT_FIRST.as_bytes(), b"\0"].concat();
    for section in file.sections() {
        let Some((start, size)) = section.file_range() else { continue };
        if !matches!(section.name(), Ok(".strtab" | ".BTF")) {
            continue;
        }
        let Some(part) = renamed.get_mut(start as usize..(start + size) as usize) else { continue };
        for at in 0..part.len().saturating_sub(name.len() - 1) {
            if part[at..].starts_with(&name) {
                part[at + AT_FIRST.len() - 1] = b'0' + place as u8;
            }
        }
    }
    renamed
}
