//! A user's object file: checks whether it can be linked with ours.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object::{Architecture, Object as _, ObjectKind, ObjectSection as _, ObjectSymbol as _, SectionKind};

use wirelane_bpf::instance::{MAX_PROGRAMS, PLUGIN_COUNTERS};
use wirelane_bpf::rules::MAX_PLUGINS;
use wirelane_rules::Parameter;

use super::parameters;
use super::rule_calls::FUNCTION;
use super::state::{State, definitions, in_object};
use crate::error::{Error, Result};
use crate::escape::printable;

/// Purpose of a user's function. Both kinds are read, linked and stored alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Chooses the worker for a packet (`include/wirelane/steer.h`).
    Steering,
    /// Evaluates a condition of rules (`include/wirelane/plugin.h`).
    Plugin,
}

impl Kind {
    /// Version of the header (`STEER_VERSION`, `PLUGIN_VERSION`).
    const VERSION: u32 = 1;

    /// The option that names the object file.
    fn option(self) -> &'static str {
        match self {
            Kind::Steering => "--steering-program",
            Kind::Plugin => "--plugin",
        }
    }

    /// Name of the kind in messages.
    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Steering => "steering program",
            Kind::Plugin => "plug-in",
        }
    }

    fn header(self) -> &'static str {
        match self {
            Kind::Steering => "<wirelane/steer.h>",
            Kind::Plugin => "<wirelane/plugin.h>",
        }
    }

    /// The macro that defines such a function.
    fn begins(self) -> &'static str {
        match self {
            Kind::Steering => "STEERING_PROGRAM()",
            Kind::Plugin => "PLUGIN()",
        }
    }

    /// Prefix of the function's name; the version and the slot follow.
    fn function(self) -> &'static str {
        match self {
            Kind::Steering => "wirelane_steer_v",
            Kind::Plugin => "wirelane_plugin_v",
        }
    }

    /// The function as the header names it: in slot 0.
    fn at_first(self) -> &'static str {
        match self {
            Kind::Steering => "wirelane_steer_v1_0",
            Kind::Plugin => "wirelane_plugin_v1_0",
        }
    }

    /// Where state belongs, as text for errors.
    fn state(self) -> &'static str {
        match self {
            Kind::Steering => "its state is in maps (STATE_HASH() of <wirelane/state.h>)",
            Kind::Plugin => {
                "its state is in maps (STATE_HASH() of <wirelane/state.h>), and it counts by plugin_add()"
            }
        }
    }

    /// Key in `wl_programs` of the object in a slot.
    pub(super) fn key(self, place: u32) -> u32 {
        match self {
            Kind::Steering => place,
            Kind::Plugin => MAX_PROGRAMS as u32 + place,
        }
    }

    /// Number of slots.
    pub(super) fn places(self) -> u32 {
        match self {
            Kind::Steering => MAX_PROGRAMS as u32,
            Kind::Plugin => MAX_PLUGINS as u32,
        }
    }
}

/// The section with the names of a plug-in's counters, each of `COUNTER_NAME` bytes (`PLUGIN_COUNTERS()`).
const COUNTERS: &str = "wirelane.counters";
const COUNTER_NAME: usize = 16;
/// Maximum size of an object in bytes. A large one, with its type information, has tens of thousands.
const MOST: usize = 1 << 20;

/// A steering program or a plug-in that can be linked with the capture program.
#[derive(Clone, Debug)]
pub(crate) struct UserProgram {
    kind: Kind,
    /// Path of the file, for messages.
    name: Arc<str>,
    bytes: Arc<[u8]>,
    /// Names of the program's counters.
    counters: Arc<[String]>,
    /// Whether it has a function for changes of rules.
    hears_of_rules: bool,
    state: State,
}

