//! `ls`: what servers offer.

use crate::args::LsArgs;
use crate::error::{CliError, Details, Exit};
use crate::output::{Output, bold, brief, clean, columns};
use crate::target;
use callboard::message::{Item, Page, Prompt, RawJson, Rejected, Resource, ResourceTemplate, Tool};
use callboard::{CallErrorKind, Client, Hub};
use serde::Serialize;
use serde_json::json;
use std::collections::HashSet;
use std::time::Duration;

/// Lists one server, or all of them one after the other.
///
/// Where there are several, one that fails is reported and the others are still listed; the exit status is that
/// of the first failure.
pub(crate) async fn run(args: &LsArgs, hub: &Hub, output: &Output) -> Result<Exit, CliError> {
    if let Some(name) = &args.server {
        let listing = Listing::fetch(&hub.client(name)?, args.timeout).await?;
        return if output.is_json() {
            output.json(&listing)
        } else {
            output.page(&listing.page())
        }
        .map(|()| Exit::Done);
    }
    let mut exit = Exit::Done;
    let mut entries = Vec::new();
    for view in hub.servers() {
        let client = hub.client(view.name.as_str())?;
        match Listing::fetch(&client, args.timeout).await {
            Ok(listing) if output.is_json() => entries.push(Entry::Listing(Box::new(listing))),
            Ok(listing) => output.page(&listing.page())?,
            Err(error) => {
                if exit == Exit::Done {
                    exit = error.exit();
                }
                match output.is_json() {
                    true => entries.push(Entry::Failed {
                        server: view.name.to_string(),
                        error: error.details(),
                    }),
                    false => error.report(false),
                }
            }
        }
    }
    if output.is_json() {
        output.json(&entries)?;
    }
    Ok(exit)
}

/// A server in the JSON of several.
#[derive(Serialize)]
#[serde(untagged)]
enum Entry {
    Listing(Box<Listing>),
    Failed { server: String, error: Details },
}

/// What one server offers, as it sent it. `None` for a kind of thing that it does not offer at all.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listing {
    server: String,
    era: Option<String>,
    revision: Option<String>,
    tools: Option<Items<Tool>>,
    resources: Option<Items<Resource>>,
    resource_templates: Option<Items<ResourceTemplate>>,
    prompts: Option<Items<Prompt>>,
    /// The tools that a rule of the protocol leaves out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOut>,
}

#[derive(Serialize)]
struct LeftOut {
    name: Option<String>,
    reason: String,
}

/// The items of all pages. Serialises as what the server sent, what cannot be read of it included; what a rule of the
/// protocol leaves out is not.
struct Items<T> {
    items: Vec<T>,
    rejected: Vec<RawJson>,
    left_out: Vec<LeftOut>,
}

impl Listing {
    async fn fetch(client: &Client, limit: Option<Duration>) -> Result<Self, CliError> {
        let view = target::ready(client, limit.unwrap_or(target::TIMEOUT)).await?;
        let lister = Lister { client, limit };
        let tools = target::may_have(&view, |offers| offers.tools.is_some());
        let resources = target::may_have(&view, |offers| offers.resources.is_some());
        let prompts = target::may_have(&view, |offers| offers.prompts.is_some());
        let mut tools = lister.list("tools/list", tools).await?;
        let left_out = tools.as_mut().map(|tools| std::mem::take(&mut tools.left_out));
        Ok(Self {
            left_out: left_out.unwrap_or_default(),
            server: view.name.to_string(),
            era: view.era().map(|era| era.to_string()),
            revision: view.revision().map(|revision| revision.to_string()),
            tools,
            resources: lister.list("resources/list", resources).await?,
            resource_templates: lister.list("resources/templates/list", resources).await?,
            prompts: lister.list("prompts/list", prompts).await?,
        })
    }

