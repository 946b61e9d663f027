//! What every [`Definitions`] must do, as one test: `definitions_suite::run(&harness).await` panics where it does not.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use async_trait::async_trait;
use sless_core::{
    Digest, FunctionSettings, HttpTrigger, Namespace, Runtime, SecretName, TriggerKind, TriggerName,
    revision_name,
};

use crate::{
    CodeRef, DefinitionError, Definitions, FunctionChange, FunctionRef, FunctionRow, Moment, RevisionRow,
    Secret, TriggerWish,
};

/// What is brought for the test.
#[async_trait]
pub trait Harness: Send + Sync {
    fn definitions(&self) -> &dyn Definitions;
    /// A namespace that nothing is in; a second one ends in `-b`, and neither is used by anything else.
    fn namespace(&self) -> &str {
        "suite"
    }
    /// A host that the namespaces' triggers may have.
    fn host(&self) -> &str {
        "suite.example"
    }
    /// Lets what was asked for become true: whoever brings a function to its end has done so.
    async fn finish(&self, function: &FunctionRef);
    /// Lets a revision be kept that is wanted, where that is somebody else's to do.
    async fn keep(&self, _row: &FunctionRow) {}
}

/// Of a name that is written below.
fn name<T: std::str::FromStr<Err: Debug>>(text: &str) -> T {
    #[expect(clippy::expect_used, reason = "the suite is test code: its names are valid")]
    text.parse().expect("names of the suite are valid")
}

/// The answer, where none but this is right.
fn good<T>(answer: Result<T, DefinitionError>) -> T {
    #[expect(clippy::expect_used, reason = "the suite is test code")]
    answer.expect("this must work")
}

fn some<T>(found: Option<T>) -> T {
    #[expect(clippy::expect_used, reason = "the suite is test code")]
    found.expect("it must be there")
}

struct Names {
    here: Namespace,
    elsewhere: Namespace,
    f: FunctionRef,
    g: FunctionRef,
    runtime: Runtime,
}

fn naming(secrets: &[&str]) -> FunctionSettings {
    FunctionSettings {
        secrets: secrets.iter().map(|text| name(text)).collect(),
        ..FunctionSettings::default()
    }
}

fn revision(row: &FunctionRow, settings: &FunctionSettings, mark: u8) -> RevisionRow {
    let digest = Digest::new([mark; 32]);
    RevisionRow {
        name: revision_name(&row.runtime, settings, &digest),
        settings: settings.clone(),
        code: CodeRef { sha256: digest, content_sha256: digest },
        image: None,
        created_at: Moment::now(),
    }
}

/// Runs all cases, one after another, and leaves nothing.
///
/// # Panics
/// Where a promise of the trait is broken.
pub async fn run(harness: &dyn Harness) {
    let here: Namespace = name(harness.namespace());
    let f = FunctionRef { namespace: here.clone(), name: name("f") };
    let names = Names {
        elsewhere: name(&format!("{}-b", harness.namespace())),
        g: FunctionRef { name: name("g"), ..f.clone() },
        runtime: name("python3.11"),
        here,
        f,
    };
    for namespace in [&names.here, &names.elsewhere] {
        good(harness.definitions().enter_namespace(namespace, true).await);
        good(harness.definitions().enter_namespace(namespace, false).await);
    }
    good(harness.definitions().ping().await);
    a_name_is_given_once_and_a_change_of_an_old_version_is_refused(harness, &names).await;
    lists_are_newest_first_and_go_on_below_an_id(harness, &names).await;
    revisions_are_what_was_wanted(harness, &names).await;
    secrets_stay_while_functions_name_them(harness, &names).await;
    routes_follow_functions_and_triggers(harness, &names).await;
    what_is_deleted_is_seen_until_it_is_gone(harness, &names).await;
}

