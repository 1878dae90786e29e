//! Rules and their actions, planned: SQL and templates are parsed, names of sinks become numbers, and what an action says is held
//! against what its sink takes.

use super::constants::{self, Check, Constants, Fault};
use super::draft::{Listed, Origin};
use super::error::ConfigError;
use super::rule_knobs::{ACTIONS, ActionDraft, ActionKind, ActionTable, Headers, RuleDraft};
use super::sink_knobs::{FullPolicy, Sink};
use super::sinks::find_doubles;
use crate::limits::Limits;
use crate::nearest::nearest;
use crate::record::ActionId;
use crate::rules::{Action, Part, PlannedRule, RecordAction, Republish, Rule, Source, Template};
use crate::sinks::options::{Acks, ActionOptions, BodyFormat, Confirm, SinkKind, WhenFull};

/// What a record can name.
const ACTIONS_MAX: usize = u16::MAX as usize;

/// Rules and actions, as shards and as the sink core know them.
#[derive(Default)]
pub struct Plan {
    pub rules: Vec<PlannedRule>,
    pub actions: Vec<ActionOptions>,
    /// Sinks that documents are upserted in.
    pub upserting: Vec<u8>,
}

type Sinks<'a> = &'a [Listed<Sink<SinkKind>>];

/// Plans all rules. What has a fault is left out.
pub fn plan(rules: &[Listed<RuleDraft>], sinks: Sinks<'_>, limits: &Limits, errors: &mut Vec<ConfigError>) -> Plan {
    find_doubles(rules, "name", "rule", |rule| Some(rule.name.clone()), errors);
    let mut planner = Planner { sinks, limits, plan: Plan::default(), errors, actions: 0 };
    for rule in rules {
        planner.rule(rule);
    }
    planner.plan
}

/// What a sink does when it is full: as it says, or as suits its actions.
pub fn when_full(policy: FullPolicy, sink: usize, actions: &[ActionOptions]) -> WhenFull {
    let waited_for = |action: &ActionOptions| usize::from(action.sink) == sink && action.confirm == Confirm::Delivered;
    match policy {
        FullPolicy::Always(when_full) => when_full,
        FullPolicy::Auto if actions.iter().any(waited_for) => WhenFull::Hold,
        FullPolicy::Auto => WhenFull::DropOldest,
    }
}

struct Planner<'a> {
    sinks: Sinks<'a>,
    limits: &'a Limits,
    plan: Plan,
    errors: &'a mut Vec<ConfigError>,
    /// Actions so far, those with faults included.
    actions: usize,
}

