//! Files that a rule file names: other rule files, lists of addresses, exact-match rules in CSV.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::Error;
use crate::{ExactFields, RuleSet, Test};

/// A folder with files; reads the first one.
fn read(files: &[(&str, &str)]) -> (TempDir, crate::Result<RuleSet>) {
    let folder = TempDir::new().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    let set = RuleSet::read(folder.path().join(files[0].0));
    (folder, set)
}

fn set(files: &[(&str, &str)]) -> RuleSet {
    let (_folder, set) = read(files);
    set.unwrap_or_else(|error| panic!("{error}"))
}

/// The mistakes as `file:line:column: reason`, without the folder.
fn mistakes(files: &[(&str, &str)]) -> Vec<String> {
    let (folder, set) = read(files);
    let Err(Error::Rules { mistakes }) = set else { panic!("no mistakes: {set:?}") };
    let root = format!("{}/", folder.path().display());
    mistakes.iter().map(|mistake| mistake.to_string().replace(&root, "")).collect()
}

/// Checks for exactly these mistakes; only the beginnings of the messages are given.
fn has(files: &[(&str, &str)], expected: &[&str]) {
    let found = mistakes(files);
    let fits = found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| found.starts_with(expected));
    assert!(fits, "{found:#?}\nand not {expected:#?}");
}

/// A rule with this id and further fields.
fn rule(id: u32, fields: &str) -> String {
    format!("[[rule]]\nid = {id}\naction = \"drop\"\n{fields}\n")
}

#[test]
fn rule_files_include_others() {
    let set = set(&[
        (
            "a.toml",
            "include = [\"deep/b.toml\", \"c.toml\"]\n[[rule]]\nid = 2\nsrc = \"@far\"\naction = \"drop\"\n",
        ),
        (
            "deep/b.toml",
            "include = \"../c2.toml\"\ndefault = \"drop\"\n[[rule]]\nid = 3\naction = \"pass\"\n",
        ),
        ("c.toml", "[lists]\nfar = [\"10.0.0.0/8\"]\n"),
        ("c2.toml", "[[rule]]\nid = 1\nsrc = \"@far\"\naction = \"pass\"\n"),
    ]);
    let ids: Vec<u32> = set.rules.iter().map(|rule| rule.id).collect();
    assert_eq!((ids.as_slice(), set.default), ([1, 2, 3].as_slice(), crate::Policy::Drop));
}

#[test]
fn mistakes_of_included_files_are_told_with_them() {
    has(
        &[
            ("a.toml", "include = [\"b.toml\", \"gone.toml\"]\n[[rule]]\nid = 7\naction = \"drop\"\n"),
            ("b.toml", "default = 1\n\n[[rule]]\nid = 7\naction = \"drop\"\nport = \"x\"\n"),
        ],
        &[
            "a.toml:1:22: gone.toml cannot be read: No such file",
            "a.toml:2:1: id 7 is taken by the rule at b.toml:3:1",
            "b.toml:1:11: this is a number, not a string",
            "b.toml:6:8: 'x' is not a number",
        ],
    );
    has(
        &[("a.toml", "default = \"drop\"\ninclude = \"b.toml\"\n"), ("b.toml", "default = \"pass\"\n")],
        &["a.toml:1:11: b.toml:1:11 says otherwise"],
    );
    has(&[("a.toml", "include = \"a.toml\"\n")], &["a.toml:1:11: a.toml includes itself"]);
    has(
        &[("a.toml", "include = \"b.toml\"\n"), ("b.toml", "include = \"./a.toml\"\n")],
        &["b.toml:1:11: ./a.toml includes itself"],
    );
    has(&[("a.toml", "include = \".\"\n")], &["a.toml:1:11: . is a folder, not a file"]);
    has(&[("a.toml", "include = \"\"\n")], &["a.toml:1:11: the name of a file is missing"]);
    has(
        &[("a.toml", "include = [1, \"\\u0000\"]\n")],
        &["a.toml:1:12: this is a number", "a.toml:1:15: \\0 cannot be read"],
    );
    has(&[("a.toml", "x = 1\n"), ("b", "")], &["a.toml:1:1: unknown field 'x'"]);
}

#[test]
fn a_file_that_is_named_twice_is_read_once() {
    let list = "lists.far = [\"10.0.0.0/8\"]\n[[rule]]\nid = 1\nsrc = \"@far\"\naction = \"drop\"\n";
    let set = set(&[
        ("a.toml", "include = [\"b.toml\", \"c.toml\", \"./c.toml\"]\n"),
        ("b.toml", "include = \"c.toml\"\n"),
        ("c.toml", list),
    ]);
    assert_eq!(set.rules.len(), 1);
    // Each file includes the next: only the maximum number of files is read.
    let names: Vec<String> = (0..300).map(|number| format!("{number}.toml")).collect();
    let texts: Vec<String> = (1..=300).map(|next| format!("include = \"{next}.toml\"\n")).collect();
    let files: Vec<(&str, &str)> =
        names.iter().zip(&texts).map(|(name, text)| (name.as_str(), text.as_str())).collect();
    has(&files, &["255.toml:1:11: 256.toml is one file too many: 256 can be read"]);
}

