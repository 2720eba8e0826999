//! Reads the files of a commit from the mirror without a work tree: one run of git lists them, and another reads the
//! contents of all wanted files.

use std::collections::HashMap;
use std::io;
use std::process::Stdio;

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};

use super::command::{Git, LOCAL_LIMIT, read_complaint};
use super::error::GitError;
use crate::margo::FILE_BYTES_MAX;
use crate::source::{Body, File, Tree, wants};

/// Largest total size of a commit's wanted files, in bytes.
pub(super) const TREE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Characters of an unexpected output that are shown.
const SHOWN_CHARS_MAX: usize = 100;
const LIST: &str = "list the files of the commit";
const READ: &str = "read the files of the commit";

const _: () = assert!(TREE_BYTES_MAX > FILE_BYTES_MAX as u64);

/// A line of the listing.
#[derive(Debug, PartialEq, Eq)]
struct ListedFile {
    path: String,
    kind: FileKind,
}

#[derive(Debug, PartialEq, Eq)]
enum FileKind {
    Wanted { object: String, bytes: u64 },
    Other(Body),
}

/// Reads the tree of a commit that the mirror has.
pub(super) async fn tree(git: &Git, mirror: &str, revision: &str) -> Result<Tree, GitError> {
    let args = [mirror, "ls-tree", "-r", "-l", "-z", "--full-tree", revision];
    let listing = git.run(LIST, LOCAL_LIMIT, args).await?;
    let listed: Vec<_> = parse(&listing)?;
    let contents = contents(git, mirror, &wanted(revision, &listed)?).await?;
    let file = |ListedFile { path, kind }: ListedFile| match kind {
        FileKind::Other(body) => Ok(File { path, body }),
        FileKind::Wanted { object, .. } => match contents.get(&object) {
            Some(text) => Ok(File { path, body: Body::Text(text.clone()) }),
            None => Err(unexpected(READ, format!("nothing for {path}").as_bytes())),
        },
    };
    let files = listed.into_iter().map(file).collect::<Result<_, _>>()?;
    Ok(Tree { revision: revision.to_owned(), files })
}

/// The objects to read, each once.
fn wanted(revision: &str, listed: &[ListedFile]) -> Result<Vec<String>, GitError> {
    let mut objects: HashMap<&str, u64> = HashMap::new();
    for line in listed {
        if let FileKind::Wanted { object, bytes } = &line.kind {
            objects.insert(object, *bytes);
        }
    }
    let bytes = objects.values().sum();
    if bytes > TREE_BYTES_MAX {
        return Err(GitError::TooMuch { revision: revision.to_owned(), bytes, limit: TREE_BYTES_MAX });
    }
    Ok(objects.into_keys().map(str::to_owned).collect())
}

/// Lines of `<mode> <type> <object> <size>\t<path>\0`.
fn parse(listing: &[u8]) -> Result<Vec<ListedFile>, GitError> {
    let lines = listing.split(|byte| *byte == 0).filter(|line| !line.is_empty());
    lines.map(|line| listed(line).ok_or_else(|| unexpected(LIST, line))).collect()
}

fn listed(line: &[u8]) -> Option<ListedFile> {
    let text = String::from_utf8_lossy(line);
    let (head, path) = text.split_once('\t')?;
    let mut head = head.split_ascii_whitespace();
    let (mode, _type, object, size) = (head.next()?, head.next()?, head.next()?, head.next()?);
    let kind = match mode {
        "120000" => FileKind::Other(Body::Link),
        "160000" => FileKind::Other(Body::Submodule),
        _ if wants(path) => match size.parse().ok()? {
            bytes if bytes > FILE_BYTES_MAX as u64 => FileKind::Other(Body::TooLong(bytes)),
            bytes => FileKind::Wanted { object: object.to_owned(), bytes },
        },
        _ => FileKind::Other(Body::Unread),
    };
    Some(ListedFile { path: path.to_owned(), kind })
}

