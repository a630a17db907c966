//! Reads the user's input in `souffleur chat`: with a line editor on a terminal, else from stdin.
//!
//! Reading blocks, so a separate thread reads one line per request. Between requests the terminal has its normal mode,
//! in which Ctrl-C sends a signal.

use std::io::{self, BufRead, IsTerminal};
use std::sync::mpsc;
use std::thread;

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tokio::sync::mpsc as channel;

use crate::cli::failure::Failure;

const PROMPT: &str = "> ";
const CONTINUED_PROMPT: &str = "… ";

#[derive(Debug)]
pub enum Line {
    Text(String),
    /// The user pressed Ctrl-C while editing a line.
    Interrupted,
    End,
    Failed(String),
}

pub struct Lines {
    requests: mpsc::Sender<()>,
    lines: channel::UnboundedReceiver<Line>,
    has_editor: bool,
}

enum Source {
    Terminal(Box<DefaultEditor>),
    Stdin,
}

impl Lines {
    /// Starts the thread. Uses a line editor if stdin and stdout are terminals.
    pub fn start() -> Result<Self, Failure> {
        let has_editor = io::stdin().is_terminal() && io::stdout().is_terminal();
        let (requests, received) = mpsc::channel();
        let (sender, lines) = channel::unbounded_channel();
        let serve = move || {
            let mut source = Source::open(has_editor);
            for () in received {
                let line = match &mut source {
                    Ok(source) => source.read(),
                    Err(reason) => Line::Failed(reason.clone()),
                };
                if sender.send(line).is_err() {
                    return;
                }
            }
        };
        let spawned = thread::Builder::new().name("lines".to_owned()).spawn(serve);
        spawned.map_err(Failure::to("start the thread that reads input"))?;
        Ok(Self {
            requests,
            lines,
            has_editor,
        })
    }

    /// Whether a line editor is used: stdin and stdout are terminals.
    pub fn has_editor(&self) -> bool {
        self.has_editor
    }

    pub async fn next(&mut self) -> Line {
        match self.requests.send(()) {
            Ok(()) => self.lines.recv().await.unwrap_or(Line::End),
            Err(_) => Line::End,
        }
    }
}

impl Source {
    fn open(has_editor: bool) -> Result<Self, String> {
        if !has_editor {
            Ok(Self::Stdin)
        } else {
            let editor = DefaultEditor::new();
            let editor = editor.map_err(|error| format!("failed to open the terminal: {error}"))?;
            Ok(Self::Terminal(Box::new(editor)))
        }
    }

    fn read(&mut self) -> Line {
        match self {
            Self::Terminal(editor) => edited(editor),
            Self::Stdin => {
                let mut text = String::new();
                match io::stdin().lock().read_line(&mut text) {
                    Ok(0) => Line::End,
                    Ok(_) => Line::Text(text.trim_end_matches(['\n', '\r']).to_owned()),
                    Err(error) => Line::Failed(format!("failed to read stdin: {error}")),
                }
            }
        }
    }
}

/// Reads a line, and further lines while each ends with a backslash.
fn edited(editor: &mut DefaultEditor) -> Line {
    let mut text = String::new();
    loop {
        let prompt = if text.is_empty() {
            PROMPT
        } else {
            CONTINUED_PROMPT
        };
        match editor.readline(prompt) {
            Ok(line) => match line.strip_suffix('\\') {
                Some(line) => {
                    text.push_str(line);
                    text.push('\n');
                }
                None => {
                    text.push_str(&line);
                    if !text.trim().is_empty() {
                        let _ = editor.add_history_entry(text.as_str());
                    }
                    return Line::Text(text);
                }
            },
            Err(ReadlineError::Interrupted) => return Line::Interrupted,
            Err(ReadlineError::Eof) => return Line::End,
            Err(error) => return Line::Failed(format!("failed to read the terminal: {error}")),
        }
    }
}