#[test]
fn a_file_that_cannot_be_read_is_told() {
    let gone = RuleSet::read("/nowhere/rules.toml").expect_err("there is none").to_string();
    assert_eq!(gone, "/nowhere/rules.toml: cannot be read: No such file or directory (os error 2)");
    let folder = RuleSet::read("/").expect_err("a folder").to_string();
    assert_eq!(folder, "/: is a folder, not a file");
    let (_folder, set) = read(&[("a.toml", "")]);
    assert_eq!(set.expect("nothing is wrong with it"), RuleSet::default());
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("a.toml");
    fs::write(&path, b"default = \"pass\"\nx = \"\xff\"\n").expect("a file");
    assert!(RuleSet::read(&path).expect_err("not UTF-8").to_string().ends_with("is not UTF-8 in line 2"));
    fs::write(&path, b"\xef\xbb\xbfdefault = \"drop\"\r\n").expect("a file");
    RuleSet::read(&path).expect("a byte order mark and CR LF are no mistakes");
    // At most the maximum size of a rule file is read.
    let endless = RuleSet::read("/dev/zero").expect_err("it has no end").to_string();
    assert_eq!(endless, "/dev/zero: has more than 16 MiB");
}

#[test]
fn lists_of_addresses() {
    let plain =
        "# bad hosts\n10.0.0.1\n\n 10.0.0.2 ; SBL1\n192.0.2.0/24 # all of it\n2001:db8::1-2001:db8::3\n";
    let csv = "# made today\nname,ip\r\n\"a, b\",10.0.0.1\r\nc,\"10.0.0.2\"\n\n# later\nd, 192.0.2.0/24\ne,2001:db8::1-2001:db8::3\n";
    let set = set(&[
        (
            "a.toml",
            &format!(
                "lists.one = {{ file = \"lists/plain.txt\" }}\n\
                 lists.two = {{ file = \"lists/table.csv\", column = \"ip\" }}\n\
                 lists.three = {{ file = \"lists/rows.csv\" }}\n\
                 lists.four = {{ file = \"lists/rows.data\", column = 1 }}\n{}{}{}{}{}{}",
                rule(1, "src = \"@one\""),
                rule(2, "src = \"@two\""),
                rule(3, "src = \"@three\""),
                rule(4, "src = \"@four\""),
                rule(5, "src = \"@lists/plain.txt\""),
                rule(6, "src = [\"@./lists/rows.csv\", \"10.0.0.1\"]"),
            ),
        ),
        ("lists/plain.txt", plain),
        ("lists/table.csv", csv),
        ("lists/rows.csv", "10.0.0.1,x\n10.0.0.2\n192.0.2.0/24,y,z\n2001:db8::1-2001:db8::3\n"),
        ("lists/rows.data", "10.0.0.1,x\n10.0.0.2\n192.0.2.0/24,y,z\n2001:db8::1-2001:db8::3\n"),
    ]);
    for rule in &set.rules {
        let Test::Src(list) = &rule.conditions[0].test else { panic!("src") };
        assert_eq!(
            list.to_string(),
            "10.0.0.1-10.0.0.2, 192.0.2.0/24, 2001:db8::1-2001:db8::3",
            "rule {}",
            rule.id
        );
    }
}

#[test]
fn mistakes_in_lists_are_told_where_they_are() {
    let main = format!("lists.bad = {{ file = \"x.csv\", column = \"ip\" }}\n{}", rule(1, "src = \"@bad\""));
    has(
        &[("a.toml", &main), ("x.csv", "# c\nname,ip\n\n\"a,\n b\",10.0.0.256\nx\n# c\n\"ü\",::g\n")],
        &[
            "x.csv:5:5: '10.0.0.256' is not an address",
            "x.csv:6:2: there is no column 2 in this row",
            "x.csv:8:5: '::g' is not an address",
        ],
    );
    has(
        &[("a.toml", &main), ("x.csv", "# c\nname,adr\n")],
        &["x.csv:2:1: there is no column 'ip', but name, adr"],
    );
    has(&[("a.toml", &main), ("x.csv", "name,ip\n")], &["x.csv: has no address in it"]);
    has(&[("a.toml", &main), ("x.csv", "")], &["x.csv: has no address in it"]);
    has(&[("a.toml", &main)], &["a.toml:1:13: x.csv cannot be read"]);
    let main = rule(1, "src = \"@x.txt\"");
    has(
        &[("a.toml", &main), ("x.txt", "# ok\n10.0.0.1\n  host.example # no\n10.0.0.0/40;\n")],
        &["x.txt:3:3: 'host.example' is not an address", "x.txt:4:1: '40' is not a prefix length"],
    );
    has(&[("a.toml", &main), ("x.txt", "# nobody\n")], &["x.txt: has no address in it"]);
    has(&[("a.toml", &main), ("x.txt", "\"unended")], &["x.txt:1:1: '\\\"unended' is not an address"]);
}

