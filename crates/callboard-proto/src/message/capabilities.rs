//! What a server offers, and what this client declares.

use super::raw::{RawJson, round_trips};
use super::view;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// What a server offers (all revisions, basic/lifecycle; 2026-07-28, server/discover).
///
/// Keys not known here are tolerated and stay in [`raw`](Self::raw) (CAP-02). A known key is declared unless
/// it is absent, null or `false`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerCapabilities {
    /// Tools can be listed and called.
    pub tools: Option<ToolsCapability>,
    /// Prompts can be listed and got.
    pub prompts: Option<PromptsCapability>,
    /// Resources can be listed and read.
    pub resources: Option<ResourcesCapability>,
    /// Arguments can be completed (since 2025-03-26; in 2024-11-05 never declared, just tried).
    pub completions: bool,
    /// The server sends log messages.
    pub logging: bool,
    /// The experimental tasks of 2025-11-25, raw.
    pub tasks: Option<RawJson>,
    /// What is not standardised, by name.
    pub experimental: BTreeMap<String, RawJson>,
    /// The settings of each extension, by its identifier (since 2026-07-28).
    pub extensions: BTreeMap<String, RawJson>,
    raw: RawJson,
}

/// The sub-flags of [`ServerCapabilities::tools`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolsCapability {
    /// The server tells when its list of tools changes.
    pub list_changed: bool,
}

/// The sub-flags of [`ServerCapabilities::prompts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PromptsCapability {
    /// The server tells when its list of prompts changes.
    pub list_changed: bool,
}

/// The sub-flags of [`ServerCapabilities::resources`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResourcesCapability {
    /// Single resources can be watched for changes.
    pub subscribe: bool,
    /// The server tells when its list of resources changes.
    pub list_changed: bool,
}

/// What this client declares (all revisions, basic/lifecycle; 2026-07-28, in `_meta` of every request).
///
/// The default declares nothing and is `{}` on the wire. The same form goes to every revision: older servers
/// ignore keys they do not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientCapabilities {
    /// The user can be asked (since 2025-06-18).
    pub elicitation: Option<ElicitationCapability>,
    /// A model can be asked.
    pub sampling: Option<SamplingCapability>,
    /// Roots can be listed.
    pub roots: Option<RootsCapability>,
    /// What is not standardised, by name; each value an object.
    pub experimental: BTreeMap<String, RawJson>,
    /// The settings of each extension, by its identifier; each value an object (since 2026-07-28).
    pub extensions: BTreeMap<String, RawJson>,
}

/// The modes of [`ClientCapabilities::elicitation`]. With neither, elicitation is not declared at all, since
/// on the wire `{}` means the form mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElicitationCapability {
    /// A form can be shown.
    pub form: bool,
    /// A page can be opened (since 2025-11-25).
    pub url: bool,
}

/// The sub-flags of [`ClientCapabilities::sampling`] (since 2025-11-25).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SamplingCapability {
    /// The request may give the model tools.
    pub tools: bool,
    /// The request may ask for the context of servers.
    pub context: bool,
}

/// The sub-flags of [`ClientCapabilities::roots`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RootsCapability {
    /// This client tells when its roots change (legacy only).
    pub list_changed: bool,
}

impl ServerCapabilities {
    /// Decodes what a server declares.
    ///
    /// # Errors
    ///
    /// It is no object.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: View<'_> = raw.view()?;
        Ok(Self {
            tools: declared(view.tools).map(|flags| ToolsCapability {
                list_changed: flags.list_changed(),
            }),
            prompts: declared(view.prompts).map(|flags| PromptsCapability {
                list_changed: flags.list_changed(),
            }),
            resources: declared(view.resources).map(|flags| ResourcesCapability {
                subscribe: is_set(flags.subscribe),
                list_changed: flags.list_changed(),
            }),
            completions: is_set(view.completions),
            logging: is_set(view.logging),
            tasks: view::raw(&raw, view.tasks.filter(|&member| is_set(Some(member)))),
            experimental: map(&raw, view.experimental),
            extensions: map(&raw, view.extensions),
            raw,
        })
    }
}

impl Default for ServerCapabilities {
    /// A server that declares nothing.
    fn default() -> Self {
        Self {
            tools: None,
            prompts: None,
            resources: None,
            completions: false,
            logging: false,
            tasks: None,
            experimental: BTreeMap::new(),
            extensions: BTreeMap::new(),
            raw: RawJson::new(bytes::Bytes::from_static(b"{}")),
        }
    }
}

round_trips!(ServerCapabilities: RawJson);

impl ClientCapabilities {
    /// Declares that a form can be shown to the user.
    #[must_use]
    pub fn elicitation_form(mut self) -> Self {
        self.elicitation.get_or_insert_default().form = true;
        self
    }

    /// Declares that a page can be opened for the user.
    #[must_use]
    pub fn elicitation_url(mut self) -> Self {
        self.elicitation.get_or_insert_default().url = true;
        self
    }

    /// Declares that a model can be asked.
    #[must_use]
    pub fn sampling(mut self) -> Self {
        self.sampling.get_or_insert_default();
        self
    }