impl Planner<'_> {
    fn rule(&mut self, listed: &Listed<RuleDraft>) {
        let Listed { value: draft, origin } = listed;
        // Without SQL there is nothing to hold templates against.
        let Some(spot) = origin.spots.get("sql") else { return };
        let rule = match Rule::parse(&draft.sql) {
            Ok(rule) => rule,
            Err(error) => {
                let place = spot.inside(error.position.line, error.position.column);
                let what = format!("in the SQL: {}", error.what.replace(char::is_control, " "));
                return self.errors.push(ConfigError { place, what, fix: "docs/rules.md says what a rule may be".into() });
            }
        };
        let mut actions = Vec::new();
        for (index, action) in draft.actions.iter().enumerate() {
            let label = format!("{}/{}", draft.name, index + 1);
            actions.extend(self.action(action, &rule, label));
        }
        self.plan.rules.push(PlannedRule { name: draft.name.as_str().into(), rule, actions });
    }

    fn action(&mut self, listed: &Listed<ActionDraft>, rule: &Rule, label: String) -> Option<Action> {
        let Listed { value: draft, origin } = listed;
        self.actions += 1;
        if self.actions > ACTIONS_MAX {
            if self.actions == ACTIONS_MAX + 1 {
                let what = format!("there are more than {ACTIONS_MAX} actions in all rules together");
                self.error(origin.whole.clone(), what, "let rules share actions by matching more".into());
            }
            return None;
        }
        let (kind, sink) = self.target(draft, origin)?;
        self.check_settings(kind, origin);
        let mut texts = Texts { rule, limits: self.limits, origin, errors: self.errors, sound: true };
        let Some(number) = sink else {
            // The guard against rules that republish each other follows messages, which such an event begins anew.
            let of_messages = [Source::MessageDropped, Source::MessageDelivered];
            if let Some(event) = rule.events().iter().find(|event| of_messages.contains(event)) {
                let what = format!("publishing on $events/{0} could be the cause of the next {0}, without end", event.name());
                texts.errors.push(ConfigError {
                    place: origin.at("publish").clone(),
                    what,
                    fix: "let the action have a sink".into(),
                });
                return None;
            }
            let action = Republish {
                topic: texts.template("publish", &draft.publish, constants::mqtt_topic)?,
                payload: texts.template("payload", &draft.payload, constants::anything)?,
                qos: draft.qos,
                retain: draft.retain,
                properties: draft.user_properties,
            };
            return texts.sound.then_some(Action::Republish(action));
        };
        let mut parts = texts.parts(&self.sinks[usize::from(number)].value.options, draft);
        match kind {
            ActionKind::Kafka if draft.headers == Headers::UserProperties => parts.push(Part::Properties),
            ActionKind::Mongodb => parts.push(Part::Id),
            _ => {}
        }
        let (sound, delivered) = (texts.sound, draft.ack == Confirm::Delivered);
        let sink = &self.sinks[usize::from(number)];
        if delivered && sink.value.when_full == FullPolicy::Always(WhenFull::DropOldest) {
            let what = format!(
                "ack = \"delivered\" cannot be kept by a sink with when_full = \"drop_oldest\" ({}): what it drops is never delivered",
                sink.origin.at("when_full")
            );
            self.error(origin.at("ack"), what, "write when_full = \"hold\" there, or ack = \"queued\" here".into());
        }
        if delivered && matches!(&sink.value.options, SinkKind::Kafka(kafka) if kafka.acks == Acks::None) {
            let what = format!(
                "ack = \"delivered\" cannot be kept by a sink with acks = \"none\" ({}): nobody confirms that it has the record",
                sink.origin.at("acks")
            );
            self.error(origin.at("ack"), what, "write acks = \"all\" there, or ack = \"queued\" here".into());
        }
        if !draft.filter.is_empty() {
            self.plan.upserting.push(number);
        }
        let id = ActionId(self.plan.actions.len() as u16);
        self.plan.actions.push(ActionOptions { id, label, sink: number, confirm: draft.ack });
        let ticketed = delivered || !sink.value.buffer.disk_path.is_empty();
        sound.then_some(Action::Record(RecordAction { id, sink: number, parts, ticketed }))
    }

    fn error(&mut self, place: super::Place, what: String, fix: String) {
        self.errors.push(ConfigError { place, what, fix });
    }

    /// Where an action leads, with the number of its sink.
    fn target(&mut self, draft: &ActionDraft, origin: &Origin) -> Option<(ActionKind, Option<u8>)> {
        let place = match (origin.written("sink"), origin.written("publish")) {
            (None, Some(_)) => return Some((ActionKind::Publish, None)),
            (Some(place), None) => place.clone(),
            (sink, _) => {
                let count = if sink.is_some() { "both a sink and a topic to publish to" } else { "neither" };
                let what = format!("an action has a sink or publishes, and this has {count}");
                let fix = "write sink = \"NAME\" or publish = \"TOPIC\"; another action of the rule can do the other".into();
                self.error(origin.whole.clone(), what, fix);
                return None;
            }
        };
        let names =
            || self.sinks.iter().filter(|sink| sink.origin.written("name").is_some()).map(|sink| sink.value.name.as_str());
        let found = self.sinks.iter().position(|sink| sink.value.name == draft.sink);
        let Some(number) = found else {
            let fix = match nearest(&draft.sink, names()) {
                Some(name) => format!("did you mean \"{name}\"?"),
                None if names().next().is_none() => {
                    format!("write a [[kafka]], [[mongodb]], [[http]] or [[file]] with name = \"{}\"", draft.sink)
                }
                None => format!("the sinks are {}", names().collect::<Vec<_>>().join(", ")),
            };
            self.error(place, format!("there is no sink \"{}\"", draft.sink), fix);
            return None;
        };
        // Too many sinks have been reported.
        Some((ActionKind::of(&self.sinks[number].value.options), Some(u8::try_from(number).ok()?)))
    }

    /// Every setting belongs to the kind of the action, and what the kind requires is there.
    fn check_settings(&mut self, kind: ActionKind, origin: &Origin) {
        let own = |table: &&ActionTable| table.kind == kind;
        let Some(ActionTable { whose, table, .. }) = ACTIONS.iter().find(own) else { return };
        let mut foreign: Vec<_> = origin.spots.iter().filter(|(key, _)| table.knob(key).is_none()).collect();
        foreign.sort_by_key(|(_, spot)| spot.place.order());
        for (key, spot) in foreign {
            let owners = ACTIONS.iter().filter(|action| action.table.knob(key).is_some()).map(|action| action.whose);
            let what = format!(
                "{key} belongs to actions {}, and this is one of those {whose}",
                owners.collect::<Vec<_>>().join(" and ")
            );
            let keys: Vec<&str> = table.knobs().map(|knob| knob.key).collect();
            self.error(spot.place.clone(), what, format!("leave it out; actions {whose} have {}", keys.join(", ")));
        }
        for knob in table.knobs().filter(|knob| origin.written(knob.key).is_none()) {
            if let Some(example) = knob.example {
                let what = format!("this action has no {}", knob.key);
                self.error(origin.whole.clone(), what, format!("write one in it, such as {} = {example}", knob.key));
            }
        }
    }
}