async fn a_name_is_given_once_and_a_change_of_an_old_version_is_refused(h: &dyn Harness, n: &Names) {
    let d = h.definitions();
    assert_eq!(good(d.function(&n.f).await), None);
    let settings = FunctionSettings { workers: 3, ..FunctionSettings::default() };
    let row = good(d.insert_function(&n.f, &n.runtime, &settings).await);
    assert_eq!((&row.function, &row.runtime, &row.settings), (&n.f, &n.runtime, &settings));
    assert_eq!((row.deleting, &row.wanted, &row.active), (false, &None, &None));
    assert_eq!(good(d.function(&n.f).await).as_ref(), Some(&row));
    let again = d.insert_function(&n.f, &n.runtime, &settings).await;
    assert!(matches!(again, Err(DefinitionError::Exists)), "{again:?}");
    let change = FunctionChange { settings: FunctionSettings::default(), wanted: None };
    let changed = good(d.change_function(&row, &change).await);
    assert_eq!(changed.settings, change.settings);
    assert!(changed.version > row.version && changed.id == row.id, "{changed:?}");
    let stale = d.change_function(&row, &change).await;
    assert!(matches!(stale, Err(DefinitionError::Stale)), "{stale:?}");
    let stale = d.delete_function(&row).await;
    assert!(matches!(stale, Err(DefinitionError::Stale)), "{stale:?}");
    assert_eq!(good(d.function(&n.f).await), Some(changed));
}

async fn lists_are_newest_first_and_go_on_below_an_id(h: &dyn Harness, n: &Names) {
    let d = h.definitions();
    let first = some(good(d.function(&n.f).await));
    let second = good(d.insert_function(&n.g, &n.runtime, &FunctionSettings::default()).await);
    assert!(second.id > first.id && second.created_at >= first.created_at);
    assert_eq!(good(d.functions(&n.here, None, 9).await), [second.clone(), first.clone()]);
    assert_eq!(good(d.functions(&n.here, None, 1).await), std::slice::from_ref(&second));
    assert_eq!(good(d.functions(&n.here, Some(second.id), 9).await), std::slice::from_ref(&first));
    assert_eq!(good(d.functions(&n.elsewhere, None, 9).await), []);
}

async fn revisions_are_what_was_wanted(h: &dyn Harness, n: &Names) {
    let d = h.definitions();
    let mut row = some(good(d.function(&n.f).await));
    assert_eq!(good(d.revisions(&row).await), []);
    let mut made = Vec::new();
    for mark in 1..4 {
        let settings = FunctionSettings { workers: mark.into(), ..FunctionSettings::default() };
        let wanted = revision(&row, &settings, mark);
        let before = row.generation;
        row = good(d.change_function(&row, &FunctionChange { settings, wanted: Some(wanted.clone()) }).await);
        assert!(row.generation > before, "the backend must hear of it");
        assert_eq!(row.wanted.as_ref(), Some(&wanted.name));
        h.keep(&row).await;
        made.push(wanted);
    }
    let kept = good(d.revisions(&row).await);
    let names = |rows: &[RevisionRow]| rows.iter().map(|r| r.name.clone()).collect::<BTreeSet<_>>();
    assert_eq!(names(&kept), names(&made));
    for one in &made {
        let found = some(good(d.revision(&row, &one.name).await));
        assert_eq!((&found.name, found.code), (&one.name, one.code));
        assert_eq!(found.settings.revised(), one.settings.revised());
    }
    assert_eq!(good(d.revision(&row, "0123456789ab").await), None);
    // Back to an earlier one.
    let first = some(made.first().cloned());
    let change = FunctionChange { settings: first.settings.clone(), wanted: Some(first.clone()) };
    let back = good(d.change_function(&row, &change).await);
    assert_eq!((back.wanted.as_ref(), &back.settings), (Some(&first.name), &first.settings));
    h.keep(&back).await;
    assert_eq!(good(d.revisions(&back).await).len(), made.len());
    // The same content in another zip is the same revision, and shows the zip that came last.
    let code = CodeRef { sha256: Digest::new([9; 32]), ..first.code };
    let again = RevisionRow { code, ..first };
    let change = FunctionChange { settings: again.settings.clone(), wanted: Some(again.clone()) };
    let now = good(d.change_function(&back, &change).await);
    assert!(now.generation > back.generation && now.wanted == back.wanted);
    assert_eq!(some(good(d.revision(&now, &again.name).await)).code, code);
    let kept = good(d.revisions(&now).await);
    assert_eq!(kept.iter().find(|one| one.name == again.name).map(|one| one.code), Some(code));
    assert_eq!(kept.len(), made.len());
}