impl UserProgram {
    /// Reads an object file, checks that it was made with the header, sets these parameters, and creates its maps.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::BadOption`] with the fault, or [`Error::Rules`] with the parameters that it does not have.
    pub(crate) fn read(kind: Kind, path: &Path, parameters: &[&Parameter]) -> Result<UserProgram> {
        let name: Arc<str> = printable(&path.to_string_lossy()).into();
        let failed = |source| Error::Io { path: PathBuf::from(&*name), source };
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MOST as u64 + 1).read_to_end(&mut bytes))
            .map_err(failed)?;
        let refused = |reason: String| refusal(kind, &name, &reason);
        let Checked { counters, hears_of_rules } = check(kind, &bytes).map_err(refused)?;
        parameters::set(&mut bytes, parameters)?;
        let maps = definitions(&bytes).map_err(refused)?;
        let state = maps.iter().map(|map| map.create(&bytes)).collect::<Result<_>>()?;
        Ok(UserProgram { kind, name, bytes: bytes.into(), counters: counters.into(), hears_of_rules, state })
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// The names of the program's counters; further counters have no name.
    pub(crate) fn counters(&self) -> &[String] {
        &self.counters
    }

    /// Whether the program has a function for changes of rules.
    pub(super) fn hears_of_rules(&self) -> bool {
        self.hears_of_rules
    }

    /// Path of the file, for messages.
    pub(super) fn file(&self) -> &Arc<str> {
        &self.name
    }

    /// The program's maps.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// An error about this program.
    pub(super) fn refusal(&self, reason: &str) -> Error {
        refusal(self.kind, &self.name, reason)
    }
}

fn refusal(kind: Kind, name: &str, reason: &str) -> Error {
    Error::BadOption { option: kind.option(), reason: format!("{name}: {reason}") }
}

const COMPILE: &str = "compile it with clang -O2 -g -target bpf -c";

/// Properties of an object that can be linked.
#[derive(Debug, Default)]
struct Checked {
    /// Names of its counters.
    counters: Vec<String>,
    hears_of_rules: bool,
}

/// Checks an object; an error is the fault.
fn check(kind: Kind, bytes: &[u8]) -> std::result::Result<Checked, String> {
    let (what, header, begins) = (kind.word(), kind.header(), kind.begins());
    if bytes.len() > MOST {
        return Err(format!("more than {} KiB; a {what} has a few", MOST >> 10));
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
        let wrong = if name == "maps" {
            format!("has maps without types: {}", kind.state())
        } else if is(".data") || is(".bss") || name == ".kconfig" {
            format!(
                "has variables that can be written, or are filled in; a {what} has constants only (static const): {}",
                kind.state()
            )
        } else if name == "license" {
            "names a licence; leave that out: it becomes part of Wirelane's program, and has its licence (Dual BSD/GPL)"
                .to_owned()
        } else if section.kind() == SectionKind::Text && name != ".text" {
            format!(
                "has a program of its own, in a section of its own; a {what} is a function, which {begins} of {header} \
                 begins"
            )
        } else if section.kind() == SectionKind::Text && section.data().is_ok_and(calls_loop) {
            "calls bpf_loop(), which is refused: the kernel would make the program longer than it may become \
             (bpf/prog_padding.h); write the loop out, with a bound"
                .to_owned()
        } else {
            continue;
        };
        return Err(format!("{wrong} (section {})", printable(name)));
    }
    let hears_of_rules = check_symbols(kind, &file)?;
    if !types {
        return Err(format!("has no type information: {COMPILE} (-g makes it)"));
    }
    match kind {
        Kind::Steering => Ok(Checked::default()),
        Kind::Plugin => Ok(Checked { counters: counters(&file)?, hears_of_rules }),
    }
}

/// The names of a plug-in's counters.
fn counters(file: &object::File<'_>) -> std::result::Result<Vec<String>, String> {
    let Some(section) = file.section_by_name(COUNTERS) else { return Ok(Vec::new()) };
    let wrong = |reason: &str| format!("its counters' names {reason} (section {COUNTERS})");
    let data = section.data().map_err(|e| wrong(&format!("cannot be read: {e}")))?;
    let (all, rest) = data.as_chunks::<COUNTER_NAME>();
    if all.len() > PLUGIN_COUNTERS || !rest.is_empty() {
        return Err(wrong("are not what PLUGIN_COUNTERS() makes of up to 8 names"));
    }
    let mut names: Vec<String> = Vec::new();
    for bytes in all {
        let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        let allowed = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
        let name = String::from_utf8_lossy(name).into_owned();
        if name.is_empty() || name.len() >= COUNTER_NAME || !name.as_bytes().iter().all(allowed) {
            return Err(wrong("have to have 1 to 15 letters each"));
        }
        if names.contains(&name) {
            return Err(wrong(&format!("have '{name}' twice")));
        }
        names.push(name);
    }
    Ok(names)
}