    fn page(&self) -> String {
        let Self {
            server,
            era,
            revision,
            ..
        } = self;
        let told = [era, revision]
            .map(|word| word.as_deref().unwrap_or("?"))
            .join(" ");
        let mut text = format!("{}  {told}\n", bold(server));
        section(&mut text, "tools", &self.tools, |tool| {
            (&tool.name, about(&tool.title, &tool.description))
        });
        for LeftOut { name, reason } in &self.left_out {
            let name = brief(name.as_deref().unwrap_or_default());
            text.push_str(&format!("  left out: {name}, {}\n", clean(reason)));
        }
        section(&mut text, "resources", &self.resources, |resource| {
            (
                &resource.uri,
                about(&Some(resource.display_name().to_owned()), &resource.description),
            )
        });
        section(
            &mut text,
            "resource templates",
            &self.resource_templates,
            |template| {
                (
                    &template.uri_template,
                    about(&Some(template.display_name().to_owned()), &template.description),
                )
            },
        );
        section(&mut text, "prompts", &self.prompts, |prompt| {
            (&prompt.name, about(&prompt.title, &prompt.description))
        });
        text
    }
}

/// Pages through lists of one server.
struct Lister<'a> {
    client: &'a Client,
    /// For each page, where one was given.
    limit: Option<Duration>,
}

/// The most pages that a list may have before it counts as endless.
const MAX_PAGES: usize = 1_000;

const METHOD_NOT_FOUND: i64 = -32601;

impl Lister<'_> {
    /// All pages of a list; `None` where the server does not offer it.
    async fn list<T: Item>(&self, method: &'static str, offered: bool) -> Result<Option<Items<T>>, CliError> {
        if !offered {
            return Ok(None);
        }
        let mut all = Items {
            items: Vec::new(),
            rejected: Vec::new(),
            left_out: Vec::new(),
        };
        let mut params = json!({});
        let mut seen = HashSet::new();
        for _ in 0..MAX_PAGES {
            let mut call = self.client.request(method, &params);
            if let Some(limit) = self.limit {
                call = call.timeout(limit);
            }
            let page: Page<T> = match call.into_page().await {
                Ok(page) => page,
                Err(error)
                    if matches!(
                        error.kind(),
                        CallErrorKind::Rpc {
                            code: METHOD_NOT_FOUND,
                            ..
                        }
                    ) =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            };
            all.items.extend(page.items);
            for rejected in page.rejected {
                if rejected.readable {
                    let Rejected { name, reason, .. } = rejected;
                    all.left_out.push(LeftOut { name, reason });
                } else {
                    all.rejected.push(rejected.raw);
                }
            }
            let Some(cursor) = page.next_cursor else {
                return Ok(Some(all));
            };
            params = json!({ "cursor": cursor });
            if !seen.insert(cursor) {
                return Err(self.endless(method, "a cursor came twice"));
            }
        }
        Err(self.endless(method, "it has more than 1,000 pages"))
    }

    fn endless(&self, method: &'static str, reason: &'static str) -> CliError {
        CliError::EndlessList {
            server: self.name(),
            method,
            reason,
        }
    }

    fn name(&self) -> String {
        self.client.name().to_string()
    }
}

impl<T: Serialize> Serialize for Items<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeSeq as _;
        let mut list = serializer.serialize_seq(Some(self.items.len() + self.rejected.len()))?;
        self.items
            .iter()
            .try_for_each(|item| list.serialize_element(item))?;
        self.rejected
            .iter()
            .try_for_each(|raw| list.serialize_element(raw))?;
        list.end()
    }
}

fn section<T>(
    text: &mut String,
    title: &str,
    items: &Option<Items<T>>,
    row: impl Fn(&T) -> (&String, String),
) {
    let Some(Items { items, rejected, .. }) = items else {
        return;
    };
    text.push_str(&format!("{title} ({})\n", items.len()));
    let rows: Vec<(String, String)> = items
        .iter()
        .map(row)
        .map(|(name, about)| (clean(&name.replace('\n', " ")), about))
        .collect();
    text.push_str(&columns(&rows));
    if !rejected.is_empty() {
        text.push_str(&format!(
            "  and {} that cannot be read; --json shows them\n",
            rejected.len()
        ));
    }
}

/// A line on a thing: what it does, else what it is called.
fn about(title: &Option<String>, description: &Option<String>) -> String {
    let line = |text: &Option<String>| text.as_deref().map(brief).filter(|line| !line.is_empty());
    line(description).or_else(|| line(title)).unwrap_or_default()
}