#[test]
fn exact_rules_from_csv() {
    let set = set(&[
        (
            "a.toml",
            "[[exact]]\nfile = \"flows.csv\"\nid = 1000\naction = \"drop\"\nprotocol = \"udp\"\nidle = \"1m\"\n",
        ),
        (
            "flows.csv",
            "src, dst-port, action, id, vlan\n10.0.0.1,53,,,\n10.0.0.2,54,pass,2000,none\n# no rule\n2001:db8::1,55,count\n",
        ),
    ]);
    let told: Vec<String> = set
        .exact
        .iter()
        .map(|rule| format!("{} {} {} {}", rule.id, rule.fields, rule.action, rule.idle_s))
        .collect();
    assert_eq!(
        told,
        [
            "1000 src=10.0.0.1 dst-port=53 protocol=udp drop 60",
            "2000 src=10.0.0.2 dst-port=54 protocol=udp vlan=none pass 60",
            "2001 src=2001:db8::1 dst-port=55 protocol=udp count 60",
        ]
    );
    let main = "[[exact]]\nfile = \"x.csv\"\nid = 1\naction = \"drop\"\n";
    has(
        &[
            ("a.toml", main),
            ("x.csv", "src,dst\n10.0.0.1,10.0.0.2\n10.0.0.1,x,y\n10.0.0.1,10.0.0.2\n::1,10.0.0.1\n"),
        ],
        &[
            "x.csv:3:10: 'x' is not an address",
            "x.csv:3:12: there is no column for this",
            "x.csv:4:1: exactly these packets are taken by the rule at x.csv:2:1",
            "x.csv:5:1: no packet goes from ::1 to 10.0.0.1",
        ],
    );
    has(
        &[("a.toml", main), ("x.csv", "src,sorc,src,file,\n")],
        &[
            "x.csv:1:5: no field is called 'sorc'; did you mean 'src'?",
            "x.csv:1:10: there is a column 'src' already",
            "x.csv:1:14: no field is called 'file'; ",
            "x.csv:1:19: no field is called ''; expected one of id",
        ],
    );
    let wide = "src,".repeat(30);
    has(
        &[("a.toml", main), ("x.csv", &wide)],
        &["x.csv:1:1: there are 31 columns, more than a rule has fields"],
    );
    let long = format!("src\n10.0.0.1{}\n", ",1".repeat(300_000));
    has(&[("a.toml", main), ("x.csv", &long)], &["x.csv:2:10: there is no column for this"]);
    has(&[("a.toml", main), ("x.csv", "# nothing\n")], &["x.csv: is empty: the first row"]);
    has(
        &[("a.toml", "[[exact]]\nfile = \"x.csv\"\n"), ("x.csv", "src\n::1\n")],
        &["x.csv:2:1: the rule has no id"],
    );
}

#[test]
fn a_hundred_thousand_exact_rules() {
    let mut csv = String::from("src,dst\n");
    for number in 0..100_000u32 {
        csv.push_str(&format!("10.{}.{}.{},192.0.2.1\n", number >> 16, number >> 8 & 0xff, number & 0xff));
    }
    let set = set(&[("a.toml", "[[exact]]\nfile = \"x.csv\"\nid = 1\naction = \"drop\"\n"), ("x.csv", &csv)]);
    assert_eq!(set.exact.len(), 100_000);
    let last = ExactFields {
        src: Some("10.1.134.159".parse().expect("an address")),
        dst: Some("192.0.2.1".parse().expect("an address")),
        ..ExactFields::default()
    };
    assert_eq!((set.exact[99_999].id, set.exact[99_999].fields), (100_000, last));
}

#[test]
fn relative_names_hang_on_the_file_and_not_on_where_the_program_is() {
    let (folder, _) =
        read(&[("sub/a.toml", "include = \"b.toml\"\n"), ("sub/b.toml", "default = \"drop\"\n")]);
    let path: &Path = &folder.path().join("sub/../sub/a.toml");
    assert_eq!(RuleSet::read(path).expect("both are there").default, crate::Policy::Drop);
}
