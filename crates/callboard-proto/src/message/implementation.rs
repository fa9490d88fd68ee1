//! Who a server or a client says it is.

use super::raw::{RawJson, round_trips};
use super::text::string_enum;
use super::view;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::value::RawValue;

/// The name and version of a program (all revisions, basic/lifecycle; 2026-07-28, basic/index).
///
/// A label for people and logs that nobody has verified, never a reason to behave in another way. So nothing
/// in it is required: what a server left out is empty. One that was decoded serialises as it was sent, one
/// made here from its fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Implementation {
    /// The name for programs.
    pub name: String,
    /// The version, in no particular form.
    pub version: String,
    /// The name for people (since 2025-06-18).
    pub title: Option<String>,
    /// One sentence about it (since 2025-11-25).
    pub description: Option<String>,
    /// Where to read more (since 2025-11-25).
    pub website_url: Option<String>,
    /// Its icons (since 2025-11-25).
    pub icons: Vec<Icon>,
    raw: Option<RawJson>,
}

/// An image that stands for something (since 2025-11-25, basic/index).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Icon {
    /// Where the image is; see [`Icon::has_safe_scheme`].
    pub src: String,
    /// Its MIME type, where given; the bytes decide.
    pub mime_type: Option<String>,
    /// The sizes it is made for, `48x48` or `any`; empty for all sizes.
    pub sizes: Vec<String>,
    /// The background it is made for; `None` for both.
    pub theme: Option<IconTheme>,
    raw: RawJson,
}

string_enum! {
    /// The background an [`Icon`] is made for (since 2025-11-25, basic/index).
    IconTheme {
        /// A light one.
        Light = "light",
        /// A dark one.
        Dark = "dark",
    }
}

impl Implementation {
    /// A program of ours, with nothing but what is required.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            title: None,
            description: None,
            website_url: None,
            icons: Vec::new(),
            raw: None,
        }
    }

    /// Decodes what a server says it is.
    ///
    /// # Errors
    ///
    /// It is no object.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: View<'_> = raw.view()?;
        Ok(Self {
            name: view::text(view.name).unwrap_or_default(),
            version: view::text(view.version).unwrap_or_default(),
            title: view::text(view.title),
            description: view::text(view.description),
            website_url: view::text(view.website_url),
            icons: view::each(&raw, view.icons, Icon::from_raw),
            raw: Some(raw),
        })
    }

    /// What the server sent, with every member that has no field here; `None` for one made here.
    #[must_use]
    pub fn raw(&self) -> Option<&RawJson> {
        self.raw.as_ref()
    }

    /// The name to show: `title` where there is one, else `name`.
    #[must_use]
    pub fn display_name(&self) -> &str {
        view::shown([self.title.as_deref()], &self.name)
    }
}

impl Icon {
    /// Decodes one icon.
    ///
    /// # Errors
    ///
    /// `src` is absent or no string.
    pub fn from_raw(raw: RawJson) -> Result<Self, serde_json::Error> {
        let view: IconView<'_> = raw.view()?;
        Ok(Self {
            src: view.src,
            mime_type: view::text(view.mime_type),
            sizes: view::texts(view.sizes),
            theme: view::optional(view.theme),
            raw,
        })
    }

    /// Whether `src` is an `https` or `data` URI; others must not be fetched (ICON-01).
    #[must_use]
    pub fn has_safe_scheme(&self) -> bool {
        let scheme = self.src.split_once(':').map_or("", |(scheme, _)| scheme);
        scheme.eq_ignore_ascii_case("https") || scheme.eq_ignore_ascii_case("data")
    }
}

impl Serialize for Implementation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Fields<'a> {
            name: &'a str,
            version: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            title: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            description: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            website_url: Option<&'a str>,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            icons: &'a [Icon],
        }

        match &self.raw {
            Some(raw) => raw.serialize(serializer),
            None => Fields {
                name: &self.name,
                version: &self.version,
                title: self.title.as_deref(),
                description: self.description.as_deref(),
                website_url: self.website_url.as_deref(),
                icons: &self.icons,
            }
            .serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Implementation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_raw(RawJson::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

round_trips!(Icon: RawJson);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct View<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    version: Option<&'a RawValue>,
    #[serde(borrow)]
    title: Option<&'a RawValue>,
    #[serde(borrow)]
    description: Option<&'a RawValue>,
    #[serde(borrow)]
    website_url: Option<&'a RawValue>,
    #[serde(borrow)]
    icons: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IconView<'a> {
    src: String,
    #[serde(borrow)]
    mime_type: Option<&'a RawValue>,
    #[serde(borrow)]
    sizes: Option<&'a RawValue>,
    #[serde(borrow)]
    theme: Option<&'a RawValue>,
}