async fn secrets_stay_while_functions_name_them(h: &dyn Harness, n: &Names) {
    let d = h.definitions();
    let db: SecretName = name("db");
    let values =
        |text: &str| BTreeMap::from([("A".to_owned(), Secret::new(text)), ("B".to_owned(), Secret::new(""))]);
    let made = good(d.insert_secret(&n.here, &db, &values("1")).await);
    assert_eq!((&made.name, made.keys.as_slice()), (&db, &["A".to_owned(), "B".to_owned()][..]));
    let taken = d.insert_secret(&n.here, &db, &values("1")).await;
    assert!(matches!(taken, Err(DefinitionError::Exists)), "{taken:?}");
    assert_eq!(good(d.secret(&n.here, &db).await).as_ref(), Some(&made));
    assert_eq!(good(d.secret(&n.elsewhere, &db).await), None);
    let second = good(d.insert_secret(&n.here, &name("b"), &BTreeMap::new()).await);
    assert_eq!(good(d.secrets(&n.here, None, 9).await), [second.clone(), made.clone()]);
    assert_eq!(good(d.secrets(&n.here, Some(second.id), 9).await), std::slice::from_ref(&made));

    let row = some(good(d.function(&n.g).await));
    let naming = |secrets: &[&str]| FunctionChange { settings: naming(secrets), wanted: None };
    let refused = d.change_function(&row, &naming(&["db", "none"])).await;
    assert!(matches!(&refused, Err(DefinitionError::NoSecret(name)) if name == "none"), "{refused:?}");
    let fresh = FunctionRef { name: name("fresh"), ..n.f.clone() };
    let refused = d.insert_function(&fresh, &n.runtime, &naming(&["none"]).settings).await;
    assert!(matches!(&refused, Err(DefinitionError::NoSecret(name)) if name == "none"), "{refused:?}");
    assert_eq!(good(d.function(&fresh).await), None);
    let row = good(d.change_function(&row, &naming(&["db"])).await);

    let (same, told) = good(d.change_secret(&made, &values("1")).await);
    assert_eq!((same, told), (made.clone(), Vec::new()), "the same values again are no change");
    let (changed, told) = good(d.change_secret(&made, &values("2")).await);
    assert_eq!((changed.id, told), (made.id, vec![n.g.clone()]));
    assert!(changed.version > made.version);
    let stale = d.change_secret(&made, &values("3")).await;
    assert!(matches!(stale, Err(DefinitionError::Stale)), "{stale:?}");
    let (_, told) = good(d.change_secret(&second, &values("1")).await);
    assert_eq!(told, []);

    let stale = d.remove_secret(&made).await;
    assert!(matches!(stale, Err(DefinitionError::Stale)), "{stale:?}");
    assert_eq!(good(d.remove_secret(&changed).await), Some(n.g.clone()));
    let now = some(good(d.function(&row.function).await));
    good(d.change_function(&now, &naming(&[])).await);
    assert_eq!(good(d.remove_secret(&changed).await), None);
    assert_eq!(good(d.secret(&n.here, &db).await), None);
    let second = some(good(d.secret(&n.here, &second.name).await));
    assert_eq!(good(d.remove_secret(&second).await), None);
}

