//! Whole rules: text in, rows out.

use super::*;
use crate::topic::{Hasher, TopicKey};
use crate::wire::{Properties, Property};

const NOW_MS: i64 = 1_700_000_000_123;

fn input<'m>(topic: &'m str, payload: &'m [u8]) -> Input<'m> {
    Input {
        client_id: Some("v7"),
        username: Some("fleet"),
        peer_address: Some("192.0.2.1:5000".parse().unwrap()),
        topic: Some(topic),
        payload: Some(payload),
        qos: Some(1),
        retain: Some(false),
        timestamp_ms: NOW_MS,
        node: "n1",
        ..Input::default()
    }
}

/// What a rule makes of a payload: its rows as JSON, or why there is none.
fn run(sql: &str, payload: &str) -> String {
    let rule = Rule::parse(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let mut scratch = Vec::new();
    let pairs = [Property::UserProperty(("k", "1")), Property::UserProperty(("a b", "x")), Property::UserProperty(("k", "2"))];
    let input =
        Input { properties: Some(Properties::new(&pairs, &mut scratch)), ..input("vehicle/7/telemetry", payload.as_bytes()) };
    let view = View::new(Source::Message, input);
    match rule.run(&view) {
        Ok(Verdict::Passed(rows)) => rows.into_iter().map(|row| Value::Map(row).to_json()).collect::<Vec<_>>().join(" "),
        Ok(Verdict::Filtered) => "filtered".into(),
        Ok(Verdict::Nothing) => "nothing".into(),
        Err(failure) => format!("failed: {failure}"),
    }
}

/// The value of one expression.
fn value(expression: &str, payload: &str) -> String {
    let row = run(&format!("SELECT {expression} AS x FROM \"#\""), payload);
    row.strip_prefix("{\"x\":").and_then(|row| row.strip_suffix('}')).map_or(row.clone(), str::to_owned)
}

#[test]
fn a_message_that_passes_becomes_a_row_and_one_that_does_not_none() {
    let sql = "SELECT payload.speed AS v, clientid, topic, timestamp FROM \"vehicle/+/telemetry\" WHERE payload.speed > 120";
    assert_eq!(
        run(sql, r#"{"speed": 121}"#),
        r#"{"v":121,"clientid":"v7","topic":"vehicle/7/telemetry","timestamp":1700000000123}"#
    );
    for payload in [r#"{"speed": 120}"#, r#"{"speed": null}"#, "{}"] {
        assert_eq!(run(sql, payload), "filtered");
    }
    assert_eq!(run(sql, r#"{"speed": "fast"}"#), "failed: a text and an int have no order in payload.speed > 120 at 1:88");
    assert_eq!(
        run(sql, "{"),
        "failed: the payload is not JSON: EOF while parsing an object at line 1 column 1 in payload.speed at 1:88"
    );
}

#[test]
fn every_field_can_be_selected() {
    assert_eq!(
        run("SELECT * FROM \"#\"", "p"),
        concat!(
            r#"{"event":"message_published","clientid":"v7","username":"fleet","peer_address":"192.0.2.1:5000","#,
            r#""topic":"vehicle/7/telemetry","payload":"p","qos":1,"retain":false,"user_properties":{"k":"2","a b":"x"},"#,
            r#""timestamp":1700000000123,"node":"n1"}"#
        )
    );
    for (expression, expected) in [
        ("topic[2]", "\"7\""),
        ("topic[-1]", "\"telemetry\""),
        ("topic[4]", "null"),
        ("user_properties.k", "\"2\""),
        ("user_properties['a b']", "\"x\""),
        ("user_properties.none", "null"),
        ("payload.a.b[1]", "10"),
        ("payload.a.b[-1].c", "true"),
        ("payload['a']['b'][1]", "10"),
        ("payload.a.b[payload.one + 1].c", "true"),
        ("payload.\"x y\"", "5"),
        ("payload.a.none[3].b", "null"),
        ("json_decode(payload).one", "1"),
        ("TOPIC", "\"vehicle/7/telemetry\""),
    ] {
        assert_eq!(value(expression, r#"{"a":{"b":[10,{"c":true}]},"one":1,"x y":5}"#), expected, "{expression}");
    }
}

#[test]
fn keys_of_a_payload_may_be_words_of_sql() {
    for key in [
        "from",
        "where",
        "end",
        "select",
        "case",
        "not",
        "null",
        "true",
        "interval",
        "date",
        "order",
        "in",
        "is",
        "do",
        "timestamp",
        "Key",
    ] {
        assert_eq!(
            value(&format!("payload.{key} + payload.a.{key}"), &format!(r#"{{"{key}":1,"a":{{"{key}":2}}}}"#)),
            "3",
            "{key}"
        );
    }
    assert_eq!(value("payload.key", r#"{"Key":1}"#), "null");
}

#[test]
fn operators_do_what_sql_says() {
    for (expression, expected) in [
        ("1 + 2 * 3 - 4 / 2", "5"),
        ("7 / 2", "3"),
        ("7 / 2.0", "3.5"),
        ("-7 % 3", "-1"),
        ("(1 + 2) * 3", "9"),
        ("'a' || 1 || true", "\"a1true\""),
        ("[1] || [2, 'x']", "[1,2,\"x\"]"),
        ("1 = 1.0 AND 'a' <> 'b'", "true"),
        ("1 = '1'", "false"),
        ("2 > 1 AND NOT 1 >= 2 OR false", "true"),
        ("'b' > 'a'", "true"),
        ("NULL = NULL", "null"),
        ("NULL AND false", "false"),
        ("NULL AND true", "null"),
        ("NULL OR true", "true"),
        ("NOT NULL", "null"),
        ("1 IN (2, 1.0)", "true"),
        ("1 NOT IN (2, 3)", "true"),
        ("1 IN (2, NULL)", "null"),
        ("1 IN (NULL, 1)", "true"),
        ("NULL IN (1)", "null"),
        ("5 BETWEEN 1 AND 5", "true"),
        ("5 NOT BETWEEN 1 AND 4", "true"),
        ("NULL BETWEEN 1 AND 4", "null"),
        ("payload.none IS NULL", "true"),
        ("payload.n IS NOT NULL", "true"),
        ("(payload.n > 1) IS TRUE", "true"),
        ("NULL IS FALSE", "false"),
        ("NULL IS NOT TRUE", "true"),
        ("'sensor-12' LIKE 'sensor-%'", "true"),
        ("'sensor-12' NOT LIKE '%_2'", "false"),
        ("'10%' LIKE '10!%' ESCAPE '!'", "true"),
        ("'ABC' ILIKE 'a_c'", "true"),
        ("CASE WHEN payload.n > 5 THEN 'high' WHEN payload.n > 1 THEN 'low' ELSE 'none' END", "\"low\""),
        ("CASE payload.n WHEN 2 THEN 'two' WHEN 3 THEN 'three' END", "\"two\""),
        ("CASE payload.n WHEN 3 THEN 1 END", "null"),
        ("CASE WHEN false THEN 1 / 0 ELSE 2 END", "2"),
        ("CAST('12' AS INT) + 1", "13"),
        ("CAST(1.5 AS TEXT)", "\"1.5\""),
        ("map_of('a', [1, 2])['a'][2]", "2"),
        ("[payload.n, 'x'][1]", "2"),
        ("substring('telemetry', 5)", "\"metry\""),
        ("ceil(payload.n)", "2"),
        ("9223372036854775807", "9223372036854775807"),
    ] {
        assert_eq!(value(expression, r#"{"n":2}"#), expected, "{expression}");
    }
}

#[test]
fn a_failure_says_what_and_in_which_expression() {
    for (expression, expected) in [
        ("payload.n / 0", "failed: division by zero in payload.n / 0 at 1:8"),
        ("1 + payload.max", "failed: the result does not fit 64 bits in 1 + payload.max at 1:8"),
        ("-9223372036854775808 - 1", "failed: the result does not fit 64 bits in -9223372036854775808 - 1 at 1:9"),
        ("-payload.min", "failed: the result does not fit 64 bits in -payload.min at 1:9"),
        ("upper(payload.n)", "failed: upper: argument 1 must be a text and is an int in upper(payload.n) at 1:8"),
        ("payload.n AND true", "failed: a condition must be true, false or NULL, and is an int in payload.n AND true at 1:8"),
        ("1 / 0", "failed: division by zero in 1 / 0 at 1:8"),
        ("payload.n || [1]", "failed: || cannot join an array in payload.n || [1] at 1:8"),
        ("payload.n LIKE 'a'", "failed: LIKE needs text and got an int in payload.n LIKE 'a' at 1:8"),
    ] {
        assert_eq!(value(expression, r#"{"n":2,"max":9223372036854775807,"min":-9223372036854775808}"#), expected);
    }
}

#[test]
fn columns_are_named_by_as_by_their_path_or_by_their_text() {
    assert_eq!(
        run(
            "SELECT payload.a.b, payload.a.c[1], qos + 1, upper(clientid), 1 AS d.e, 2 AS d.f.g FROM \"#\"",
            r#"{"a":{"b":1,"c":[2]}}"#
        ),
        r#"{"payload":{"a":{"b":1,"c":2}},"qos + 1":2,"upper(clientid)":"V7","d":{"e":1,"f":{"g":2}}}"#
    );
    assert!(run("SELECT *, payload.v AS payload FROM \"#\"", r#"{"v":9}"#).contains(r#""payload":9,"qos":1"#));
}

#[test]
fn foreach_makes_a_row_of_each_element_that_incase_admits() {
    let payload = r#"{"sensors":[{"n":"a","v":1},{"n":"b","v":5},{"n":"c","v":9}],"t":3}"#;
    assert_eq!(
        run("FOREACH payload.sensors AS s DO s.n AS name, s.v * payload.t AS v, clientid INCASE s.v > 2 FROM \"#\"", payload),
        r#"{"name":"b","v":15,"clientid":"v7"} {"name":"c","v":27,"clientid":"v7"}"#
    );
    assert_eq!(run("FOREACH [1, 2] FROM \"#\"", payload), r#"{"item":1} {"item":2}"#);
    assert_eq!(
        run("FOREACH payload.sensors DO item.v AS v FROM \"#\" WHERE payload.t = 3", payload),
        r#"{"v":1} {"v":5} {"v":9}"#
    );
    assert_eq!(run("FOREACH payload.sensors DO item.v FROM \"#\" WHERE payload.t = 4", payload), "filtered");
    assert_eq!(run("FOREACH payload.none FROM \"#\"", payload), "nothing");
    assert_eq!(run("FOREACH payload.sensors AS s INCASE s.v > 10 FROM \"#\"", payload), "nothing");
    let many = |count: usize| run("FOREACH json_decode(payload) FROM \"#\"", &format!("[{}1]", "1,".repeat(count - 1)));
    assert_eq!(many(8_192).matches("item").count(), 8_192);
    assert_eq!(many(8_193), "failed: FOREACH got an array of more than 8192 elements in json_decode(payload) at 1:9");
    assert_eq!(run("FOREACH payload.t FROM \"#\"", payload), "failed: FOREACH needs an array and got an int in payload.t at 1:9");
}

#[test]
fn what_a_message_contains_does_not_decide_how_long_its_rules_take() {
    let list = |count: usize, rest: &str| format!(r#"{{"list":[{}1]{rest}}}"#, "1,".repeat(count - 1));
    let meta = format!(r#","meta":[{}1]"#, "1,".repeat(20_000));
    let a = "a".repeat(1_000_000);
    let like = format!(r#"{{"a":"{}","p":"%{}b"}}"#, &a[..500_000], &a[..250_000]);
    let long = r#","vin":"v""#.to_owned() + &format!(r#","rest":"{a}""#);
    for (sql, payload, expected) in [
        // Each row would have a copy of what is large.
        ("FOREACH payload.list AS s DO s AS v, payload.meta AS meta FROM \"#\"", list(8_000, &meta), "failed"),
        ("FOREACH payload.list AS s DO s AS v, payload || s AS p FROM \"#\"", list(8_000, ""), "failed"),
        ("FOREACH [payload, payload] AS s DO s.meta AS a, s.meta AS b FROM \"#\"", list(1, &meta), "{"),
        // What is the same for all is looked for once, however far behind it stands.
        ("FOREACH payload.list AS s DO s AS v, payload.vin AS vin FROM \"#\"", list(8_000, &long), "{\"v\":1,\"vin\":\"v\"} {"),
        // One search after another that goes to the end of the text.
        ("SELECT regex_count(payload, 'a(.*b)?') FROM \"#\"", a.clone(), "failed"),
        ("SELECT regex_replace(payload, 'a(.*b)?', '') FROM \"#\"", a.clone(), "failed"),
        ("SELECT regex_extract_all(payload, 'a(.*b)?') FROM \"#\"", a.clone(), "failed"),
        ("SELECT regex_count(payload, 'aa') AS n FROM \"#\"", a[..2_000].to_owned(), "{\"n\":1000}"),
        ("SELECT 1 FROM \"#\" WHERE payload.a LIKE payload.p", like, "failed"),
        ("SELECT payload.a LIKE '%aab' AS x FROM \"#\"", format!(r#"{{"a":"{a}"}}"#), "{\"x\":false}"),
    ] {
        let made = run(sql, &payload);
        assert!(made.starts_with(expected), "{sql}: {}", &made[..made.len().min(200)]);
        if expected == "failed" {
            assert!(made.contains("may take 16777216 steps, and this one wants more"), "{sql}: {made}");
        }
    }
}

#[test]
fn bad_sql_is_refused_with_place_reason_and_the_nearest_name() {
    for (sql, expected) in [
        ("SELECT uper(topic) FROM \"t\"", "1:8: error: unknown function `uper`; did you mean `upper`?"),
        ("SELECT\n  client_id FROM \"t\"", "2:3: error: unknown field `client_id`; did you mean `clientid`?"),
        ("SELECT * FROM \"t\" WHERE\n qoss = 1", "2:2: error: unknown field `qoss`; did you mean `qos`?"),
        ("SELECT * FROM \"a/#/b\"", "1:15: error: '#' is not alone in the last level of the topic filter"),
        (
            "SELECT * FROM \"a\", \"$events/client_conected\"",
            "1:20: error: there is no event `client_conected`; did you mean `client_connected`?",
        ),
        ("SELECT * FROM \"$share/g/t\"", "1:15: error: a rule has no shared subscription; leave out `$share/` and the name"),
        ("SELECT qos.a FROM \"t\"", "1:8: error: `qos` has nothing inside"),
        ("SELECT topic.a FROM \"t\"", "1:8: error: levels of the topic are counted: `topic[1]` is the first"),
        ("SELECT \"topic\" FROM \"t\"", "1:8: error: a text is written in single quotes: 'topic'"),
        ("SELECT left('a') FROM \"t\"", "1:8: error: `left(text, length)` takes 2 arguments, not 1"),
        ("SELECT 1 AS a, 2 AS a FROM \"t\"", "1:16: error: two columns are named `a`; name one of them with AS"),
        ("SELECT 1 FROM \"t\" WHERE 'a'", "1:25: error: a condition must be true or false"),
        (
            "SELECT regex_match(topic, payload) FROM \"t\"",
            "1:27: error: the regular expression of regex_match must be a constant text",
        ),
        ("SELECT regex_match(topic, '(') FROM \"t\"", "1:27: error: not a regular expression: unclosed group"),
        ("SELECT count(*) FROM \"t\"", "1:8: error: `*` is no argument"),
        ("SELECT (SELECT 1) FROM \"t\"", "1:9: error: `(SELECT 1)` is not supported in a rule"),
        ("SELECT topic ~ 'a' FROM \"t\"", "1:8: error: there is no operator `~`"),
        ("SELECT 1e999 FROM \"t\"", "1:8: error: `1e999` is not a number that fits 64 bits"),
        (
            "SELECT s.a FROM \"t\"",
            "1:8: error: unknown field `s`; there are event, clientid, username, peer_address, topic, payload, qos, retain, user_properties, timestamp, node",
        ),
    ] {
        assert_eq!(Rule::parse(sql).err().map(|error| error.to_string()).as_deref(), Some(expected), "{sql}");
    }
    let error = Rule::parse("SELECT payload FROM \"$events/client_connected\"").unwrap_err().to_string();
    assert!(error.starts_with("1:8: error: client_connected has no field `payload`; there are event, clientid"), "{error}");
}

#[test]
fn events_have_fields_of_their_own_and_one_rule_may_read_several() {
    let rule =
        Rule::parse("SELECT event, clientid, resumed, reason FROM \"$events/client_connected\", \"$events/client_disconnected\"")
            .unwrap();
    let set = RuleSet::new(vec![rule], Hasher::from_seed(1));
    assert!(set.wants(Source::ClientConnected) && !set.wants(Source::MessageDropped));
    let mut rows = Vec::new();
    let mut take = |event, input| {
        set.event(event, input, |_, _, result| {
            let Ok(Verdict::Passed(made)) = result else { panic!("it makes rows") };
            rows.extend(made.into_iter().map(|row| Value::Map(row).to_json()));
        });
    };
    take(Source::ClientConnected, Input { client_id: Some("c"), resumed: Some(true), ..Input::default() });
    take(Source::ClientDisconnected, Input { client_id: Some("c"), reason: Some("keep alive"), ..Input::default() });
    take(Source::MessageDropped, Input::default());
    assert_eq!(
        rows,
        [
            r#"{"event":"client_connected","clientid":"c","resumed":true,"reason":null}"#,
            r#"{"event":"client_disconnected","clientid":"c","resumed":null,"reason":"keep alive"}"#
        ]
    );
}

#[test]
fn a_set_calls_each_rule_that_matches_once_in_order() {
    let rules = [
        "SELECT 1 FROM \"a/#\", \"a/+\", \"a/b\"",
        "SELECT 2 FROM \"a/c\"",
        "SELECT payload.x FROM \"+/b\" WHERE payload.x > 1",
        "FOREACH payload.list FROM \"a/b\"",
    ];
    let hasher = Hasher::from_seed(1);
    let set = RuleSet::new(rules.map(|sql| Rule::parse(sql).unwrap()).into(), hasher);
    let publish = |topic: &str, payload: &[u8]| {
        let mut called = Vec::new();
        set.publish(&TopicKey::new(topic, &hasher), input(topic, payload), |rule, _, result| {
            called.push((
                rule,
                match result {
                    Ok(Verdict::Passed(_)) => "passed",
                    Ok(_) => "no result",
                    Err(_) => "failed",
                },
            ));
        });
        called
    };
    assert_eq!(publish("a/b", br#"{"x":2,"list":[1]}"#), [(0, "passed"), (2, "passed"), (3, "passed")]);
    assert_eq!(publish("a/b", br#"{"x":1}"#), [(0, "passed"), (2, "no result"), (3, "no result")]);
    assert_eq!(publish("a/b", b"no JSON"), [(0, "passed"), (2, "failed"), (3, "failed")]);
    assert_eq!(publish("b", b""), []);
}

#[test]
fn colliding_topics_do_not_reach_a_rule() {
    let hasher = Hasher::weak(1, 2);
    let set = RuleSet::new((0..20).map(|n| Rule::parse(&format!("SELECT {n} FROM \"t/{n}\"")).unwrap()).collect(), hasher);
    for number in 0..20 {
        let topic = format!("t/{number}");
        let mut called = Vec::new();
        set.publish(&TopicKey::new(&topic, &hasher), input(&topic, b""), |rule, _, _| called.push(rule));
        assert_eq!(called, [number]);
    }
}

#[test]
fn templates_take_columns_then_fields() {
    let rule = Rule::parse("SELECT payload.v AS v, payload.m AS m, topic FROM \"#\"").unwrap();
    let payload = br#"{"v":1.5,"m":{"k":["x",2]},"unit":"km"}"#;
    let view = View::new(Source::Message, input("a/b", payload));
    let Ok(Verdict::Passed(rows)) = rule.run(&view) else { panic!("it passes") };
    let render = |text: &str| {
        let mut out = Vec::new();
        Template::parse(text, &rule).unwrap().render(&rows[0], &view, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(render("out/${clientid}/${topic[1]}"), "out/v7/", "a column hides the field of its name");
    for (text, expected) in [
        ("", ""),
        ("plain $ {x}", "plain $ {x}"),
        ("${v} ${payload.unit} by ${ clientid }", "1.5 km by v7"),
        ("${m}|${m.k[1]}|${m.k[-1]}|${m.none}|", r#"{"k":["x",2]}|x|2||"#),
        ("${.}", r#"{"v":1.5,"m":{"k":["x",2]},"topic":"a/b"}"#),
        ("${payload}", str::from_utf8(payload).unwrap()),
        ("${user_properties.a}${username}${qos}", "fleet1"),
    ] {
        assert_eq!(render(text), expected);
    }
    assert_eq!(Template::parse("a", &rule).unwrap().constant(), Some("a"));
    for (text, expected) in [
        ("é${clientidd}", "at character 2: unknown field `clientidd`; did you mean `clientid`?"),
        ("${v", "at character 1: `${` is not closed with `}`"),
        ("${}", "at character 1: a name is missing in `${}`"),
        ("${m[x]}", "at character 1: `[x]` is not a number"),
        ("${m.}", "at character 1: a name is missing after `.`"),
        ("${qos.a}", "at character 1: `qos` has nothing inside"),
    ] {
        assert_eq!(Template::parse(text, &rule).err().map(|error| error.to_string()).as_deref(), Some(expected), "{text}");
    }
}

#[test]
fn the_json_of_a_message_is_parsed_once_for_all_its_rules_and_only_for_those_that_look() {
    let hasher = Hasher::from_seed(1);
    let set = |rules: &[&str]| RuleSet::new(rules.iter().map(|sql| Rule::parse(sql).unwrap()).collect(), hasher);
    let parsed = |set: &RuleSet, payload: &[u8]| {
        let mut parsed = None;
        set.publish(&TopicKey::new("t", &hasher), input("t", payload), |_, view, _| parsed = Some(view.is_parsed()));
        parsed
    };
    assert_eq!(parsed(&set(&["SELECT payload, topic FROM \"t\" WHERE qos = 1"]), b"{}"), Some(false));
    assert_eq!(parsed(&set(&["SELECT payload.a FROM \"t\""]), b"{}"), Some(true));
}

#[test]
fn payloads_that_are_no_text_are_bytes() {
    let rule = Rule::parse("SELECT payload, typeof(payload) AS t, hex_encode(payload) AS h FROM \"#\"").unwrap();
    let view = View::new(Source::Message, input("t", &[0xFF, 1]));
    let Ok(Verdict::Passed(rows)) = rule.run(&view) else { panic!("it passes") };
    assert_eq!(Value::Map(rows[0].clone()).to_json(), r#"{"payload":"/wE=","t":"bytes","h":"ff01"}"#);
    let rule = Rule::parse("SELECT payload.a FROM \"#\"").unwrap();
    assert!(rule.run(&view).unwrap_err().what.contains("2 bytes that are not UTF-8"));
}