    /// Declares that a model can be asked, and given tools.
    #[must_use]
    pub fn sampling_tools(mut self) -> Self {
        self.sampling.get_or_insert_default().tools = true;
        self
    }

    /// Declares that roots can be listed.
    #[must_use]
    pub fn roots(mut self) -> Self {
        self.roots.get_or_insert_default();
        self
    }

    /// Declares that roots can be listed, and that this client tells when they change (legacy only).
    #[must_use]
    pub fn roots_list_changed(mut self) -> Self {
        self.roots.get_or_insert_default().list_changed = true;
        self
    }

    /// Declares an extension by its identifier, with its settings, an object.
    #[must_use]
    pub fn extension(mut self, id: impl Into<String>, settings: RawJson) -> Self {
        self.extensions.insert(id.into(), settings);
        self
    }
}

impl Serialize for ClientCapabilities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(modes) = self.elicitation.filter(|modes| modes.form || modes.url) {
            map.serialize_entry("elicitation", &Flags([("form", modes.form), ("url", modes.url)]))?;
        }
        if let Some(flags) = self.sampling {
            map.serialize_entry(
                "sampling",
                &Flags([("tools", flags.tools), ("context", flags.context)]),
            )?;
        }
        if let Some(RootsCapability { list_changed }) = self.roots {
            let flags: BTreeMap<_, _> = list_changed
                .then_some(("listChanged", true))
                .into_iter()
                .collect();
            map.serialize_entry("roots", &flags)?;
        }
        for (key, values) in [
            ("experimental", &self.experimental),
            ("extensions", &self.extensions),
        ] {
            if !values.is_empty() {
                map.serialize_entry(key, values)?;
            }
        }
        map.end()
    }
}

/// Reads the same form back, also where a server names what it requires (2026-07-28, error -32021).
impl<'de> Deserialize<'de> for ClientCapabilities {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = RawJson::deserialize(deserializer)?;
        let view: ClientView<'_> = raw.view().map_err(serde::de::Error::custom)?;
        Ok(Self {
            elicitation: declared(view.elicitation).map(|modes| ElicitationCapability {
                // Neither mode named means the form mode, the only one of 2025-06-18.
                form: is_set(modes.form) || !is_set(modes.url),
                url: is_set(modes.url),
            }),
            sampling: declared(view.sampling).map(|flags| SamplingCapability {
                tools: is_set(flags.tools),
                context: is_set(flags.context),
            }),
            roots: declared(view.roots).map(|flags| RootsCapability {
                list_changed: flags.list_changed(),
            }),
            experimental: map(&raw, view.experimental),
            extensions: map(&raw, view.extensions),
        })
    }
}

/// An object with `{}` for each flag that is set.
struct Flags([(&'static str, bool); 2]);

impl Serialize for Flags {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let empty: BTreeMap<&str, ()> = BTreeMap::new();
        serializer.collect_map(
            self.0
                .iter()
                .filter(|(_, set)| *set)
                .map(|(name, _)| (name, &empty)),
        )
    }
}

/// The flags of a capability that is declared.
fn declared(member: Option<&RawValue>) -> Option<FlagsView<'_>> {
    is_set(member).then(|| view::optional(member).unwrap_or_default())
}

/// Whether a key or a flag is there: `{}`, `true`, but not null or `false`.
fn is_set(member: Option<&RawValue>) -> bool {
    member.is_some_and(|member| !matches!(member.get(), "null" | "false"))
}

fn map(whole: &RawJson, member: Option<&RawValue>) -> BTreeMap<String, RawJson> {
    let entries: BTreeMap<String, &RawValue> = view::optional(member).unwrap_or_default();
    entries
        .into_iter()
        .map(|(key, value)| (key, whole.part(value)))
        .collect()
}

#[derive(Deserialize)]
struct View<'a> {
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    prompts: Option<&'a RawValue>,
    #[serde(borrow)]
    resources: Option<&'a RawValue>,
    #[serde(borrow)]
    completions: Option<&'a RawValue>,
    #[serde(borrow)]
    logging: Option<&'a RawValue>,
    #[serde(borrow)]
    tasks: Option<&'a RawValue>,
    #[serde(borrow)]
    experimental: Option<&'a RawValue>,
    #[serde(borrow)]
    extensions: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ClientView<'a> {
    #[serde(borrow)]
    elicitation: Option<&'a RawValue>,
    #[serde(borrow)]
    sampling: Option<&'a RawValue>,
    #[serde(borrow)]
    roots: Option<&'a RawValue>,
    #[serde(borrow)]
    experimental: Option<&'a RawValue>,
    #[serde(borrow)]
    extensions: Option<&'a RawValue>,
}

/// The sub-flags of all capabilities.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FlagsView<'a> {
    #[serde(borrow)]
    list_changed: Option<&'a RawValue>,
    #[serde(borrow)]
    subscribe: Option<&'a RawValue>,
    #[serde(borrow)]
    form: Option<&'a RawValue>,
    #[serde(borrow)]
    url: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    context: Option<&'a RawValue>,
}

impl FlagsView<'_> {
    fn list_changed(&self) -> bool {
        is_set(self.list_changed)
    }
}
