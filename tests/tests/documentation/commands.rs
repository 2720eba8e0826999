//! Commands in pages: code blocks for a shell, and code spans that begin with one of our verbs. Programs are asked for their
//! own help, so that nothing here repeats their flags. Commands of others (git, docker, systemctl) are passed over.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::process::Command;

use muster_tests::system::{PROGRAMS, program};

use super::markdown::Page;
use super::repository;

/// Languages of code blocks that are read.
const SHELLS: [&str; 3] = ["sh", "bash", "console"];
/// Words that begin a span of code that is a command of Muster.
const OURS: [&str; 4] = ["muster ", "cargo ", "make ", ".ci/"];
/// Words before a command, with how many words of their own.
const BEFORE: [(&str, usize); 3] = [("sudo", 2), ("exec", 0), ("timeout", 1)];
/// Stands for whatever is left out.
const LEFT_OUT: char = '…';

/// Programs, subcommands, flags and targets that commands may name.
pub(crate) struct Known {
    help: RefCell<HashMap<String, String>>,
    makefile: String,
    packages: HashMap<String, String>,
    tests: BTreeSet<String>,
}

impl Known {
    pub(crate) fn read() -> Self {
        let name = |path: &String| {
            let manifest = repository::read(path);
            let name = manifest.lines().find_map(|line| line.strip_prefix("name = \""))?;
            Some((name.trim_end_matches('"').to_owned(), path.trim_end_matches("/Cargo.toml").to_owned()))
        };
        let manifests = repository::files("", "toml");
        let packages = manifests.iter().filter(|path| path.ends_with("/Cargo.toml")).filter_map(name);
        Self {
            help: RefCell::default(),
            makefile: repository::read("Makefile"),
            packages: packages.collect(),
            tests: super::lists::tests(),
        }
    }

    /// Names in the commands of a page that do not exist.
    pub(crate) fn wrong(&self, page: &Page) -> Vec<String> {
        let blocks = page.blocks.iter().filter(|block| SHELLS.contains(&block.language.as_str()));
        let lines = blocks.flat_map(|block| logical(&block.lines));
        let spans = page.spans().filter(|(_, span)| OURS.iter().any(|ours| span.starts_with(ours)));
        let spans = spans.map(|(at, span)| (at, span.to_owned()));
        let said = |(at, line): (usize, String)| {
            let wrong: Vec<String> = parts(&line).iter().filter_map(|words| self.judge(words)).collect();
            wrong.into_iter().map(move |wrong| format!("{}:{at}: {wrong}", page.path))
        };
        lines.chain(spans).collect::<Vec<_>>().into_iter().flat_map(said).collect()
    }

    /// The settings of a program, by the names of their variables.
    pub(crate) fn has_variable(&self, program: &str, variable: &str) -> bool {
        let help = self.help(&[program]).split_whitespace().collect::<Vec<_>>().join(" ");
        help.contains(&format!("[env: {variable}=")) || help.contains(&format!("[env: {variable}]"))
    }

    pub(crate) fn is_program(name: &str) -> bool {
        PROGRAMS.contains(&name)
    }