/// The templates of one action.
struct Texts<'a> {
    rule: &'a Rule,
    limits: &'a Limits,
    origin: &'a Origin,
    errors: &'a mut Vec<ConfigError>,
    sound: bool,
}

impl Texts<'_> {
    /// What a record of this kind consists of, in the order of [`SinkKind`]'s options.
    fn parts(&mut self, kind: &SinkKind, draft: &ActionDraft) -> Vec<Part> {
        let texts: &[(&'static str, &str, Check)] = match kind {
            SinkKind::Kafka(_) => &[
                ("topic", &draft.topic, constants::kafka_topic),
                ("key", &draft.key, constants::anything),
                ("payload", &draft.payload, constants::anything),
            ],
            SinkKind::Mongodb(_) => &[
                ("collection", &draft.collection, constants::collection),
                ("document", &draft.document, constants::document),
                ("filter", &draft.filter, constants::filter),
            ],
            SinkKind::Http(http) => {
                let body = if http.body == BodyFormat::JsonArray { constants::json } else { constants::anything };
                &[("path", &draft.path, constants::path as Check), ("body", &draft.body, body)]
            }
            SinkKind::File(_) => &[("line", &draft.line, constants::anything)],
        };
        texts.iter().filter_map(|(key, text, check)| self.template(key, text, *check).map(Part::Text)).collect()
    }

    /// A template; `None` if it is none, which is then an error.
    fn template(&mut self, key: &'static str, text: &str, check: Check) -> Option<Template> {
        let template = Template::parse(text, self.rule);
        let fault = match &template {
            Ok(_) if self.origin.written(key).is_none() => None,
            Ok(_) => check(&Constants::of(text), self.limits).err(),
            Err(error) => Some(Fault {
                at: error.column,
                what: error.what.replace(char::is_control, " "),
                fix: "names in ${} are columns of the rule or fields of the message; ${.} is the whole row",
            }),
        };
        if let Some(Fault { at, what, fix }) = fault {
            let place = self.origin.spots.get(key).map_or_else(|| self.origin.at(key), |spot| spot.inside_at(at));
            self.errors.push(ConfigError { place, what: format!("{key}: {what}"), fix: fix.into() });
            self.sound = false;
        }
        template.ok()
    }
}