async fn routes_follow_functions_and_triggers(h: &dyn Harness, n: &Names) {
    let d = h.definitions();
    let trigger: TriggerName = name("t");
    let public = async || {
        let all = good(d.reachable().await);
        some(all.into_iter().find(|one| one.function == n.f)).triggers
    };
    assert_eq!(public().await, []);
    let http = HttpTrigger { host: Some(name(h.host())), methods: vec!["GET".to_owned()], cors: None };
    let wish = TriggerWish {
        kind: TriggerKind::Http,
        enabled: true,
        function: n.f.name.clone(),
        http: http.clone(),
    };
    let plain = TriggerWish { http: HttpTrigger::default(), ..wish.clone() };
    let made = good(d.insert_trigger(&n.here, &trigger, &wish).await);
    assert_eq!((&made.wish, &made.trouble), (&wish, &None));
    assert_eq!(good(d.trigger(&n.here, &trigger).await).as_ref(), Some(&made));
    let taken = d.insert_trigger(&n.here, &trigger, &plain).await;
    assert!(matches!(taken, Err(DefinitionError::Exists)), "{taken:?}");
    let taken = d.insert_trigger(&n.elsewhere, &trigger, &wish).await;
    assert!(matches!(taken, Err(DefinitionError::HostTaken)), "{taken:?}");
    let second = good(d.insert_trigger(&n.here, &name("t2"), &plain).await);
    assert_eq!(good(d.triggers(&n.here, None, 9).await), [second.clone(), made.clone()]);
    assert_eq!(good(d.triggers(&n.here, Some(second.id), 9).await), std::slice::from_ref(&made));
    let taken = d.change_trigger(&second, &wish).await;
    assert!(matches!(taken, Err(DefinitionError::HostTaken)), "{taken:?}");
    assert_eq!(public().await, [http.clone(), HttpTrigger::default()]);
    good(d.remove_trigger(&second).await);
    assert_eq!(public().await, std::slice::from_ref(&http));
    let off = good(d.change_trigger(&made, &TriggerWish { enabled: false, ..plain.clone() }).await);
    assert!(off.version > made.version && off.id == made.id);
    for stale in [d.change_trigger(&made, &wish).await.map(drop), d.remove_trigger(&made).await] {
        assert!(matches!(stale, Err(DefinitionError::Stale)), "{stale:?}");
    }
    assert_eq!(public().await, []);
    let next = good(d.insert_trigger(&n.elsewhere, &trigger, &wish).await);
    assert!(next.id > second.id, "the host was free again");
    good(d.remove_trigger(&next).await);
    let on = good(d.change_trigger(&off, &plain).await);
    assert_eq!(public().await, [HttpTrigger::default()]);
    good(d.remove_trigger(&on).await);
    assert_eq!(good(d.trigger(&n.here, &trigger).await), None);
    let stale = d.remove_trigger(&on).await;
    assert!(matches!(stale, Err(DefinitionError::Stale)), "{stale:?}");
}

async fn what_is_deleted_is_seen_until_it_is_gone(h: &dyn Harness, n: &Names) {
    let d = h.definitions();
    for function in [&n.f, &n.g] {
        let row = some(good(d.function(function).await));
        let deleting = good(d.delete_function(&row).await);
        assert!(deleting.deleting && deleting.id == row.id);
        assert!(good(d.reachable().await).iter().all(|one| one.function != *function));
        let seen = good(d.function(function).await);
        assert!(seen.is_none_or(|row| row.deleting));
        h.finish(function).await;
        assert_eq!(good(d.function(function).await), None);
        let next = good(d.insert_function(function, &n.runtime, &FunctionSettings::default()).await);
        assert!(next.id > row.id && next.wanted.is_none(), "the name is free again, and nothing is left");
        assert_eq!(good(d.revisions(&next).await), []);
        good(d.delete_function(&next).await);
        h.finish(function).await;
    }
}