    /// Why a command cannot be meant; `None` where it can, or is nobody's of ours.
    fn judge(&self, words: &[String]) -> Option<String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if let Some(at) = words.windows(3).position(|three| three == ["run", "--rm", "muster"]) {
            return self.program("muster", &words[at + 3..]);
        }
        let (first, rest) = words.split_first()?;
        let name = first.rsplit('/').next().unwrap_or_default();
        match *first {
            "cargo" => self.cargo(rest),
            "make" => self.make(rest),
            script if script.starts_with(".ci/") => {
                (!repository::exists(script)).then(|| format!("there is no {script}"))
            }
            _ if name == "muster" || name.starts_with("muster-") => self.program(name, rest),
            _ => None,
        }
    }

    fn program(&self, name: &str, words: &[&str]) -> Option<String> {
        if !Self::is_program(name) {
            return Some(format!("there is no program {name}"));
        }
        let mut path = vec![name];
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            let help = self.help(&path);
            if word.contains(LEFT_OUT) {
                return None;
            } else if let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) {
                let (flag, value) =
                    flag.split_once('=').map_or((flag, None), |(flag, value)| (flag, Some(value)));
                if !has_flag(&help, flag) {
                    return Some(format!("{} has no --{flag}", path.join(" ")));
                }
                if value.is_none() && help.contains(&format!("--{flag} <")) {
                    words.next();
                }
            } else if let Some(short) = word.strip_prefix('-').filter(|short| !short.is_empty()) {
                if help.contains(&format!("-{short}, --")) && takes_value(&help, short) {
                    words.next();
                }
            } else if has_subcommands(&help) {
                if !is_subcommand(&help, word) && has_arguments(&help) {
                    // Like `muster why web` beside `muster why rollout web`: an argument, so no subcommand follows.
                    continue;
                }
                if !is_subcommand(&help, word) {
                    return Some(format!("{} has no subcommand {word}", path.join(" ")));
                }
                path.push(word);
            }
        }
        None
    }

    fn help(&self, path: &[&str]) -> String {
        let ask = || {
            let mut command = Command::new(program(path[0]));
            let output = command.args(&path[1..]).arg("--help").env("COLUMNS", "200").output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        self.help.borrow_mut().entry(path.join(" ")).or_insert_with(ask).clone()
    }

    fn make(&self, words: &[&str]) -> Option<String> {
        let wrong = |word: &&&str| match word.split_once('=') {
            Some((variable, _)) => !self.makefile.contains(&format!("\n{variable} ?=")),
            None => !word.starts_with('-') && !self.makefile.contains(&format!("\n{word}:")),
        };
        words.iter().find(wrong).map(|word| format!("the Makefile has no {word}"))
    }

    fn cargo(&self, words: &[&str]) -> Option<String> {
        let own = words.iter().position(|word| *word == "--").unwrap_or(words.len());
        let words = &words[..own];
        let after = |names: [&'static str; 2]| {
            words.windows(2).filter(move |pair| names.contains(&pair[0])).map(|pair| pair[1])
        };
        if let Some(package) = after(["-p", "--package"])
            .find(|name| !name.contains(LEFT_OUT) && !self.packages.contains_key(*name))
        {
            return Some(format!("there is no package {package}"));
        }
        for (flag, folder) in [("--test", "tests"), ("--bench", "benches"), ("--example", "examples")] {
            let gone = after([flag, flag]).find(|name| !self.has_target(folder, name));
            if let Some(name) = gone {
                return Some(format!("there is no {flag} {name}"));
            }
        }
        self.filter(words)
    }

    fn has_target(&self, folder: &str, name: &str) -> bool {
        let is_open = name.contains(['*', LEFT_OUT]) || name.chars().all(char::is_uppercase);
        let there = |package: &String| {
            let file = format!("{package}/{folder}/{name}");
            repository::exists(&format!("{file}.rs"))
                || repository::exists(&format!("{file}/main.rs"))
                || repository::exists(&format!("{package}/{name}/main.rs"))
        };
        is_open || self.packages.values().any(there)
    }

    /// The words by which nextest chooses tests: some test has each in its name.
    fn filter(&self, words: &[&str]) -> Option<String> {
        let ["nextest", "run", rest @ ..] = words else { return None };
        let is_value = |at: usize| at > 0 && rest[at - 1].starts_with('-') && rest[at - 1].len() > 1;
        let no_value = ["--workspace", "--no-capture", "--locked", "--no-fail-fast"];
        let bare = (0..rest.len()).filter(|at| {
            !rest[*at].starts_with('-') && (!is_value(*at) || no_value.contains(&rest[*at - 1]))
        });
        let unknown = |word: &&str| {
            !word.chars().all(char::is_uppercase) && !self.tests.iter().any(|test| test.contains(word))
        };
        bare.map(|at| rest[at]).find(unknown).map(|word| format!("no test has {word} in its name"))
    }
}

fn has_flag(help: &str, flag: &str) -> bool {
    let name = format!("--{flag}");
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
    ["help", "version"].contains(&flag)
        || help.match_indices(&name).any(|(at, _)| ends(&help[at + name.len()..]))
}

fn takes_value(help: &str, short: &str) -> bool {
    help.lines().any(|line| line.trim_start().starts_with(&format!("-{short}, --")) && line.contains('<'))
}

fn has_subcommands(help: &str) -> bool {
    help.lines().any(|line| line == "Commands:")
}

fn has_arguments(help: &str) -> bool {
    help.lines().any(|line| line == "Arguments:")
}

fn is_subcommand(help: &str, word: &str) -> bool {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    listed.take_while(|line| !line.is_empty()).any(|line| line.split_whitespace().next() == Some(word))
}

/// Lines of a block, with those joined that end with a backslash.
fn logical(lines: &[(usize, String)]) -> Vec<(usize, String)> {
    let mut joined: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (at, line) in lines {
        let (text, goes_on) = line.strip_suffix('\\').map_or((line.as_str(), false), |text| (text, true));
        match joined.last_mut() {
            Some((_, last)) if open => last.push_str(text),
            _ => joined.push((*at, text.to_owned())),
        }
        open = goes_on;
    }
    joined
}

/// The commands of a line, as words: without comments, quotes, variables set for one command, and what runs another command.
fn parts(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word = String::new();
    let mut quote = None;
    let end = |word: &mut String, commands: &mut Vec<Vec<String>>| {
        if !word.is_empty() {
            commands.last_mut().unwrap().push(std::mem::take(word));
        }
    };
    for c in line.chars() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => word.push(c),
            (None, '\'' | '"') => quote = Some(c),
            (None, '#') if word.is_empty() => break,
            (None, '|' | ';' | '&' | '(' | ')' | '<' | '>') => {
                end(&mut word, &mut commands);
                commands.push(Vec::new());
            }
            (None, _) if c.is_whitespace() => end(&mut word, &mut commands),
            (None, _) => word.push(c),
        }
    }
    end(&mut word, &mut commands);
    commands.into_iter().map(|words| plain(&words)).filter(|words| !words.is_empty()).collect()
}

fn plain(words: &[String]) -> Vec<String> {
    let mut words = words;
    loop {
        let Some(first) = words.first() else { return Vec::new() };
        let is_setting = first.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        });
        let own = BEFORE.iter().find(|(before, _)| before == first).map(|(_, own)| own + 1);
        let skipped = if is_setting { 1 } else { own.unwrap_or(0) };
        if skipped == 0 {
            return words.to_vec();
        }
        words = words.get(skipped..).unwrap_or_default();
    }
}
