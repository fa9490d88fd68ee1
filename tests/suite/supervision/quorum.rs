//! Waiting for several servers.

use super::Tree;
use crate::support::{end, eventually, secs, shell};
use callboard::{FleetError, Hub, Quorum, ServerConfig, ServerState};
use callboard_testkit::Script;
use std::collections::BTreeSet;

/// A hub with servers of every kind; the trees are those of `good` and `lazy`.
struct Fleet {
    hub: Hub,
    lazy: Tree,
    _trees: Vec<Tree>,
}

impl Fleet {
    async fn start(names: &[&str]) -> Self {
        let lazy = Tree::new("lazy", &[Script::modern().serve()]);
        let mut trees = Vec::new();
        let hub = Hub::builder("suite", "1").start().unwrap();
        for name in names {
            let config = match *name {
                "lazy" => lazy.config.clone().lazy(),
                "hangs" => shell(name, "while read -r line; do :; done"),
                "parked" => ServerConfig::stdio(*name, "/nonexistent/program"),
                _ => {
                    let tree = Tree::new(name, &[Script::modern().serve()]);
                    let config = tree.config.clone();
                    trees.push(tree);
                    config
                }
            };
            hub.add(config).unwrap();
            if *name == "disabled" {
                hub.disable(name).await.unwrap();
            }
        }
        Self {
            hub,
            lazy,
            _trees: trees,
        }
    }
}

/// What a wait comes to: the servers that are ready, or words that its error has.
type Outcome = Result<&'static [&'static str], &'static [&'static str]>;

#[tokio::test]
async fn wait_ends_as_soon_as_it_is_decided() {
    let named = |names: &[&str]| Quorum::named(names.iter().copied());
    let table: [(&[&str], Quorum, Outcome); 16] = [
        (&["a", "b"], Quorum::All, Ok(&["a", "b"])),
        (&["a", "lazy", "disabled"], Quorum::All, Ok(&["a"])),
        (&[], Quorum::All, Ok(&[])),
        // Though another might still come up.
        (
            &["a", "parked", "hangs"],
            Quorum::All,
            Err(&["of 3 servers are ready", "`parked`", "/nonexistent/program"]),
        ),
        (&["a", "parked", "hangs"], Quorum::Any, Ok(&["a"])),
        (
            &["parked"],
            Quorum::Any,
            Err(&["0 of 1 servers are ready", "`parked`"]),
        ),
        (
            &["lazy", "disabled"],
            Quorum::Any,
            Err(&["0 of 1 servers are ready"]),
        ),
        (&["a", "b", "hangs"], Quorum::AtLeast(2), Ok(&["a", "b"])),
        (
            &["a", "b", "parked", "hangs"],
            Quorum::AtLeast(2),
            Ok(&["a", "b"]),
        ),
        (&["a", "b"], Quorum::AtLeast(0), Ok(&[])),
        (&["a", "b"], Quorum::AtLeast(3), Err(&["of 3 servers are ready"])),
        (&["a", "b", "hangs"], named(&["b", "a"]), Ok(&["a", "b"])),
        (&["a", "lazy"], named(&["lazy"]), Ok(&["lazy"])),
        (
            &["a", "disabled"],
            named(&["a", "disabled"]),
            Err(&["`disabled`", "`enable`"]),
        ),
        (
            &["a", "b"],
            named(&["a", "c"]),
            Err(&["no server `c`", "there are: a, b"]),
        ),
        (&["a"], named(&[]), Ok(&[])),
    ];
    for (names, quorum, expected) in table {
        let row = format!("{quorum:?} of {names:?}");
        let fleet = Fleet::start(names).await;

        let outcome = fleet.hub.ready(quorum.clone()).within(secs(10)).await;

        match (outcome, expected) {
            (Ok(ready), Ok(expected)) => {
                assert!(ready.iter().all(|view| view.state == ServerState::Ready), "{row}");
                let ready: BTreeSet<&str> = ready.iter().map(|view| view.name.as_str()).collect();
                assert_eq!(ready, expected.iter().copied().collect(), "{row}");
            }
            (Err(error), Err(words)) => {
                let text = error.to_string();
                for word in words {
                    assert!(text.contains(word), "{row}: `{word}` is missing in: {text}");
                }
                assert!(!text.contains("within"), "{row}: it took all its time: {text}");
            }
            (outcome, _) => panic!("{row}: {outcome:?}"),
        }
        let by_name = quorum == named(&["lazy"]);
        assert_eq!(
            fleet.lazy.starts(),
            usize::from(by_name),
            "{row}: only its name starts it"
        );
        end(fleet.hub, &[]).await;
    }
}

#[tokio::test]
async fn wait_that_takes_too_long_tells_of_each_server() {
    let fleet = Fleet::start(&["a", "hangs"]).await;

    let error = fleet.hub.ready(Quorum::All).within(secs(1)).await.unwrap_err();

    let FleetError::NotReady {
        wanted,
        ready,
        failed,
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!((*wanted, ready.len(), failed.len()), (2, 1, 1));
    assert_eq!(ready[0].name.as_str(), "a");
    let text = error.to_string();
    for word in ["1 of 2 servers are ready", "`hangs`", "within 1s"] {
        assert!(text.contains(word), "`{word}` is missing in: {text}");
    }
    end(fleet.hub, &[]).await;
}

#[tokio::test]
async fn wait_ends_with_the_hub() {
    let fleet = Fleet::start(&["hangs"]).await;
    let hub = fleet.hub.clone();
    let waits = tokio::spawn(async move { hub.ready(Quorum::Any).await.map(|ready| ready.len()) });
    eventually("it is being opened", || {
        fleet.hub.lookup("hangs").unwrap().state == ServerState::Negotiating
    })
    .await;

    end(fleet.hub, &[]).await;

    let error = waits.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("shut down"), "{error}");
}
