//! Tables of the file, as serde reads them.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use wirelane_probe::placed::At;

use super::{Axis, Method, Napi, Pattern, Proto, Quantity, Shape};

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Raw {
    pub name: At<String>,
    pub title: Option<String>,
    #[serde(default)]
    pub about: String,
    pub sensors: At<Vec<At<String>>>,
    #[serde(default)]
    pub traffic: Option<At<Traffic>>,
    pub rates: Option<At<Vec<At<f64>>>>,
    pub sweep: Option<At<Sweep>>,
    pub search: Option<At<Vec<At<f64>>>>,
    pub of_capacity: Option<At<Vec<At<f64>>>>,
    pub full_speed: Option<At<bool>>,
    #[serde(default)]
    pub overload: bool,
    pub speeds: Option<At<Vec<At<String>>>>,
    pub loops: Option<At<Vec<At<u32>>>>,
    pub cores: Option<At<Vec<At<Vec<usize>>>>>,
    pub injector_cores: Option<At<Vec<usize>>>,
    pub workers: Option<At<Vec<At<usize>>>>,
    pub queues: Option<At<Vec<At<u32>>>>,
    pub entries: Option<At<Vec<At<u32>>>>,
    pub per_core: Option<At<bool>>,
    pub engines: Option<At<Vec<At<String>>>>,
    pub devices: Option<At<OneOrMore<u32>>>,
    pub napi: Option<At<OneOrMore<Napi>>>,
    pub nice: Option<At<i32>>,
    pub tries: Option<At<u32>>,
    pub reference: Option<At<Vec<At<String>>>>,
    pub injector: Option<At<AgentDevice>>,
    pub sensor: Option<At<AgentDevice>>,
    pub receiver: Option<At<Receiver>>,
    pub buffer: Option<At<u32>>,
    pub repetitions: Option<At<u32>>,
    pub duration: Option<At<String>>,
    #[serde(default)]
    pub chart: Vec<At<Chart>>,
    #[serde(default)]
    pub published: Vec<At<Published>>,
    #[serde(default)]
    pub findings: Vec<String>,
    #[serde(default)]
    pub conclusion: Vec<At<super::conclusion::Raw>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Traffic {
    pub sizes: Option<At<Vec<At<u16>>>>,
    pub flows: Option<At<u32>>,
    #[serde(default)]
    pub pattern: Pattern,
    #[serde(default)]
    pub proto: Proto,
    #[serde(default)]
    pub method: Method,
    #[serde(default)]
    pub shape: Shape,
    #[serde(default)]
    pub flows_as_entries: bool,
    #[serde(default)]
    pub web: bool,
    pub replay: Option<At<String>>,
    pub passes: Option<At<u64>>,
    pub calls: Option<At<Vec<At<u32>>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct AgentDevice {
    pub agent: At<String>,
    pub device: At<String>,
}

/// `receiver = true`, or a table as for the other roles.
pub(super) enum Receiver {
    Local(bool),
    Remote(AgentDevice),
}

// Not derived as untagged, which would lose the positions within the table.
impl<'de> Deserialize<'de> for Receiver {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Receiver, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Receiver;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, or the receiver's agent and device: [receiver]")
            }

            fn visit_bool<E>(self, here: bool) -> Result<Receiver, E> {
                Ok(Receiver::Local(here))
            }

            fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Receiver, A::Error> {
                AgentDevice::deserialize(MapAccessDeserializer::new(table)).map(Receiver::Remote)
            }
        }

        from.deserialize_any(Either)
    }
}

/// One value, or a list of them.
#[derive(Default)]
pub(super) struct OneOrMore<T>(pub Vec<T>);

// Not derived as untagged, which would not list the allowed names.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<OneOrMore<T>, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = OneOrMore<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one value, or a list of values")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<OneOrMore<T>, E> {
                T::deserialize(name.into_deserializer()).map(|one| OneOrMore(vec![one]))
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<OneOrMore<T>, E> {
                T::deserialize(number.into_deserializer()).map(|one| OneOrMore(vec![one]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<OneOrMore<T>, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list)).map(OneOrMore)
            }
        }

        from.deserialize_any(Either(PhantomData))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Sweep {
    pub from: At<f64>,
    pub to: At<f64>,
    pub steps: At<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Chart {
    pub quantity: Quantity,
    pub over: Option<Axis>,
    pub loops: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Published {
    pub name: String,
    pub quantity: Quantity,
    pub points: At<Vec<At<Vec<f64>>>>,
}