/// Whether instructions call the helper `bpf_loop()` (linux/bpf.h): BPF_JMP | BPF_CALL, not a pseudo call, its number.
fn calls_loop(instructions: &[u8]) -> bool {
    const CALL: u8 = 0x85;
    const LOOP: u32 = 181;
    let is_call = |one: &[u8; 8]| {
        let [code, registers, _, _, number @ ..] = *one;
        code == CALL && registers >> 4 == 0 && u32::from_le_bytes(number) == LOOP
    };
    instructions.as_chunks::<8>().0.iter().any(is_call)
}

/// Checks the functions of an object; returns whether it has one for changes of rules.
fn check_symbols(kind: Kind, file: &object::File<'_>) -> std::result::Result<bool, String> {
    let (what, header, begins) = (kind.word(), kind.header(), kind.begins());
    let (mut found, mut hears_of_rules) = (false, false);
    let mut version = None;
    let mut other = None;
    let maps = file.section_by_name(".maps").map(|section| section.index());
    let is_map = |symbol: &object::Symbol<'_, '_>| maps.is_some() && symbol.section_index() == maps;
    for symbol in file.symbols().filter(|symbol| symbol.is_global() && !is_map(symbol)) {
        let name = symbol.name().map_err(|e| format!("a symbol without a name ({e})"))?;
        if !symbol.is_definition() {
            return Err(format!(
                "uses '{}', which is not in it; a {what} is one source with its headers",
                printable(name)
            ));
        }
        match name.strip_prefix(kind.function()) {
            _ if name == kind.at_first() => found = true,
            _ if kind == Kind::Plugin && name == FUNCTION => hears_of_rules = true,
            Some(rest) => version = rest.split('_').next().and_then(|version| version.parse::<u32>().ok()),
            None => other = Some(name),
        }
    }
    if let Some(version) = version {
        return Err(format!(
            "made with version {version} of {header}; this Wirelane has {}: compile it again with the header that \
             belongs to it",
            Kind::VERSION
        ));
    }
    if !found {
        return Err(format!("has no {what}: {begins} of {header} begins one"));
    }
    if let Some(name) = other {
        return Err(format!(
            "'{}' is visible outside of it, and may clash with another program's: make it static",
            printable(name)
        ));
    }
    Ok(hears_of_rules)
}

/// The object with its function and its maps renamed for this slot: one digit of each name, in the symbol string table and
/// in the type string table.
pub(super) fn at_place(kind: Kind, bytes: &[u8], place: u32) -> Vec<u8> {
    let mut renamed = bytes.to_vec();
    let Ok(file) = object::File::parse(bytes) else { return renamed };
    let function = |name: &str| (name.to_owned(), name.len() - 1, place);
    let functions = [kind.at_first(), FUNCTION].map(function);
    let maps = file.symbols().filter_map(|symbol| symbol.name().ok());
    let maps = maps
        .filter(|name| name.starts_with(&in_object("")))
        .map(|name| (name.to_owned(), 1, kind.key(place)));
    let names: Vec<_> = functions.into_iter().chain(maps).collect();
    for section in file.sections() {
        let Some((start, size)) = section.file_range() else { continue };
        if !matches!(section.name(), Ok(".strtab" | ".BTF")) {
            continue;
        }
        let Some(part) = renamed.get_mut(start as usize..(start + size) as usize) else { continue };
        for (name, digit, place) in &names {
            let name = [name.as_bytes(), b"\0"].concat();
            for at in 0..part.len().saturating_sub(name.len() - 1) {
                if part[at..].starts_with(&name) {
                    part[at + digit] = char::from_digit(*place, 16).map_or(b'0', |digit| digit as u8);
                }
            }
        }
    }
    renamed
}