/// The content of each object.
async fn contents(git: &Git, mirror: &str, objects: &[String]) -> Result<HashMap<String, Bytes>, GitError> {
    let mut run = git.start(READ, [mirror, "cat-file", "--batch"], Stdio::piped())?;
    let reading = run.within(LOCAL_LIMIT, async |child: &mut Child| {
        let (Some(stdin), Some(answer)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let complaints = child.stderr.take();
        let (asking, answering) = (write_requests(stdin, objects), read_answers(answer, objects.len()));
        let ((), contents, complaint) = tokio::try_join!(asking, answering, read_complaint(complaints))?;
        Ok((contents, complaint, child.wait().await?))
    });
    let (contents, complaint, status) = reading.await?;
    run.judge(status, &complaint)?;
    Ok(contents)
}

async fn write_requests(mut stdin: ChildStdin, objects: &[String]) -> io::Result<()> {
    for object in objects {
        stdin.write_all(format!("{object}\n").as_bytes()).await?;
    }
    stdin.shutdown().await
}

/// Reads answers of the form `<object> blob <size>\n<content>\n`.
async fn read_answers(answer: ChildStdout, count: usize) -> io::Result<HashMap<String, Bytes>> {
    let mut answer = BufReader::new(answer);
    let mut contents = HashMap::with_capacity(count);
    let mut line = String::new();
    for _ in 0..count {
        line.clear();
        answer.read_line(&mut line).await?;
        let mut words = line.split_ascii_whitespace();
        let (Some(object), Some("blob"), Some(size)) = (words.next(), words.next(), words.next()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("'{}'", line.trim_end())));
        };
        let size: Option<usize> = size.parse().ok().filter(|size| *size <= FILE_BYTES_MAX);
        let mut content = vec![0; size.ok_or(io::ErrorKind::InvalidData)? + 1];
        answer.read_exact(&mut content).await?;
        // The line end after the content.
        content.pop();
        contents.insert(object.to_owned(), content.into());
    }
    Ok(contents)
}

/// The error of an unexpected output, with its beginning.
pub(super) fn unexpected(what: &str, output: &[u8]) -> GitError {
    let output = String::from_utf8_lossy(output).chars().take(SHOWN_CHARS_MAX).collect();
    GitError::Unexpected { what: what.to_owned(), output }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_has_the_content_of_each_path() {
        let lines = [
            "100644 blob aa      12\tfleet/x.yaml",
            "100755 blob bb 5\tsites/a/b/run.sh",
            "120000 blob cc 4\tsites/a/link",
            "160000 commit dd -\tsites/sub",
            "100644 blob ee 9999999\tfleet/big.yaml",
        ];
        let listing = lines.map(|line| format!("{line}\0")).concat();
        let listed: Vec<_> =
            parse(listing.as_bytes()).unwrap().into_iter().map(|line| (line.path, line.kind)).collect();
        let other = |path: &str, body| (path.to_owned(), FileKind::Other(body));
        assert_eq!(
            listed,
            [
                ("fleet/x.yaml".to_owned(), FileKind::Wanted { object: "aa".to_owned(), bytes: 12 }),
                other("sites/a/b/run.sh", Body::Unread),
                other("sites/a/link", Body::Link),
                other("sites/sub", Body::Submodule),
                other("fleet/big.yaml", Body::TooLong(9_999_999)),
            ]
        );
        assert!(parse(b"what is this\0").is_err());
    }

    #[test]
    fn a_commit_has_a_size_limit() {
        let file = |at: u64| ListedFile {
            path: format!("fleet/{at}.yaml"),
            kind: FileKind::Wanted { object: at.to_string(), bytes: FILE_BYTES_MAX as u64 },
        };
        let files: Vec<_> = (0..=TREE_BYTES_MAX / FILE_BYTES_MAX as u64).map(file).collect();
        assert!(matches!(wanted("c", &files), Err(GitError::TooMuch { .. })));
        assert_eq!(wanted("c", &files[1..]).unwrap().len(), files.len() - 1);
    }
}
